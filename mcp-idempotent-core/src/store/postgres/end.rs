//! Ending a transaction: the record goes with the commit, in its round trip.

use sqlx::{AssertSqlSafe, PgConnection, Row};

use super::{
    Mark, PgTransaction, PostgresStore,
    begin::Obstacle,
    connection::{Leased, run},
    error::{self, answer},
    id_arguments, label_arguments,
    record::{Stored, moment},
    statement::{self, Name},
};
use crate::{
    record::Timestamp,
    store::{Claim, Completion, End, Ended, StoreError, StoreErrorKind},
};

/// A finishing batch that was stopped.
struct Stopped {
    /// The statement that was stopped is the COMMIT itself.
    at_commit: bool,
    error: sqlx::Error,
}

impl Stopped {
    /// Stopped before the COMMIT.
    fn before(error: sqlx::Error) -> Self {
        Self {
            at_commit: false,
            error,
        }
    }

    /// Whether the server may have committed: its answer to a COMMIT was lost. An error that the
    /// server itself gave to an earlier statement of the batch says that it never came so far.
    fn may_have_committed(&self) -> bool {
        error::is_connection_lost(&self.error)
            && (self.at_commit || error::sqlstate(&self.error).is_none())
    }
}

impl PostgresStore {
    pub(super) async fn end_transaction(
        &self,
        mut transaction: PgTransaction,
        claim: Option<&Claim>,
        end: End,
    ) -> Ended {
        transaction.connection.flush_queued().await;
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
        let mark = transaction.mark;
        let size = completion.response.as_ref().map_or(0, bytes::Bytes::len);
        let written = if size <= Self::INLINE_RESULT_BYTES {
            let batch = format!(
                "{}{}COMMIT AND CHAIN;",
                self.call(Name::Expire, &id_arguments(claim)),
                self.finish_call(mark, claim, completion),
            );
            finishing(&mut transaction, batch, 2).await
        } else {
            self.commit_bound(&mut transaction, mark, claim, completion)
                .await
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
        let [tool, prefix] = label_arguments(claim);
        self.call(
            Name::Finish,
            &[
                statement::bytes(claim.id.as_bytes()),
                statement::bytes(&claim.fingerprint.to_stored()),
                mark.literal(),
                tool,
                prefix,
                statement::bytes_or_null(completion.response.as_deref()),
                statement::interval(completion.retention).to_string(),
                statement::interval(completion.tombstone).to_string(),
            ],
        )
    }

    /// A large result costs less as a bound value, for one more round trip.
    async fn commit_bound(
        &self,
        connection: &mut PgConnection,
        mark: Mark,
        claim: &Claim,
        completion: &Completion,
    ) -> Result<Timestamp, Stopped> {
        let prefix = claim
            .key_prefix
            .as_deref()
            .map(|prefix| statement::plain(prefix, crate::key::VISIBLE_PREFIX));
        let fingerprint = claim.fingerprint.to_stored();
        let row = sqlx::query(AssertSqlSafe(self.inner.statements.finish_bound()))
            .bind(claim.id.as_bytes().as_slice())
            .bind(fingerprint.as_slice())
            .bind(mark.0.to_string())
            .bind(statement::plain(&claim.call.tool, 255))
            .bind(prefix)
            .bind(completion.response.as_deref())
            .bind(statement::interval(completion.retention))
            .bind(statement::interval(completion.tombstone))
            .bind(claim.on_expired == crate::policy::OnExpired::Refuse)
            .persistent(self.prepared())
            .fetch_one(&mut *connection)
            .await
            .map_err(Stopped::before)?;
        let at = moment(&row).map_err(Stopped::before)?;
        match run(connection, "COMMIT AND CHAIN".to_owned()).await.error {
            None => Ok(at),
            Some(error) => Err(Stopped {
                at_commit: true,
                error,
            }),
        }
    }

    async fn commit_unrecorded(
        &self,
        mut transaction: PgTransaction,
        claim: Option<&Claim>,
    ) -> Ended {
        let check = self.call(Name::Check, &[transaction.mark.literal()]);
        match finishing(&mut transaction, format!("{check}COMMIT AND CHAIN;"), 1).await {
            Ok(at) => {
                transaction.connection.release_chained();
                Ended::AsAsked(at)
            }
            // There is no record by which to find out more.
            Err(stopped) if stopped.may_have_committed() => {
                Ended::Unknown(self.lost_commit(stopped.error))
            }
            Err(stopped) => self.stopped(transaction, claim, stopped).await,
        }
    }

    async fn roll_back_unrecorded(
        &self,
        mut transaction: PgTransaction,
        claim: Option<&Claim>,
    ) -> Ended {
        let check = self.call(Name::Check, &[transaction.mark.literal()]);
        match finishing(&mut transaction, format!("{check}ROLLBACK AND CHAIN;"), 1).await {
            Ok(at) => {
                transaction.connection.release_chained();
                Ended::AsAsked(at)
            }
            Err(stopped) if is_aborted(&stopped) => match self.leave(transaction, claim).await {
                Ok(at) => Ended::AsAsked(at),
                Err(ended) => ended,
            },
            // A session that is gone has rolled back.
            Err(stopped) if error::is_connection_lost(&stopped.error) => {
                Ended::Aborted(self.error("the session ended", stopped.error))
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
            self.call(Name::Check, &[transaction.mark.literal()]),
            "ROLLBACK;BEGIN ISOLATION LEVEL READ COMMITTED;".to_owned(),
            self.open(mark, claim, false),
            self.call(Name::Seen, &id_arguments(claim)),
            self.call(Name::Expire, &id_arguments(claim)),
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
        let stopped = Stopped { at_commit, error };
        if stopped.may_have_committed() {
            drop(transaction);
            return match self.resolve(claim, mark, stopped.error).await {
                // The handler's writes are rolled back, whatever became of the record.
                Ended::Unknown(error) => Ended::Aborted(error),
                ended => ended,
            };
        }
        if reached == CHECK {
            return self.stopped(transaction, Some(claim), stopped).await;
        }
        // From here on the transaction is one of ours, with nothing of the handler's in it.
        let is_unique = error::is_our_unique_violation(&stopped.error, self.inner.schema.as_str());
        match Obstacle::of(stopped.error) {
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

    /// A finishing batch was stopped: finds out what that means.
    async fn stopped(
        &self,
        transaction: PgTransaction,
        claim: Option<&Claim>,
        stopped: Stopped,
    ) -> Ended {
        if stopped.may_have_committed() {
            let mark = transaction.mark;
            drop(transaction);
            return match claim {
                Some(claim) => self.resolve(claim, mark, stopped.error).await,
                None => Ended::Unknown(self.lost_commit(stopped.error)),
            };
        }
        let Stopped { at_commit, error } = stopped;
        if error::is_connection_lost(&error) {
            return Ended::Aborted(self.error("the session ended before the commit", error));
        }
        if at_commit {
            // A deferred constraint, or a refusal to serialise. The server has rolled back.
            settle(transaction.connection, true).await;
            return Ended::Aborted(self.error("the database refused to commit", error));
        }
        if error::sqlstate(&error).as_deref() == Some(answer::NO) {
            return self.ended_by_handler(transaction, claim).await;
        }
        if let Some(claim) = claim
            && error::is_our_unique_violation(&error, self.inner.schema.as_str())
        {
            return self.lost(transaction.connection, claim).await;
        }
        match self.leave(transaction, claim).await {
            Ok(_) | Err(Ended::Aborted(_)) => {
                let doing = if error::kind(&error) == StoreErrorKind::Aborted {
                    "a database error had aborted the transaction, and the handler did not report it"
                } else {
                    "the record could not be written"
                };
                Ended::Aborted(self.error(doing, error))
            }
            Err(ended) => ended,
        }
    }

    /// Leaves an aborted transaction. Says whether it was ours to the end: a setting of the session
    /// that `open` made inside the transaction outlives it only if it was committed.
    async fn leave(
        &self,
        mut transaction: PgTransaction,
        claim: Option<&Claim>,
    ) -> Result<Timestamp, Ended> {
        let batch = format!(
            "ROLLBACK AND CHAIN; SELECT pg_catalog.current_setting('mcp_idempotent.committed', true) \
             IS NOT DISTINCT FROM {}, \
             (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint",
            transaction.mark.literal()
        );
        let row = match run(&mut transaction, batch).await.into_last_row() {
            Ok(Some(row)) => row,
            Ok(None) => return Err(self.unreadable(sqlx::Error::RowNotFound)),
            Err(error) if error::is_connection_lost(&error) => {
                return Err(Ended::Aborted(self.error("the session ended", error)));
            }
            // No transaction was open.
            Err(_) => return Err(self.ended_by_handler(transaction, claim).await),
        };
        match (row.try_get::<bool, _>(0), moment(&row)) {
            (Ok(false), Ok(at)) => {
                transaction.connection.release_chained();
                Ok(at)
            }
            (Ok(true), _) => Err(self.ended_by_handler(transaction, claim).await),
            (Err(error), _) | (_, Err(error)) => Err(self.unreadable(error)),
        }
    }

    /// Another call's record won: rolls back and reads it. The connection is inside an aborted
    /// transaction.
    async fn lost(&self, mut connection: Leased, claim: &Claim) -> Ended {
        let batch = format!("ROLLBACK AND CHAIN;{}", self.look_up_call(claim));
        let found = match run(&mut connection, batch).await.into_last_row() {
            Ok(row) => {
                connection.release_chained();
                row.as_ref().map(Stored::read).transpose()
            }
            Err(error) => Err(error),
        };
        match found {
            Ok(Some(stored)) => Ended::Lost(stored.record),
            Ok(None) => Ended::Aborted(StoreError::new(
                StoreErrorKind::Conflict,
                "the record of another call was in the way and has expired since",
            )),
            Err(error) => Ended::Aborted(
                self.error("another call's record won, and could not be read", error),
            ),
        }
    }

    /// The handler ended the transaction itself: whatever it did, the key is in doubt, unless a
    /// record exists. The session may carry settings of the handler's, so it is closed.
    async fn ended_by_handler(
        &self,
        mut transaction: PgTransaction,
        claim: Option<&Claim>,
    ) -> Ended {
        let Some(claim) = claim else {
            return Ended::EndedByHandler;
        };
        let [tool, prefix] = label_arguments(claim);
        let record = |call: &dyn Fn(Name, &[String]) -> String| {
            format!(
                "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '5s';{}{}COMMIT;",
                call(Name::Expire, &id_arguments(claim)),
                call(
                    Name::Doubt,
                    &[
                        statement::bytes(claim.id.as_bytes()),
                        statement::bytes(&claim.fingerprint.to_stored()),
                        transaction.mark.0.to_string(),
                        tool.clone(),
                        prefix.clone(),
                    ],
                ),
            )
        };
        // In full text: the handler may have removed the prepared names as well.
        let batch = record(&|name, arguments| self.inner.statements.call(false, name, arguments));
        let here = format!("ROLLBACK;RESET ROLE;{batch}");
        let mut failure = run(&mut transaction, here).await.error;
        drop(transaction);
        if failure.is_some() {
            failure = match self.connection().await {
                Ok(mut connection) => {
                    let error = run(&mut connection, batch).await.error;
                    if error.is_none() {
                        connection.release();
                    }
                    error
                }
                Err(error) => Some(sqlx::Error::Configuration(Box::new(error))),
            };
        }
        if let Some(error) = failure {
            tracing::error!(
                %error,
                "a handler ended its transaction itself, and the doubt could not be recorded"
            );
        }
        Ended::EndedByHandler
    }

    fn lost_commit(&self, error: sqlx::Error) -> StoreError {
        self.error("the connection was lost at the commit", error)
            .with_outcome(crate::error::CommitOutcome::Unknown)
    }

    fn unreadable(&self, error: sqlx::Error) -> Ended {
        Ended::Unknown(
            self.error("the database answered in an unexpected way", error)
                .with_outcome(crate::error::CommitOutcome::Unknown),
        )
    }
}

/// Runs a batch whose last statement, of index `last`, ends the transaction, and whose last row is
/// the moment.
async fn finishing(
    connection: &mut PgConnection,
    batch: String,
    last: usize,
) -> Result<Timestamp, Stopped> {
    let mut done = run(connection, batch).await;
    if let Some(error) = done.error.take() {
        let at_commit = done.affected.len() == last;
        return Err(Stopped { at_commit, error });
    }
    match done.rows.last().map(moment) {
        Some(Ok(at)) => Ok(at),
        Some(Err(error)) => Err(Stopped::before(error)),
        None => Err(Stopped::before(sqlx::Error::RowNotFound)),
    }
}

fn is_aborted(stopped: &Stopped) -> bool {
    error::sqlstate(&stopped.error).as_deref() == Some(error::IN_FAILED_TRANSACTION)
}

/// Brings a connection to the start of an empty transaction, whose ROLLBACK then rides on its
/// return to the pool. After a failed COMMIT the server is outside any transaction while sqlx
/// still counts one.
async fn settle(mut connection: Leased, ended: bool) {
    let batch = if ended { "BEGIN" } else { "ROLLBACK AND CHAIN" };
    if run(&mut connection, batch.to_owned()).await.error.is_none() {
        connection.release_chained();
    }
}
