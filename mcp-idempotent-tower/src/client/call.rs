//! A call, and whether it can be repeated.

use std::borrow::Cow;

use mcp_idempotent_core::IdempotencyKey;
use rmcp::model::{CallToolRequestParams, Tool};
use serde_json::Value;

use super::key::{WithIdempotencyKey as _, carried, random_key};
use crate::wire;

/// A tool call for [`RetryPolicy::call`](super::RetryPolicy::call), and what is known about
/// repeating it.
#[derive(Debug, Clone)]
pub struct Call {
    params: CallToolRequestParams,
    keyed: Option<Keyed>,
    is_safe: bool,
}

#[derive(Debug, Clone)]
struct Keyed {
    /// Used if the call carries none. Made once, so that all attempts have the same.
    fresh: IdempotencyKey,
    argument: Option<Cow<'static, str>>,
}

impl Call {
    /// A call of a tool that you know to honour idempotency keys. A call without a key gets a fresh
    /// one in `_meta["idempotency-key"]`.
    ///
    /// A server that does not know keys ignores it, and a retry then runs the tool twice. If you
    /// are not sure, use [`Call::of`].
    #[must_use]
    pub fn keyed(params: CallToolRequestParams) -> Self {
        Self {
            params,
            keyed: Some(Keyed {
                fresh: random_key(),
                argument: None,
            }),
            is_safe: false,
        }
    }

    /// A call of a tool that may not honour keys. It is repeated only if a failure on the way to
    /// the server proves that it did not run, and never because of an answer. A key that it carries
    /// is sent but not relied on.
    #[must_use]
    pub fn unkeyed(params: CallToolRequestParams) -> Self {
        Self {
            params,
            keyed: None,
            is_safe: false,
        }
    }

    /// A call of `tool`, according to its entry in `tools/list`. It is keyed if the entry has the
    /// contract of this crate (in the argument that the contract names, if the call has it), and
    /// safe to repeat if the entry has `readOnlyHint`. That hint is only as reliable as the server.
    #[must_use]
    pub fn of(tool: &Tool, params: CallToolRequestParams) -> Self {
        let contract = tool.meta.as_ref().and_then(|meta| meta.get(wire::CONTRACT));
        let mut call = match contract.and_then(Value::as_object) {
            Some(contract) => {
                let call = Self::keyed(params);
                match contract.get("keyArgument").and_then(Value::as_str) {
                    Some(pointer) => call.with_key_argument(pointer.to_owned()),
                    None => call,
                }
            }
            None => Self::unkeyed(params),
        };
        let hints = tool.annotations.as_ref();
        call.is_safe = hints.is_some_and(|hints| hints.read_only_hint == Some(true));
        call
    }

    /// Names the argument in which this tool takes its key, as a JSON pointer. A call that has it
    /// gets no key in `_meta`. On an unkeyed call this has no effect.
    #[must_use]
    pub fn with_key_argument(mut self, pointer: impl Into<Cow<'static, str>>) -> Self {
        if let Some(keyed) = &mut self.keyed {
            keyed.argument = Some(pointer.into());
        }
        self
    }

    /// Declares that running this call twice does no harm. It is repeated after any lost answer,
    /// with or without a key.
    #[must_use]
    pub const fn with_repeats_assumed_safe(mut self) -> Self {
        self.is_safe = true;
        self
    }

    /// The key that every attempt carries. If you store it before the call, a program that restarts
    /// halfway can go on with it.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        let keyed = self.keyed.as_ref()?;
        match carried(&self.params, keyed.argument.as_deref()) {
            Some(value) => value.as_str(),
            None => Some(keyed.fresh.as_str()),
        }
    }

    pub(super) const fn is_keyed(&self) -> bool {
        self.keyed.is_some()
    }

    pub(super) const fn is_safe(&self) -> bool {
        self.is_safe
    }

    /// What is sent, in every attempt.
    pub(super) fn into_params(self) -> CallToolRequestParams {
        match self.keyed {
            Some(keyed) if carried(&self.params, keyed.argument.as_deref()).is_none() => {
                self.params.with_idempotency_key(&keyed.fresh)
            }
            _ => self.params,
        }
    }
}
