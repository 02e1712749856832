//! The tables: creating, migrating and verifying them.

use sqlx::{AssertSqlSafe, SqliteConnection};

use super::{error::store_error, queue::Line, store::SqliteStore, writer::Writer};
use crate::store::{StoreError, StoreErrorKind};

/// The prefix of the tables' names in the shipped files.
pub(super) const DEFAULT_PREFIX: &str = "mcp_idempotent_";

/// The migration at position n (from 1) leaves `schema_version` at n.
const MIGRATIONS: [&str; 1] = [include_str!("../../../migrations/sqlite/0001_records.sql")];

/// Whether table names may begin with this.
pub(super) fn is_prefix(prefix: &str) -> bool {
    let mut bytes = prefix.bytes();
    bytes
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && prefix.len() <= 40
        && !prefix.to_ascii_lowercase().starts_with("sqlite_")
}

impl SqliteStore {
    /// The SQL that [`migrate`](Self::migrate) runs, in order, with this store's table prefix. For
    /// creating the tables yourself.
    #[must_use]
    pub fn migrations(&self) -> Vec<String> {
        MIGRATIONS
            .iter()
            .map(|text| text.replace(DEFAULT_PREFIX, &self.shared.prefix))
            .collect()
    }

    /// Creates the tables or brings them up to date, in one transaction. Several processes may do
    /// so at once.
    ///
    /// # Errors
    ///
    /// [`Misconfigured`](StoreErrorKind::Misconfigured): a newer version created the tables, the
    /// file cannot be written, or [`verify`](Self::verify) would not accept it.
    /// [`Busy`](StoreErrorKind::Busy): other writers held the file for longer than the bound.
    /// Nothing was changed.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        let mut checkout = self.lock(Line::Ordinary, true).await?;
        match self.apply(&mut checkout.writer).await {
            Ok(None) => {
                checkout.give_back();
                Ok(())
            }
            Ok(Some(refusal)) => {
                checkout.roll_back_and_give_back().await;
                Err(refusal)
            }
            Err(error) => Err(store_error("making the tables", error)),
        }
    }

    /// Checks that the file is in WAL mode and that its tables have this version's form. Changes
    /// nothing.
    ///
    /// # Errors
    ///
    /// [`Misconfigured`](StoreErrorKind::Misconfigured), with a message that says what to do; or
    /// the file could not be read.
    pub async fn verify(&self) -> Result<(), StoreError> {
        let mut checkout = self
            .shared
            .writers
            .take(Line::Ordinary, self.deadline())
            .await?;
        let version = self
            .version(&mut checkout.writer.connection)
            .await
            .map_err(|error| store_error("reading the version of the tables", error))?;
        checkout.give_back();
        if version > MIGRATIONS.len() {
            return Err(newer(version));
        }
        if version < MIGRATIONS.len() {
            return Err(StoreError::new(
                StoreErrorKind::Misconfigured,
                format!(
                    "SQLite store: the tables `{}…` are at version {version} of {}; call \
                     `migrate()`, or run the SQL of `migrations()`",
                    self.shared.prefix,
                    MIGRATIONS.len()
                ),
            ));
        }
        Ok(())
    }

    async fn apply(&self, writer: &mut Writer) -> Result<Option<StoreError>, sqlx::Error> {
        let version = self.version(&mut writer.connection).await?;
        if version > MIGRATIONS.len() {
            return Ok(Some(newer(version)));
        }
        for migration in self.migrations().split_off(version) {
            sqlx::raw_sql(AssertSqlSafe(migration))
                .execute(&mut writer.connection)
                .await?;
        }
        writer.commit().await?;
        Ok(None)
    }

    /// Zero if there are no tables yet.
    async fn version(&self, connection: &mut SqliteConnection) -> Result<usize, sqlx::Error> {
        let there: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM main.sqlite_master WHERE type = 'table' AND name = ?1)",
        )
        .bind(format!("{}store", self.shared.prefix))
        .fetch_one(&mut *connection)
        .await?;
        if !there {
            return Ok(0);
        }
        let version: i64 = sqlx::query_scalar(self.shared.statements.schema_version.clone())
            .fetch_one(connection)
            .await?;
        usize::try_from(version).map_err(|error| sqlx::Error::Decode(Box::new(error)))
    }
}

fn newer(version: usize) -> StoreError {
    StoreError::new(
        StoreErrorKind::Misconfigured,
        format!(
            "SQLite store: the tables are at version {version}, which is newer than this \
             program's version {}; update the program",
            MIGRATIONS.len()
        ),
    )
}
