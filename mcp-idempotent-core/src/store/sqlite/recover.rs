//! Commits whose answer was lost.

use sqlx::Arguments as _;

use super::{error::store_error, lease::held, lock::Opened, queue::Line, store::SqliteStore};
use crate::{
    error::CommitOutcome,
    record::{RecordState, Timestamp},
    store::{Claim, Ended, Lease, StoreError},
};

/// What shows afterwards whether a commit happened.
#[derive(Clone, Copy)]
pub(super) enum Proof<'a> {
    Record(&'a Claim),
    /// The record of a call with a guard. Both were written, or neither.
    GuardedRecord(&'a Claim),
    Lease(&'a Lease),
    Nothing,
}

impl SqliteStore {
    /// The commit may or may not have happened. This takes the write lock, which proves that no
    /// part of it is still on its way, and then looks.
    pub(super) async fn find_out(
        &self,
        proof: Proof<'_>,
        at: Timestamp,
        error: sqlx::Error,
    ) -> Ended {
        let lost = store_error("committing", error);
        let found = match proof {
            Proof::Record(claim) | Proof::GuardedRecord(claim) => self.find_record(claim, at).await,
            Proof::Lease(lease) => self.find_completion(lease, at).await,
            Proof::Nothing => return unknown(lost),
        };
        match found {
            Ok(Some(ended)) => ended,
            Ok(None) => Ended::Aborted(lost),
            Err(_) => unknown(lost),
        }
    }

    async fn find_record(&self, claim: &Claim, at: Timestamp) -> Result<Option<Ended>, StoreError> {
        match self.open_for(Some(claim), false).await? {
            Opened::Found(record) => Ok(Some(match record.state {
                RecordState::Completed { at: found, .. }
                    if found == at && record.fingerprint == claim.fingerprint =>
                {
                    Ended::AsAsked(at)
                }
                RecordState::InProgress { .. } => Ended::LostInProgress,
                _ => Ended::Lost(record),
            })),
            Opened::New(checkout) => {
                checkout.roll_back_and_give_back().await;
                Ok(None)
            }
        }
    }

    async fn find_completion(
        &self,
        lease: &Lease,
        at: Timestamp,
    ) -> Result<Option<Ended>, StoreError> {
        let mut checkout = self.lock(Line::Lease, false).await?;
        let asked = async {
            let mut arguments = held(lease).map_err(sqlx::Error::Encode)?;
            arguments.add(at.as_micros()).map_err(sqlx::Error::Encode)?;
            let statement = self.shared.statements.is_completed.clone();
            sqlx::query_scalar_with(statement, arguments)
                .fetch_one(&mut checkout.writer.connection)
                .await
        };
        let completed: bool = asked
            .await
            .map_err(|error| store_error("finding out about a commit", error))?;
        checkout.roll_back_and_give_back().await;
        Ok(completed.then_some(Ended::AsAsked(at)))
    }
}

pub(super) fn unknown(error: StoreError) -> Ended {
    Ended::Unknown(error.with_outcome(CommitOutcome::Unknown))
}
