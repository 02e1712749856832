//! A finishing batch that was stopped, and what that says about the handler's writes.
//!
//! From the moment that the COMMIT was sent, no error is believed: a pooler makes up errors of its
//! own, under any SQLSTATE. What decides is whether the transaction can still be rolled back on its
//! own connection ([`PostgresStore::fate`]), and else a look at what was written ([`Sought`]).

use sqlx::Row;

use super::{
    PgTransaction, PostgresStore,
    connection::{Answer, Leased, drain, run},
    error::{self, answer},
    id_arguments, label_arguments,
    record::{Stored, moment},
    recovery::Sought,
    statement::{self, Name, micros},
};
use crate::{
    record::Timestamp,
    store::{Claim, Ended, StoreError, StoreErrorKind},
};

/// What stopped a finishing batch, and what the server had said by then.
#[derive(Debug)]
pub(super) struct Stopped {
    error: sqlx::Error,
    commit_was_sent: bool,
    /// The server had said that the transaction was ours when the batch reached it.
    was_ours: bool,
    transaction: TransactionId,
}

/// What the server said of a transaction's number.
#[derive(Debug, Clone, Copy)]
pub(super) enum TransactionId {
    Is(i64),
    /// It had none, because it had written nothing.
    None,
    Unheard,
}

impl Stopped {
    pub(super) fn before_commit_was_sent(error: sqlx::Error) -> Self {
        Self {
            error,
            commit_was_sent: false,
            was_ours: false,
            transaction: TransactionId::Unheard,
        }
    }

    pub(super) fn at_commit(error: sqlx::Error, heard: &Answer) -> Self {
        let number = |row: &sqlx::postgres::PgRow| row.try_get::<Option<i64>, _>(0).ok();
        Self {
            error,
            commit_was_sent: true,
            was_ours: !heard.affected.is_empty(),
            transaction: match heard.rows.last().and_then(number) {
                Some(Some(id)) => TransactionId::Is(id),
                Some(None) => TransactionId::None,
                None => TransactionId::Unheard,
            },
        }
    }

    /// Nothing stopped it, and its answer made no sense.
    pub(super) fn unreadable(error: sqlx::Error) -> Self {
        Self {
            error,
            commit_was_sent: true,
            was_ours: true,
            transaction: TransactionId::Unheard,
        }
    }

    /// For a batch that asks after it.
    pub(super) fn transaction(&self) -> TransactionId {
        self.transaction
    }

    pub(super) fn into_error(self) -> sqlx::Error {
        self.error
    }

    /// Whether the savepoint was not found, or the transaction aborted: no pooler says so.
    fn is_of_transaction(&self) -> bool {
        error::is_about_savepoint(&self.error)
            || error::sqlstate(&self.error).as_deref() == Some(error::IN_FAILED_TRANSACTION)
    }
}

/// What became of a transaction whose finishing batch was stopped.
enum Fate {
    /// Nothing was committed. The connection, if it is still good, is at the start of an empty
    /// transaction.
    NotCommitted(Option<Leased>),
    /// The handler had ended it before.
    EndedByHandler(PgTransaction),
    /// It is over, and may have been committed.
    Open(Option<Leased>),
}

/// What a transaction is, seen from its own connection.
pub(super) enum Standing {
    /// It was ours, with nothing committed, and is rolled back. An empty one is open.
    Undone(Timestamp),
    /// There is none, or it is another one.
    NotOurs,
    /// The connection is not to be used any more.
    Unclear(sqlx::Error),
}

impl PostgresStore {
    /// A finishing batch was stopped: finds out what that means.
    pub(super) async fn stopped(
        &self,
        transaction: PgTransaction,
        claim: Option<&Claim>,
        sought: Sought<'_>,
        stopped: Stopped,
    ) -> Ended {
        match self.fate(transaction, &stopped).await {
            Fate::NotCommitted(connection) => self.not_committed(connection, sought, stopped).await,
            Fate::EndedByHandler(transaction) => self.ended_by_handler(transaction, claim).await,
            Fate::Open(connection) => self.find_out(sought, stopped, connection).await,
        }
    }

