//! Counts what a tool did.

use sqlx::{PgPool, SqlitePool, postgres::PgPoolOptions, sqlite::SqlitePoolOptions};
use tokio::process::Command;

/// How to count.
#[derive(Debug, Clone)]
pub(super) enum Count {
    /// By a shell command.
    Command(String),
    Postgres(PgPool, String),
    Sqlite(SqlitePool, String),
}

impl Count {
    /// By a query.
    ///
    /// # Errors
    ///
    /// The URL is not one of Postgres or SQLite.
    pub(super) fn sql(sql: &str, url: &str) -> Result<Self, Box<dyn std::error::Error>> {
        let sql = sql.to_owned();
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            let pool = PgPoolOptions::new().max_connections(1).connect_lazy(url)?;
            return Ok(Self::Postgres(pool, sql));
        }
        if url.starts_with("sqlite:") {
            // It waits for the server's writers, as every client of SQLite does.
            let pool = SqlitePoolOptions::new()
                .max_connections(1)
                .connect_lazy(url)?;
            return Ok(Self::Sqlite(pool, sql));
        }
        Err("--database is sqlite://FILE or postgres://USER@HOST/DATABASE".into())
    }

    pub(super) async fn count(self) -> Result<i64, String> {
        match self {
            Self::Command(command) => run(&command).await,
            Self::Postgres(pool, sql) => {
                let counted = sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(&pool);
                counted.await.map_err(|error| error.to_string())
            }
            Self::Sqlite(pool, sql) => {
                let counted = sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(&pool);
                counted.await.map_err(|error| error.to_string())
            }
        }
    }
}

async fn run(command: &str) -> Result<i64, String> {
    let mut shell = if cfg!(windows) {
        Command::new("cmd")
    } else {
        Command::new("sh")
    };
    let shell = shell.arg(if cfg!(windows) { "/C" } else { "-c" });
    let output = shell.arg(command).output().await;
    let output = output.map_err(|error| error.to_string())?;
    let printed = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!(
            "{command:?} ended with {}: {}",
            output.status,
            said.trim()
        ));
    }
    let printed = printed.trim();
    let number = printed.parse();
    number.map_err(|_| format!("{command:?} printed {printed:?}, which is no number"))
}
