//! Claiming in transaction mode: open, lock and look up in one round trip.

use std::sync::atomic::Ordering;

use sqlx::PgConnection;

use super::{
    Mark, PgTransaction, PostgresStore,
    connection::{Leased, run},
    error::{self, answer},
    id_arguments,
    record::Stored,
    statement::{Argument, Name},
};
use crate::{
    record::Record,
    store::{CallInfo, Claim, Claimed, StoreError, StoreErrorKind},
};

/// How often a claim starts over: after a lost connection, a refusal to serialise, a record that
/// expired while it was being read, statements that had to be prepared.
const ATTEMPTS: u32 = 6;

/// Why a batch that claims did not come through.
#[derive(Debug)]
pub(super) enum Obstacle {
    SameCallRuns,
    KeyIsHeld,
    RecordExists,
    IsSerializable,
    NotPrepared,
    CannotSerialize(sqlx::Error),
    ConnectionLost(sqlx::Error),
    Other(sqlx::Error),
}

impl Obstacle {
    /// Reads the error of a batch that holds nothing but our own statements.
    pub(super) fn of(error: sqlx::Error) -> Self {
        match error::sqlstate(&error).as_deref() {
            Some(answer::NO) => Self::SameCallRuns,
            Some(answer::KEY_BUSY) => Self::KeyIsHeld,
            Some(answer::SEEN) => Self::RecordExists,
            Some(answer::SERIALIZABLE) => Self::IsSerializable,
            Some(error::UNKNOWN_PREPARED_NAME) => Self::NotPrepared,
            _ if error::is_connection_lost(&error) => Self::ConnectionLost(error),
            _ if error::is_serialization_failure(&error) => Self::CannotSerialize(error),
            _ => Self::Other(error),
        }
    }
}

/// What to do after an obstacle.
pub(super) enum Next<T> {
    Answer(Claimed<T>),
    /// Again, on this connection, which is outside any transaction.
    Again(Leased, Option<sqlx::Error>),
    /// Again, on another connection.
    Reconnect(sqlx::Error),
}

