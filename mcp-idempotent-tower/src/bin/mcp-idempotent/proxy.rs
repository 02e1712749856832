//! The proxy over standard input and output.

use std::{error::Error, ffi::OsString, path::Path};

use mcp_idempotent_tower::{Idempotency, MemoryStore, Store, SweepSettings, relay::Relay};
use sha2::{Digest as _, Sha256};
use tokio::io::{stdin, stdout};

use crate::{
    child::{self, Server},
    log,
    options::Options,
    store::{self, StoreName},
};

/// Runs the proxy until its server ends, and returns the server's code.
///
/// # Errors
///
/// The options contradict each other, or the store or the server cannot be started.
pub(crate) async fn run(options: Options) -> Result<i32, Box<dyn Error>> {
    log::start(&options.log)?;
    match &options.store {
        StoreName::Memory => relay(&options, MemoryStore::new()).await,
        StoreName::Sqlite(url) => relay(&options, store::sqlite(url).await?).await,
        StoreName::Postgres(url) => relay(&options, store::postgres(url).await?).await,
    }
}

async fn relay<S: Store>(options: &Options, store: S) -> Result<i32, Box<dyn Error>> {
    let application = match &options.application {
        Some(name) => name.clone(),
        None => name_of(&options.command),
    };
    let builder = Idempotency::builder(application, store)
        .with_policy(options.policy())
        .with_announced_replays(options.announce);
    let builder = match &options.scope {
        Some(scope) => builder.with_fixed_scope(scope.as_str()),
        None if matches!(options.store, StoreName::Postgres(_)) => {
            return Err("other machines may share this database, so say whose calls these are: --scope NAME".into());
        }
        None => builder.with_one_caller(),
    };
    let idempotency = builder.build()?;
    let relay = Relay::new(idempotency.clone(), options.relay())?;
    let _sweeper = idempotency.sweep_in_background(SweepSettings::default());
    let Server {
        input,
        output,
        ended,
    } = child::start(&options.command)?;
    relay.run((stdin(), stdout()), (output, input)).await;
    Ok(child::code(ended.await??))
}

/// A name for the records of a command: the program's, with a digest of the whole, which may hold secrets.
fn name_of(command: &[OsString]) -> String {
    let mut digest = Sha256::new();
    for word in command {
        digest.update(word.len().to_be_bytes());
        digest.update(word.as_encoded_bytes());
    }
    let digest: String = digest.finalize()[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let program = command
        .first()
        .and_then(|program| Path::new(program).file_name());
    let program = program.unwrap_or_default().to_string_lossy();
    format!("{program}-{digest}")
}
