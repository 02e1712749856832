//! The relay that users hold, and the one path that its calls take.

use std::{fmt, sync::Arc};

use futures_util::future::BoxFuture;
use mcp_idempotent_core::{Policy, Store};

use super::{
    answer::{self, Answered, Outgoing},
    call::{Caller, RelayedCall},
    replay,
    rule::{Hints, Policies},
    settings::RelaySettings,
};
use crate::{
    Idempotency,
    call::{
        reader::Reader,
        reply::{Recorded, Reply},
        rules::Rules,
        run,
    },
    idempotency::BuildError,
};

/// Stands between a client and a server, and protects the tool calls of a server that knows nothing
/// of it. See the [module](super). Cheap to clone; clones share everything.
pub struct Relay<S> {
    pub(super) idempotency: Idempotency<S>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    settings: RelaySettings,
    policies: Policies,
    run_id: Arc<str>,
}

/// Sends a call to the server, and waits for its answer.
pub(super) type Forward = Box<dyn FnOnce(RelayedCall) -> BoxFuture<'static, Answered> + Send>;

impl<S: Store> Relay<S> {
    /// A relay that keeps its records in `idempotency`.
    ///
    /// # Errors
    ///
    /// - A setting is not valid: a run id that is empty or has white space, a rule that asks to
    ///   verify, or a policy that [`Policy::check`] refuses for lease mode.
    /// - The scope or permission of a call would have to come from a function that needs rmcp
    ///   (`with_scope_from`, `with_authorize`).
    pub fn new(idempotency: Idempotency<S>, settings: RelaySettings) -> Result<Self, BuildError> {
        if idempotency.scope().needs_rmcp() || idempotency.settings().authorize.is_some() {
            return Err(BuildError::new(
                "a relay's calls do not come through rmcp, so `with_scope_from` and `with_authorize` cannot be asked about them; use `with_scope_from_http`, `with_one_caller` or `with_fixed_scope`"
                    .to_owned(),
            ));
        }
        let run_id = match &settings.run_id {
            Some(id) if id.is_empty() || id.contains(char::is_whitespace) => {
                return Err(BuildError::new(format!(
                    "{id:?} is not a run id; write one word, such as \"desk-1\""
                )));
            }
            Some(id) => id.clone(),
            None => super::upstream::random_name(),
        };
        let limit = idempotency.store().transaction_limit();
        let policies = Policies::new(&idempotency.settings().policy, &settings, limit)?;
        Ok(Self {
            idempotency,
            shared: Arc::new(Shared {
                settings,
                policies,
                run_id: run_id.into(),
            }),
        })
    }

    pub(super) fn settings(&self) -> &RelaySettings {
        &self.shared.settings
    }

    pub(super) fn key_argument(&self) -> Option<&str> {
        self.shared.policies.key_argument()
    }

    /// A caller without an HTTP head.
    pub(super) fn caller(&self) -> Caller {
        Caller {
            run_id: Arc::clone(&self.shared.run_id),
            head: None,
        }
    }

    /// The policy of a call, or `None` if it passes.
    pub(super) fn policy(&self, call: &RelayedCall, hints: Hints) -> Option<&Arc<Policy>> {
        let Shared {
            settings, policies, ..
        } = &*self.shared;
        policies.policy(settings, &call.tool, hints, call.has_key())
    }

    /// Who reads the answer to a call.
    pub(super) fn reader(&self, call: &RelayedCall, policy: Option<&Arc<Policy>>) -> Reader {
        let form = self.idempotency.settings().refusal_form;
        Reader {
            policy: policy.cloned(),
            ..Reader::of_any_tool(form, call.key_maker)
        }
    }

    /// The answer to a protected call, under its own id. It runs once, is joined, or is answered
    /// from its record.
    pub(super) async fn answer(
        &self,
        call: RelayedCall,
        policy: &Arc<Policy>,
        hints: Hints,
        forward: Forward,
    ) -> Outgoing {
        let (id, reader) = (call.id.clone(), self.reader(&call, Some(policy)));
        let rules = Rules {
            idempotency: self.idempotency.clone(),
            policy: Arc::clone(policy),
            verify: None,
            added_argument: None,
            must_write: false,
            unused: None,
            is_listed: hints.is_listed,
        };
        let reply = run::under_lease(rules, Box::new(call), |call, _| forward(call)).await;
        let announce = self.idempotency.settings().announce_replays;
        let told = |answered: Answered| answered.for_caller(&id, &reader);
        match reply {
            Reply::Ran(own) => {
                let is_refusal = own.result.is_refusal();
                let outgoing = told(own.result);
                let outgoing = match own.record {
                    Recorded::AsPlanned => outgoing,
                    Recorded::Not => outgoing.map(replay::unrecorded),
                    // It says so itself.
                    Recorded::InDoubt(_) if is_refusal => outgoing,
                    Recorded::InDoubt(refusal) => {
                        outgoing.map(|answer| replay::left_in_doubt(answer, &refusal, &reader))
                    }
                };
                match own.rotated {
                    Some(rotated) => {
                        outgoing.map(|answer| replay::rotated(answer, rotated, announce))
                    }
                    None => outgoing,
                }
            }
            Reply::Replayed(replay) => replay::replayed(&replay, &id, &reader, announce).into(),
            Reply::Refused(refusal) => answer::refused(&refusal, &id, &reader).into(),
        }
    }
}

impl<S> Clone for Relay<S> {
    fn clone(&self) -> Self {
        Self {
            idempotency: self.idempotency.clone(),
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<S> fmt::Debug for Relay<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay")
            .field("idempotency", &self.idempotency)
            .field("settings", &self.shared.settings)
            .finish_non_exhaustive()
    }
}
