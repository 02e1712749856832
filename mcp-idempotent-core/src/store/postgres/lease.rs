//! Lease mode: a claim that is durable before the handler starts, and its guarded endings.
//!
//! A lease that has lapsed is in doubt, and stays so: its holder is fenced from the moment it ends,
//! also while nobody else has touched the row. A caller may have been told by then that the outcome
//! is unknown, and an operator may be looking at it.

use sqlx::Row;

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
                self.call(Name::Seen, &id_arguments(claim)),
                self.call(Name::Expire, &id_arguments(claim)),
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
                // The claim may have been committed; a second one would find it and report a call
                // in progress that nobody runs.
                Next::Reconnect(error) => return Err(self.error("the claim failed", error)),
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

    /// One guarded statement: a row is changed by its own token or not at all.
    async fn finish_lease(
        &self,
        durability: &str,
        name: Name,
        arguments: &[String],
    ) -> Result<LeaseEnd, StoreError> {
        let mut connection = self.connection().await?;
        let mut unprepared = 0;
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let batch = format!(
                "BEGIN ISOLATION LEVEL READ COMMITTED;{durability}{}COMMIT;",
                self.call(name, arguments)
            );
            let error = match run(&mut connection, batch).await.into_last_row() {
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
                    return Err(self.error("the lease could not be ended", error));
                }
                Next::Answer(_) => break,
            }
        }
        Err(self.gave_up(last))
    }
}

fn token_arguments(lease: &Lease) -> [String; 2] {
    [
        statement::bytes(lease.id.as_bytes()),
        lease.token.to_string(),
    ]
}
