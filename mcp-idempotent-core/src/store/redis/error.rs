//! What Redis errors mean to a store.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::{
    error::CommitOutcome,
    store::{StoreError, StoreErrorKind},
};

/// Whether the connection has to be replaced: it is lost or silent, or its server is no longer a
/// primary.
pub(super) fn ends_connection(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_unrecoverable_error()
        || error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
}

pub(super) fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

pub(super) fn store_error(doing: &str, error: RedisError) -> StoreError {
    let (kind, remedy) = meaning(&error);
    let outcome = if error.is_io_error() && !error.is_connection_refusal() {
        CommitOutcome::Unknown
    } else {
        CommitOutcome::NotCommitted
    };
    StoreError::new(kind, format!("Redis store: {doing}{remedy}"))
        .with_outcome(outcome)
        .with_source(error)
}

fn meaning(error: &RedisError) -> (StoreErrorKind, &'static str) {
    use ServerErrorKind::{
        Ask, BusyLoading, ClusterDown, MasterDown, Moved, NoPerm, ReadOnly, TryAgain,
    };
    use StoreErrorKind::{Busy, Misconfigured, Other, Unavailable};
    match error.kind() {
        ErrorKind::Io | ErrorKind::ClusterConnectionNotFound => (Unavailable, ""),
        ErrorKind::Server(
            BusyLoading | TryAgain | ClusterDown | MasterDown | ReadOnly | Moved | Ask,
        ) => (Unavailable, ""),
        ErrorKind::Server(NoPerm) => (
            Misconfigured,
            "; give the user the rights that the page of the module `store::redis` lists",
        ),
        ErrorKind::AuthenticationFailed => (Misconfigured, "; check the user and the password"),
        ErrorKind::InvalidClientConfig | ErrorKind::RESP3NotSupported => (Misconfigured, ""),
        // Older servers put the code of an error inside a script into the text.
        _ => match codes(error).find_map(known_code) {
            Some(meaning) => meaning,
            None if error.code() == Some("BUSY") => (Busy, "; another script is running"),
            None => (Other, ""),
        },
    }
}

fn codes(error: &RedisError) -> impl Iterator<Item = &str> {
    let detail = error.detail().unwrap_or_default();
    error.code().into_iter().chain(
        detail
            .split([' ', '-', ':'])
            .filter(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_uppercase())),
    )
}

fn known_code(code: &str) -> Option<(StoreErrorKind, &'static str)> {
    use StoreErrorKind::{Misconfigured, Unavailable};
    Some(match code {
        "OOM" => (
            Unavailable,
            "; the server is out of memory: raise its `maxmemory`, or sweep",
        ),
        "MISCONF" => (
            Unavailable,
            "; the server cannot write to its disk, and so refuses writes",
        ),
        "NOREPLICAS" => (
            Unavailable,
            "; the server has fewer replicas than its `min-replicas-to-write`",
        ),
        "READONLY" | "LOADING" | "CLUSTERDOWN" => (Unavailable, ""),
        "NOAUTH" | "WRONGPASS" => (Misconfigured, "; check the user and the password"),
        "WRONGTYPE" => (
            Misconfigured,
            "; another program uses these keys: set another key prefix",
        ),
        _ => return None,
    })
}
