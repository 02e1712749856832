//! Lease mode: a claim that is durable before the handler starts, and its guarded endings.
//!
//! A lease that has lapsed is in doubt, and stays so: its holder is fenced from the moment it ends,
//! also while nobody else has touched the row. A caller may have been told by then that the outcome
//! is unknown, and an operator may be looking at it.

use sqlx::{PgConnection, Row};

use super::{
    Mark, PostgresStore,
    begin::{Next, Obstacle},
    connection::run,
    error, id_arguments, label_arguments,
    record::moment,
    statement::{self, Name},
};
use crate::store::{Claim, Claimed, Completion, Lease, LeaseEnd, StoreError};

const ATTEMPTS: u32 = 6;

/// Commits durably also where the session's default is `off`. Stronger settings are kept.
const DURABLY: &str = "SELECT pg_catalog.set_config('synchronous_commit', \
     CASE pg_catalog.current_setting('synchronous_commit') WHEN 'off' THEN 'on' \
     ELSE pg_catalog.current_setting('synchronous_commit') END, true);";

/// Losing a completion in a crash of the server turns a finished call into one in doubt, which is
/// safe, so it need not wait for the disk.
const AT_LEISURE: &str = "SET LOCAL synchronous_commit = off;";

impl PostgresStore {
    pub(super) async fn claim_lease(&self, claim: &Claim) -> Result<Claimed<Lease>, StoreError> {
        let mut connection = self.connection().await?;
        let mut unprepared = 0;
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let [tool, prefix] = label_arguments(claim);
            let batch = [
                "BEGIN ISOLATION LEVEL READ COMMITTED;".to_owned(),
                DURABLY.to_owned(),
                self.open(Mark::new(), claim, false),
                self.call(Name::Expire, &id_arguments(claim)),
                self.seen_call(claim),
                self.call(
                    Name::Claim,
                    &[
                        statement::bytes(claim.id.as_bytes()),
                        statement::bytes(&claim.fingerprint.to_stored()),
                        tool,
                        prefix,
                        statement::interval(claim.lease).to_string(),
                    ],
                ),
                "COMMIT;".to_owned(),
            ]
            .concat();
            let error = match run(&mut connection, batch).await.into_last_row() {
                Ok(Some(row)) => {
                    let token = row
                        .try_get(0)
                        .map_err(|error| self.error("the claim failed", error))?;
                    connection.release();
                    return Ok(Claimed::New(Lease::new(claim.id, token)));
                }
                Ok(None) => sqlx::Error::RowNotFound,
                Err(error) => error,
            };
            let obstacle = if error::is_our_unique_violation(&error, self.inner.schema.as_str()) {
                Obstacle::RecordExists
            } else {
                Obstacle::of(error)
            };
            match self
                .overcome(connection, Some(claim), obstacle, &mut unprepared)
                .await?
            {
                Next::Answer(answer) => return Ok(answer),
                Next::Again(same, error) => {
                    connection = same;
                    last = error.or(last);
                }
                // Where the claim was committed all the same, the next look finds it in progress.
                // Nobody runs under it, so it lapses into doubt.
                Next::Reconnect(error) => {
                    last = Some(error);
                    connection = self.connection().await?;
                }
            }
        }
        Err(self.gave_up(last))
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
        self.finish_lease(AT_LEISURE, Name::Complete, &arguments)
            .await
    }

    pub(super) async fn release_lease(&self, lease: &Lease) -> Result<LeaseEnd, StoreError> {
        self.finish_lease("", Name::Release, &token_arguments(lease))
            .await
    }

    pub(super) async fn abandon_lease(&self, lease: &Lease) -> Result<LeaseEnd, StoreError> {
        self.finish_lease(AT_LEISURE, Name::Abandon, &token_arguments(lease))
            .await
    }

    /// One guarded statement: a row is changed by its own token or not at all. A lost answer is
    /// asked for again; only a release cannot be told from a removal by somebody else, and then
    /// counts as fenced.
    async fn finish_lease(
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
                "BEGIN ISOLATION LEVEL READ COMMITTED;{durability}{}COMMIT;",
                self.call(name, arguments)
            );
            let error = match run(&mut connection, batch).await.into_last_row() {
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
                        .map_err(|error| self.error("the lease could not be ended", error));
                }
                Err(error) => error,
            };
            match self
                .overcome::<Lease>(connection, None, Obstacle::of(error), &mut unprepared)
                .await?
            {
                Next::Again(same, error) => {
                    connection = same;
                    last = error.or(last);
                }
                Next::Reconnect(error) => {
                    answer_was_lost = true;
                    last = Some(error);
                    connection = self.connection().await?;
                }
                Next::Answer(_) => break,
            }
        }
        Err(self.gave_up(last))
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
            (Name::Complete, 1) | (Name::Abandon, 2) => moment(&row).map(LeaseEnd::Done),
            _ => Ok(LeaseEnd::Fenced),
        }
    }
}

fn token_arguments(lease: &Lease) -> [String; 2] {
    [
        statement::bytes(lease.id.as_bytes()),
        lease.token.to_string(),
    ]
}
