//! Ending a transaction: the record goes with the commit, in its round trip.

use sqlx::{AssertSqlSafe, PgConnection};

use super::{
    Mark, PgTransaction, PostgresStore,
    begin::Obstacle,
    connection::run,
    error, id_arguments, labels,
    record::moment,
    statement::{self, Argument, Name},
    stopped::{Stopped, settle},
};
use crate::{
    record::Timestamp,
    store::{Claim, Completion, End, Ended, StoreError, StoreErrorKind},
};

impl PostgresStore {
    pub(super) async fn end_transaction(
        &self,
        transaction: PgTransaction,
        claim: Option<&Claim>,
        end: End,
    ) -> Ended {
        match (end, claim) {
            (End::Commit(completion), Some(claim)) => {
                self.commit(transaction, claim, &completion).await
            }
            (End::Commit(_) | End::CommitUnrecorded, claim) => {
                self.commit_unrecorded(transaction, claim).await
            }
            (End::RollBackAndRecord(completion), Some(claim)) => {
                self.record_after_rollback(transaction, claim, &completion)
                    .await
            }
            (End::Complete(lease, completion), _) => {
                self.complete_with(transaction, &lease, &completion).await
            }
            (End::RollBackAndRecord(_) | End::RollBack, claim) => {
                self.roll_back_unrecorded(transaction, claim).await
            }
        }
    }

    async fn commit(
        &self,
        mut transaction: PgTransaction,
        claim: &Claim,
        completion: &Completion,
    ) -> Ended {
        let size = completion.response.as_ref().map_or(0, bytes::Bytes::len);
        let written = if size <= Self::INLINE_RESULT_BYTES {
            let mut batch = self.finish_call(transaction.mark, claim, completion);
            batch.push_str("COMMIT AND CHAIN;");
            finishing(&mut transaction, batch, 1).await
        } else {
            self.commit_bound(&mut transaction, claim, completion).await
        };
        match written {
            Ok(at) => {
                transaction.connection.release_chained();
                Ended::AsAsked(at)
            }
            Err(stopped) => self.stopped(transaction, Some(claim), stopped).await,
        }
    }

    pub(super) fn finish_call(&self, mark: Mark, claim: &Claim, completion: &Completion) -> String {
        let (tool, prefix) = labels(claim);
        let (id, fingerprint) = (claim.id.as_bytes(), claim.fingerprint.to_stored());
        let rest = [
            mark.argument(),
            Argument::Text(&tool),
            prefix.as_deref().map_or(Argument::Null, Argument::Text),
            Argument::Integer(statement::interval(completion.retention)),
            Argument::Integer(statement::interval(completion.tombstone)),
        ];
        let response = completion.response.as_deref();
        let size = response.map_or(0, <[u8]>::len);
        let mut sql = String::with_capacity(2 * (id.len() + fingerprint.len() + size) + 512);
        let [mark, tool, prefix, retention, tombstone] = rest;
        match response {
            Some(response) if self.prepared() => {
                let packed: [&[u8]; 3] = [id, &fingerprint, response];
                let arguments = [
                    Argument::Bytes(&packed),
                    mark,
                    tool,
                    prefix,
                    retention,
                    tombstone,
                ];
                self.push(&mut sql, Name::Finish, &arguments);
            }
            response => {
                let response = response.as_slice();
                let arguments = [
                    Argument::Bytes(&[id]),
                    Argument::Bytes(&[&fingerprint]),
                    if response.is_empty() {
                        Argument::Null
                    } else {
                        Argument::Bytes(response)
                    },
                    mark,
                    tool,
                    prefix,
                    retention,
                    tombstone,
                ];
                self.push(&mut sql, Name::FinishUnpacked, &arguments);
            }
        }
        sql
    }

    /// A large result costs less as a bound value, for one more round trip.
    async fn commit_bound(
        &self,
        transaction: &mut PgTransaction,
        claim: &Claim,
        completion: &Completion,
    ) -> Result<Timestamp, Stopped> {
        let (tool, prefix) = labels(claim);
        let row = sqlx::query(AssertSqlSafe(self.inner.statements.finish_bound()))
            .bind(claim.id.as_bytes().as_slice())
            .bind(claim.fingerprint.to_stored().to_vec())
            .bind(completion.response.as_deref())
            .bind(transaction.mark.0)
            .bind(tool)
            .bind(prefix)
            .bind(statement::interval(completion.retention))
            .bind(statement::interval(completion.tombstone))
            .persistent(self.prepared())
            .fetch_one(&mut **transaction)
            .await
            .map_err(Stopped::BeforeCommitWasSent)?;
        let at = moment(&row).map_err(Stopped::BeforeCommitWasSent)?;
        match run(transaction, "COMMIT AND CHAIN".to_owned()).await.error {
            None => Ok(at),
            Some(error) => Err(Stopped::AtCommit(error)),
        }
    }

    async fn commit_unrecorded(
        &self,
        mut transaction: PgTransaction,
        claim: Option<&Claim>,
    ) -> Ended {
        let check = self.call(Name::Check, &[transaction.mark.0.to_string()]);
        match finishing(&mut transaction, format!("{check}COMMIT AND CHAIN;"), 1).await {
            Ok(at) => {
                transaction.connection.release_chained();
                Ended::AsAsked(at)
            }
            // There is no record by which to find out more.
            Err(stopped) if stopped.may_have_committed() => {
                Ended::Unknown(self.lost_commit(stopped.into_error()))
            }
            Err(stopped) => self.stopped(transaction, claim, stopped).await,
        }
    }

