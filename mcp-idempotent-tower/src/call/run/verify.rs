//! Calls in doubt, and the author's function that finds out what became of them.

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use mcp_idempotent_core::{self as core, DownstreamKey, HandlerResult as _, ResultKind};
use rmcp::{handler::server::tool::IntoCallToolResult, model::JsonObject};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::call::{Object, ToolResult, result::Handled};

/// A call in doubt: an earlier attempt ended without telling whether it acted. Tool and arguments are
/// those of that attempt, except for ignored arguments, which may differ.
pub struct InDoubt<'a> {
    pub(in crate::call) doubt: &'a core::InDoubtCall,
    pub(in crate::call) tool: &'a str,
    pub(in crate::call) arguments: Option<&'a JsonObject>,
    pub(in crate::call) added_argument: Option<&'a str>,
}

impl InDoubt<'_> {
    /// The tool's name.
    #[must_use]
    pub const fn tool(&self) -> &str {
        self.tool
    }

    /// The call's arguments, as the tool's own parameters.
    ///
    /// # Errors
    ///
    /// They do not parse.
    pub fn parameters<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        let mut arguments = self.arguments.cloned().unwrap_or_default();
        if let Some(name) = self.added_argument {
            arguments.remove(name);
        }
        serde_json::from_value(Value::Object(arguments))
    }

    /// The key that earlier attempts sent for this step
    /// ([`Attempt::downstream_key`](crate::Attempt::downstream_key)).
    #[must_use]
    pub fn downstream_key(&self, step: &str) -> DownstreamKey {
        self.doubt.downstream_key(step)
    }

    /// How many attempts there have been.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.doubt.attempts()
    }
}

impl fmt::Debug for InDoubt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InDoubt")
            .field("tool", &self.tool)
            .field("attempts", &self.attempts())
            .finish_non_exhaustive()
    }
}

/// What the author's function found out about a call in doubt.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "there are these three")]
pub enum Verdict {
    /// It took effect, with this result. The result is recorded, and the caller gets it as a replay.
    /// [`Verdict::committed`] makes this from anything that a tool can return.
    Committed(Box<ToolResult>),
    /// It took no effect and will take none, so the tool runs now.
    NotCommitted,
    /// Not known yet. The tool does not run, and a retry asks again.
    Unknown,
}

impl Verdict {
    /// It took effect, with this result.
    #[must_use]
    pub fn committed(result: impl IntoCallToolResult) -> Self {
        Self::Committed(Box::new(result.into_call_tool_result()))
    }

    pub(in crate::call) fn into_core(self) -> core::Verdict {
        let result = match self {
            Self::Committed(result) => *result,
            Self::NotCommitted => return core::Verdict::NotCommitted,
            Self::Unknown => return core::Verdict::Unknown,
        };
        let handled = Handled::by_author(result);
        if !matches!(
            handled.kind(),
            ResultKind::Success | ResultKind::ErrorResult
        ) {
            tracing::error!(
                kind = ?handled.kind(),
                "a verify function reported a call as committed, with something that is not a result"
            );
            return core::Verdict::Unknown;
        }
        match handled.encode() {
            Ok(response) => core::Verdict::Committed(response),
            Err(error) => {
                tracing::error!(%error, "the result of a call in doubt could not be encoded");
                core::Verdict::Unknown
            }
        }
    }
}

/// What a verifying function can return.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say what became of a call in doubt",
    label = "expected `Verdict`, or a `Result` of one",
    note = "return `Verdict::committed(result)`, `Verdict::NotCommitted` or `Verdict::Unknown`; an error says that it is not known"
)]
pub trait IntoVerdict {
    /// The verdict. An error is logged and counts as [`Verdict::Unknown`].
    fn into_verdict(self) -> Verdict;
}

impl IntoVerdict for Verdict {
    fn into_verdict(self) -> Verdict {
        self
    }
}

impl<E: fmt::Display> IntoVerdict for Result<Verdict, E> {
    fn into_verdict(self) -> Verdict {
        self.unwrap_or_else(|error| {
            tracing::warn!(%error, "a call in doubt could not be verified");
            Verdict::Unknown
        })
    }
}

/// The future of a verdict.
pub type Verifying<'a> = Pin<Box<dyn Future<Output = Verdict> + Send + 'a>>;

/// The author's function for calls in doubt.
pub(crate) type VerifyFn<'s> = Arc<dyn for<'a> Fn(InDoubt<'a>) -> Verifying<'a> + Send + Sync + 's>;

/// The author's function, with the call to ask about.
pub(in crate::call) struct VerifyCall<'a> {
    pub(super) verify: &'a VerifyFn<'a>,
    pub(super) tool: &'a str,
    pub(super) arguments: Option<&'a Object>,
    pub(super) added_argument: Option<&'a str>,
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
