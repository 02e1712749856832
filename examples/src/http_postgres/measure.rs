//! What `/metrics` shows.

use std::time::Duration;

use anyhow::Context as _;
use mcp_idempotent_tower::telemetry;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

/// Seconds; the last one is the bound of a wait for an equal call.
const BUCKETS: &[f64] = &[0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0];

/// Makes the metrics of this process be counted.
///
/// # Errors
///
/// Something else counts them already.
pub fn install() -> anyhow::Result<PrometheusHandle> {
    let handle = PrometheusBuilder::new()
        .set_buckets(BUCKETS)?
        .install_recorder()
        .context("cannot count metrics")?;
    telemetry::describe();
    let upkeep = handle.clone();
    tokio::spawn(async move {
        // Durations that nobody has asked for are summed up.
        let mut interval = tokio::time::interval(Duration::from_secs(5));
        loop {
            interval.tick().await;
            upkeep.run_upkeep();
        }
    });
    Ok(handle)
}
