//! Tells the store's own commits from others.
//!
//! While a handler holds the transaction, a commit hook refuses every commit but ours, and a
//! rollback hook notices every rollback. Two collations of that connection identify our finishing
//! batch: the first runs where the batch begins, the second when its row is written. They run
//! inside SQLite. So a COMMIT that the handler sent without waiting for it comes before them and is
//! refused. Our own COMMIT is refused too if the batch wrote no row, which rolls everything back in
//! the same round trip.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use sqlx::sqlite::LockedSqliteHandle;

/// The collation that marks the beginning of our finishing batch.
pub(super) const FINISHING: &str = "mcp_idempotent_finishing";
/// The collation that marks that the batch has written its row.
pub(super) const WRITTEN: &str = "mcp_idempotent_written";

/// How many steps of SQLite's virtual machine a statement runs between two checks for a stop. Our
/// own statements end long before the first check.
const STEPS_BETWEEN_LOOKS: i32 = 20_000;

/// What the hooks of the writing connection know.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// A handler holds the transaction, so commits are refused.
    held: AtomicBool,
    /// A commit was tried and refused.
    refused: AtomicBool,
    /// The whole transaction was rolled back, for any reason.
    rolled_back: AtomicBool,
    /// Our finishing batch has begun.
    finishing: AtomicBool,
    /// The batch has written its row.
    written: AtomicBool,
    /// The batch had nothing to write, so our own commit was refused.
    unwritten: AtomicBool,
    /// A commit was let through, so the hook is still in place.
    passed: AtomicBool,
    /// The transaction will be rolled back; anything still running in it is interrupted.
    stopped: AtomicBool,
}

impl Watch {
    /// From now on refuses every commit except the one at the end of a finishing batch.
    pub(super) fn hold(&self) {
        for fact in [
            &self.refused,
            &self.rolled_back,
            &self.finishing,
            &self.written,
            &self.unwritten,
            &self.passed,
            &self.stopped,
        ] {
            fact.store(false, Ordering::SeqCst);
        }
        self.held.store(true, Ordering::SeqCst);
    }

    fn may_commit(&self) -> bool {
        let held = self.held.load(Ordering::SeqCst);
        let ours = self.finishing.load(Ordering::SeqCst) && !self.ended_early();
        let written = self.written.load(Ordering::SeqCst);
        let may = !held || (ours && written);
        let fact = match (may, ours) {
            (true, _) => &self.passed,
            (false, true) => &self.unwritten,
            (false, false) => &self.refused,
        };
        fact.store(true, Ordering::SeqCst);
        may
    }

    /// Interrupts a statement that the handler has abandoned, or that has exceeded its limit. The
    /// driver's thread takes no other statement before that one has ended.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    /// No handler holds the transaction any more.
    pub(super) fn let_go(&self) {
        self.held.store(false, Ordering::SeqCst);
        self.stopped.store(false, Ordering::SeqCst);
    }

    /// Whether the transaction is no longer the one that was begun.
    pub(super) fn ended_early(&self) -> bool {
        self.refused_a_commit() || self.saw_rollback()
    }

    pub(super) fn refused_a_commit(&self) -> bool {
        self.refused.load(Ordering::SeqCst)
    }

    pub(super) fn saw_rollback(&self) -> bool {
        self.rolled_back.load(Ordering::SeqCst)
    }

    /// Our finishing batch found nothing to write, and SQLite has rolled everything back.
    pub(super) fn wrote_nothing(&self) -> bool {
        self.unwritten.load(Ordering::SeqCst)
    }

    /// Whether the hooks saw the last commit.
    pub(super) fn saw_the_commit(&self) -> bool {
        self.passed.load(Ordering::SeqCst)
    }

    /// Installs the hooks and the collations.
    pub(super) fn install(
        self: &Arc<Self>,
        handle: &mut LockedSqliteHandle<'_>,
    ) -> Result<(), sqlx::Error> {
        let watch = Arc::clone(self);
        handle.set_commit_hook(move || watch.may_commit());
        let watch = Arc::clone(self);
        handle.set_rollback_hook(move || watch.rolled_back.store(true, Ordering::SeqCst));
        let watch = Arc::clone(self);
        handle.create_collation(FINISHING, move |left, right| {
            watch.finishing.store(true, Ordering::SeqCst);
            left.cmp(right)
        })?;
        let watch = Arc::clone(self);
        handle.create_collation(WRITTEN, move |left, right| {
            watch.written.store(true, Ordering::SeqCst);
            left.cmp(right)
        })?;
        let watch = Arc::clone(self);
        handle.set_progress_handler(STEPS_BETWEEN_LOOKS, move || {
            !watch.stopped.load(Ordering::SeqCst)
        });
        Ok(())
    }
}
