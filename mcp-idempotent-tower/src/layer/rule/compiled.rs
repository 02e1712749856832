//! A rule, checked and ready for calls.

use std::{sync::Arc, time::Duration};

use mcp_idempotent_core::{KeyRequirement, Policy, PolicyUse};
use rmcp::model::Tool;

use super::{Kind, Rule};
use crate::{
    call::{Classify, schema, verify::VerifyFn},
    idempotency::BuildError,
};

/// A rule, applied to the server's policy.
pub(in crate::layer) struct Compiled<S> {
    pub(in crate::layer) kind: Kind<S>,
    pub(in crate::layer) policy: Arc<Policy>,
    pub(in crate::layer) verify: Option<VerifyFn<'static>>,
    pub(in crate::layer) classify: Option<Arc<Classify>>,
    /// For tools that only read: only calls with an explicit key are protected.
    read_only: Arc<Policy>,
    property: Option<Box<str>>,
    /// No rule names the tool.
    pub(in crate::layer) by_default: bool,
}

impl<S> Compiled<S> {
    pub(in crate::layer) fn policy_for(&self, read_only: bool) -> &Arc<Policy> {
        if read_only {
            &self.read_only
        } else {
            &self.policy
        }
    }

    /// The name of the key argument, if the tool's own schema lacks it.
    pub(in crate::layer) fn added_argument(&self, tool: Option<&Tool>) -> Option<&str> {
        let property = self.property.as_deref()?;
        let schema = &tool?.input_schema;
        (!schema::has_property(schema, property)).then_some(property)
    }
}

impl<S> Rule<S> {
    /// Like [`compile`](Self::compile), for a rule that may apply to several tools.
    pub(in crate::layer) fn compile_for_many(
        self,
        whose: &str,
        base: &Policy,
        transaction_limit: Option<Duration>,
    ) -> Result<Compiled<S>, BuildError> {
        if self.policy.also_known_as.is_some() {
            return Err(BuildError::new(format!(
                "{whose}: an earlier name belongs to one tool; give that tool a rule of its own"
            )));
        }
        self.compile(whose, base, transaction_limit)
    }

    /// Applies the rule to the server's policy and checks the result; an error names the rule by
    /// `whose`.
    pub(in crate::layer) fn compile(
        mut self,
        whose: &str,
        base: &Policy,
        transaction_limit: Option<Duration>,
    ) -> Result<Compiled<S>, BuildError> {
        self.policy.key.get_or_insert(match base.key {
            KeyRequirement::Required => KeyRequirement::Required,
            _ => KeyRequirement::Explicit,
        });
        let of = match self.kind {
            Kind::Untouched => PolicyUse::Server,
            Kind::Transaction(_) => PolicyUse::Transaction,
            Kind::Lease => PolicyUse::Lease {
                can_verify: self.verify.is_some(),
            },
        };
        if self.classify.is_some() && !matches!(self.kind, Kind::Lease) {
            return Err(BuildError::new(format!(
                "{whose}: error results are classified in lease mode only; remove the classifier"
            )));
        }
        let policy = self
            .policy
            .for_tool(base, of, transaction_limit)
            .map_err(|error| error.of(whose))?;
        let property = policy.key_argument.as_deref().and_then(top_level_name);
        let mut read_only = policy.clone();
        read_only.key = KeyRequirement::Explicit;
        Ok(Compiled {
            kind: self.kind,
            policy: Arc::new(policy),
            verify: self.verify,
            classify: self.classify,
            read_only: Arc::new(read_only),
            property,
            by_default: false,
        })
    }
}

pub(in crate::layer) fn top_level_name(pointer: &str) -> Option<Box<str>> {
    let name = pointer.strip_prefix('/')?;
    (!name.contains('/')).then(|| name.replace("~1", "/").replace("~0", "~").into())
}

/// Whether a tool says that it only reads.
pub(in crate::layer) fn is_read_only(tool: Option<&Tool>) -> bool {
    tool.and_then(|tool| tool.annotations.as_ref())
        .and_then(|annotations| annotations.read_only_hint)
        .unwrap_or(false)
}
