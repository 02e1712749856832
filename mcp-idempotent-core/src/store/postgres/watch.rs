//! Noticing that a transaction's session has ended while its handler still runs.
//!
//! The handler has the connection, so the store looks from outside: the session holds a lock of
//! ours for as long as its transaction lives.

use sqlx::Row as _;
use tokio::time::sleep;

use super::{
    literal::Argument,
    statement::Step,
    store::PostgresStore,
    tries::{Purpose, Tries},
};
use crate::store::StoreError;

/// Who holds a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    Session(i32),
    Nobody,
    /// The server is a standby, where the primary's locks cannot be seen.
    Unseen,
}

/// Resolves when the transaction that holds `lock` is over.
pub(super) async fn until_over(store: PostgresStore, lock: i64) {
    let mut holder = None;
    loop {
        sleep(store.inner.session_checked_every).await;
        let mut tries = Tries::reserved(&store, "a handler's session could not be looked up");
        // Boxed, because every call makes this future, and few live so long.
        match Box::pin(holder_of(&mut tries, lock)).await {
            Ok(Holder::Session(session)) if *holder.get_or_insert(session) == session => {}
            Ok(Holder::Session(_) | Holder::Nobody) => break,
            Ok(Holder::Unseen) => {}
            Err(error) => tracing::debug!(%error, "cannot tell whether a session still lives"),
        }
    }
    tracing::warn!("the session of a running handler has ended; its writes are rolled back");
}

pub(super) async fn holder_of(tries: &mut Tries<'_>, lock: i64) -> Result<Holder, StoreError> {
    let session = tries.session().await?;
    let lock = [Argument::Integer(lock)];
    let asked = tries.run(session, Purpose::Read, |batch, _| {
        batch.call(Step::Holder, &lock)
    });
    let (session, answer) = asked.await?.through();
    session.release();
    let holder = answer.one(Step::Holder).and_then(|row| {
        Ok(match (row.try_get(0)?, row.try_get(1)?) {
            (Some(session), _) => Holder::Session(session),
            (None, false) => Holder::Nobody,
            (None, true) => Holder::Unseen,
        })
    });
    holder.map_err(|error| tries.failed(error))
}
