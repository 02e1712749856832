//! The author's function for calls in doubt, as the engine asks it.

use std::{future::Future, pin::Pin};

use mcp_idempotent_core as core;

use super::{
    doubt::{InDoubt, VerifyFn},
    rules::Rules,
};
use crate::call::{Incoming, Object};

/// The author's function, with the call to ask about.
pub(in crate::call) struct VerifyCall<'a> {
    verify: &'a VerifyFn<'a>,
    tool: &'a str,
    arguments: Option<&'a Object>,
    added_argument: Option<&'a str>,
}

impl<'a> VerifyCall<'a> {
    pub(in crate::call) fn of<S>(rules: &'a Rules<'a, S>, call: &'a impl Incoming) -> Option<Self> {
        Some(Self {
            verify: rules.verify.as_ref()?,
            tool: call.tool(),
            arguments: call.arguments(),
            added_argument: rules.added_argument.as_deref(),
        })
    }
}

impl core::Verify for VerifyCall<'_> {
    fn verify<'a>(
        &'a self,
        doubt: &'a core::InDoubtCall,
    ) -> Pin<Box<dyn Future<Output = core::Verdict> + Send + 'a>> {
        let call = InDoubt {
            doubt,
            tool: self.tool,
            arguments: self.arguments,
            added_argument: self.added_argument,
        };
        Box::pin(async move { (self.verify)(call).await.into_core() })
    }
}
