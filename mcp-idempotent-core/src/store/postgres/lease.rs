//! Lease mode: a claim that is durable before the handler starts, and its guarded endings.
//!
//! A lease that has lapsed is in doubt, and stays so: its holder is fenced from the moment it ends,
//! also while nobody else has touched the row. A caller may have been told by then that the outcome
//! is unknown, and an operator may be looking at it.

mod transaction;

use std::time::Duration;

use sqlx::{PgConnection, Row, postgres::PgRow};

use super::{
    PostgresStore,
    begin::{Obstacle, roll_back},
    connection::{Leased, run, undo},
    id_arguments, label_arguments,
    record::{Stored, attempts, moment},
    statement::{self, Name},
};
use crate::store::{Claim, Claimed, Completion, Lease, LeaseEnd, StoreError};

const ATTEMPTS: u32 = 6;

/// Commits durably also where the session's default is `off`. Stronger settings are kept.
pub(super) const DURABLY: &str = "SELECT pg_catalog.set_config('synchronous_commit', \
     CASE pg_catalog.current_setting('synchronous_commit') WHEN 'off' THEN 'on' \
     ELSE pg_catalog.current_setting('synchronous_commit') END, true);";

/// Losing a completion in a crash of the server turns a finished call into one in doubt, which is
/// safe, so it need not wait for the disk.
const AT_LEISURE: &str = "SET LOCAL synchronous_commit = off;";

/// What came of a statement that grants a lease.
enum Granted {
    Lease(Lease),
    /// The connection may be inside an aborted transaction.
    Refused(Refusal, Leased),
}

enum Refusal {
    SameCallRuns,
    KeyIsHeld,
    /// The record was not as the statement asked for.
    Record,
}

impl PostgresStore {
    pub(super) async fn claim_lease(&self, claim: &Claim) -> Result<Claimed<Lease>, StoreError> {
        let failed = |error| self.error("the claim failed", error);
        for _ in 0..ATTEMPTS {
            let (refusal, mut connection) = match self
                .grant(claim, || {
                    let [tool, prefix] = label_arguments(claim);
                    let id = statement::bytes(claim.id.as_bytes());
                    let arguments = [
                        id.clone(),
                        statement::bytes(&claim.fingerprint.to_stored()),
                        tool,
                        prefix,
                        statement::interval(claim.lease).to_string(),
                        statement::interval(claim.in_doubt_retention).to_string(),
                    ];
                    [
                        self.call(Name::ExpireUnkept, &id_arguments(claim)),
                        self.call(Name::Held, &[id]),
                        self.call(Name::Claim, &arguments),
                    ]
                    .concat()
                })
                .await?
            {
                Granted::Lease(lease) => return Ok(Claimed::New(lease)),
                Granted::Refused(refusal, connection) => (refusal, connection),
            };
            if let Refusal::SameCallRuns = refusal {
                roll_back(&mut connection).await.map_err(failed)?;
                connection.release();
                return Ok(Claimed::InProgress);
            }
            // Whatever is found now is the truth, also where the refusal was not.
            let batch = format!(
                "ROLLBACK;{}{}COMMIT;",
                self.short_transaction(),
                self.look_up_call(claim)
            );
            let row = run(&mut connection, batch)
                .await
                .into_row_before_commit()
                .map_err(failed)?;
            let stored = row.as_ref().map(Stored::read).transpose().map_err(failed)?;
            connection.release();
            match (stored, refusal) {
                (Some(stored), _) => return Ok(Claimed::Found(stored.record)),
                (None, Refusal::KeyIsHeld) => return Ok(Claimed::Conflict),
                // It expired, or was given back, in between.
                (None, _) => {}
            }
        }
        Err(self.gave_up(None))
    }

    pub(super) async fn take_lease_over(
        &self,
        claim: &Claim,
        token: i64,
    ) -> Result<Option<Lease>, StoreError> {
        let arguments = [
            statement::bytes(claim.id.as_bytes()),
            token.to_string(),
            statement::bytes(&claim.fingerprint.to_stored()),
            statement::interval(claim.lease).to_string(),
            statement::interval(claim.in_doubt_retention).to_string(),
        ];
        match self
            .grant(claim, || self.call(Name::TakeOver, &arguments))
            .await?
        {
            Granted::Lease(lease) => Ok(Some(lease)),
            Granted::Refused(_, mut connection) => {
                if roll_back(&mut connection).await.is_ok() {
                    connection.release();
                }
                Ok(None)
            }
        }
    }

