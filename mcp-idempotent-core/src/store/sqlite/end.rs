//! Ending a handler's transaction: the record commits together with the handler's writes.

use sqlx::{Arguments as _, sqlite::SqliteArguments};

use super::{
    batch::{self, Batch, Encoded},
    claim_transaction::SqliteTransaction,
    error::{is_read_only, is_sql_error, leaves_commit_open, store_error},
    lease::{add_guard, finished},
    lock::Opened,
    queue::Checkout,
    recover::{Proof, unknown},
    row,
    store::{SqliteStore, micros},
};
use crate::{
    record::{RecordState, Timestamp},
    store::{Claim, Completion, End, Ended, Lease, StoreError, StoreErrorKind},
};

/// The number of statements in a batch that ends a transaction.
const ENDING_STATEMENTS: usize = 2;
/// The number in a batch that writes a record.
const RECORDING_STATEMENTS: usize = 3;

pub(super) async fn end(
    store: &SqliteStore,
    transaction: SqliteTransaction,
    claim: Option<&Claim>,
    end: End,
) -> Ended {
    let SqliteTransaction { checkout } = transaction;
    match (end, claim) {
        (End::Commit(completion), Some(claim)) => {
            store.commit_recorded(checkout, claim, completion).await
        }
        (End::Commit(_) | End::CommitUnrecorded, claim) => {
            store.commit_unrecorded(checkout, claim).await
        }
        (End::RollBackAndRecord(completion), Some(claim)) => {
            let recorded = store.roll_back_and_record(checkout, claim, completion);
            // Boxed, because it is rare: otherwise every call's future would have room for it.
            Box::pin(recorded).await
        }
        (End::Complete(lease, completion), claim) => {
            store
                .commit_completed(checkout, claim, &lease, completion)
                .await
        }
        (End::RollBackAndRecord(_) | End::RollBack, claim) => {
            store.roll_back(checkout, claim).await
        }
    }
}

impl SqliteStore {
    async fn commit_recorded(
        &self,
        mut checkout: Checkout,
        claim: &Claim,
        completion: Completion,
    ) -> Ended {
        // The commit hook would refuse the record, unless the handler has removed the hook.
        if checkout.writer.watch.ended_early() {
            return Box::pin(self.ended_by_handler(checkout, Some(claim))).await;
        }
        let statements = &self.shared.statements;
        let (statement, number, proof) = match completion.guard {
            None => (
                &statements.record_and_commit,
                RECORDING_STATEMENTS,
                Proof::Record(claim),
            ),
            Some(_) => (
                &statements.record_under_guard_and_commit,
                RECORDING_STATEMENTS + 1,
                Proof::GuardedRecord(claim),
            ),
        };
        let arguments = recorded(claim, &completion);
        let connection = &mut checkout.writer.connection;
        let batch = batch::run(connection, statement, arguments, number).await;
        self.finish(checkout, Some(claim), batch, proof).await
    }

    async fn commit_completed(
        &self,
        mut checkout: Checkout,
        claim: Option<&Claim>,
        lease: &Lease,
        completion: Completion,
    ) -> Ended {
        // The commit hook would refuse the completion, unless the handler has removed the hook.
        if checkout.writer.watch.ended_early() {
            return Box::pin(self.ended_by_handler(checkout, claim)).await;
        }
        let statements = &self.shared.statements;
        let batch = batch::run(
            &mut checkout.writer.connection,
            match completion.guard {
                None => &statements.complete_and_commit,
                Some(_) => &statements.complete_both_and_commit,
            },
            finished(lease, &completion),
            ENDING_STATEMENTS,
        )
        .await;
        self.finish(checkout, claim, batch, Proof::Lease(lease))
            .await
    }

    async fn commit_unrecorded(&self, mut checkout: Checkout, claim: Option<&Claim>) -> Ended {
        let batch = batch::run(
            &mut checkout.writer.connection,
            &self.shared.statements.commit,
            Ok(SqliteArguments::default()),
            ENDING_STATEMENTS,
        )
        .await;
        // No record is written, so nothing can show what became of a lost commit.
        self.finish(checkout, claim, batch, Proof::Nothing).await
    }

