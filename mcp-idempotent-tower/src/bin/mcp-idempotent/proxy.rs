//! The proxy, from its options to its end.

use std::{error::Error, ffi::OsString, path::Path};

use ::http::HeaderName;
use mcp_idempotent_tower::{
    Denied, Idempotency, MemoryStore, Scope, Store, SweepSettings, relay::Relay,
};
use sha2::{Digest as _, Sha256};

use crate::{
    WrongOptions,
    child::{self, Server},
    hosts::Hosts,
    http,
    options::Options,
    stdio,
    store::{self, StoreName},
};

/// Runs the proxy until its server ends, and returns the server's code.
///
/// # Errors
///
/// The options contradict each other, or the store or the server cannot be started.
pub(crate) async fn run(options: Options) -> Result<i32, Box<dyn Error>> {
    let name = match &options.store {
        Some(name) => name.clone(),
        None => StoreName::of_environment()?,
    };
    match &name {
        StoreName::Memory => relay(&options, &name, MemoryStore::new()).await,
        StoreName::Sqlite(url) => relay(&options, &name, store::sqlite(url).await?).await,
        StoreName::Postgres(url) => relay(&options, &name, store::postgres(url).await?).await,
        StoreName::Redis(url) => {
            let url = url.as_ref().or(options.redis_url.as_ref());
            let store = store::redis(url.map(String::as_str)).await?;
            relay(&options, &name, store).await
        }
    }
}

async fn relay<S: Store>(
    options: &Options,
    name: &StoreName,
    store: S,
) -> Result<i32, Box<dyn Error>> {
    let named = options.upstream.as_ref().map_or_else(
        || name_of(&options.command),
        |upstream| upstream.authority().as_str().to_owned(),
    );
    let application = options.application.clone().unwrap_or(named);
    let builder = Idempotency::builder(application, store)
        .with_policy(options.policy())
        .with_announced_replays(options.announce);
    let is_local = !name.is_shared();
    let builder = match (&options.scope, options.scope_header.clone(), options.listen) {
        (Some(scope), ..) => builder.with_fixed_scope(scope.as_str()),
        (None, Some(header), Some(_)) => {
            builder.with_scope_from_http(move |head| scope_in(head, &header))
        }
        (None, _, None) if is_local => builder.with_one_caller(),
        (None, _, None) => return Err(WrongOptions::from(NEEDS_SCOPE).into()),
        (None, None, Some(_)) => return Err(WrongOptions::from(NEEDS_SCOPE_OVER_HTTP).into()),
    };
    let idempotency = builder.build()?;
    let relay = Relay::new(idempotency.clone(), options.relay())?;
    let _sweeper = idempotency.sweep_in_background(SweepSettings::default());
    if let (Some(listen), Some(upstream)) = (options.listen, &options.upstream) {
        let hosts = Hosts::at(listen, &options.allowed_host);
        http::serve(relay, &idempotency, listen, hosts, upstream).await?;
        return Ok(0);
    }
    let Server {
        input,
        output,
        ended,
    } = child::start(&options.command)?;
    let client = (stdio::input(), stdio::output());
    relay.run(client, (output, input)).await;
    Ok(child::code(ended.await??))
}

const NEEDS_SCOPE: &str =
    "other machines may share this store, so say whose calls these are: --scope NAME";

const NEEDS_SCOPE_OVER_HTTP: &str = "say whose calls these are: --scope-header NAME, if a gateway that you \
    trust names the caller in that header, or --scope NAME, if all callers may see each other's results";

/// The caller that a header names.
fn scope_in(head: &::http::request::Parts, header: &HeaderName) -> Result<Scope, Denied> {
    let name = head.headers.get(header).and_then(|name| name.to_str().ok());
    name.map(Scope::new).ok_or_else(|| {
        Denied::new(format!(
            "The request has no header `{header}`, which names its caller."
        ))
    })
}

/// A name for a command's records: the program's name, with a digest of the whole command, which
/// may hold secrets.
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
