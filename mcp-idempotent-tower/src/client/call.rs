//! A call, and what is known about repeating it.

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
    /// Used where the call carries none. Made once, so that all attempts have the same.
    fresh: IdempotencyKey,
    argument: Option<Cow<'static, str>>,
}

impl Call {
    /// A call of a tool that honours idempotency keys, by the caller's word. A call that carries no
    /// key gets a fresh one in `_meta["idempotency-key"]`.
    ///
    /// A server that knows no keys ignores it, and a retry then runs the tool twice: where it is
    /// not certain, use [`Call::of`].
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

    /// A call of a tool that is not known to honour keys. It is repeated only where a failure on the
    /// way to the server proves that it did not run, never for what a server answers. A key that it
    /// carries is sent, and not relied on.
    #[must_use]
    pub fn unkeyed(params: CallToolRequestParams) -> Self {
        Self {
            params,
            keyed: None,
            is_safe: false,
        }
    }

    /// A call of `tool`, as its entry in `tools/list` tells: keyed where the entry has the contract
    /// of this crate (in the argument that the contract names, if the call has it), and safe to
    /// repeat where the entry has `readOnlyHint`. The hint is worth what the server's word is worth.
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
    /// gets no key in `_meta`. Nothing for an unkeyed call.
    #[must_use]
    pub fn with_key_argument(mut self, pointer: impl Into<Cow<'static, str>>) -> Self {
        if let Some(keyed) = &mut self.keyed {
            keyed.argument = Some(pointer.into());
        }
        self
    }

    /// Says that running this call twice does no harm: it is repeated after any lost answer, with
    /// or without a key.
    #[must_use]
    pub const fn with_repeats_assumed_safe(mut self) -> Self {
        self.is_safe = true;
        self
    }

    /// The key that every attempt carries. Write it down before the call, and a program that was
    /// restarted in the middle can go on with it.
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
