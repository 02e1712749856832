//! Where transactions are begun. It knows how many are open.

use std::{
    ops::{Deref, DerefMut},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use futures_util::{FutureExt as _, future::BoxFuture};
use mcp_idempotent_core::record::Timestamp;
use shuttle::future::yield_now;

use crate::{
    store::{CallInfo, Claim, Claimed, End, Ended, StoreError, StoreErrorKind, TransactionStore},
    sync::{Point, has_a_lock},
};

#[derive(Default)]
pub(super) struct Desk {
    open: Arc<AtomicUsize>,
    ended: AtomicUsize,
    /// How many beginnings fail before one does not.
    failing: AtomicUsize,
}

impl Desk {
    pub(super) fn new(failing: usize) -> Arc<Self> {
        Arc::new(Self {
            failing: AtomicUsize::new(failing),
            ..Self::default()
        })
    }

    pub(super) fn transaction(&self) -> Paper {
        self.open.fetch_add(1, SeqCst);
        Paper(Hand {
            open: Arc::clone(&self.open),
            point: Point::default(),
        })
    }

    /// How many transactions are open.
    pub(super) fn open(&self) -> usize {
        self.open.load(SeqCst)
    }

    /// How many were ended otherwise than by dropping them.
    pub(super) fn ended(&self) -> usize {
        self.ended.load(SeqCst)
    }
}

/// An open transaction. Dropping it rolls it back.
pub(super) struct Paper(Hand);

/// What its user has of it.
pub(super) struct Hand {
    open: Arc<AtomicUsize>,
    point: Point,
}

impl Hand {
    pub(super) fn write(&mut self) {
        self.point.pass();
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        assert!(!has_a_lock(), "it is rolled back under a lock");
        self.point.pass();
        self.open.fetch_sub(1, SeqCst);
    }
}

impl Deref for Paper {
    type Target = Hand;

    fn deref(&self) -> &Hand {
        &self.0
    }
}

impl DerefMut for Paper {
    fn deref_mut(&mut self) -> &mut Hand {
        &mut self.0
    }
}

impl TransactionStore for Desk {
    type Connection = Hand;
    type Transaction = Paper;

    fn transaction_limit(&self) -> Option<Duration> {
        None
    }

    /// It ends as soon as somebody looks.
    fn session_over(&self, _transaction: &Paper) -> Option<BoxFuture<'static, ()>> {
        Some(std::future::ready(()).boxed())
    }

    async fn begin(
        &self,
        _call: &CallInfo,
        _claim: Option<&Claim>,
    ) -> Result<Claimed<Paper>, StoreError> {
        yield_now().await;
        let fails = |left: usize| left.checked_sub(1);
        if self.failing.try_update(SeqCst, SeqCst, fails).is_ok() {
            return Err(StoreError::new(StoreErrorKind::Unavailable, "as planned"));
        }
        let begun = self.transaction();
        yield_now().await;
        Ok(Claimed::New(begun))
    }

    async fn end(&self, transaction: Paper, _claim: Option<&Claim>, _end: End) -> Ended {
        drop(transaction);
        self.ended.fetch_add(1, SeqCst);
        Ended::AsAsked(Timestamp::from_micros(0))
    }
}
