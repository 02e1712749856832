//! What every store can be asked: whether a call can be recorded, and whether calls are in doubt.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher as _, Hasher as _},
    time::Duration,
};

use mcp_idempotent_tower::{
    OperatorStore, RecordId, RecordQuery, RecordStatus,
    core::{
        Engine, Fingerprint,
        store::{CallInfo, Claim, Claimed, LeaseEnd, StoreError},
    },
};

use super::{Finding, chain};
use crate::operator::print;

/// Counting stops here.
const COUNTED: u32 = 1000;

pub(super) async fn examine<S: OperatorStore + Clone>(
    store: &S,
    largest_token: Option<i64>,
) -> Vec<Finding> {
    let engine = Engine::new("", store.clone());
    vec![
        rights(store, largest_token).await,
        in_doubt(&engine).await,
        last_sweep(&engine).await,
    ]
}

/// Claims a key that no call has, and gives it back.
async fn rights<S: OperatorStore>(store: &S, largest_token: Option<i64>) -> Finding {
    const WHAT: &str = "a call";
    match record_and_remove(store).await {
        Ok(Some(token)) if largest_token.is_some_and(|largest| token <= largest) => Finding::wrong(
            "tokens",
            format!(
                "a new attempt gets token {token}, and there are records with larger ones: tokens could repeat"
            ),
            "was the database restored, or its clock put back? Stop the servers, and see the page on operating",
        ),
        Ok(Some(_)) => Finding::good(
            WHAT,
            "was claimed with a token larger than all others, renewed, read and removed",
        ),
        Ok(None) => Finding::wrong(
            WHAT,
            "was claimed, and its record could not be found again",
            "look for a rule, a trigger or a row-level policy on the store's tables, or a replica that answers",
        ),
        Err(error) => Finding::wrong(
            WHAT,
            format!("could not be recorded: {}", chain(&error)),
            "fix the problems above; if nothing is, give the role the rights that the documentation of the store lists",
        ),
    }
}

/// The token, if all of it worked.
async fn record_and_remove<S: OperatorStore>(store: &S) -> Result<Option<i64>, StoreError> {
    let mut id = [0; 32];
    for part in id.chunks_exact_mut(8) {
        part.copy_from_slice(&RandomState::new().build_hasher().finish().to_be_bytes());
    }
    let fingerprint = Fingerprint::from_stored(&[0; Fingerprint::STORED_LENGTH]);
    let Some(fingerprint) = fingerprint else {
        return Ok(None);
    };
    let call = CallInfo::new("mcp-idempotent/doctor", None);
    let mut claim = Claim::new(RecordId::from_bytes(id), fingerprint, call);
    // If this program is killed here, the record goes with the next sweep.
    (claim.lease, claim.in_doubt_retention) = (Duration::from_secs(60), Duration::ZERO);
    let Claimed::New(lease) = store.claim(&claim).await? else {
        return Ok(None);
    };
    let seen = store.look_up(&claim).await?.is_some();
    let renewed = store.renew(&lease, claim.lease).await?;
    let released = store.release(&lease, Duration::ZERO).await?;
    let done = |end| matches!(end, LeaseEnd::Done(_));
    let gone = store.look_up(&claim).await?.is_none();
    let works = seen && done(renewed) && done(released) && gone;
    Ok(works.then_some(lease.token))
}

async fn in_doubt<S: OperatorStore>(engine: &Engine<S>) -> Finding {
    const WHAT: &str = "calls in doubt";
    let mut query = RecordQuery::default();
    (query.status, query.limit) = (Some(RecordStatus::InDoubt), COUNTED);
    match engine.list(&query).await {
        Ok(records) if records.is_empty() => Finding::good(WHAT, "none"),
        Ok(records) => Finding::warning(
            WHAT,
            format!(
                "{}{}",
                records.len(),
                if records.len() < 1000 { "" } else { " or more" }
            ),
            "nobody knows whether they took effect: `mcp-idempotent records ls --state in-doubt`, then `records show`",
        ),
        Err(error) => Finding::wrong(
            WHAT,
            format!("could not be listed: {}", chain(&error)),
            "give this role SELECT on the store's tables",
        ),
    }
}

/// Whichever process did it, so that a server that has stopped sweeping is noticed before its
/// records pile up.
async fn last_sweep<S: OperatorStore>(engine: &Engine<S>) -> Finding {
    const WHAT: &str = "last sweep";
    match engine.last_sweep().await {
        Ok(Some(ended)) => Finding::good(WHAT, format!("ended {} ago", print::ago(ended))),
        Ok(None) => Finding::good(WHAT, "none has ended yet"),
        Err(error) => Finding::wrong(
            WHAT,
            format!("could not be looked up: {}", chain(&error)),
            "give this role SELECT on the store's tables",
        ),
    }
}
