//! The loop over attempts.

use std::time::Duration;

use mcp_idempotent_core::{Action, IdempotencyKey};
use rmcp::model::CallToolResponse;
use tokio::time::{Instant, sleep};

use super::{
    attempt,
    call::Call,
    connect::{Attempt, Connect},
    error::{CallError, acts},
    failure::Failure,
    policy::RetryPolicy,
    refusal::ReceivedRefusal,
};

impl RetryPolicy {
    /// Calls a tool. Repeats the call within the bounds of this policy if that cannot run the tool
    /// twice. [The module's page](super) has the rules.
    ///
    /// One call of this method is one round: an answer that asks for input is returned to you, and
    /// you send the next round with the same [key](Call::key).
    ///
    /// Dropping the future cancels the attempt that is under way. The tool may have run.
    ///
    /// # Errors
    ///
    /// [`CallError`] says whether the tool may have run: there was no answer and a repeat is not
    /// safe, the bounds are reached, or the server answered with an error or a refusal that a
    /// repeat would not change.
    pub async fn call(
        &self,
        mut connect: impl Connect,
        call: Call,
    ) -> Result<CallToolResponse, CallError> {
        let started = Instant::now();
        let key = call.key().and_then(|key| IdempotencyKey::new(key).ok());
        let repeat = Repeat {
            is_keyed: call.is_keyed(),
            is_safe: call.is_safe(),
        };
        let params = call.into_params();
        let mut may_have_run = false;
        let mut after_answer = false;
        let mut number = 1;
        loop {
            let limit = self.attempt.min(self.remaining(started));
            let this = Attempt {
                number,
                after_answer,
            };
            let failure = match attempt::run(&mut connect, this, params.clone(), limit).await {
                Ok(response) => return Ok(response),
                Err(failure) => failure,
            };
            let pause = repeat
                .allowed_after(&failure)
                .then(|| asked_for(&failure).unwrap_or_else(|| self.pause(number)))
                .filter(|pause| number < self.attempts && *pause < self.remaining(started));
            let Some(pause) = pause else {
                return Err(CallError::new(failure, number, may_have_run, key));
            };
            tracing::debug!(
                attempt = number,
                pause_ms = pause.as_millis(),
                key = key.as_ref().map(IdempotencyKey::prefix),
                ?failure,
                "a tool call is repeated"
            );
            may_have_run |= acts(&failure);
            after_answer = failure.is_answer();
            sleep(pause).await;
            number += 1;
        }
    }

    fn remaining(&self, started: Instant) -> Duration {
        self.total.saturating_sub(started.elapsed())
    }
}

/// What makes a repeat harmless.
struct Repeat {
    is_keyed: bool,
    is_safe: bool,
}

impl Repeat {
    fn allowed_after(&self, failure: &Failure) -> bool {
        match failure {
            Failure::NotRun(_) => true,
            Failure::Lost { .. } => self.is_keyed || self.is_safe,
            // A refusal is one server's statement about one key. Without our own key it may be
            // about another call, whatever it says about the outcome.
            Failure::Refused(refusal) => {
                (self.is_keyed || self.is_safe) && asks_for_a_repeat(refusal)
            }
            // The server has answered, and would give the same answer again.
            Failure::Answered(_) | Failure::Unusable(_) => false,
        }
    }
}

const fn asks_for_a_repeat(refusal: &ReceivedRefusal) -> bool {
    matches!(refusal.action(), Action::RetrySameKey | Action::Wait)
}

/// How long the server asked us to wait.
fn asked_for(failure: &Failure) -> Option<Duration> {
    match failure {
        Failure::Refused(refusal) => refusal.retry_after(),
        Failure::Lost { retry_after, .. } => *retry_after,
        _ => None,
    }
}
