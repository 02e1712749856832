//! Whose commit it is.
//!
//! Commit and rollback hooks refuse every commit but ours while a handler holds the transaction,
//! and notice every way in which it can be rolled back. Ours is told from others by two collations
//! of that connection, which our finishing batch uses: the first where the batch begins, the second
//! for the row that it writes. They run where SQLite runs, so a COMMIT that the handler sent and
//! did not wait for comes before them and is refused; and so is our own when the batch wrote no
//! row, which rolls everything back in the same round trip.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use sqlx::sqlite::LockedSqliteHandle;

/// The collation that says that our finishing batch has begun.
pub(super) const FINISHING: &str = "mcp_idempotent_finishing";
/// The collation that says that it has written its row.
pub(super) const WRITTEN: &str = "mcp_idempotent_written";

/// How many steps of SQLite's machine a statement makes before it looks whether it is to stop; our
/// own have ended long before.
const STEPS_BETWEEN_LOOKS: i32 = 20_000;

/// What the hooks of the writing connection know.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// A handler holds the transaction: nobody may commit.
    held: AtomicBool,
    /// Somebody tried to, and was refused.
    refused: AtomicBool,
    /// The whole transaction was rolled back, by whatever.
    rolled_back: AtomicBool,
    /// Our finishing batch has begun.
    finishing: AtomicBool,
    /// It has written what it was to write.
    written: AtomicBool,
    /// It had nothing to write: our own commit was refused.
    unwritten: AtomicBool,
    /// A commit was let through: the hook is still in its place.
    passed: AtomicBool,
    /// The transaction will be rolled back: what still runs in it is interrupted.
    stopped: AtomicBool,
}

impl Watch {
    /// Refuses commits from here on, but for the one at the end of a finishing batch.
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

    /// Interrupts a statement that the handler has left behind, or that outlasts its limit: the
    /// driver's thread takes no other before that one has ended.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    /// Nobody holds the transaction any more.
    pub(super) fn let_go(&self) {
        self.held.store(false, Ordering::SeqCst);
        self.stopped.store(false, Ordering::SeqCst);
    }

    /// The transaction is not the one any more that was begun.
    pub(super) fn ended_early(&self) -> bool {
        self.refused_a_commit() || self.saw_rollback()
    }

    pub(super) fn refused_a_commit(&self) -> bool {
        self.refused.load(Ordering::SeqCst)
    }

    pub(super) fn saw_rollback(&self) -> bool {
        self.rolled_back.load(Ordering::SeqCst)
    }

    /// Our finishing batch found nothing to write; SQLite has rolled everything back.
    pub(super) fn wrote_nothing(&self) -> bool {
        self.unwritten.load(Ordering::SeqCst)
    }

    /// Whether the hooks saw the commit that was just made.
    pub(super) fn saw_the_commit(&self) -> bool {
        self.passed.load(Ordering::SeqCst)
    }

    /// Sets the hooks and the collations.
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
