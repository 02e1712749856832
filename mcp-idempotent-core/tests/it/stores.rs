//! What tests of a store on a database do with it, whichever it is.

use std::fmt::Debug;

use mcp_idempotent_core::{
    Record, RecordState, Store, TransactionStore,
    store::{Claim, Claimed, Lease},
};

pub(crate) async fn lease<S: Store>(store: &S, claim: &Claim) -> Lease {
    match store.claim(claim).await {
        Ok(Claimed::New(lease)) => lease,
        other => panic!("expected a lease, found {other:?}"),
    }
}

pub(crate) async fn begin<S>(store: &S, claim: &Claim) -> S::Transaction
where
    S: TransactionStore<Transaction: Debug>,
{
    match store.begin(&claim.call, Some(claim)).await {
        Ok(Claimed::New(transaction)) => transaction,
        other => panic!("expected a new claim, found {other:?}"),
    }
}

/// A transaction without a claim, as a handler has it under its lease.
pub(crate) async fn begin_unclaimed<S>(store: &S, claim: &Claim) -> S::Transaction
where
    S: TransactionStore<Transaction: Debug>,
{
    match store.begin(&claim.call, None).await {
        Ok(Claimed::New(transaction)) => transaction,
        other => panic!("expected a transaction, found {other:?}"),
    }
}

/// The result of a completed record.
pub(crate) fn response(record: &Record) -> &[u8] {
    match &record.state {
        RecordState::Completed {
            response: Some(response),
            ..
        } => response,
        other => panic!("expected a result, found {other:?}"),
    }
}
