//! The rules for a call.

use std::sync::Arc;

use mcp_idempotent_core::Policy;

use super::{
    reply::Reply,
    unused::Unused,
    verify::{VerifyCall, VerifyFn},
};
use crate::{Idempotency, call::Incoming};

/// The rules for a call.
pub(crate) struct Rules<'s, S> {
    pub(crate) idempotency: Idempotency<S>,
    pub(crate) policy: Arc<Policy>,
    /// Lease mode: the author's function for calls in doubt.
    pub(crate) verify: Option<VerifyFn<'s>>,
    /// The name of the key argument, if it was added to the tool's schema.
    pub(crate) added_argument: Option<Arc<str>>,
    /// Transaction mode: a handler that succeeds without taking the transaction is an error.
    pub(crate) must_write: bool,
    /// Transaction mode: notices such a handler otherwise.
    pub(crate) unused: Option<Arc<Unused>>,
    /// Whether the server lists the tool.
    pub(crate) is_listed: bool,
}

impl<S> Rules<'_, S> {
    pub(crate) fn take_argument<C: Incoming>(&self, call: &mut C) {
        if let Some(name) = &self.added_argument {
            call.remove_argument(name);
        }
    }

    /// The author's function for calls in doubt, with this call to ask about.
    pub(in crate::call) fn verify<'a>(&'a self, call: &'a impl Incoming) -> Option<VerifyCall<'a>> {
        Some(VerifyCall {
            verify: self.verify.as_ref()?,
            tool: call.tool(),
            arguments: call.arguments(),
            added_argument: self.added_argument.as_deref(),
        })
    }

    /// Tells the author's hook of a call that gets another one's result.
    pub(in crate::call) fn tell_of_replay<C: Incoming, R>(&self, call: &C, reply: &Reply<R>) {
        if let Reply::Replayed(replay) = reply
            && let Some(hook) = &self.idempotency.settings().on_replay
        {
            hook.tell(call, self.idempotency.scope(), replay);
        }
    }
}