    /// What may be believed: once the COMMIT was sent, a transaction was not committed if its own
    /// connection can still roll it back, and ended by the handler if the server says so twice, for
    /// the RELEASE that began the batch and for a ROLLBACK TO after it. All else is open.
    async fn fate(&self, mut transaction: PgTransaction, stopped: &Stopped) -> Fate {
        let bound = self.inner.recovery_timeout;
        let connection = &mut transaction;
        let standing = async {
            if stopped.was_ours {
                self.undo_released(connection).await
            } else {
                self.undo_ours(connection).await
            }
        };
        match tokio::time::timeout(bound, standing).await {
            Ok(Standing::Undone(_)) => Fate::NotCommitted(Some(transaction.connection)),
            Ok(Standing::NotOurs) if !stopped.commit_was_sent => Fate::EndedByHandler(transaction),
            Ok(Standing::NotOurs) if !stopped.was_ours && stopped.is_of_transaction() => {
                Fate::EndedByHandler(transaction)
            }
            Ok(Standing::NotOurs) => Fate::Open(Some(transaction.connection)),
            Ok(Standing::Unclear(_)) | Err(_) if stopped.commit_was_sent => Fate::Open(None),
            Ok(Standing::Unclear(_)) | Err(_) => Fate::NotCommitted(None),
        }
    }

    /// Rolls the transaction back if it is ours, aborted or not: the savepoint dies with it, whoever
    /// ends it.
    pub(super) async fn undo_ours(&self, transaction: &mut PgTransaction) -> Standing {
        if let Err(error) = drain(transaction).await {
            return Standing::Unclear(error);
        }
        let batch = format!(
            "ROLLBACK TO {};SELECT {};ROLLBACK AND CHAIN;",
            self.inner.savepoint,
            micros("pg_catalog.clock_timestamp()")
        );
        let mut answer = run(transaction, batch).await;
        match answer.error.take() {
            Some(error) if answer.affected.is_empty() && error::is_about_savepoint(&error) => {
                Standing::NotOurs
            }
            Some(error) => Standing::Unclear(error),
            None => undone(&answer),
        }
    }

    /// As [`undo_ours`](Self::undo_ours), where the savepoint was released: the transaction is ours
    /// if it is aborted. After the COMMIT, carried out or refused, none that is aborted is open.
    async fn undo_released(&self, transaction: &mut PgTransaction) -> Standing {
        if let Err(error) = drain(transaction).await {
            return Standing::Unclear(error);
        }
        match run(transaction, "SELECT 1;".to_owned()).await.error {
            None => return Standing::NotOurs,
            Some(error)
                if error::sqlstate(&error).as_deref() == Some(error::IN_FAILED_TRANSACTION) => {}
            Some(error) => return Standing::Unclear(error),
        }
        let batch = format!(
            "ROLLBACK AND CHAIN;SELECT {};",
            micros("pg_catalog.clock_timestamp()")
        );
        let mut answer = run(transaction, batch).await;
        match answer.error.take() {
            Some(error) => Standing::Unclear(error),
            None => undone(&answer),
        }
    }

    /// Nothing was committed, which is proven; so the error may be read.
    async fn not_committed(
        &self,
        connection: Option<Leased>,
        sought: Sought<'_>,
        stopped: Stopped,
    ) -> Ended {
        let was_ours = stopped.was_ours;
        let error = stopped.error;
        let code = error::sqlstate(&error);
        if let Some(connection) = connection {
            match (sought, code.as_deref()) {
                (Sought::Record(claim, _), Some(answer::SEEN)) if was_ours => {
                    return self.lost(connection, claim).await;
                }
                (Sought::Record(claim, _), _)
                    if error::is_our_unique_violation(&error, self.inner.schema.as_str()) =>
                {
                    return self.lost(connection, claim).await;
                }
                _ => connection.release_chained(),
            }
        }
        match (sought, code.as_deref()) {
            (Sought::Record(..), Some(answer::NO | answer::KEY_BUSY)) if was_ours => {
                return Ended::LostInProgress;
            }
            (Sought::Completion(..), Some(answer::FENCED)) if was_ours => return Ended::Fenced,
            _ => {}
        }
        drop(code);
        let doing = if error::kind(&error) == StoreErrorKind::Aborted {
            "a database error had aborted the transaction, and the handler did not report it"
        } else if error::is_connection_lost(&error) {
            "the session ended before the commit"
        } else {
            "the record could not be written"
        };
        Ended::Aborted(self.error(doing, error))
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
    pub(super) async fn ended_by_handler(
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
}

fn undone(answer: &Answer) -> Standing {
    match answer.rows.last().map(moment) {
        Some(Ok(at)) => Standing::Undone(at),
        Some(Err(error)) => Standing::Unclear(error),
        None => Standing::Unclear(sqlx::Error::RowNotFound),
    }
}
