//! How a guard ends.

use bytes::Bytes;
use futures_util::future::BoxFuture;

use crate::{error::CommitOutcome, record::Timestamp, store::Ended};

/// How a guard ends.
#[derive(Debug)]
pub(in crate::engine) enum GuardEnd {
    /// The store completed it together with the call's record.
    Completed,
    /// The call already had this record.
    Copy {
        response: Option<Bytes>,
        at: Timestamp,
    },
    /// Nothing was recorded, and the key is free.
    Release { acted: bool },
    /// The outcome is unknown. A transaction's guard of equal calls is completed without a result, which holds
    /// them back for the window.
    Abandon,
    /// The call's record decides. Processes that only know the previous secret answer that the outcome is
    /// unknown; the id that equal calls share is free.
    AbandonWitnessed,
}

impl GuardEnd {
    /// How a transaction's guard ends.
    pub(in crate::engine) fn after(ended: &Ended, recording: bool) -> Self {
        match ended {
            Ended::AsAsked(_) if recording => Self::Completed,
            Ended::AsAsked(_) => Self::Release { acted: false },
            // The handler's writes are rolled back, but its error may have been recorded.
            Ended::Aborted(error) if error.outcome() != CommitOutcome::NotCommitted => {
                Self::AbandonWitnessed
            }
            Ended::Aborted(_) => Self::Release { acted: false },
            Ended::EndedByHandler => Self::Abandon,
            Ended::Lost(_) | Ended::LostInProgress | Ended::Fenced | Ended::Unknown(_) => {
                Self::AbandonWitnessed
            }
        }
    }
}

/// The leases of a guard, whatever the type of their store.
pub(super) trait EndGuard: Send + Sync {
    fn end(self: Box<Self>, end: GuardEnd) -> BoxFuture<'static, ()>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{StoreError, StoreErrorKind};

    #[test]
    fn a_guard_is_only_free_if_nothing_can_have_been_recorded() {
        let error = |outcome| {
            StoreError::new(StoreErrorKind::Unavailable, "the connection was lost")
                .with_outcome(outcome)
        };
        let ends = |ended, recording| GuardEnd::after(&ended, recording);
        for recording in [true, false] {
            let undone = Ended::Aborted(error(CommitOutcome::NotCommitted));
            assert!(matches!(ends(undone, recording), GuardEnd::Release { .. }));
            // The record of an error may have been committed after the rollback.
            let unclear = Ended::Aborted(error(CommitOutcome::Unknown));
            assert!(matches!(
                ends(unclear, recording),
                GuardEnd::AbandonWitnessed
            ));
            let unknown = Ended::Unknown(error(CommitOutcome::Unknown));
            assert!(matches!(
                ends(unknown, recording),
                GuardEnd::AbandonWitnessed
            ));
            assert!(matches!(
                ends(Ended::Fenced, recording),
                GuardEnd::AbandonWitnessed
            ));
            assert!(matches!(
                ends(Ended::EndedByHandler, recording),
                GuardEnd::Abandon
            ));
        }
        let at = Timestamp::from_micros(0);
        assert!(matches!(
            ends(Ended::AsAsked(at), true),
            GuardEnd::Completed
        ));
        assert!(matches!(
            ends(Ended::AsAsked(at), false),
            GuardEnd::Release { .. }
        ));
    }
}
