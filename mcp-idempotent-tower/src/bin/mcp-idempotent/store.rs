//! The stores that can be named on the command line.

use std::{error::Error, str::FromStr};

use mcp_idempotent_tower::{PostgresStore, RedisStore, SqliteStore};

use crate::WrongOptions;

/// The store, if it is not typed.
pub(crate) const VARIABLE: &str = "MCP_IDEMPOTENT_STORE";

/// A store, as it is typed.
#[derive(Debug, Clone)]
pub(crate) enum StoreName {
    Memory,
    /// The URL of a file.
    Sqlite(String),
    /// The URL of a database.
    Postgres(String),
    /// The URL of a server, unless `--redis-url` has it.
    Redis(Option<String>),
}

impl StoreName {
    /// What the environment names, or memory.
    ///
    /// # Errors
    ///
    /// The environment names something else than a store.
    pub(crate) fn of_environment() -> Result<Self, WrongOptions> {
        match std::env::var(VARIABLE) {
            Ok(named) => named
                .parse()
                .map_err(|what_to_type| WrongOptions(format!("${VARIABLE}: {what_to_type}"))),
            Err(_) => Ok(Self::Memory),
        }
    }

    /// Whether programs on other machines can share it.
    pub(crate) const fn is_shared(&self) -> bool {
        matches!(self, Self::Postgres(_) | Self::Redis(_))
    }
}

impl FromStr for StoreName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let scheme = text.split_once("://").map(|(scheme, _)| scheme);
        match (text, scheme) {
            ("memory", _) => Ok(Self::Memory),
            (_, Some("sqlite")) => Ok(Self::Sqlite(text.to_owned())),
            (_, Some("postgres" | "postgresql")) => Ok(Self::Postgres(text.to_owned())),
            ("redis", _) => Ok(Self::Redis(None)),
            (_, Some("redis" | "rediss" | "valkey" | "valkeys")) => {
                Ok(Self::Redis(Some(text.to_owned())))
            }
            _ => Err(
                "type `memory`, `sqlite://FILE`, `postgres://USER@HOST/DATABASE` or `redis://HOST`"
                    .to_owned(),
            ),
        }
    }
}

/// Opens a file, and creates it if it is missing.
///
/// # Errors
///
/// The file cannot be used.
pub(crate) async fn sqlite(url: &str) -> Result<SqliteStore, Box<dyn Error>> {
    Ok(SqliteStore::open(url).await?)
}

/// Connects to a database, and creates the tables if they are missing.
///
/// # Errors
///
/// The database cannot be reached or used.
pub(crate) async fn postgres(url: &str) -> Result<PostgresStore, Box<dyn Error>> {
    let store = PostgresStore::connect(url)?;
    // A role that may not create tables can still use them.
    if store.verify().await.is_err() {
        store.migrate().await?;
    }
    Ok(store)
}

/// Connects to a server.
///
/// # Errors
///
/// No URL was given, or the server cannot be reached or used.
pub(crate) async fn redis(url: Option<&str>) -> Result<RedisStore, Box<dyn Error>> {
    let what_to_type = "say where Redis is: --store redis://HOST, --redis-url URL, or REDIS_URL";
    let url = url.ok_or_else(|| WrongOptions::from(what_to_type))?;
    Ok(RedisStore::open(url).await?)
}
