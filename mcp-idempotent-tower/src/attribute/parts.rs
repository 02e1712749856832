//! Moves a tool's call out of rmcp's context before the claim, and back for the author's extractors.

use std::fmt;

use rmcp::{
    ErrorData,
    handler::server::{
        common::FromContextPart,
        tool::{IntoCallToolResult, ToolCallContext},
    },
};

use crate::call::{ToolCall, result::Handled};

/// The whole call, as the first parameter of the wrapper.
#[derive(Debug)]
pub struct Call(pub(super) ToolCall);

impl<S> FromContextPart<ToolCallContext<'_, S>> for Call {
    fn from_context_part(context: &mut ToolCallContext<'_, S>) -> Result<Self, ErrorData> {
        Ok(Self(ToolCall::take(context)))
    }
}

impl Call {
    /// Puts the call back together, for the extractors of the author's own parameters.
    pub fn into_parts<S>(self, server: &S) -> Parts<'_, S> {
        let ToolCall {
            params, context, ..
        } = self.0;
        Parts(ToolCallContext::new(server, params, context))
    }
}

/// What the author's extractors take their values from, in the order of the parameters.
pub struct Parts<'a, S>(ToolCallContext<'a, S>);

impl<'a, S> Parts<'a, S> {
    /// The value of one parameter.
    ///
    /// # Errors
    ///
    /// The extractor refused the call. The author's function is not called.
    pub fn extract<T: FromContextPart<ToolCallContext<'a, S>>>(&mut self) -> Result<T, NotCalled> {
        T::from_context_part(&mut self.0).map_err(NotCalled)
    }
}

impl<S> fmt::Debug for Parts<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Parts").field(&self.0.name).finish()
    }
}

/// An extractor refused the call.
#[derive(Debug)]
pub struct NotCalled(ErrorData);

/// How the author's function ended.
#[derive(Debug)]
pub struct Outcome(Handled);

impl Outcome {
    /// The author's function returned.
    ///
    /// # Errors
    ///
    /// None. The expansion needs the same type as for a call whose extractors fail.
    pub fn returned(result: impl IntoCallToolResult) -> Result<Self, NotCalled> {
        Ok(Self(Handled::by_author(result.into_call_tool_result())))
    }
}

pub(super) fn handled(called: Result<Outcome, NotCalled>) -> Handled {
    match called {
        Ok(Outcome(handled)) => handled,
        Err(NotCalled(error)) => Handled::not_called(error),
    }
}
