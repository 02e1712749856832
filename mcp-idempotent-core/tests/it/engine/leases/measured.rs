//! What is measured beside the calls: leases, sweeps, and records in doubt.

use std::collections::BTreeMap;

use mcp_idempotent_core::{Engine, SweepSettings, telemetry};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tokio::time::sleep;

use super::{
    super::{own, succeed},
    HOUR, faulty, seconds,
    store::{Fault, Faulty},
};

/// What was reported since the last look beside the calls; of a histogram, its values.
fn reported(snapshotter: &Snapshotter) -> BTreeMap<String, Vec<f64>> {
    let snapshot = snapshotter.snapshot().into_vec().into_iter();
    let of_calls = "mcp_idempotent_call";
    let reported = snapshot.filter_map(|(key, _, _, value)| {
        let key = key.key();
        if key.labels().len() != 1 || key.name().starts_with(of_calls) {
            return None;
        }
        let label = key.labels().next()?;
        assert_eq!(
            (label.key(), label.value()),
            (telemetry::LABEL_APPLICATION, "tests")
        );
        let value = match value {
            #[expect(clippy::cast_precision_loss, reason = "a handful")]
            DebugValue::Counter(count) => vec![count as f64],
            DebugValue::Gauge(value) => vec![value.into_inner()],
            DebugValue::Histogram(values) => values.into_iter().map(|v| v.into_inner()).collect(),
        };
        Some((key.name().to_owned(), value))
    });
    reported.collect()
}

#[tokio::test(start_paused = true)]
async fn failed_renewals_and_lost_leases_are_counted() {
    for (fault, lost) in [(Fault::Fails, 1.0), (Fault::Waits, 1.0), (Fault::None, 0.0)] {
        let recorder = DebuggingRecorder::new();
        let seen = recorder.snapshotter();
        let _local = metrics::set_default_local_recorder(&recorder);
        let server = faulty(|policy| policy.lease = seconds(120));
        let store = server.engine.store().clone();
        let handler = async {
            store.renew.set(fault);
            sleep(HOUR).await;
            store.renew.set(Fault::None);
            succeed("one").await
        };
        server.call("k", handler).await;
        let reported = reported(&seen);
        let of = |name: &str| reported.get(name).map_or(0.0, |counted| counted[0]);
        assert_eq!(of(telemetry::LEASES_LOST), lost, "{fault:?}");
        assert_eq!(
            of(telemetry::RENEWALS_FAILED) > 1.0,
            lost > 0.0,
            "{fault:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_sweeps_remove_and_how_long_they_take_is_measured() {
    let recorder = DebuggingRecorder::new();
    let seen = recorder.snapshotter();
    let _local = metrics::set_default_local_recorder(&recorder);
    let mut settings = SweepSettings::default();
    (settings.batch, settings.per_second) = (3, 1);
    let server = faulty(|policy| policy.retention = seconds(1));
    for in_background in [false, true] {
        for number in 0..10 {
            let key = format!("{in_background}{number}");
            assert_eq!(server.call(&key, succeed("one")).await, own("one"));
        }
        sleep(seconds(2)).await;
        if in_background {
            let _sweeper = server.engine.sweep_in_background(settings);
            sleep(seconds(100)).await;
        } else {
            server.engine.sweep(&settings).await.unwrap();
        }
        let reported = reported(&seen);
        assert_eq!(reported[telemetry::SWEPT], [10.0]);
        // Three rests of three seconds.
        let took = &reported[telemetry::SWEEP_DURATION];
        assert_eq!(took[0], 9.0);
        assert!(took[1..].iter().all(|later| *later == 0.0), "{took:?}");
    }
    // A sweep that failed is not one that has left nothing behind.
    server.engine.store().sweep.set(Fault::Fails);
    server.engine.sweep(&settings).await.unwrap_err();
    let _sweeper = server.engine.sweep_in_background(settings);
    sleep(seconds(100)).await;
    let reported = reported(&seen);
    assert!(
        reported[telemetry::SWEEP_DURATION].is_empty(),
        "{reported:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn records_in_doubt_are_counted_when_somebody_asks() {
    let recorder = DebuggingRecorder::new();
    let seen = recorder.snapshotter();
    let _local = metrics::set_default_local_recorder(&recorder);
    let server = faulty(|_| {});
    server.call("done", succeed("one")).await;
    for key in ["a", "b"] {
        server.leave_in_doubt(key).await;
    }
    let mut others = server.clone();
    others.engine = Engine::new("others", Faulty::clone(server.engine.store()));
    others.leave_in_doubt("c").await;
    for _ in 0..2 {
        assert_eq!(server.engine.count_in_doubt().await.unwrap(), 2);
    }
    assert_eq!(reported(&seen)[telemetry::RECORDS_IN_DOUBT], [2.0]);
}
