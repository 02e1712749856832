//! The sweep in the background.

use std::{sync::atomic::Ordering, time::Duration};

use mcp_idempotent_core::SweepSettings;
use tokio::time::{Instant, sleep};

use super::{
    super::{Server, own, succeed, until},
    HOUR, faulty, seconds, settle,
    store::{Fault, Faulty},
};

fn settings(change: impl FnOnce(&mut SweepSettings)) -> SweepSettings {
    let mut settings = SweepSettings::default();
    change(&mut settings);
    settings
}

/// How long it takes until the store is swept once more.
async fn until_swept(server: &Server<Faulty>) -> Duration {
    let (since, before) = (Instant::now(), server.engine.store().sweeps());
    while server.engine.store().sweeps() == before {
        assert!(since.elapsed() < HOUR);
        sleep(Duration::from_millis(100)).await;
    }
    since.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_sweep_removes_what_has_expired_and_nothing_else() {
    let server = faulty(|policy| policy.retention = seconds(30));
    let kept = server.under(|policy| policy.retention = HOUR * 24);
    for key in ["a", "b", "c"] {
        assert_eq!(server.call(key, succeed("one")).await, own("one"));
    }
    assert_eq!(kept.call("kept", succeed("one")).await, own("one"));
    server.leave_in_doubt("in-doubt").await;
    sleep(seconds(31)).await;
    let by_two = settings(|settings| settings.batch = 2);
    assert_eq!(server.engine.sweep(&by_two).await.unwrap(), 3);
    assert_eq!(
        server.engine.list(&Default::default()).await.unwrap().len(),
        2
    );
}

#[tokio::test(start_paused = true)]
async fn each_pause_is_between_half_and_one_and_a_half_of_what_is_set() {
    let server = faulty(|_| {});
    let every = settings(|settings| settings.every = seconds(60));
    let _sweeper = server.engine.sweep_in_background(every);
    let mut pauses = Vec::new();
    for _ in 0..100 {
        pauses.push(until_swept(&server).await);
    }
    let (least, most) = (pauses.iter().min().unwrap(), pauses.iter().max().unwrap());
    assert!(
        *least >= seconds(30) - Duration::from_millis(200),
        "{least:?}"
    );
    assert!(
        *most <= seconds(90) + Duration::from_millis(200),
        "{most:?}"
    );
    // They are spread, so that several processes do not sweep at once.
    assert!(
        *least < seconds(40) && *most > seconds(80),
        "{least:?} {most:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn while_there_is_more_the_rate_is_kept() {
    let server = faulty(|_| {});
    let store = server.engine.store();
    store.swept.store(usize::MAX, Ordering::SeqCst);
    let _sweeper = server.engine.sweep_in_background(settings(|settings| {
        settings.batch = 100;
        settings.per_second = 50;
    }));
    until_swept(&server).await;
    let before = store.sweeps();
    sleep(seconds(100)).await;
    // Two seconds for each hundred.
    let batches = store.sweeps() - before;
    assert!((49..=51).contains(&batches), "{batches}");
    store.swept.store(99, Ordering::SeqCst);
    sleep(seconds(3)).await;
    assert!(until_swept(&server).await > seconds(20), "there is no more");
}

#[tokio::test(start_paused = true)]
async fn a_sweep_asked_for_keeps_the_rate_too() {
    let server = faulty(|policy| policy.retention = seconds(1));
    for number in 0..10 {
        server.call(&format!("k{number}"), succeed("one")).await;
    }
    sleep(seconds(2)).await;
    let since = Instant::now();
    let slowly = settings(|settings| {
        settings.batch = 3;
        settings.per_second = 1;
    });
    assert_eq!(server.engine.sweep(&slowly).await.unwrap(), 10);
    assert_eq!(since.elapsed(), seconds(9));
}

#[tokio::test(start_paused = true)]
async fn a_sweep_that_is_dropped_stops() {
    let server = faulty(|_| {});
    let sweeper = server.engine.sweep_in_background(SweepSettings::default());
    until_swept(&server).await;
    drop(sweeper);
    let before = server.engine.store().sweeps();
    sleep(HOUR).await;
    assert_eq!(server.engine.store().sweeps(), before);
}

#[tokio::test(start_paused = true)]
async fn a_sweep_that_is_stopped_ends_with_its_batch() {
    let server = faulty(|_| {});
    let store = server.engine.store();
    store.sweep.set(Fault::Waits);
    let sweeper = server.engine.sweep_in_background(SweepSettings::default());
    until_swept(&server).await;
    let stopping = tokio::spawn(sweeper.stop());
    settle().await;
    assert!(!stopping.is_finished(), "a batch is under way");
    store.sweep.set(Fault::None);
    stopping.await.unwrap();
    let before = store.sweeps();
    sleep(HOUR).await;
    assert_eq!(store.sweeps(), before);
}

#[tokio::test(start_paused = true)]
async fn a_sweep_at_rest_is_stopped_at_once() {
    let server = faulty(|_| {});
    let sweeper = server.engine.sweep_in_background(SweepSettings::default());
    settle().await;
    let since = Instant::now();
    sweeper.stop().await;
    assert_eq!(since.elapsed(), seconds(0));
}

#[tokio::test(start_paused = true)]
async fn a_sweep_ends_with_its_engine() {
    let server = faulty(|_| {});
    let store = server.engine.store().clone();
    let _sweeper = server.engine.sweep_in_background(SweepSettings::default());
    until_swept(&server).await;
    drop(server);
    let before = store.sweeps();
    sleep(HOUR).await;
    assert_eq!(store.sweeps(), before);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_is_asked_again_after_a_pause() {
    let server = faulty(|policy| policy.retention = seconds(1));
    server.call("k", succeed("one")).await;
    let store = server.engine.store();
    store.sweep.set(Fault::Fails);
    let _sweeper = server.engine.sweep_in_background(SweepSettings::default());
    for _ in 0..3 {
        let pause = until_swept(&server).await;
        assert!(pause > seconds(29), "{pause:?}");
    }
    store.sweep.set(Fault::None);
    until_swept(&server).await;
    assert!(
        server
            .engine
            .list(&Default::default())
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test(start_paused = true)]
async fn a_pause_of_nothing_or_of_for_ever_is_taken_within_reason() {
    for every in [Duration::ZERO, Duration::MAX] {
        let server = faulty(|_| {});
        let sweeper = server
            .engine
            .sweep_in_background(settings(|settings| settings.every = every));
        sleep(seconds(1)).await;
        let sweeps = server.engine.store().sweeps();
        assert!(sweeps <= 200, "{sweeps}");
        sweeper.stop().await;
    }
}

#[test]
fn without_a_runtime_nothing_is_swept_and_nothing_breaks() {
    let server = faulty(|_| {});
    drop(server.engine.sweep_in_background(SweepSettings::default()));
    assert_eq!(server.engine.store().sweeps(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_running_call_is_never_swept() {
    let server = faulty(|policy| {
        policy.lease = seconds(120);
        policy.retention = seconds(1);
        policy.window = seconds(1);
        policy.in_doubt_retention = seconds(1);
    });
    let _sweeper = server
        .engine
        .sweep_in_background(settings(|settings| settings.every = seconds(5)));
    let long = super::start(&server, "k", async {
        sleep(HOUR).await;
        super::Reply::new(mcp_idempotent_core::ResultKind::Success, "one")
    });
    until(|| server.executions() == 1).await;
    assert_eq!(long.await.unwrap(), own("one"));
    assert!(server.engine.store().sweeps() > 300);
}
