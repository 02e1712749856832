//! What can be observed of a call: one tracing span, and metrics.
//!
//! The span is called [`SPAN`] and has level `INFO`. Its fields are `tool`, `application`, `mode`,
//! `key_kind`, `key_prefix` (at most 8 characters of an explicit key), `record` (the first 8 hex
//! digits of the record's id) and, once the call has ended, `outcome`. All events of a call are
//! inside it, the handler's own included. It never contains arguments, scopes, results, secrets, or
//! a whole key longer than 8 characters.
//!
//! With the feature `metrics`, calls are also counted and timed through the `metrics` facade, for
//! any recorder that the program installs. Install it before the first call. Names and labels are
//! stable; `docs/operating.md` has them as tables.

#[cfg(feature = "metrics")]
mod metered;
mod name;
mod outcome;
#[cfg(not(feature = "metrics"))]
mod unmetered;

use std::{fmt, sync::Arc};

use tracing::{Span, field};

#[cfg(feature = "metrics")]
pub use self::metered::describe;
#[cfg(not(feature = "metrics"))]
use self::unmetered as metered;
use self::{metered::Meter, outcome::of_refusal};
pub use self::{name::*, outcome::Outcome};
use crate::{
    answer::Answer,
    error::Refusal,
    fingerprint::{Identity, KeyKind, RecordId},
    handler_result::ResultKind,
    scope::Application,
};

pub use self::metered::Timer;
pub(crate) use self::metered::{Sweep, in_doubt, lease_lost, renewal_failed};

/// How a call's effect is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are these two")]
pub enum Mode {
    /// The effect commits together with the record.
    Transaction,
    /// The effect is outside the store.
    Lease,
}

impl Mode {
    /// The word in the span and in a tool's contract.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Transaction => "transaction",
            Self::Lease => "lease",
        }
    }
}

/// One call, from its beginning to its answer. If it is dropped before that, the call counts as
/// abandoned.
///
/// The engine observes the calls it is given. The doors (the attribute, the layer and the relay)
/// observe the others: calls refused before they have an identity, and unprotected calls.
pub struct ObservedCall {
    span: Span,
    /// `None` if the call has ended, or is not observed.
    meter: Option<Meter>,
    if_executed: Outcome,
    noted: Option<Outcome>,
}

impl ObservedCall {
    /// Starts observing a call. The metrics do not name a tool that the server does not list.
    pub fn start(
        application: &Application,
        tool: &Arc<str>,
        is_listed: bool,
        identity: Option<&Identity>,
        mode: Option<Mode>,
    ) -> Self {
        // [`SPAN`] is repeated here because the macro only takes a literal.
        let span = tracing::info_span!(
            "idempotent_call",
            tool = &**tool,
            application = application.as_str(),
            mode = mode.map(Mode::as_str),
            key_kind = identity.map(|identity| match identity.kind {
                KeyKind::Explicit => "explicit",
                KeyKind::Derived => "derived",
            }),
            key_prefix = identity.and_then(|identity| identity.key_prefix.as_deref()),
            record = identity.map(|identity| field::display(Prefix(&identity.id))),
            outcome = field::Empty,
        );
        Self {
            span,
            meter: Some(Meter::start(application, is_listed.then_some(tool))),
            if_executed: Outcome::Executed,
            noted: None,
        }
    }

    /// For a call that is observed elsewhere.
    pub(crate) const fn unobserved() -> Self {
        Self {
            span: Span::none(),
            meter: None,
            if_executed: Outcome::Executed,
            noted: None,
        }
    }

    /// The span of everything that belongs to the call.
    pub fn span(&self) -> Span {
        self.span.clone()
    }

    /// Times the handler. The time ends when the timer is dropped.
    pub fn handler(&self) -> Option<Timer> {
        self.meter.as_ref().map(Meter::handler)
    }

    /// Times the wait for an identical call. The time ends when the timer is dropped.
    pub(crate) fn waiting(&self) -> Option<Timer> {
        self.meter.as_ref().map(Meter::waiting)
    }

    /// Counts a call to which an equal call under another key was found.
    pub(crate) fn rotated_key(&self) {
        if let Some(meter) = &self.meter {
            meter.rotated_key();
        }
    }

    /// Notes how the handler ended.
    pub(crate) const fn handled(&mut self, kind: ResultKind) {
        self.if_executed = match kind {
            ResultKind::NotCalled => Outcome::NotCalled,
            ResultKind::InputRequired => Outcome::InputRequired,
            ResultKind::Interrupted => Outcome::Interrupted,
            ResultKind::Success
            | ResultKind::ErrorResult
            | ResultKind::ProtocolError
            | ResultKind::NotExecuted
            | ResultKind::Task => Outcome::Executed,
        };
    }

    /// Notes that the handler ran as another attempt at a call in doubt.
    pub(crate) fn ran_again(&mut self) {
        if self.if_executed == Outcome::Executed {
            self.if_executed = Outcome::Rerun;
        }
    }

    /// Notes an outcome that the answer does not show.
    pub(crate) const fn note(&mut self, outcome: Outcome) {
        self.noted = Some(outcome);
    }

    pub(crate) fn answered(self, answer: &Answer) {
        let outcome = self.noted.unwrap_or_else(|| match answer {
            Answer::Executed | Answer::Unrecorded | Answer::LeftInDoubt(_) => self.if_executed,
            Answer::Replayed(replay) if replay.joined => Outcome::Joined,
            Answer::Replayed(_) => Outcome::Replayed,
            Answer::Refused(refusal) => of_refusal(refusal),
        });
        self.end(outcome);
    }

    /// The call ended in a refusal.
    pub fn refused(self, refusal: &Refusal) {
        self.end(of_refusal(refusal));
    }

    /// The call ended with this outcome.
    pub fn end(mut self, outcome: Outcome) {
        self.report(outcome);
    }

    fn report(&mut self, outcome: Outcome) {
        let Some(meter) = self.meter.take() else {
            return;
        };
        self.span.record("outcome", outcome.as_str());
        tracing::debug!(parent: &self.span, outcome = outcome.as_str(), "the call has ended");
        meter.end(outcome);
    }
}

impl fmt::Debug for ObservedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObservedCall").finish_non_exhaustive()
    }
}

impl Drop for ObservedCall {
    fn drop(&mut self) {
        self.report(Outcome::Abandoned);
    }
}

/// The first hex digits of a record's id, enough to find it in the table.
struct Prefix<'a>(&'a RecordId);

impl fmt::Display for Prefix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in &self.0.as_bytes()[..4] {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}
