//! A finishing batch that was stopped, and what that says about the handler's writes.

use sqlx::Row;

use super::{
    PgTransaction, PostgresStore,
    connection::{Leased, run},
    error::{self, answer},
    id_arguments, label_arguments,
    record::{Stored, moment},
    statement::{self, Name},
};
use crate::{
    error::CommitOutcome,
    record::Timestamp,
    store::{Claim, Ended, StoreError, StoreErrorKind},
};

/// Where a finishing batch was stopped, and by what.
#[derive(Debug)]
pub(super) enum Stopped {
    /// Before the batch with the COMMIT was sent.
    BeforeCommitWasSent(sqlx::Error),
    /// By a statement before the COMMIT, or by a connection that was lost.
    BeforeCommit(sqlx::Error),
    /// By the COMMIT itself.
    AtCommit(sqlx::Error),
    /// Not at all, and its answer made no sense.
    Unreadable(sqlx::Error),
}

impl Stopped {
    /// Whether the server may have committed. An error that the server itself gave to an earlier
    /// statement of the batch says that it never came so far.
    pub(super) fn may_have_committed(&self) -> bool {
        match self {
            Self::BeforeCommitWasSent(_) => false,
            Self::BeforeCommit(error) => {
                error::is_connection_lost(error) && error::sqlstate(error).is_none()
            }
            Self::AtCommit(error) => error::is_connection_lost(error),
            Self::Unreadable(_) => true,
        }
    }

    /// Whether a statement of ours found no row under a lease's token.
    pub(super) fn is_fenced(&self) -> bool {
        matches!(self, Self::BeforeCommit(error)
            if error::sqlstate(error).as_deref() == Some(answer::FENCED))
    }

    pub(super) fn is_aborted_transaction(&self) -> bool {
        error::sqlstate(self.error()).as_deref() == Some(error::IN_FAILED_TRANSACTION)
    }

    pub(super) fn error(&self) -> &sqlx::Error {
        match self {
            Self::BeforeCommitWasSent(error)
            | Self::BeforeCommit(error)
            | Self::AtCommit(error)
            | Self::Unreadable(error) => error,
        }
    }

    pub(super) fn into_error(self) -> sqlx::Error {
        match self {
            Self::BeforeCommitWasSent(error)
            | Self::BeforeCommit(error)
            | Self::AtCommit(error)
            | Self::Unreadable(error) => error,
        }
    }
}

impl PostgresStore {
    /// A finishing batch was stopped: finds out what that means.
    pub(super) async fn stopped(
        &self,
        transaction: PgTransaction,
        claim: Option<&Claim>,
        stopped: Stopped,
    ) -> Ended {
        if stopped.may_have_committed() {
            let mark = transaction.mark;
            drop(transaction);
            let error = stopped.into_error();
            return match claim {
                Some(claim) => self.resolve(claim, mark, error).await,
                None => Ended::Unknown(self.lost_commit(error)),
            };
        }
        let at_commit = matches!(stopped, Stopped::AtCommit(_));
        let error = stopped.into_error();
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

    /// Leaves an aborted transaction, of which nothing can be asked any more, and finds out whether
    /// the handler had committed ours before: a setting of the session that `open` made inside it
    /// has outlived it only then.
    pub(super) async fn leave(
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
    pub(super) async fn lost(&self, mut connection: Leased, claim: &Claim) -> Ended {
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
                "{}{}{}COMMIT;",
                self.short_transaction(),
                call(Name::Expire, &id_arguments(claim)),
                call(
                    Name::Doubt,
                    &[
                        statement::bytes(claim.id.as_bytes()),
                        statement::bytes(&claim.fingerprint.to_stored()),
                        transaction.mark.0.to_string(),
                        tool.clone(),
                        prefix.clone(),
                        statement::interval(claim.in_doubt_retention).to_string(),
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

    pub(super) fn lost_commit(&self, error: sqlx::Error) -> StoreError {
        self.error("the connection was lost at the commit", error)
            .with_outcome(CommitOutcome::Unknown)
    }

    pub(super) fn unreadable(&self, error: sqlx::Error) -> Ended {
        Ended::Unknown(
            self.error("the database answered in an unexpected way", error)
                .with_outcome(CommitOutcome::Unknown),
        )
    }
}

/// Brings a connection to the start of an empty transaction, whose ROLLBACK then rides on its
/// return to the pool. After a failed COMMIT the server is outside any transaction while sqlx
/// still counts one.
pub(super) async fn settle(mut connection: Leased, ended: bool) {
    let batch = if ended { "BEGIN" } else { "ROLLBACK AND CHAIN" };
    if run(&mut connection, batch.to_owned()).await.error.is_none() {
        connection.release_chained();
    }
}
