//! Where `payments` servers keep what they have, looked at from outside.

use std::{ffi::OsString, path::Path, process};

use anyhow::Context as _;
use sqlx::{AssertSqlSafe, ConnectOptions as _, PgPool, sqlite::SqliteConnectOptions};
use tokio::sync::OnceCell;

use crate::payments::postgres;

/// The kind of database, and how to reach it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Database {
    /// A file for each server, in its directory.
    Sqlite,
    /// One database for all servers.
    Postgres {
        /// Where.
        url: String,
        /// The schema of this run.
        schema: String,
        /// The connections that look.
        pool: OnceCell<PgPool>,
    },
}

impl Database {
    /// A SQLite file for each server.
    #[must_use]
    pub const fn sqlite() -> Self {
        Self::Sqlite
    }

    /// A schema of its own in a Postgres database; `name` is made unique to this process.
    #[must_use]
    pub fn postgres(url: String, name: &str) -> Self {
        Self::Postgres {
            url,
            schema: format!("{name}_{}", process::id()),
            pool: OnceCell::new(),
        }
    }

    /// For the report.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite",
            Self::Postgres { .. } => "Postgres",
        }
    }

    /// Makes sure that it is there.
    ///
    /// # Errors
    ///
    /// It cannot be reached.
    pub async fn prepare(&self) -> anyhow::Result<()> {
        if let Self::Postgres { url, schema, pool } = self {
            pool.get_or_try_init(|| postgres::connect(url, schema))
                .await?;
        }
        Ok(())
    }

    /// The arguments that make a server keep its charges here.
    #[must_use]
    pub fn arguments(&self, directory: &Path) -> Vec<OsString> {
        match self {
            Self::Sqlite => {
                let mut store = OsString::from("sqlite://");
                store.push(directory.join("payments.db"));
                vec!["--store".into(), store]
            }
            Self::Postgres { url, schema, .. } => {
                vec![
                    "--store".into(),
                    url.into(),
                    "--schema".into(),
                    schema.into(),
                ]
            }
        }
    }

    /// The number that a query answers about `name`.
    ///
    /// # Errors
    ///
    /// The database cannot be read.
    pub async fn count(
        &self,
        directory: &Path,
        query: &'static str,
        name: &str,
    ) -> anyhow::Result<usize> {
        let count: i64 = match self {
            Self::Sqlite => {
                let mut connection = SqliteConnectOptions::new()
                    .filename(directory.join("payments.db"))
                    .connect()
                    .await
                    .context("cannot open the server's database")?;
                sqlx::query_scalar(query)
                    .bind(name)
                    .fetch_one(&mut connection)
                    .await?
            }
            Self::Postgres { pool, .. } => {
                let pool = pool.get().context("there is no connection yet")?;
                sqlx::query_scalar(query).bind(name).fetch_one(pool).await?
            }
        };
        Ok(usize::try_from(count)?)
    }

    /// Removes what the run has left.
    ///
    /// # Errors
    ///
    /// The database does not let us.
    pub async fn remove(&self) -> anyhow::Result<()> {
        if let Self::Postgres { schema, pool, .. } = self
            && let Some(pool) = pool.get()
        {
            sqlx::query(AssertSqlSafe(format!(
                "DROP SCHEMA IF EXISTS {schema} CASCADE"
            )))
            .execute(pool)
            .await
            .with_context(|| format!("cannot remove the schema {schema}"))?;
        }
        Ok(())
    }
}
