//! Two ways to do one thing, measured against each other within one run.
//!
//! Criterion measures one function after the other. What is looked for here is a few per cent, and
//! on a shared machine the load changes by more than that from one second to the next. So one
//! iteration of criterion's is a *round* here: the bare way, ours, and the bare way once more, in
//! changing order, each a few milliseconds long. The measured value is the ratio of one round, and
//! criterion does the rest: warm-up, sampling, filters, comparison with an earlier run (which makes
//! sense for ratios also when the machine was busier then). The second bare one, divided by the
//! first, is the A/A column: what the same comparison says of two things that are equal.

#![allow(
    dead_code,
    reason = "each benchmark compiles its own copy and uses a part of it"
)]

use std::{
    cell::RefCell,
    fmt,
    time::{Duration, Instant},
};

use criterion::{
    Criterion, SamplingMode, Throughput,
    measurement::{Measurement, ValueFormatter},
};
use tokio::runtime::Runtime;

/// A ratio to the bare way.
#[derive(Debug)]
pub(crate) struct Ratio;

impl Measurement for Ratio {
    type Intermediate = ();
    type Value = f64;

    fn start(&self) {}

    fn end(&self, (): ()) -> f64 {
        unreachable!("rounds are measured by iter_custom")
    }

    fn add(&self, one: &f64, other: &f64) -> f64 {
        one + other
    }

    fn zero(&self) -> f64 {
        0.0
    }

    fn to_f64(&self, value: &f64) -> f64 {
        *value
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        self
    }
}

impl ValueFormatter for Ratio {
    fn format_value(&self, value: f64) -> String {
        format!("{value:.4} of bare")
    }

    fn scale_values(&self, _: f64, _: &mut [f64]) -> &'static str {
        "of bare"
    }

    fn scale_throughputs(&self, _: f64, _: &Throughput, _: &mut [f64]) -> &'static str {
        "of bare"
    }

    fn scale_for_machines(&self, _: &mut [f64]) -> &'static str {
        "of bare"
    }
}

/// What a row is to show.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    /// Ours takes at most this much of the bare way's time.
    AtMost(f64),
    /// Ours takes at most this much time more.
    Adds(Duration),
    /// The bare way's throughput that is left beside ours.
    Keeps(f64),
    /// For information.
    None,
}

/// The times of one round, each for one call.
#[derive(Debug, Clone, Copy)]
struct Round {
    bare: f64,
    ours: f64,
    again: f64,
}

#[derive(Debug)]
struct Row {
    name: String,
    target: Target,
    rounds: Vec<Round>,
}

/// One comparison after the other, and a table of them at the end.
pub(crate) struct Paired<'r> {
    runtime: &'r Runtime,
    criterion: Criterion<Ratio>,
    title: String,
    rows: Vec<Row>,
    notes: Vec<String>,
}