    async fn roll_back_unrecorded(
        &self,
        mut transaction: PgTransaction,
        claim: Option<&Claim>,
    ) -> Ended {
        let check = self.call(Name::Check, &[transaction.mark.0.to_string()]);
        let batch = format!("{check}ROLLBACK AND CHAIN;");
        // A statement that the handler gave up comes first, and may wait for a lock, or for data
        // that never come. Closing the session rolls back as well.
        let bound = self.inner.recovery_timeout;
        let Ok(finished) = tokio::time::timeout(bound, finishing(&mut transaction, batch, 1)).await
        else {
            return Ended::Aborted(StoreError::new(
                StoreErrorKind::Unavailable,
                format!("the rollback was not answered within {bound:?}; the session is closed"),
            ));
        };
        match finished {
            Ok(at) => {
                transaction.connection.release_chained();
                Ended::AsAsked(at)
            }
            Err(stopped) if stopped.is_aborted_transaction() => {
                match self.leave(transaction, claim).await {
                    Ok(at) => Ended::AsAsked(at),
                    Err(ended) => ended,
                }
            }
            // A session that is gone has rolled back.
            Err(stopped) if error::is_connection_lost(stopped.error()) => {
                Ended::Aborted(self.error("the session ended", stopped.into_error()))
            }
            Err(stopped) => self.stopped(transaction, claim, stopped).await,
        }
    }

    async fn record_after_rollback(
        &self,
        mut transaction: PgTransaction,
        claim: &Claim,
        completion: &Completion,
    ) -> Ended {
        const CHECK: usize = 0;
        const COMMIT: usize = 7;
        let mark = Mark::new();
        let batch = [
            self.call(Name::Check, &[transaction.mark.0.to_string()]),
            "ROLLBACK;BEGIN ISOLATION LEVEL READ COMMITTED;".to_owned(),
            self.open(mark, claim, false),
            self.call(Name::Expire, &id_arguments(claim)),
            self.seen_call(claim),
            self.finish_call(mark, claim, completion),
            "COMMIT AND CHAIN;".to_owned(),
        ]
        .concat();
        let mut done = run(&mut transaction, batch).await;
        let reached = done.affected.len();
        let Some(error) = done.error.take() else {
            let at = done.rows.last().map(moment);
            return match at {
                Some(Ok(at)) => {
                    transaction.connection.release_chained();
                    Ended::AsAsked(at)
                }
                Some(Err(error)) => self.unreadable(error),
                None => self.unreadable(sqlx::Error::RowNotFound),
            };
        };
        let at_commit = reached == COMMIT;
        let stopped = if at_commit {
            Stopped::AtCommit(error)
        } else {
            Stopped::BeforeCommit(error)
        };
        if stopped.may_have_committed() {
            drop(transaction);
            return match self.resolve(claim, mark, stopped.into_error()).await {
                // The handler's writes are rolled back, whatever became of the record.
                Ended::Unknown(error) => Ended::Aborted(error),
                ended => ended,
            };
        }
        if reached == CHECK {
            return self.stopped(transaction, Some(claim), stopped).await;
        }
        // From here on the transaction is one of ours, with nothing of the handler's in it.
        let is_unique = error::is_our_unique_violation(stopped.error(), self.inner.schema.as_str());
        match Obstacle::of(stopped.into_error()) {
            Obstacle::SameCallRuns | Obstacle::KeyIsHeld => {
                settle(transaction.connection, at_commit).await;
                Ended::LostInProgress
            }
            Obstacle::RecordExists => self.lost(transaction.connection, claim).await,
            Obstacle::Other(_) if is_unique => self.lost(transaction.connection, claim).await,
            Obstacle::Other(error)
            | Obstacle::CannotSerialize(error)
            | Obstacle::ConnectionLost(error) => {
                if !error::is_connection_lost(&error) {
                    settle(transaction.connection, at_commit).await;
                }
                Ended::Aborted(self.error("the error could not be recorded", error))
            }
            Obstacle::NotPrepared | Obstacle::IsSerializable => Ended::Aborted(StoreError::new(
                StoreErrorKind::Other,
                "the error could not be recorded: the session's prepared statements are gone",
            )),
        }
    }
}

/// Runs a batch whose last statement, of index `last`, ends the transaction, and whose last row is
/// the moment.
pub(super) async fn finishing(
    connection: &mut PgConnection,
    batch: String,
    last: usize,
) -> Result<Timestamp, Stopped> {
    let mut done = run(connection, batch).await;
    if let Some(error) = done.error.take() {
        return Err(if done.affected.len() == last {
            Stopped::AtCommit(error)
        } else {
            Stopped::BeforeCommit(error)
        });
    }
    match done.rows.last().map(moment) {
        Some(Ok(at)) => Ok(at),
        Some(Err(error)) => Err(Stopped::Unreadable(error)),
        None => Err(Stopped::Unreadable(sqlx::Error::RowNotFound)),
    }
}