    async fn roll_back(&self, mut checkout: Checkout, claim: Option<&Claim>) -> Ended {
        checkout.writer.watch.stop();
        let now = self.now(&mut checkout).await;
        if checkout.writer.watch.refused_a_commit() {
            return Box::pin(self.ended_by_handler(checkout, claim)).await;
        }
        match now {
            // SQLite has already rolled back, as asked. The connection is closed.
            Ok(at) if checkout.writer.watch.saw_rollback() => Ended::AsAsked(at),
            Ok(at) => {
                checkout.roll_back_and_give_back().await;
                Ended::AsAsked(at)
            }
            Err(error) => aborted(checkout, "asking for the time", error).await,
        }
    }

    /// Writes the record after the rollback, in a transaction of its own. A call that came in
    /// between has won.
    async fn roll_back_and_record(
        &self,
        mut checkout: Checkout,
        claim: &Claim,
        completion: Completion,
    ) -> Ended {
        // Its answer proves that nothing the handler sent is still on its way.
        let drained = self.now(&mut checkout).await;
        if checkout.writer.watch.refused_a_commit() {
            return Box::pin(self.ended_by_handler(checkout, Some(claim))).await;
        }
        if let Err(error) = drained {
            return aborted(checkout, "asking for the time", error).await;
        }
        if checkout.writer.watch.saw_rollback() {
            return Ended::Aborted(StoreError::new(
                StoreErrorKind::Aborted,
                "SQLite store: a database error had rolled the transaction back",
            ));
        }
        if let Err(error) = checkout.writer.roll_back().await {
            return Ended::Aborted(store_error("rolling back", error));
        }
        let deadline = self.deadline();
        let locked = self.lock_for(checkout, Some(claim), false, deadline).await;
        let checkout = match locked {
            Ok(Opened::New(checkout)) => checkout,
            Ok(Opened::Found(record)) if matches!(record.state, RecordState::InProgress { .. }) => {
                return Ended::LostInProgress;
            }
            Ok(Opened::Found(record)) => return Ended::Lost(record),
            Err(error) => return Ended::Aborted(error),
        };
        checkout.writer.watch.hold();
        self.commit_recorded(checkout, claim, completion).await
    }

    async fn now(&self, checkout: &mut Checkout) -> Result<Timestamp, sqlx::Error> {
        sqlx::query_scalar(self.shared.statements.now.clone())
            .fetch_one(&mut checkout.writer.connection)
            .await
            .map(Timestamp::from_micros)
    }

    /// Works out what became of a finishing batch.
    async fn finish(
        &self,
        mut checkout: Checkout,
        claim: Option<&Claim>,
        batch: Batch,
        proof: Proof<'_>,
    ) -> Ended {
        // The time is the first value. Without that answer nothing was written.
        let at = batch.values.first().copied().map(Timestamp::from_micros);
        let error = match (batch.done, at) {
            // SQLite asks no hook about the commit of a transaction that wrote nothing, such as
            // one that the handler began after it had rolled ours back.
            (Ok(()), Some(_)) if checkout.writer.watch.ended_early() => {
                return Box::pin(self.ended_by_handler(checkout, claim)).await;
            }
            (Ok(()), Some(at)) => {
                if checkout.writer.watch.saw_the_commit() {
                    checkout.give_back();
                } else {
                    tracing::warn!(
                        "a handler replaced the commit hook of the store's connection, so the \
                         connection is closed; until then, a COMMIT sent by the handler itself \
                         would not have been refused"
                    );
                }
                return Ended::AsAsked(at);
            }
            // Nothing was written, yet the commit succeeded: the hook has been removed.
            (Ok(()), None) => return Box::pin(self.ended_by_handler(checkout, claim)).await,
            (Err(error), _) => error,
        };
        if checkout.writer.watch.wrote_nothing() {
            // The hook rolled it back. The connection is closed.
            return match proof {
                Proof::Lease(_) | Proof::GuardedRecord(_) => Ended::Fenced,
                Proof::Record(_) | Proof::Nothing => {
                    Ended::Aborted(store_error("recording the result", error))
                }
            };
        }
        if checkout.writer.watch.refused_a_commit() {
            return Box::pin(self.ended_by_handler(checkout, claim)).await;
        }
        match at {
            Some(at) if leaves_commit_open(&error) => {
                drop(checkout);
                Box::pin(self.find_out(proof, at, error)).await
            }
            // COMMIT found nothing to commit.
            Some(_) if is_sql_error(&error) => {
                Box::pin(self.ended_by_handler(checkout, claim)).await
            }
            Some(_) => aborted(checkout, "committing", error).await,
            None if is_sql_error(&error) && !self.is_ours(&mut checkout).await => {
                Box::pin(self.ended_by_handler(checkout, claim)).await
            }
            None => aborted(checkout, "recording the result", error).await,
        }
    }

