//! Ending a transaction: the record goes with the commit, in its round trip.

use sqlx::{AssertSqlSafe, Row as _};

use super::{
    Mark, PgTransaction, PostgresStore,
    connection::{drain, run},
    id_arguments, labels,
    record::moment,
    recovery::Sought,
    statement::{self, Argument, Name},
    stopped::{Standing, Stopped},
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
            let finish = self.finish_call(transaction.mark, claim, completion);
            self.finishing(&mut transaction, &finish).await
        } else {
            self.commit_bound(&mut transaction, claim, completion).await
        };
        let sought = Sought::Record(claim, transaction.mark);
        self.ended(transaction, Some(claim), sought, written).await
    }

    /// What the finishing batch of a transaction came to.
    pub(super) async fn ended(
        &self,
        transaction: PgTransaction,
        claim: Option<&Claim>,
        sought: Sought<'_>,
        finished: Result<Timestamp, Stopped>,
    ) -> Ended {
        match finished {
            Ok(at) => {
                transaction.connection.release_chained();
                Ended::AsAsked(at)
            }
            Err(stopped) => self.stopped(transaction, claim, sought, stopped).await,
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

    /// A large result costs less as a bound value, for one more round trip. A bound statement has no
    /// company that could check whose transaction it is in, and where the handler has committed it
    /// commits by itself: so it writes a record in doubt, which is the truth in that case.
    async fn commit_bound(
        &self,
        transaction: &mut PgTransaction,
        claim: &Claim,
        completion: &Completion,
    ) -> Result<Timestamp, Stopped> {
        let (tool, prefix) = labels(claim);
        drain(transaction)
            .await
            .map_err(Stopped::before_commit_was_sent)?;
        let row = sqlx::query(AssertSqlSafe(self.inner.statements.doubt_bound()))
            .bind(claim.id.as_bytes().as_slice())
            .bind(claim.fingerprint.to_stored().to_vec())
            .bind(transaction.mark.0)
            .bind(completion.response.as_deref())
            .bind(tool)
            .bind(prefix)
            .bind(statement::interval(claim.in_doubt_retention))
            .persistent(self.prepared())
            .fetch_one(&mut **transaction)
            .await
            .map_err(Stopped::before_commit_was_sent)?;
        let place = row
            .try_get::<&str, _>(0)
            .map_err(Stopped::before_commit_was_sent)?;
        let settle = self.call(
            Name::Settle,
            &[
                statement::text(&statement::plain(place, PLACE_LENGTH)),
                transaction.mark.0.to_string(),
                statement::interval(completion.retention).to_string(),
                statement::interval(completion.tombstone).to_string(),
            ],
        );
        self.finishing(transaction, &settle).await
    }

    async fn commit_unrecorded(
        &self,
        mut transaction: PgTransaction,
        claim: Option<&Claim>,
    ) -> Ended {
        let check = self.call(Name::Check, &[]);
        let finished = self.finishing(&mut transaction, &check).await;
        self.ended(transaction, claim, Sought::Nothing, finished)
            .await
    }

    async fn roll_back_unrecorded(
        &self,
        mut transaction: PgTransaction,
        claim: Option<&Claim>,
    ) -> Ended {
        // A statement that the handler gave up comes first, and may wait for a lock, or for data
        // that never come. Closing the session rolls back as well.
        let bound = self.inner.recovery_timeout;
        let undone = tokio::time::timeout(bound, self.undo_ours(&mut transaction)).await;
        match undone {
            Ok(Standing::Undone(at)) => {
                transaction.connection.release_chained();
                Ended::AsAsked(at)
            }
            Ok(Standing::NotOurs) => self.ended_by_handler(transaction, claim).await,
            // A session that is gone has rolled back.
            Ok(Standing::Unclear(error)) => Ended::Aborted(self.error("the session ended", error)),
            Err(_) => Ended::Aborted(StoreError::new(
                StoreErrorKind::Unavailable,
                format!("the rollback was not answered within {bound:?}; the session is closed"),
            )),
        }
    }

    async fn record_after_rollback(
        &self,
        mut transaction: PgTransaction,
        claim: &Claim,
        completion: &Completion,
    ) -> Ended {
        // Nothing of the handler's is in the second transaction.
        let mark = Mark::new();
        let record = [
            "ROLLBACK;BEGIN ISOLATION LEVEL READ COMMITTED;".to_owned(),
            self.open(claim, false),
            self.call(Name::Expire, &id_arguments(claim)),
            self.seen_call(claim),
            self.finish_call(mark, claim, completion),
        ]
        .concat();
        let finished = self.finishing(&mut transaction, &record).await;
        let sought = Sought::Record(claim, mark);
        match self.ended(transaction, Some(claim), sought, finished).await {
            // The handler's writes are rolled back, whatever became of the record.
            Ended::Unknown(error) => Ended::Aborted(error),
            ended => ended,
        }
    }

    /// Runs `statements`, whose last row is the moment, between the proof that the transaction is
    /// still ours and its COMMIT. The savepoint dies with the transaction, whoever ends it, and then
    /// RELEASE fails; it fails in an aborted transaction too.
    pub(super) async fn finishing(
        &self,
        transaction: &mut PgTransaction,
        statements: &str,
    ) -> Result<Timestamp, Stopped> {
        drain(transaction)
            .await
            .map_err(Stopped::before_commit_was_sent)?;
        let savepoint = &self.inner.savepoint;
        let batch = format!("RELEASE {savepoint};{statements}COMMIT AND CHAIN;");
        let mut done = run(transaction, batch).await;
        match done.error.take() {
            Some(error) => Err(Stopped::at_commit(error, &done)),
            None => match done.rows.last().map(moment) {
                Some(Ok(at)) => Ok(at),
                Some(Err(error)) => Err(Stopped::unreadable(error)),
                None => Err(Stopped::unreadable(sqlx::Error::RowNotFound)),
            },
        }
    }
}

/// More than the place of a row in its table takes as text.
const PLACE_LENGTH: usize = 32;
