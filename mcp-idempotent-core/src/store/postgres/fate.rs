//! What became of a transaction whose finishing batch was stopped.
//!
//! Once the COMMIT has been sent, no error is believed, because a pooler can make up errors with
//! any SQLSTATE. What counts is whether the transaction can still be rolled back on its own
//! connection ([`fate`]). If it cannot, a look at what was written decides ([`Sought`]).

use super::{
    batch::{Batch, BatchRun, moment},
    bound::{is_silence, silence, within},
    connection::{PgTransaction, Session},
    error::{self, answer},
    literal::Argument,
    lock::Mark,
    look_up::Stored,
    recover::{Sought, TransactionId, find_out},
    statement::Step,
    store::PostgresStore,
};
use crate::{
    record::Timestamp,
    store::{Claim, Ended, StoreError, StoreErrorKind},
};

/// What stopped a finishing batch, and what the server had answered by then.
#[derive(Debug)]
pub(super) struct Stopped {
    error: sqlx::Error,
    commit_was_sent: bool,
    /// The server had confirmed that the transaction was still ours.
    was_ours: bool,
    transaction: TransactionId,
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

    pub(super) fn at_commit(error: sqlx::Error, heard: &BatchRun) -> Self {
        Self {
            error,
            commit_was_sent: true,
            was_ours: heard.has_completed(Step::ReleaseSavepoint),
            transaction: TransactionId::heard(heard),
        }
    }

    /// The same for a transaction whose number an earlier batch returned.
    pub(super) fn about(self, number: TransactionId) -> Self {
        match self.transaction {
            TransactionId::Unheard => Self {
                transaction: number,
                ..self
            },
            _ => self,
        }
    }

    /// Nothing stopped it, but its answer made no sense.
    pub(super) fn unreadable(error: sqlx::Error) -> Self {
        Self {
            error,
            commit_was_sent: true,
            was_ours: true,
            transaction: TransactionId::Unheard,
        }
    }

    /// Whether the savepoint was missing, or the transaction aborted. No pooler says that.
    fn is_of_transaction(&self) -> bool {
        error::is_about_savepoint(&self.error)
            || error::sqlstate(&self.error).as_deref() == Some(error::IN_FAILED_TRANSACTION)
    }
}

/// What became of a transaction whose finishing batch was stopped.
enum Fate {
    /// Nothing was committed. The connection, if it is still good, is at the start of an empty
    /// transaction.
    NotCommitted(Option<Session>),
    /// The handler had already ended it.
    EndedByHandler(PgTransaction),
    /// It is over, and may have been committed.
    Open(Option<Session>),
}

/// How a transaction looks from its own connection.
pub(super) enum OwnView {
    /// It was ours, committed nothing, and is rolled back. An empty transaction is open.
    Undone(Timestamp),
    /// There is no transaction, or a different one.
    NotOurs,
    /// Nobody knows. The connection must not be used any more.
    Unclear(sqlx::Error),
}

/// Finds out what the stop of a finishing batch means.
pub(super) async fn stopped(
    store: &PostgresStore,
    transaction: PgTransaction,
    claim: Option<&Claim>,
    sought: Sought<'_>,
    why: Stopped,
) -> Ended {
    match fate(store, transaction, &why).await {
        Fate::NotCommitted(session) => not_committed(store, session, sought, why).await,
        Fate::EndedByHandler(transaction) => ended_by_handler(store, transaction, claim).await,
        Fate::Open(session) => find_out(store, sought, why.transaction, why.error, session).await,
    }
}

/// Decides what may be believed once the COMMIT has been sent. The transaction was not committed if
/// its own connection can still roll it back. The handler had ended it if the server says so twice:
/// for the RELEASE that began the batch, and for a later ROLLBACK TO. Everything else is open.
///
/// | COMMIT was sent | was ours | own view | fate |
/// | --- | --- | --- | --- |
/// | any | any | undone | not committed |
/// | no | no | not ours | ended by the handler |
/// | no | no | unclear | not committed; the connection is closed |
/// | yes | no | not ours, and the batch stopped at an error about the transaction | ended by the handler |
/// | yes | no | not ours, and it stopped at another error | open |
/// | yes | yes | not ours | open |
/// | yes | any | unclear | open; the connection is closed |
///
/// It never counts as ours unless the COMMIT was sent. The view is unclear, without a question, if
/// the batch stopped because the connection was silent, and also if the question gets no answer.
async fn fate(store: &PostgresStore, mut transaction: PgTransaction, why: &Stopped) -> Fate {
    let view = async {
        Ok(if is_silence(&why.error) {
            return Err(silence(store.inner.answer_timeout));
        } else if why.was_ours {
            undo_released(store, &mut transaction).await
        } else {
            undo_ours(store, &mut transaction).await
        })
    };
    match within(store.inner.answer_timeout, view).await {
        Ok(OwnView::Undone(_)) => Fate::NotCommitted(Some(transaction.session)),
        Ok(OwnView::NotOurs) if !why.commit_was_sent => Fate::EndedByHandler(transaction),
        Ok(OwnView::NotOurs) if !why.was_ours && why.is_of_transaction() => {
            Fate::EndedByHandler(transaction)
        }
        Ok(OwnView::NotOurs) => Fate::Open(Some(transaction.session)),
        Ok(OwnView::Unclear(_)) | Err(_) if why.commit_was_sent => Fate::Open(None),
        Ok(OwnView::Unclear(_)) | Err(_) => Fate::NotCommitted(None),
    }
}

