//! Which store a command is about.

use clap::Args;
use mcp_idempotent_tower::{PostgresStore, RecordId, SqliteStore, core::store::redis::RedisStore};
use sqlx::{
    PgPool, SqlitePool,
    postgres::PgPoolOptions,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions},
};

use super::Failure;
use crate::{WrongOptions, store::VARIABLE};

#[derive(Debug, Args)]
pub(crate) struct StoreOptions {
    /// The store: sqlite://FILE, postgres://USER@HOST/DATABASE or redis://HOST [default:
    /// $MCP_IDEMPOTENT_STORE]
    #[arg(long, value_name = "STORE")]
    store: Option<String>,

    /// The schema of the tables in Postgres
    #[arg(long, value_name = "NAME", default_value = "mcp_idempotent")]
    pub(crate) schema: String,

    /// The prefix of the tables' names in SQLite, and of the keys in Redis
    #[arg(long, value_name = "PREFIX")]
    prefix: Option<String>,

    /// Prints JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which record, and whose.
#[derive(Debug, Args)]
pub(crate) struct OneRecord {
    /// The record's id, as `records ls` shows it
    #[arg(value_name = "ID")]
    pub(crate) id: RecordId,

    #[command(flatten)]
    pub(crate) store: StoreOptions,
}

/// A store that was opened, and the way to ask its database directly.
pub(crate) enum Opened {
    Postgres(PostgresStore, PgPool),
    Sqlite(SqliteStore, SqlitePool),
    Redis(RedisStore, redis::Client),
}

/// Runs an expression on the store, whichever it is.
macro_rules! with_store {
    ($opened:expr, $store:ident => $body:expr) => {
        match $opened {
            $crate::operator::store::Opened::Postgres($store, _) => $body,
            $crate::operator::store::Opened::Sqlite($store, _) => $body,
            $crate::operator::store::Opened::Redis($store, _) => $body,
        }
    };
}
pub(crate) use with_store;

impl StoreOptions {
    /// The store's URL.
    ///
    /// # Errors
    ///
    /// No store is named.
    pub(crate) fn url(&self) -> Result<String, Failure> {
        let named = self.store.clone().or_else(|| std::env::var(VARIABLE).ok());
        Ok(named.ok_or_else(|| {
            WrongOptions(format!("no store is named: type --store postgres://USER@HOST/DATABASE, sqlite://FILE or redis://HOST, or set ${VARIABLE}"))
        })?)
    }

    /// What a command that this one suggests needs to find the same store.
    pub(crate) fn typed(&self) -> String {
        match &self.store {
            Some(url) if url.starts_with("sqlite:") => format!(" --store {url}"),
            // It may have a password in it.
            Some(_) => " --store …".to_owned(),
            None => String::new(),
        }
    }

    /// Opens the store. Nothing is created.
    ///
    /// # Errors
    ///
    /// No store is named, or it cannot be reached.
    pub(crate) async fn open(&self) -> Result<Opened, Failure> {
        self.open_or_create(false).await
    }

    /// Opens the store. If asked to, creates its file.
    ///
    /// # Errors
    ///
    /// The same as for [`open`](Self::open).
    pub(crate) async fn open_or_create(&self, creates: bool) -> Result<Opened, Failure> {
        let url = self.url()?;
        match url.split_once("://").map(|(scheme, _)| scheme) {
            Some("postgres" | "postgresql") => {
                let pool = PgPoolOptions::new().max_connections(2).connect(&url).await?;
                let store = PostgresStore::builder(pool.clone()).with_schema(&self.schema).build()?;
                Ok(Opened::Postgres(store, pool))
            }
            Some("sqlite") => {
                let options: SqliteConnectOptions = url.parse()?;
                let file = options.get_filename();
                if !creates && !file.exists() {
                    let file = file.display();
                    return Err(format!("there is no file {file}; the proxy makes it at its start, and so does `mcp-idempotent migrate`").into());
                }
                let pool = SqlitePoolOptions::new()
                    .max_connections(2)
                    .connect_lazy_with(if creates {
                        options.create_if_missing(true).journal_mode(SqliteJournalMode::Wal)
                    } else {
                        options.create_if_missing(false)
                    });
                let mut store = SqliteStore::builder(pool.clone());
                if let Some(prefix) = &self.prefix {
                    store = store.with_table_prefix(prefix);
                }
                Ok(Opened::Sqlite(store.build()?, pool))
            }
            Some("redis" | "rediss" | "redis+unix" | "unix" | "valkey" | "valkeys") => {
                let mut store = RedisStore::builder().with_server(&*url)?;
                if let Some(prefix) = &self.prefix {
                    store = store.with_key_prefix(prefix);
                }
                Ok(Opened::Redis(store.build()?, redis::Client::open(&*url)?))
            }
            _ => Err(WrongOptions::from("a store is sqlite://FILE, postgres://USER@HOST/DATABASE or redis://HOST; memory has no records that another process could see").into()),
        }
    }

    /// The prefix of the SQLite tables.
    pub(crate) fn table_prefix(&self) -> &str {
        self.prefix.as_deref().unwrap_or("mcp_idempotent_")
    }
}
