//! What a relay does with a call: pass it on, or protect it, and how.

use std::{sync::Arc, time::Duration};

use mcp_idempotent_core::{KeyRequirement, OnDoubt, OnError, Policy, PolicyOverride, PolicyUse};

use super::settings::{Derive, RelaySettings, ServerError};
use crate::idempotency::BuildError;

/// What the server says about a tool: nothing, if it does not list the tool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Hints {
    pub(super) is_listed: bool,
    pub(super) read_only: Option<bool>,
    pub(super) destructive: Option<bool>,
    pub(super) idempotent: Option<bool>,
    /// It recognises retries itself: its entry has the contract of this crate.
    pub(super) is_protected: bool,
}

/// What the server's answers are worth.
#[derive(Debug, Clone, Copy)]
pub(super) struct Believed {
    pub(super) server_error: ServerError,
    /// The tool recognises retries itself, so a refusal is its own. Any other tool passes on what
    /// another server said, and may have acted.
    pub(super) refusals: bool,
}

impl Believed {
    pub(super) const fn of(tool: Hints, settings: &RelaySettings) -> Self {
        Self {
            server_error: settings.server_error,
            refusals: tool.is_protected,
        }
    }
}

const KEYS: [KeyRequirement; 3] = [
    KeyRequirement::Derived,
    KeyRequirement::Explicit,
    KeyRequirement::Required,
];
const DOUBTS: [OnDoubt; 2] = [OnDoubt::Fail, OnDoubt::Rerun];

/// The policies that a tool can have.
#[derive(Debug)]
pub(super) struct Policies {
    base: Arc<Policy>,
    policies: Vec<Arc<Policy>>,
}

impl Policies {
    /// # Errors
    ///
    /// The server's policy is not valid for a relay, or a rule asks it to verify.
    pub(super) fn new(
        base: &Arc<Policy>,
        settings: &RelaySettings,
        transaction_limit: Option<Duration>,
    ) -> Result<Self, BuildError> {
        let doubts = settings.tools.values().map(|rule| rule.on_doubt);
        let mut doubts = doubts.chain([settings.on_doubt]).flatten();
        if doubts.any(|on_doubt| !DOUBTS.contains(&on_doubt)) {
            return Err(BuildError::new(
                "a relay has no function to ask about a call in doubt; choose OnDoubt::Fail or OnDoubt::Rerun"
                    .to_owned(),
            ));
        }
        let of = PolicyUse::Lease { can_verify: false };
        let mut policies = Vec::new();
        for key in KEYS {
            for on_doubt in DOUBTS {
                let rule = PolicyOverride {
                    key: Some(key),
                    on_doubt: Some(on_doubt),
                    // The relay says itself what each answer of the server means.
                    on_error: Some(OnError::InDoubt),
                    ..PolicyOverride::NONE
                };
                let policy = rule
                    .for_tool(base, of, transaction_limit)
                    .map_err(|error| error.of("the relay"))?;
                policies.push(Arc::new(policy));
            }
        }
        Ok(Self {
            base: Arc::clone(base),
            policies,
        })
    }

    pub(super) fn key_argument(&self) -> Option<&str> {
        self.base.key_argument.as_deref()
    }

    /// The policy of a call, or `None` if it passes.
    pub(super) fn policy(
        &self,
        settings: &RelaySettings,
        tool: &str,
        hints: Hints,
        has_key: bool,
    ) -> Option<&Arc<Policy>> {
        let rule = settings.tools.get(tool).copied().unwrap_or_default();
        let is_read_only = hints.read_only == Some(true);
        let derives = match settings.derive {
            Derive::All => true,
            Derive::Annotated => hints.read_only == Some(false) || hints.destructive == Some(true),
            Derive::None => false,
        };
        let key = rule.key.unwrap_or(match self.base.key {
            _ if is_read_only => KeyRequirement::Explicit,
            KeyRequirement::Derived if !derives => KeyRequirement::Explicit,
            key => key,
        });
        if rule.passes || key == KeyRequirement::Explicit && !has_key {
            return None;
        }
        let on_doubt = rule.on_doubt.or(settings.on_doubt);
        let on_doubt = on_doubt.unwrap_or(match hints.idempotent {
            Some(true) => OnDoubt::Rerun,
            _ => OnDoubt::Fail,
        });
        self.policies
            .iter()
            .find(|policy| policy.key == key && policy.on_doubt == on_doubt)
    }
}

#[cfg(test)]
mod tests {
    use super::super::settings::ToolRule;
    use super::*;

    fn decided(
        settings: &RelaySettings,
        hints: Hints,
        has_key: bool,
    ) -> Option<(KeyRequirement, OnDoubt)> {
        let policies = Policies::new(&Arc::default(), settings, None).unwrap();
        let policy = policies.policy(settings, "tool", hints, has_key)?;
        Some((policy.key, policy.on_doubt))
    }

    #[test]
    fn annotations_decide_unless_a_rule_names_the_tool() {
        use KeyRequirement::{Derived, Explicit, Required};
        use OnDoubt::{Fail, Rerun};
        let none = Hints::default();
        let reads = Hints {
            read_only: Some(true),
            ..none
        };
        let writes = Hints {
            read_only: Some(false),
            ..none
        };
        let destroys = Hints {
            destructive: Some(true),
            ..none
        };
        let repeats = Hints {
            idempotent: Some(true),
            ..none
        };
        let of = |derive| RelaySettings {
            derive,
            ..RelaySettings::default()
        };
        let ruled = |rule| RelaySettings {
            tools: [("tool".to_owned(), rule)].into(),
            ..RelaySettings::default()
        };
        let rule = ToolRule::default();
        for (settings, hints, has_key, expected) in [
            (of(Derive::All), none, false, Some((Derived, Fail))),
            (of(Derive::All), repeats, false, Some((Derived, Rerun))),
            (of(Derive::All), reads, false, None),
            (of(Derive::All), reads, true, Some((Explicit, Fail))),
            (of(Derive::Annotated), none, false, None),
            (of(Derive::Annotated), none, true, Some((Explicit, Fail))),
            (of(Derive::Annotated), writes, false, Some((Derived, Fail))),
            (
                of(Derive::Annotated),
                destroys,
                false,
                Some((Derived, Fail)),
            ),
            (of(Derive::None), writes, false, None),
            (
                ruled(ToolRule {
                    passes: true,
                    ..rule
                }),
                none,
                true,
                None,
            ),
            (
                ruled(ToolRule {
                    key: Some(Derived),
                    ..rule
                }),
                reads,
                false,
                Some((Derived, Fail)),
            ),
            (
                ruled(ToolRule {
                    key: Some(Required),
                    ..rule
                }),
                none,
                false,
                Some((Required, Fail)),
            ),
            (
                ruled(ToolRule {
                    on_doubt: Some(Fail),
                    ..rule
                }),
                repeats,
                false,
                Some((Derived, Fail)),
            ),
        ] {
            assert_eq!(
                decided(&settings, hints, has_key),
                expected,
                "{settings:?} {hints:?}"
            );
        }
    }
}