/// Rolls the transaction back if it is ours, aborted or not. The savepoint shows that: it ends with
/// the transaction, no matter who ends it.
pub(super) async fn undo_ours(store: &PostgresStore, transaction: &mut PgTransaction) -> OwnView {
    let batch = Batch::new(store).steps([
        Step::RollBackToSavepoint,
        Step::Moment,
        transaction.session.roll_back(),
    ]);
    let mut answer = batch.run(transaction).await;
    let reached = answer.has_completed(Step::RollBackToSavepoint);
    match answer.error.take() {
        Some(error) if !reached && error::is_about_savepoint(&error) => OwnView::NotOurs,
        Some(error) => OwnView::Unclear(error),
        None => undone(&answer),
    }
}

/// Like [`undo_ours`], after the savepoint was released. The transaction is ours if it is aborted:
/// after a COMMIT, carried out or refused, no aborted transaction is open.
async fn undo_released(store: &PostgresStore, transaction: &mut PgTransaction) -> OwnView {
    let batch = Batch::new(store).steps([Step::Ask]);
    let is_aborted = |error: &sqlx::Error| {
        error::sqlstate(error).as_deref() == Some(error::IN_FAILED_TRANSACTION)
    };
    match batch.run(transaction).await.error {
        Some(error) if is_aborted(&error) => {}
        Some(error) => return OwnView::Unclear(error),
        None => return OwnView::NotOurs,
    }
    let batch = Batch::new(store).steps([transaction.session.roll_back(), Step::Moment]);
    match batch.run(transaction).await.into_result() {
        Err(error) => OwnView::Unclear(error),
        Ok(answer) => undone(&answer),
    }
}

fn undone(answer: &BatchRun) -> OwnView {
    match answer.one(Step::Moment).and_then(moment) {
        Ok(at) => OwnView::Undone(at),
        Err(error) => OwnView::Unclear(error),
    }
}

/// It is proven that nothing was committed, so the error may be believed.
async fn not_committed(
    store: &PostgresStore,
    session: Option<Session>,
    sought: Sought<'_>,
    why: Stopped,
) -> Ended {
    let was_ours = why.was_ours;
    let error = why.error;
    let code = error::sqlstate(&error);
    if let Some(session) = session {
        match (sought, code.as_deref()) {
            (Sought::Record(claim, _), Some(answer::SEEN)) if was_ours => {
                return lost(store, session, claim).await;
            }
            (Sought::Record(claim, _), _)
                if error::is_our_unique_violation(&error, store.inner.schema.as_str()) =>
            {
                return lost(store, session, claim).await;
            }
            _ if error::is_read_only(&error) => drop(session),
            _ => session.release_ended(),
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
    Ended::Aborted(store.error(doing, error))
}

/// Another call's record won: rolls back and reads it. The connection is inside an aborted
/// transaction.
async fn lost(store: &PostgresStore, mut session: Session, claim: &Claim) -> Ended {
    let batch = Batch::new(store)
        .steps([session.roll_back()])
        .call(Step::LookUp, &Argument::record(claim));
    let found = match batch.run(&mut session).await.into_result() {
        Ok(answer) => {
            session.release_ended();
            answer.row(Step::LookUp).map(Stored::read).transpose()
        }
        Err(error) => Err(error),
    };
    match found {
        Ok(Some(stored)) => Ended::Lost(stored.record),
        Ok(None) => Ended::Aborted(StoreError::new(
            StoreErrorKind::Conflict,
            "the record of another call was in the way and has expired since",
        )),
        Err(error) => {
            Ended::Aborted(store.error("another call's record won, and could not be read", error))
        }
    }
}

/// The handler ended the transaction itself. Whatever it did, the key is in doubt, unless a record
/// exists. The session may still have the handler's settings, so it is closed.
pub(super) async fn ended_by_handler(
    store: &PostgresStore,
    mut transaction: PgTransaction,
    claim: Option<&Claim>,
) -> Ended {
    let Some(claim) = claim else {
        return Ended::EndedByHandler;
    };
    let mark = transaction.mark;
    // Without prepared names, because the handler may have removed them too.
    let here = Batch::in_full(store).steps([Step::RollBack, Step::ResetRole]);
    let mut failure = doubt(here, claim, mark).run(&mut transaction).await.error;
    drop(transaction);
    if failure.is_some() {
        failure = match store.session().await {
            Ok(mut session) => {
                let anew = doubt(Batch::in_full(store), claim, mark);
                let error = anew.run(&mut session).await.error;
                if error.is_none() {
                    session.release();
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

fn doubt<'s>(batch: Batch<'s>, claim: &Claim, mark: Mark) -> Batch<'s> {
    let arguments = [
        Argument::Bytes(claim.id.as_bytes()),
        Argument::Bytes(&claim.fingerprint.to_stored()),
        Argument::Integer(mark.0),
        Argument::Labels(claim),
        Argument::interval(claim.in_doubt_retention),
    ];
    batch
        .begin_short()
        .call(Step::Expire, &Argument::record(claim))
        .call(Step::Doubt, &arguments)
        .steps([Step::Commit])
}
