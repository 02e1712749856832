//! The schema and its migrations.

use sqlx::Row as _;

use super::{
    connection::Session, schema_name::SchemaName, statement::Step, store::PostgresStore,
    tries::Tries,
};
use crate::store::StoreError;

pub(super) const MIGRATIONS: &[(i32, &str)] = &[(
    1,
    include_str!("../../../migrations/postgres/0001_records.sql"),
)];

/// The version that this program needs.
pub(super) const NEWEST: i32 = MIGRATIONS[MIGRATIONS.len() - 1].0;

/// The lock under which migrations run, the same as in [`Step::MigrationLock`].
const MIGRATION_LOCK: &str = "SELECT pg_catalog.pg_advisory_xact_lock(1835233385, 1)";

/// The SQL of every migration above `applied`.
fn migrations_above(schema: &SchemaName, applied: i32) -> String {
    MIGRATIONS
        .iter()
        .filter(|(version, _)| *version > applied)
        .map(|(_, sql)| sql.replace("{schema}", &schema.quoted()))
        .collect::<Vec<_>>()
        .join("\n")
}

impl PostgresStore {
    /// The SQL that [`migrate`](Self::migrate) runs, for a schema with this name. Use it to apply
    /// migrations by hand. It may be run more than once.
    ///
    /// # Errors
    ///
    /// The name is not a plain identifier.
    pub fn migration_sql(schema: &str) -> Result<String, StoreError> {
        let schema = SchemaName::new(schema)?;
        Ok(format!(
            "BEGIN;\n{MIGRATION_LOCK};\nCREATE SCHEMA IF NOT EXISTS {};\n\n{}COMMIT;\n",
            schema.quoted(),
            migrations_above(&schema, 0)
        ))
    }

    /// Creates the schema, and brings its tables to this version. Any number of processes may run
    /// it at the same time, and more than once. It needs the right to create schemas in the
    /// database, or an existing schema that the role owns.
    ///
    /// # Errors
    ///
    /// The database could not be asked, or refused. Nothing has changed, because it is one
    /// transaction.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        let schema = &self.inner.schema;
        let mut tries = Tries::patient(self, "the migration failed");
        let mut session = tries.session().await?;
        let fail = |error| tries.failed(error);
        let begin = tries.batch().steps([
            Step::BeginReadCommitted,
            Step::MigrationLock,
            Step::Existing,
        ]);
        let answer = begin.run(&mut session).await.into_result().map_err(fail)?;
        let existing = answer.one(Step::Existing).map_err(fail)?;
        let mut script = String::new();
        if !existing.try_get::<bool, _>(0).map_err(fail)? {
            script = format!("CREATE SCHEMA {};", schema.quoted());
        }
        let applied = if existing.try_get::<bool, _>(1).map_err(fail)? {
            version(&tries, &mut session).await.map_err(fail)?
        } else {
            0
        };
        script.push_str(&migrations_above(schema, applied));
        script.push_str("COMMIT");
        let migrate = tries.batch().write(Step::Script, &script);
        migrate
            .run(&mut session)
            .await
            .into_result()
            .map_err(fail)?;
        session.release();
        Ok(())
    }
}

/// The version of the tables.
pub(super) async fn version(tries: &Tries<'_>, session: &mut Session) -> Result<i32, sqlx::Error> {
    let batch = tries.batch().steps([Step::Version]);
    let answer = batch.run(session).await.into_result()?;
    answer.one(Step::Version)?.try_get(0)
}
