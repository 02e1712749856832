//! How an attempt failed, and what that proves.

use std::{error::Error as StdError, time::Duration};

use rmcp::{ErrorData, model::CallToolResult, service::ServiceError};

use super::refusal::ReceivedRefusal;

/// How an attempt ended without a result.
#[derive(Debug)]
pub(super) enum Failure {
    /// This failure proves that the server did not run the call.
    NotRun(Box<dyn StdError + Send + Sync>),
    /// The call was handed to the transport, and there is no answer.
    Lost {
        error: ServiceError,
        retry_after: Option<Duration>,
    },
    /// The server refused the call because of its key.
    Refused(ReceivedRefusal),
    /// The server answered with another error.
    Answered(ErrorData),
    /// The server answered with something that is not a tool result.
    Unusable(ServiceError),
}

impl Failure {
    /// Whether the server answered.
    pub(super) const fn is_answer(&self) -> bool {
        matches!(
            self,
            Self::Refused(_) | Self::Answered(_) | Self::Unusable(_)
        )
    }

    /// From the error that rmcp's client returned for a request that it had taken.
    pub(super) fn of(error: ServiceError) -> Self {
        match error {
            ServiceError::McpError(error) => match ReceivedRefusal::from_error(&error) {
                Some(refusal) => Self::Refused(refusal),
                None => Self::Answered(error),
            },
            ServiceError::TransportSend(error) => {
                let facts = Facts::of(error.error.as_ref());
                if facts.is_not_run {
                    Self::NotRun(error.error)
                } else {
                    Self::Lost {
                        error: ServiceError::TransportSend(error),
                        retry_after: facts.retry_after,
                    }
                }
            }
            error => Self::Lost {
                error,
                retry_after: None,
            },
        }
    }

    /// A refusal that the server gave as a tool result.
    pub(super) fn in_result(result: &CallToolResult) -> Option<Self> {
        ReceivedRefusal::from_result(result).map(Self::Refused)
    }
}

/// What an error of a transport tells us.
#[derive(Debug, Default)]
struct Facts {
    is_not_run: bool,
    retry_after: Option<Duration>,
}

impl Facts {
    #[cfg(not(feature = "client-reqwest"))]
    fn of(_: &(dyn StdError + 'static)) -> Self {
        Self::default()
    }

    #[cfg(feature = "client-reqwest")]
    fn of(error: &(dyn StdError + 'static)) -> Self {
        use rmcp::transport::streamable_http_client::StreamableHttpError as Http;

        match error.downcast_ref::<Http<reqwest::Error>>() {
            // Both mean that the call itself got a 404: rmcp reconnects only then.
            Some(Http::SessionExpired | Http::ReinitializationFailed(_)) => Self {
                is_not_run: true,
                retry_after: None,
            },
            // There was no connection, so nothing was written.
            Some(Http::Client(error)) => Self {
                is_not_run: error.is_connect(),
                retry_after: None,
            },
            Some(Http::HttpStatus(status)) => Self {
                is_not_run: false,
                retry_after: status
                    .retry_after
                    .as_deref()
                    .and_then(|seconds| seconds.trim().parse().ok())
                    .map(Duration::from_secs),
            },
            _ => Self::default(),
        }
    }
}
