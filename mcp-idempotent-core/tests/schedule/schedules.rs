//! Running a test under all schedules, or under many.

use shuttle::{
    Config, Runner,
    scheduler::{DfsScheduler, PctScheduler, RandomScheduler, Scheduler},
};

/// More schedules than this are too many to try all of them.
const MOST: usize = 150_000;

/// How many are tried where they are too many.
const MANY: usize = 6_000;

/// Always the same schedules, so that a test that passes does so again. shuttle takes another seed from
/// `SHUTTLE_RANDOM_SEED`.
const SEED: u64 = 13;

/// Runs the test under every schedule.
pub(crate) fn all(test: impl Fn() + Send + Sync + 'static) {
    let schedules = run(DfsScheduler::new(Some(MOST), false), test);
    assert!(schedules < MOST, "there are more schedules than were tried");
    assert!(
        schedules > 1,
        "nothing in this test happens at the same time"
    );
}

/// Runs the test under many schedules: at random, and again with few changes between tasks, which finds what
/// takes one task a long time while others wait.
pub(crate) fn many(test: impl Fn() + Send + Sync + Clone + 'static) {
    run(RandomScheduler::new_from_seed(SEED, MANY), test.clone());
    for changes in [2, 3, 5] {
        run(
            PctScheduler::new_from_seed(SEED, changes, MANY / 3),
            test.clone(),
        );
    }
}

fn run(scheduler: impl Scheduler + 'static, test: impl Fn() + Send + Sync + 'static) -> usize {
    let mut config = Config::new();
    // It says that it takes every access to memory for a strict one. `main` says so too.
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(test)
}