impl PostgresStore {
    pub(super) async fn begin_transaction(
        &self,
        call: &CallInfo,
        claim: Option<&Claim>,
    ) -> Result<Claimed<PgTransaction>, StoreError> {
        let mut connection = self.connection().await?;
        let mut unprepared = 0;
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let serializable = self.is_serializable();
            let first = self.inner.lookup_first || serializable;
            if let (true, Some(claim)) = (first, claim) {
                match self.look_up_on(&mut connection, claim, serializable).await {
                    Ok(Some(stored)) => {
                        connection.release();
                        return Ok(Claimed::Found(stored.record));
                    }
                    Ok(None) => {}
                    Err(error) if error::is_connection_lost(&error) => {
                        last = Some(error);
                        drop(connection);
                        connection = self.connection().await?;
                        continue;
                    }
                    Err(error) => return Err(self.error("the look-up failed", error)),
                }
            }
            let mark = Mark::new();
            let batch = self.begin_batch(mark, claim, !serializable);
            let Err(error) = connection.begin(batch).await else {
                self.found_prepared(unprepared == 0);
                let transaction = PgTransaction { connection, mark };
                return self.set_up(transaction, call).await.map(Claimed::New);
            };
            match self
                .overcome(connection, claim, Obstacle::of(error), &mut unprepared)
                .await?
            {
                Next::Answer(answer) => return Ok(answer),
                Next::Again(same, error) => {
                    connection = same;
                    last = error.or(last);
                }
                Next::Reconnect(error) => {
                    last = Some(error);
                    connection = self.connection().await?;
                }
            }
        }
        Err(self.gave_up(last))
    }

    pub(super) fn gave_up(&self, last: Option<sqlx::Error>) -> StoreError {
        match last {
            Some(error) => self.error("the claim failed", error),
            None => StoreError::new(
                StoreErrorKind::Busy,
                "the claim failed: the record changed each time it was looked at",
            ),
        }
    }

    fn begin_batch(&self, mark: Mark, claim: Option<&Claim>, look_up: bool) -> String {
        let mut batch = String::with_capacity(512);
        batch.push_str("BEGIN");
        if let Some(isolation) = self.inner.isolation {
            batch.push_str(isolation.as_sql());
        }
        batch.push(';');
        match claim {
            Some(claim) => {
                self.push_open(&mut batch, claim, look_up);
                if look_up {
                    self.push_seen(&mut batch, claim);
                }
            }
            None => self.push(
                &mut batch,
                Name::OpenUnclaimed,
                &[Argument::Integer(self.inner.locks.of_transaction(mark))],
            ),
        }
        for part in ["SAVEPOINT ", &self.inner.savepoint, ";"] {
            batch.push_str(part);
        }
        batch
    }

    async fn set_up(
        &self,
        mut transaction: PgTransaction,
        call: &CallInfo,
    ) -> Result<PgTransaction, StoreError> {
        let Some(hook) = &self.inner.on_begin else {
            return Ok(transaction);
        };
        match hook(&mut transaction, call).await {
            Ok(()) => Ok(transaction),
            Err(error) => {
                let mut connection = transaction.connection;
                if !error::is_connection_lost(&error) {
                    let rolled_back = run(&mut connection, "ROLLBACK AND CHAIN".to_owned()).await;
                    if rolled_back.error.is_none() {
                        connection.release_chained();
                    }
                }
                Err(self.error("the set-up of the transaction failed", error))
            }
        }
    }

    /// Deals with what stopped a claim. The connection is inside an aborted transaction.
    pub(super) async fn overcome<T>(
        &self,
        mut connection: Leased,
        claim: Option<&Claim>,
        obstacle: Obstacle,
        unprepared: &mut u32,
    ) -> Result<Next<T>, StoreError> {
        let failed = |error| self.error("the claim failed", error);
        match obstacle {
            Obstacle::SameCallRuns => {
                roll_back(&mut connection).await.map_err(failed)?;
                connection.release();
                Ok(Next::Answer(Claimed::InProgress))
            }
            Obstacle::KeyIsHeld | Obstacle::RecordExists => {
                let Some(claim) = claim else {
                    unreachable!("only a claim takes locks and looks for a record")
                };
                let batch = format!("ROLLBACK;{}", self.look_up_call(claim));
                let row = run(&mut connection, batch)
                    .await
                    .into_last_row()
                    .map_err(failed)?;
                if let Some(row) = row {
                    let stored = Stored::read(&row).map_err(failed)?;
                    connection.release();
                    return Ok(Next::Answer(Claimed::Found(stored.record)));
                }
                if matches!(obstacle, Obstacle::KeyIsHeld) {
                    connection.release();
                    return Ok(Next::Answer(Claimed::Conflict));
                }
                // The record that was seen has expired.
                let expire = self.call(Name::Expire, &id_arguments(claim));
                let batch = format!("BEGIN ISOLATION LEVEL READ COMMITTED;{expire}COMMIT;");
                run(&mut connection, batch)
                    .await
                    .into_last_row()
                    .map_err(failed)?;
                Ok(Next::Again(connection, None))
            }
            Obstacle::IsSerializable => {
                self.inner.serializable.store(true, Ordering::Relaxed);
                roll_back(&mut connection).await.map_err(failed)?;
                Ok(Next::Again(connection, None))
            }
            Obstacle::NotPrepared => {
                roll_back(&mut connection).await.map_err(failed)?;
                *unprepared += 1;
                self.prepare(&mut connection, *unprepared > 1)
                    .await
                    .map_err(failed)?;
                Ok(Next::Again(connection, None))
            }
            Obstacle::CannotSerialize(error) => {
                roll_back(&mut connection).await.map_err(failed)?;
                Ok(Next::Again(connection, Some(error)))
            }
            Obstacle::ConnectionLost(error) => Ok(Next::Reconnect(error)),
            Obstacle::Other(error) => {
                if roll_back(&mut connection).await.is_ok() {
                    connection.release();
                }
                Err(failed(error))
            }
        }
    }

    /// Prepares our statements on a connection outside any transaction. Names that are unknown
    /// again right after that, or known already to a session that did not know them a moment ago,
    /// mean a pooler that gives each transaction another session: then no names any more.
    pub(super) async fn prepare(
        &self,
        connection: &mut PgConnection,
        again: bool,
    ) -> Result<(), sqlx::Error> {
        if !again {
            // One implicit transaction, so that the bound ends with it. Preparing waits for whoever
            // has locked the table.
            let batch = format!("{}{}", self.lock_bound(), self.inner.statements.prepare());
            match run(connection, batch).await.error {
                None => return Ok(()),
                Some(error)
                    if error::sqlstate(&error).as_deref()
                        == Some(error::DUPLICATE_PREPARED_NAME) => {}
                Some(error) => return Err(error),
            }
        }
        if self.inner.prepared.swap(false, Ordering::Relaxed) {
            tracing::info!(
                "prepared statements do not last on these connections (a pooler?); going on without"
            );
        }
        Ok(())
    }

    /// Our names were known, without having been prepared right before.
    fn found_prepared(&self, at_once: bool) {
        let names_last = &self.inner.names_last;
        if at_once && self.prepared() && !names_last.load(Ordering::Relaxed) {
            names_last.store(true, Ordering::Relaxed);
        }
    }

    /// Looks a record up on a connection outside any transaction, in one round trip. With
    /// `make_room` it also removes a record that has expired: inside a serializable transaction
    /// even looking for one would make unrelated calls fail to serialise.
    async fn look_up_on(
        &self,
        connection: &mut PgConnection,
        claim: &Claim,
        make_room: bool,
    ) -> Result<Option<Stored>, sqlx::Error> {
        let mut again = false;
        loop {
            let look_up = self.look_up_call(claim);
            // A serializable look-up would be one more party to others' conflicts.
            let in_transaction = make_room || self.is_serializable();
            if !in_transaction && let Some(found) = self.look_up_bound(connection, claim).await? {
                return Ok(found);
            }
            let batch = if make_room {
                let expire = self.call(Name::Expire, &id_arguments(claim));
                format!("BEGIN ISOLATION LEVEL READ COMMITTED;{expire}{look_up}COMMIT;")
            } else if in_transaction {
                format!("BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY;{look_up}COMMIT;")
            } else {
                look_up
            };
            match run(connection, batch).await.into_last_row() {
                Ok(row) => {
                    self.found_prepared(!again);
                    return row.as_ref().map(Stored::read).transpose();
                }
                Err(error)
                    if self.prepared()
                        && error::sqlstate(&error).as_deref()
                            == Some(error::UNKNOWN_PREPARED_NAME) =>
                {
                    if in_transaction {
                        roll_back(connection).await?;
                    }
                    self.prepare(connection, again).await?;
                    again = true;
                }
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) async fn look_up_record(&self, claim: &Claim) -> Result<Option<Record>, StoreError> {
        for last_try in [false, true] {
            let mut connection = self.connection().await?;
            match self.look_up_on(&mut connection, claim, false).await {
                Ok(stored) => {
                    connection.release();
                    return Ok(stored.map(|stored| stored.record));
                }
                Err(error) if !last_try && error::is_connection_lost(&error) => {}
                Err(error) => return Err(self.error("the look-up failed", error)),
            }
        }
        unreachable!("the last try returns")
    }
}

/// Leaves an aborted transaction.
pub(super) async fn roll_back(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    run(connection, "ROLLBACK".to_owned())
        .await
        .into_last_row()
        .map(drop)
}