    /// Whether the handler has left the store's own connection in place.
    async fn is_ours(&self, checkout: &mut Checkout) -> bool {
        sqlx::query_scalar::<_, i64>(self.shared.statements.is_ours.clone())
            .fetch_one(&mut checkout.writer.connection)
            .await
            .is_ok_and(|count| count == 1)
    }

    /// The transaction is no longer the one that was begun. Puts the key in doubt, if there is a
    /// key, and closes the connection.
    async fn ended_by_handler(&self, checkout: Checkout, claim: Option<&Claim>) -> Ended {
        tracing::error!("a handler ended the transaction that it was given");
        let Some(claim) = claim else {
            return Ended::EndedByHandler;
        };
        // The connection may have lost its hooks, or be another one altogether.
        let checkout = match self.shared.writers.renew(checkout, self.deadline()).await {
            Ok(checkout) => checkout,
            Err(error) => return unknown(error),
        };
        match self.put_in_doubt(checkout, claim).await {
            Ok(()) => Ended::EndedByHandler,
            Err(error) => unknown(error),
        }
    }

    async fn put_in_doubt(&self, checkout: Checkout, claim: &Claim) -> Result<(), StoreError> {
        let deadline = self.deadline();
        // A record found here belongs to a call that came in later, because nothing of this call
        // was committed.
        let locked = self
            .lock_for(checkout, Some(claim), false, deadline)
            .await?;
        if let Opened::New(mut checkout) = locked {
            self.insert_in_doubt(&mut checkout, claim)
                .await
                .map_err(|error| store_error("putting the key in doubt", error))?;
            checkout.give_back();
        }
        Ok(())
    }

    async fn insert_in_doubt(
        &self,
        checkout: &mut Checkout,
        claim: &Claim,
    ) -> Result<(), sqlx::Error> {
        let connection = &mut checkout.writer.connection;
        let token = self.draw_token(connection).await?;
        let arguments = in_doubt(claim, token).map_err(sqlx::Error::Encode)?;
        sqlx::query_with(self.shared.statements.insert_in_doubt.clone(), arguments)
            .execute(connection)
            .await?;
        checkout.writer.commit().await
    }
}

fn in_doubt(claim: &Claim, token: i64) -> Encoded {
    let mut arguments = row::written(claim)?;
    arguments.add(token)?;
    arguments.add(micros(claim.in_doubt_retention))?;
    Ok(arguments)
}

fn recorded(claim: &Claim, completion: &Completion) -> Encoded {
    let mut arguments = row::written(claim)?;
    arguments.add(completion.response.as_deref())?;
    arguments.add(micros(completion.retention))?;
    arguments.add(micros(completion.tombstone))?;
    add_guard(&mut arguments, completion)?;
    Ok(arguments)
}

/// Rolls back after an error that left nothing behind.
async fn aborted(checkout: Checkout, doing: &str, error: sqlx::Error) -> Ended {
    // SQLite may have rolled back already; then nothing is left to do, and the connection is
    // closed. It is also closed if a handler has left it unable to write.
    if !checkout.writer.watch.saw_rollback() && !is_read_only(&error) {
        checkout.roll_back_and_give_back().await;
    }
    Ended::Aborted(store_error(doing, error))
}
