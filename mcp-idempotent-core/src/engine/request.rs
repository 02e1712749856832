//! One call, as it is handed to the engine.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use super::{flight::Round, lease::Verify};
use crate::{
    error::Refusal,
    fingerprint::{Identity, RecordId},
    policy::Policy,
    scope::Application,
    store::{CallInfo, Claim},
    telemetry::{Mode, ObservedCall},
};

/// Decides whether the caller may have an answer. It is asked before every new call, replay and
/// join (again when the join wakes). Checks inside a handler do not protect replays, because the
/// handler does not run for them.
pub trait Authorize: Send + Sync {
    /// Returns `Ok` if the caller may call the tool.
    ///
    /// # Errors
    ///
    /// The refusal for the caller. Nothing was run or changed.
    fn authorize<'a>(
        &'a self,
        call: &'a CallInfo,
    ) -> Pin<Box<dyn Future<Output = Result<(), Refusal>> + Send + 'a>>;
}

/// One call with an identity, as the engine sees it.
pub struct Request<'a> {
    pub(super) call: CallInfo,
    pub(super) identity: Identity,
    pub(super) policy: &'a Arc<Policy>,
    pub(super) round: Round,
    authorize: Option<&'a dyn Authorize>,
    pub(super) verify: Option<&'a dyn Verify>,
    tool_is_listed: bool,
    policy_is_checked: bool,
}

impl<'a> Request<'a> {
    /// The tool, and whose call it is.
    #[must_use]
    pub const fn call(&self) -> &CallInfo {
        &self.call
    }

    /// The record that the call belongs to.
    #[must_use]
    pub const fn record(&self) -> RecordId {
        self.identity.id
    }

    /// A call of the tool and scope in `call`, under `policy`.
    #[must_use]
    pub const fn new(call: CallInfo, identity: Identity, policy: &'a Arc<Policy>) -> Self {
        Self {
            call,
            identity,
            policy,
            round: None,
            authorize: None,
            verify: None,
            tool_is_listed: true,
            policy_is_checked: false,
        }
    }

    /// Says which round of a multi round-trip call this is.
    #[must_use]
    pub const fn with_round(mut self, round: Round) -> Self {
        self.round = round;
        self
    }

    /// Asks `authorize` before every answer.
    #[must_use]
    pub const fn with_authorize(mut self, authorize: &'a dyn Authorize) -> Self {
        self.authorize = Some(authorize);
        self
    }

    /// Asks `verify` about a call in doubt, if the policy says [`OnDoubt::Verify`](crate::OnDoubt).
    /// Without it such a call is refused, as under [`OnDoubt::Fail`](crate::OnDoubt).
    #[must_use]
    pub const fn with_verify(mut self, verify: &'a dyn Verify) -> Self {
        self.verify = Some(verify);
        self
    }

    /// Says that the server does not list this tool. Its name is then kept out of the metrics, so
    /// that a client cannot create new time series by calling made-up names.
    #[must_use]
    pub const fn with_unlisted_tool(mut self) -> Self {
        self.tool_is_listed = false;
        self
    }

    /// Says that the policy has passed [`Policy::check`] for this engine's store. Without this, the
    /// engine checks at each call what the store and the heartbeat rely on.
    #[must_use]
    pub const fn with_checked_policy(mut self) -> Self {
        self.policy_is_checked = true;
        self
    }

    pub(super) fn check_policy(&self, transaction_limit: Option<Duration>) -> Result<(), Refusal> {
        if self.policy_is_checked {
            return Ok(());
        }
        self.policy.check_times(transaction_limit).map_err(|error| {
            let tool = &*self.call.tool;
            tracing::error!(tool, %error, "a call was refused because the policy of its tool is not valid");
            error.into()
        })
    }

    pub(super) fn observe(&self, application: &Application, mode: Mode) -> ObservedCall {
        ObservedCall::start(
            application,
            &self.call.tool,
            self.tool_is_listed,
            Some(&self.identity),
            Some(mode),
        )
    }
}

impl std::fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request")
            .field("call", &self.call)
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

impl Request<'_> {
    /// Checks whether the caller may have an answer.
    pub(super) async fn check(&self) -> Result<(), Refusal> {
        match self.authorize {
            Some(authorize) => authorize.authorize(&self.call).await,
            None => Ok(()),
        }
    }

    pub(super) fn claim(&self, application: &Application) -> Claim {
        let Identity {
            id, fingerprint, ..
        } = self.identity;
        let mut claim = Claim::new(id, fingerprint, self.call.clone());
        claim.application = Some(application.clone());
        claim.key_prefix.clone_from(&self.identity.key_prefix);
        claim.on_expired = self.policy.on_expired;
        claim.lease = self.policy.lease;
        claim.in_doubt_retention = self.policy.in_doubt_retention;
        claim
    }
}
