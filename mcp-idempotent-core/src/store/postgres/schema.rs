//! The schema: its name, its migrations, and whether all is as it must be.

use sqlx::Row;

use super::{PostgresStore, connection, error::store_error};
use crate::store::{StoreError, StoreErrorKind};

const MIGRATIONS: &[(i32, &str)] = &[(
    1,
    include_str!("../../../migrations/postgres/0001_records.sql"),
)];

/// A schema's name, known to be a plain identifier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SchemaName(String);

impl SchemaName {
    pub(super) const DEFAULT: &'static str = "mcp_idempotent";

    pub(super) fn new(name: &str) -> Result<Self, StoreError> {
        let starts_well = name
            .bytes()
            .next()
            .is_some_and(|byte| byte.is_ascii_lowercase() || byte == b'_');
        let plain = name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        if starts_well && plain && name.len() <= 63 && !name.starts_with("pg_") {
            return Ok(Self(name.to_owned()));
        }
        Err(StoreError::new(
            StoreErrorKind::Misconfigured,
            format!(
                "{name:?} is no name for the schema: use 1 to 63 of a-z, 0-9 and _, starting with a letter or _, and not with pg_"
            ),
        ))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn quoted(&self) -> String {
        format!("\"{}\"", self.0)
    }
}

impl Default for SchemaName {
    fn default() -> Self {
        Self(Self::DEFAULT.to_owned())
    }
}

/// The SQL of every migration above `applied`.
fn migrations_above(schema: &SchemaName, applied: i32) -> String {
    MIGRATIONS
        .iter()
        .filter(|(version, _)| *version > applied)
        .map(|(_, sql)| sql.replace("{schema}", &schema.quoted()))
        .collect::<Vec<_>>()
        .join("\n")
}

/// The advisory lock under which migrations run, in the two-number space so that it never meets
/// the lock of a key.
const MIGRATION_LOCK: &str = "pg_catalog.pg_advisory_xact_lock(1835233385, 1)";

pub(super) fn migration_sql(schema: &str) -> Result<String, StoreError> {
    let schema = SchemaName::new(schema)?;
    Ok(format!(
        "BEGIN;\nSELECT {MIGRATION_LOCK};\nCREATE SCHEMA IF NOT EXISTS {};\n\n{}COMMIT;\n",
        schema.quoted(),
        migrations_above(&schema, 0)
    ))
}

impl PostgresStore {
    /// Creates the schema and brings its tables to this version. Safe to run from any number of
    /// processes at once, and again. Needs the right to create in the database, or an existing
    /// schema that the role owns.
    ///
    /// # Errors
    ///
    /// The database could not be asked, or refused. Nothing was changed: it is one transaction.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        let schema = &self.inner.schema;
        let fail = |error| store_error("the migration failed", schema.as_str(), error);
        let mut connection = self.connection().await?;
        let begin = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SELECT {MIGRATION_LOCK}; \
             SELECT pg_catalog.to_regnamespace('{0}') IS NOT NULL, \
             pg_catalog.to_regclass('{0}.migrations') IS NOT NULL;",
            schema.quoted()
        );
        let row = connection::run(&mut connection, begin)
            .await
            .into_last_row()
            .map_err(fail)?
            .ok_or_else(|| fail(sqlx::Error::RowNotFound))?;
        let mut batch = String::new();
        if !row.try_get::<bool, _>(0).map_err(fail)? {
            batch = format!("CREATE SCHEMA {};", schema.quoted());
        }
        let applied = if row.try_get::<bool, _>(1).map_err(fail)? {
            self.version(&mut connection).await.map_err(fail)?
        } else {
            0
        };
        batch.push_str(&migrations_above(schema, applied));
        batch.push_str("COMMIT;");
        connection::run(&mut connection, batch)
            .await
            .into_last_row()
            .map_err(fail)?;
        connection.release();
        Ok(())
    }

    async fn version(&self, connection: &mut sqlx::PgConnection) -> Result<i32, sqlx::Error> {
        let version = format!(
            "SELECT coalesce(max(version), 0) FROM {}.migrations;",
            self.inner.schema.quoted()
        );
        connection::run(connection, version)
            .await
            .into_last_row()?
            .ok_or(sqlx::Error::RowNotFound)?
            .try_get(0)
    }

    /// Checks, without any right to create, that the tables are of this version, that the role
    /// may use them, and that the database can be written to.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::Misconfigured`] with the remedy; or the database could not be asked.
    pub async fn verify(&self) -> Result<(), StoreError> {
        let schema = &self.inner.schema;
        let fail = |error| store_error("the check of the tables failed", schema.as_str(), error);
        let mut connection = self.connection().await?;
        // `COMMIT AND CHAIN`.
        const OLDEST_SERVER: u32 = 12_00_00;
        if connection
            .server_version_num()
            .is_some_and(|version| version < OLDEST_SERVER)
        {
            return Err(StoreError::new(
                StoreErrorKind::Misconfigured,
                "the store needs Postgres 12 or later",
            ));
        }
        let version = self.version(&mut connection).await.map_err(fail)?;
        let newest = MIGRATIONS.last().map_or(0, |(version, _)| *version);
        if version < newest {
            return Err(StoreError::new(
                StoreErrorKind::Misconfigured,
                format!(
                    "the tables in schema {} are of version {version}, and this program needs version {newest}: run `PostgresStore::migrate`, or apply `PostgresStore::migration_sql` by hand",
                    schema.as_str()
                ),
            ));
        }
        // The columns first: a table that was made by hand may be of another make.
        let check = format!(
            "SELECT id, fingerprint, state, token, origin, attempts, tool, key_prefix, response, \
             lease_until, in_doubt_retention, created_at, completed_at, expires_at, purge_at, \
             resolved_kind, resolved_by, resolved_why, resolved_at FROM {0}.records LIMIT 0; \
             SELECT pg_catalog.has_table_privilege('{0}.records', 'SELECT') \
             AND pg_catalog.has_table_privilege('{0}.records', 'INSERT') \
             AND pg_catalog.has_table_privilege('{0}.records', 'UPDATE') \
             AND pg_catalog.has_table_privilege('{0}.records', 'DELETE') \
             AND pg_catalog.has_sequence_privilege('{0}.tokens', 'USAGE'), \
             pg_catalog.pg_is_in_recovery();",
            schema.quoted()
        );
        let row = connection::run(&mut connection, check)
            .await
            .into_last_row()
            .map_err(fail)?
            .ok_or_else(|| fail(sqlx::Error::RowNotFound))?;
        connection.release();
        if !row.try_get::<bool, _>(0).map_err(fail)? {
            return Err(StoreError::new(
                StoreErrorKind::Misconfigured,
                format!(
                    "the database role lacks rights in schema {}: it needs SELECT, INSERT, UPDATE and DELETE on records, and USAGE on the sequence tokens",
                    schema.as_str()
                ),
            ));
        }
        if row.try_get::<bool, _>(1).map_err(fail)? {
            return Err(StoreError::new(
                StoreErrorKind::Misconfigured,
                "the database is a standby: the store needs the primary",
            ));
        }
        Ok(())
    }
}
