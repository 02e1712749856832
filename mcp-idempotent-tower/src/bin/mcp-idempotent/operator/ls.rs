//! `records ls`: lists recorded calls.

use std::time::Duration;

use clap::{Args, ValueEnum};
use mcp_idempotent_tower::{
    IdempotencyKey, OperatorStore, RecordId, RecordInfo, RecordQuery, RecordStatus, Secret,
    core::{Engine, Timestamp},
};
use serde_json::Value;

use super::{
    Ended, Failure, print,
    secret::SecretOptions,
    store::{StoreOptions, with_store},
};

pub(super) const EXAMPLES: &str = "\
Examples:
  mcp-idempotent records ls --state in-doubt
  mcp-idempotent records ls --tool charge_card --newer-than 1h
  mcp-idempotent records ls --key 0b5cb0a6-5b7e-4c39-9c47-1d0a3f0a7f4e

Times are the store's. A key is not stored; --key finds its record by hashing it.";

#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Only calls of this application
    #[arg(long, value_name = "NAME")]
    application: Option<String>,

    /// Only calls of this scope
    #[arg(long, value_name = "NAME")]
    scope: Option<String>,

    /// Only calls of this tool
    #[arg(long, value_name = "NAME")]
    tool: Option<String>,

    /// Only the call with this key
    #[arg(long, value_name = "KEY", conflicts_with = "key_prefix")]
    key: Option<String>,

    /// Only calls whose key begins with this; a record keeps 8 characters of it
    #[arg(long, value_name = "TEXT")]
    key_prefix: Option<String>,

    /// Only calls in this state
    #[arg(long, value_name = "STATE")]
    state: Option<State>,

    /// Only calls that were made longer ago than this, such as 2h or 3days
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    older_than: Option<Duration>,

    /// Only calls that were made within this time
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    newer_than: Option<Duration>,

    /// At most this many; 0 for all
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,

    #[command(flatten)]
    secret: SecretOptions,

    #[command(flatten)]
    store: StoreOptions,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum State {
    /// An attempt is running
    #[value(alias = "in_progress")]
    InProgress,
    /// Nobody knows whether the call took effect
    #[value(alias = "in_doubt")]
    InDoubt,
    /// There is a result
    Completed,
    /// The key was given back
    Released,
    /// Past its retention
    Expired,
}

impl From<State> for RecordStatus {
    fn from(state: State) -> Self {
        match state {
            State::InProgress => Self::InProgress,
            State::InDoubt => Self::InDoubt,
            State::Completed => Self::Completed,
            State::Released => Self::Released,
            State::Expired => Self::Expired,
        }
    }
}

impl Ls {
    pub(super) async fn run(self) -> Result<Ended, Failure> {
        let opened = self.store.open().await?;
        let secret = self.secret.read()?;
        let key = self.key.as_ref().map(IdempotencyKey::new).transpose()?;
        let found = with_store!(opened, store => {
            self.find(&Engine::new("", store), key.as_ref(), secret.as_ref()).await?
        });
        let (records, has_more) = found;
        if self.store.json {
            let records: Vec<_> = records.iter().map(print::record).collect();
            print::line(format_args!("{:#}", Value::from(records)))?;
            return Ok(Ended::Done);
        }
        print_table(&records)?;
        if has_more {
            print::line(format_args!("… more; --limit 0 shows all"))?;
        }
        Ok(Ended::Done)
    }

    /// The records, and whether there are more.
    async fn find<S: OperatorStore>(
        &self,
        engine: &Engine<S>,
        key: Option<&IdempotencyKey>,
        secret: Option<&Secret>,
    ) -> Result<(Vec<RecordInfo>, bool), Failure> {
        let mut query = RecordQuery::default();
        query.limit = 500;
        query.status = self.state.map(Into::into);
        query.tool = self.tool.as_deref().map(Into::into);
        query.application = self.application.as_deref().map(Into::into);
        query.scope = self.scope.as_deref().map(Into::into);
        let prefix = self.key.as_deref().or(self.key_prefix.as_deref());
        query.key_prefix = prefix.map(Into::into);
        query.after = self
            .newer_than
            .map(|age| (before_now(age), RecordId::from_bytes([0; 32])));
        let until = self.older_than.map(before_now);
        let mut found = Vec::new();
        loop {
            let page = engine.list(&query).await?;
            let Some(last) = page.last() else {
                return Ok((found, false));
            };
            query.after = Some(last.cursor());
            for record in page {
                if until.is_some_and(|until| record.created_at > until) {
                    return Ok((found, false));
                }
                if key.is_some_and(|key| !self.is_of(&record, key, secret)) {
                    continue;
                }
                if self.limit > 0 && found.len() == self.limit {
                    return Ok((found, true));
                }
                found.push(record);
            }
        }
    }

    /// A store may have replaced characters of a name; the operator's own word is exact.
    fn is_of(&self, record: &RecordInfo, key: &IdempotencyKey, secret: Option<&Secret>) -> bool {
        let mut record = record.clone();
        if let Some(application) = &self.application {
            record.application = Some(application.as_str().into());
        }
        if let Some(scope) = &self.scope {
            record.scope = Some(scope.as_str().into());
        }
        record.is_of_key(key, secret)
    }
}

fn before_now(age: Duration) -> Timestamp {
    let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
    Timestamp::from_micros(print::now().saturating_sub(age).max(0))
}

fn print_table(records: &[RecordInfo]) -> Result<(), Failure> {
    if records.is_empty() {
        return Ok(print::line("no such records")?);
    }
    let heads = [
        "AGE",
        "STATE",
        "TOOL",
        "KEY",
        "APPLICATION",
        "SCOPE",
        "ATTEMPTS",
        "ID",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for record in records {
        let name = |name: Option<&str>| name.map_or("–".to_owned(), print::one_line);
        let key = record
            .key_prefix
            .as_deref()
            .map(|prefix| format!("{prefix}…"));
        rows.push(vec![
            print::ago(record.created_at),
            record.status.to_string(),
            print::one_line(&record.tool),
            name(key.as_deref()),
            name(record.application.as_deref()),
            name(record.scope.as_deref()),
            record.attempts.to_string(),
            record.id.to_string(),
        ]);
    }
    Ok(print::table(&rows)?)
}
