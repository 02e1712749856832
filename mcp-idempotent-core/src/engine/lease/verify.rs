//! Verifying a call in doubt with the author's own function.

use std::{fmt, panic::AssertUnwindSafe};

use bytes::Bytes;
use futures_util::{FutureExt as _, future::BoxFuture};
use tokio::time::timeout;

use super::{
    end_on_drop::{EndOnDrop, share_doubt},
    handle::LeaseHandle,
    lapse::NotCurrent,
};
use crate::{
    answer::{Answer, Replay},
    engine::{claimed_call::ClaimedCall, guard::GuardEnd},
    fingerprint::DownstreamKey,
    refusal,
    store::{LeaseEnd, Store},
    telemetry::{ObservedCall, Outcome},
};

/// What the author's function found out about a call in doubt.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the engine acts on each finding")]
pub enum Verdict {
    /// It took effect. These bytes are its result, as
    /// [`HandlerResult::encode`](crate::HandlerResult::encode) makes them. The result is recorded,
    /// and the caller gets it as a replay.
    Committed(Bytes),
    /// It took no effect, and never will. The handler runs now.
    NotCommitted,
    /// Not known yet. The call is not run, and a retry asks again.
    Unknown,
}

/// A call in doubt, as the author's function sees it.
#[derive(Debug, Clone)]
pub struct InDoubtCall {
    handle: LeaseHandle,
}

impl InDoubtCall {
    /// The key that earlier attempts passed on for this step.
    #[must_use]
    pub fn downstream_key(&self, step: &str) -> DownstreamKey {
        self.handle.downstream_key(step)
    }

    /// How many attempts there were before this one, whether they ran the handler or only verified.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.handle.number().saturating_sub(1)
    }
}

/// Asks the other side what became of a call in doubt. This happens under the call's lease, so that
/// no other process runs or verifies the call meanwhile. An earlier attempt that is still alive has
/// been fenced by then.
pub trait Verify: Send + Sync {
    /// Asks the other side. A panic, or an answer after
    /// [`Policy::verify_timeout`](crate::Policy::verify_timeout), counts as [`Verdict::Unknown`].
    fn verify<'a>(&'a self, call: &'a InDoubtCall) -> BoxFuture<'a, Verdict>;
}

/// How a call that was in doubt continues.
pub(super) enum Verified<S: Store> {
    Answer(Answer),
    Run(EndOnDrop<S>, Box<ClaimedCall>),
}

pub(super) async fn verify<S: Store>(
    verify: &dyn Verify,
    mut owned: EndOnDrop<S>,
    mut call: Box<ClaimedCall>,
    observed: &mut ObservedCall,
) -> Verified<S> {
    let in_doubt = InDoubtCall {
        handle: owned.handle(),
    };
    // The call of the function may panic too, before there is a future.
    let asked = AssertUnwindSafe(async { verify.verify(&in_doubt).await }).catch_unwind();
    let verdict = match timeout(call.policy.verify_timeout, asked).await {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(_)) => {
            tracing::error!("the function that verifies a call in doubt panicked");
            Verdict::Unknown
        }
        Err(_) => {
            tracing::warn!(
                timeout = ?call.policy.verify_timeout,
                "the function that verifies a call in doubt took too long"
            );
            Verdict::Unknown
        }
    };
    tracing::info!(
        verdict = match verdict {
            Verdict::Committed(_) => "committed",
            Verdict::NotCommitted => "not_committed",
            Verdict::Unknown => "unknown",
        },
        attempts = in_doubt.attempts(),
        "a call in doubt was verified"
    );
    let response = match verdict {
        // The finding is as old as the question. Meanwhile this process may have been frozen,
        // another attempt may have acted, or an operator may have resolved the call.
        Verdict::NotCommitted => match owned.handle().ensure_current().await {
            Ok(()) => {
                owned.in_doubt = false;
                if let Some(guard) = &mut call.guard {
                    guard.verified();
                }
                return Verified::Run(owned, call);
            }
            Err(NotCurrent::Fenced | NotCurrent::Completed) => {
                observed.note(Outcome::Fenced);
                return Verified::Answer(call.refuse(refusal::still_in_doubt()));
            }
            Err(NotCurrent::Unconfirmed(error)) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "a call in doubt is not run: the store could not confirm its lease"
                );
                None
            }
        },
        Verdict::Committed(response) => Some(response),
        Verdict::Unknown => None,
    };
    let Some(response) = response else {
        let _ = owned.abandon().await;
        share_doubt(*call, &owned);
        return Verified::Answer(refusal::still_in_doubt().into());
    };
    // A renewal that meets the completed record is no loss.
    owned.held.returned();
    Verified::Answer(match owned.complete(&call, &response).await {
        Ok(LeaseEnd::Done(at)) => {
            observed.note(Outcome::Verified);
            call.end_guard(GuardEnd::Completed).await;
            call.share(response.clone(), at);
            Answer::Replayed(Replay::new(response, Some(at), false))
        }
        Ok(LeaseEnd::Fenced) => {
            observed.note(Outcome::Fenced);
            call.refuse(refusal::still_in_doubt())
        }
        Err(error) => {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "the result of a verified call could not be recorded"
            );
            call.refuse(refusal::still_in_doubt())
        }
    })
}

impl fmt::Debug for dyn Verify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verify")
    }
}
