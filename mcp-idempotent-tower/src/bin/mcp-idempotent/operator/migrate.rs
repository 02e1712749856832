//! `migrate`: creates the tables of a store, or brings them up to date.

use clap::Args;
use mcp_idempotent_tower::PostgresStore;
use serde_json::json;

use super::{
    Ended, Failure, print,
    store::{Opened, StoreOptions},
};

#[derive(Debug, Args)]
pub(crate) struct Migrate {
    /// Prints the SQL and changes nothing
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    store: StoreOptions,
}

impl Migrate {
    pub(super) async fn run(self) -> Result<Ended, Failure> {
        if self.dry_run {
            print::line(self.sql().await?)?;
            return Ok(Ended::Done);
        }
        match &self.store.open_or_create(true).await? {
            Opened::Postgres(store, _) => store.migrate().await?,
            Opened::Sqlite(store, _) => store.migrate().await?,
            Opened::Redis(store, _) => store.verify().await?,
        }
        if self.store.json {
            print::line(format_args!("{:#}", json!({"migrated": true})))?;
        } else {
            print::line("the store is up to date")?;
        }
        Ok(Ended::Done)
    }

    /// The whole SQL, whatever the store has already. It may be run again on Postgres.
    async fn sql(&self) -> Result<String, Failure> {
        // Its SQL can be printed without the database.
        if self.store.url()?.starts_with("postgres") {
            return Ok(PostgresStore::migration_sql(&self.store.schema)?);
        }
        // A file is only opened, or created, once something is asked of it.
        Ok(match self.store.open_or_create(true).await? {
            Opened::Sqlite(store, _) => store.migrations().join("\n"),
            Opened::Postgres(..) | Opened::Redis(..) => "-- Redis has no tables.".to_owned(),
        })
    }
}