    /// Runs `change`, whose last statement returns what a lease is made of, under the locks of the
    /// claim and in a durable transaction of its own.
    async fn grant(
        &self,
        claim: &Claim,
        change: impl Fn() -> String,
    ) -> Result<Granted, StoreError> {
        let mut connection = self.connection().await?;
        let mut unprepared = 0;
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let batch = [
                self.short_transaction(),
                DURABLY.to_owned(),
                self.open(claim, false),
                change(),
                "COMMIT;".to_owned(),
            ]
            .concat();
            let error = match run(&mut connection, batch).await.into_row_before_commit() {
                Ok(Some(row)) => {
                    let lease = granted(claim, &row)
                        .map_err(|error| self.error("the claim could not be read", error))?;
                    connection.release();
                    return Ok(Granted::Lease(lease));
                }
                Ok(None) => return Ok(Granted::Refused(Refusal::Record, connection)),
                Err(error) => error,
            };
            let obstacle = match Obstacle::of(error) {
                Obstacle::SameCallRuns => {
                    return Ok(Granted::Refused(Refusal::SameCallRuns, connection));
                }
                Obstacle::KeyIsHeld => {
                    return Ok(Granted::Refused(Refusal::KeyIsHeld, connection));
                }
                Obstacle::RecordExists => {
                    return Ok(Granted::Refused(Refusal::Record, connection));
                }
                obstacle => obstacle,
            };
            // Where the change was committed all the same, the next try finds it in progress.
            // Nobody runs under it, so it lapses into doubt.
            (connection, _) = self
                .try_again(
                    "the claim failed",
                    connection,
                    obstacle,
                    &mut unprepared,
                    &mut last,
                )
                .await?;
        }
        Err(self.gave_up(last))
    }

    /// Durably, as a claim: after a crash of the server a lease must not end earlier than its
    /// holder was told, or another attempt would take over from one that rightly goes on.
    pub(super) async fn renew_lease(
        &self,
        lease: &Lease,
        period: Duration,
    ) -> Result<LeaseEnd, StoreError> {
        let [id, token] = token_arguments(lease);
        let arguments = [id, token, statement::interval(period).to_string()];
        self.change_lease(DURABLY, Name::Renew, &arguments).await
    }

    pub(super) async fn complete_lease(
        &self,
        lease: &Lease,
        completion: &Completion,
    ) -> Result<LeaseEnd, StoreError> {
        let arguments = [
            statement::bytes(lease.id.as_bytes()),
            lease.token.to_string(),
            statement::bytes_or_null(completion.response.as_deref()),
            statement::interval(completion.retention).to_string(),
            statement::interval(completion.tombstone).to_string(),
        ];
        self.change_lease(AT_LEISURE, Name::Complete, &arguments)
            .await
    }

    pub(super) async fn release_lease(
        &self,
        lease: &Lease,
        keep_origin: Duration,
    ) -> Result<LeaseEnd, StoreError> {
        let [id, token] = token_arguments(lease);
        if keep_origin.is_zero() {
            return self.change_lease("", Name::Release, &[id, token]).await;
        }
        let arguments = [id, token, statement::interval(keep_origin).to_string()];
        self.change_lease("", Name::Keep, &arguments).await
    }

    pub(super) async fn abandon_lease(&self, lease: &Lease) -> Result<LeaseEnd, StoreError> {
        self.change_lease(AT_LEISURE, Name::Abandon, &token_arguments(lease))
            .await
    }

    /// One guarded statement: a row is changed by its own token or not at all. A lost answer is
    /// asked for again; only a release that keeps nothing cannot be told from a removal by somebody
    /// else, and then counts as fenced.
    async fn change_lease(
        &self,
        durability: &str,
        name: Name,
        arguments: &[String],
    ) -> Result<LeaseEnd, StoreError> {
        let mut connection = self.connection().await?;
        let mut unprepared = 0;
        let mut last = None;
        let mut answer_was_lost = false;
        for _ in 0..ATTEMPTS {
            let batch = format!(
                "{}{durability}{}COMMIT;",
                self.short_transaction(),
                self.call(name, arguments)
            );
            let error = match run(&mut connection, batch).await.into_row_before_commit() {
                Ok(None) if answer_was_lost => {
                    match self.ended_before(&mut connection, name, arguments).await {
                        Ok(end) => {
                            connection.release();
                            return Ok(end);
                        }
                        Err(error) => error,
                    }
                }
                Ok(row) => {
                    let end = row.as_ref().map(moment).transpose();
                    connection.release();
                    return end
                        .map(|at| at.map_or(LeaseEnd::Fenced, LeaseEnd::Done))
                        .map_err(|error| self.error("the lease could not be changed", error));
                }
                Err(error) => error,
            };
            let obstacle = Obstacle::of(error);
            let answered;
            (connection, answered) = self
                .try_again(
                    "the lease could not be changed",
                    connection,
                    obstacle,
                    &mut unprepared,
                    &mut last,
                )
                .await?;
            answer_was_lost |= !answered;
        }
        Err(self.gave_up(last))
    }

    /// After an error in a batch that ends in a plain COMMIT: a connection for the next try, and
    /// whether nothing was committed. That is certain only if the transaction was still open; an
    /// error of a pooler may hide a commit, whatever its code.
    async fn try_again(
        &self,
        doing: &str,
        mut connection: Leased,
        obstacle: Obstacle,
        unprepared: &mut u32,
        last: &mut Option<sqlx::Error>,
    ) -> Result<(Leased, bool), StoreError> {
        let failed = |error| self.error(doing, error);
        let undone = tokio::time::timeout(self.inner.recovery_timeout, undo(&mut connection)).await;
        let nothing_committed = matches!(undone, Ok(Ok(true)));
        match obstacle {
            Obstacle::NotPrepared if nothing_committed => {
                *unprepared += 1;
                self.prepare(&mut connection, *unprepared > 1)
                    .await
                    .map_err(failed)?;
                return Ok((connection, true));
            }
            Obstacle::CannotSerialize(error) if nothing_committed => {
                *last = Some(error);
                return Ok((connection, true));
            }
            Obstacle::Other(error) if nothing_committed => {
                connection.release();
                return Err(failed(error));
            }
            Obstacle::ConnectionLost(error)
            | Obstacle::CannotSerialize(error)
            | Obstacle::Other(error) => *last = Some(error),
            _ => {}
        }
        drop(connection);
        Ok((self.connection().await?, nothing_committed))
    }

    /// Whether a statement whose answer was lost had done its work: the record is as it would have
    /// left it, and nobody else can have done that under this token.
    async fn ended_before(
        &self,
        connection: &mut PgConnection,
        name: Name,
        arguments: &[String],
    ) -> Result<LeaseEnd, sqlx::Error> {
        let [id, token, ..] = arguments else {
            unreachable!("every ending names a record and a token")
        };
        let look = format!(
            "SELECT state::int, (extract(epoch FROM coalesce(completed_at, \
             pg_catalog.clock_timestamp())) * 1000000)::bigint FROM {}.records \
             WHERE id = {id} AND token = {token};",
            self.inner.schema.quoted()
        );
        let row = run(connection, look).await.into_last_row()?;
        let Some(row) = row else {
            return Ok(LeaseEnd::Fenced);
        };
        let state: i32 = row.try_get(0)?;
        match (name, state) {
            (Name::Complete, 1) | (Name::Abandon, 2) | (Name::Keep, 4) => {
                moment(&row).map(LeaseEnd::Done)
            }
            _ => Ok(LeaseEnd::Fenced),
        }
    }
}

fn granted(claim: &Claim, row: &PgRow) -> Result<Lease, sqlx::Error> {
    let (token, origin) = (row.try_get(0)?, row.try_get(1)?);
    Ok(Lease::new(claim.id, token).after(origin, attempts(row, 2)?))
}

fn token_arguments(lease: &Lease) -> [String; 2] {
    [
        statement::bytes(lease.id.as_bytes()),
        lease.token.to_string(),
    ]
}