impl<'r> Paired<'r> {
    pub(crate) fn new(runtime: &'r Runtime, title: impl Into<String>) -> Self {
        let criterion = Criterion::default()
            .with_measurement(Ratio)
            .configure_from_args();
        Self {
            runtime,
            criterion,
            title: title.into(),
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// A line below the table.
    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Compares. Both are told how many calls to make in a row, and answer with the time of one.
    pub(crate) fn row(
        &mut self,
        name: &str,
        target: Target,
        calls: u32,
        bare: impl AsyncFn(u32) -> Duration,
        ours: impl AsyncFn(u32) -> Duration,
    ) {
        self.row_after(name, target, calls, async || {}, bare, ours);
    }

    /// Compares, after a preparation that is skipped where the row is.
    pub(crate) fn row_after(
        &mut self,
        name: &str,
        target: Target,
        calls: u32,
        prepare: impl AsyncFnOnce(),
        bare: impl AsyncFn(u32) -> Duration,
        ours: impl AsyncFn(u32) -> Duration,
    ) {
        let runtime = self.runtime;
        let samples = 20;
        let mut group = self.criterion.benchmark_group(&self.title);
        group
            .sampling_mode(SamplingMode::Flat)
            .sample_size(samples)
            .warm_up_time(if is_quick() {
                Duration::from_millis(200)
            } else {
                Duration::from_secs(1)
            })
            .measurement_time(if is_quick() {
                Duration::from_secs(1)
            } else {
                Duration::from_secs(6)
            });
        let mut prepare = Some(prepare);
        let taken: RefCell<Vec<Vec<Round>>> = RefCell::default();
        group.bench_function(name, |bencher| {
            if let Some(prepare) = prepare.take() {
                runtime.block_on(prepare());
            }
            bencher.iter_custom(|iterations| {
                let rounds = runtime.block_on(rounds(iterations, calls, &bare, &ours));
                let ratio = median(rounds.iter().map(|round| round.ours / round.bare));
                taken.borrow_mut().push(rounds);
                ratio * f64::from(u32::try_from(iterations).expect("few iterations"))
            });
        });
        group.finish();
        let taken = taken.into_inner();
        // What came before were warm-ups, or a run that only tests that the benchmark works.
        if taken.len() > samples {
            let rounds = taken[taken.len() - samples..].concat();
            self.rows.push(Row {
                name: name.to_owned(),
                target,
                rounds,
            });
        }
    }

    /// Prints the table.
    #[expect(clippy::print_stdout, reason = "the table is what a benchmark is for")]
    pub(crate) fn finish(self) {
        if self.rows.is_empty() {
            return;
        }
        println!("\n{}\n", self.title);
        println!("| | bare | ours | ratio (95 %) | A/A (95 %) | target | rounds |");
        println!("| --- | --- | --- | --- | --- | --- | --- |");
        for row in &self.rows {
            println!("{row}");
        }
        println!();
        for note in &self.notes {
            println!("- {note}");
        }
        println!("- {}\n", machine());
    }
}

/// Whether only a glance is wanted: `QUICK=1`.
pub(crate) fn is_quick() -> bool {
    std::env::var_os("QUICK").is_some_and(|value| value != "0")
}

/// Makes each call after the other.
pub(crate) async fn each(calls: u32, call: impl AsyncFn()) -> Duration {
    let start = Instant::now();
    for _ in 0..calls {
        call().await;
    }
    start.elapsed() / calls
}

async fn rounds(
    iterations: u64,
    calls: u32,
    bare: &impl AsyncFn(u32) -> Duration,
    ours: &impl AsyncFn(u32) -> Duration,
) -> Vec<Round> {
    // Each follows each of the others equally often.
    const ORDERS: [[usize; 3]; 6] = [
        [0, 1, 2],
        [2, 1, 0],
        [1, 2, 0],
        [0, 2, 1],
        [2, 0, 1],
        [1, 0, 2],
    ];
    let mut rounds = Vec::new();
    for order in ORDERS.into_iter().cycle() {
        if rounds.len() as u64 == iterations {
            break;
        }
        let mut times = [0.0; 3];
        for which in order {
            let time = if which == 1 {
                ours(calls).await
            } else {
                bare(calls).await
            };
            times[which] = time.as_secs_f64();
        }
        let [bare, ours, again] = times;
        rounds.push(Round { bare, ours, again });
    }
    rounds
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |value: fn(&Round) -> f64| Estimate::of(self.rounds.iter().map(value));
        let ratio = of(|round| round.ours / round.bare);
        let noise = of(|round| round.again / round.bare);
        let bare = of(|round| round.bare).median;
        let ours = of(|round| round.ours).median;
        write!(
            f,
            "| {} | {} | {} | {ratio} | {noise} | ",
            self.name,
            Time(bare),
            Time(ours)
        )?;
        let met = match self.target {
            Target::None => {
                write!(f, "–")?;
                None
            }
            Target::AtMost(target) => {
                write!(f, "≤ {target}")?;
                Some(ratio.median <= target)
            }
            Target::Keeps(target) => {
                let kept = of(|round| round.bare / round.ours);
                write!(f, "keeps ≥ {target}: {kept}")?;
                Some(kept.median >= target)
            }
            Target::Adds(target) => {
                let added = of(|round| round.ours - round.bare).median;
                write!(f, "adds ≤ {}: {}", Time(target.as_secs_f64()), Time(added))?;
                Some(added <= target.as_secs_f64())
            }
        };
        match met {
            Some(true) => write!(f, ", met")?,
            Some(false) => write!(f, ", **missed**")?,
            None => {}
        }
        write!(f, " | {} |", self.rounds.len())
    }
}

/// A median, and between which values it lies in 95 of 100 runs (by rank, so that nothing is
/// assumed about how the values are distributed).
struct Estimate {
    median: f64,
    low: f64,
    high: f64,
}

impl Estimate {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let count = values.len();
        let reach = count.isqrt();
        Self {
            median: values[count / 2],
            low: values[(count / 2).saturating_sub(reach)],
            high: values[(count / 2 + reach).min(count - 1)],
        }
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ({:.3}–{:.3})", self.median, self.low, self.high)
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    Estimate::of(values).median
}

struct Time(f64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0 * 1e6;
        if micros.abs() >= 1000.0 {
            write!(f, "{:.2} ms", micros / 1000.0)
        } else if micros.abs() >= 100.0 {
            write!(f, "{micros:.0} µs")
        } else {
            write!(f, "{micros:.2} µs")
        }
    }
}

/// How much of the machine there was.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').take(3).collect::<Vec<_>>().join(" ");
    format!("{cores} cores; load averages at the end (1, 5, 15 minutes): {load}")
}
