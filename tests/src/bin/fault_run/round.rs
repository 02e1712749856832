//! One round of a row: a few calls, their callers, one fault, and what came of it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::task::{JoinHandle, JoinSet};

use crate::{
    caller::{Call, First, Told, at, until_answered},
    inject,
    judge::{self, Evidence},
    random::Random,
    row::{Fault, Full, Mode, Row},
    server::gone_on,
    site::Site,
};

/// How many calls a round makes. Two of them have the same key, in two scopes.
const CALLS: usize = 10;
const TENANTS: [&str; 2] = ["a", "b"];
/// For an answer, before a caller takes its connection for lost.
const PATIENCE: Duration = Duration::from_secs(40);
const SHORT_PATIENCE: Duration = Duration::from_secs(2);

/// What came of a round.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) calls: u64,
    /// It happened where it claims to.
    pub(crate) landed: bool,
    /// How many calls it met.
    pub(crate) met: u64,
    /// How many calls had ended before it could meet them.
    pub(crate) missed: u64,
    pub(crate) effects: u64,
    pub(crate) in_doubt: u64,
    pub(crate) findings: Vec<String>,
}

type Asked = JoinHandle<Vec<Told>>;

struct Round<'s> {
    site: &'s mut Site,
    calls: Vec<Call>,
    told: HashMap<usize, Vec<Vec<Told>>>,
    asked: Vec<(usize, Asked)>,
}

pub(crate) async fn run(site: &mut Site, number: u64, mut random: Random) -> Outcome {
    let row = site.row;
    let mut round = Round {
        calls: calls(&row, number),
        site,
        told: HashMap::new(),
        asked: Vec::new(),
    };
    let (landed, met, missed, probes) = if row.fault.is_race() {
        let probes = round.race(&mut random).await;
        (true, 0, 0, probes)
    } else {
        let (landed, met, missed) = round.fault(&mut random).await;
        (landed, met, missed, Vec::new())
    };
    round.judge(landed, met, missed, probes).await
}

fn calls(row: &Row, number: u64) -> Vec<Call> {
    let call = |n: usize| {
        // The last two are one key and one request of two scopes.
        let same = n.min(CALLS - 2);
        Call {
            tool: row.tool(),
            tenant: TENANTS[n / (CALLS - 1)],
            key: format!("key-{number}-{same}"),
            name: format!("r{number}c{same}"),
        }
    };
    (0..CALLS).map(call).collect()
}

impl Round<'_> {
    fn ask(&mut self, call: usize, place: usize, first: First, delay: Duration) {
        let place = Arc::clone(&self.site.places[place]);
        let patience = match self.site.row.fault.is_at_the_callers() {
            true => SHORT_PATIENCE,
            false => PATIENCE,
        };
        let what = self.calls[call].clone();
        let asked = tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            until_answered(&place, &what, first, patience).await
        });
        self.asked.push((call, asked));
    }

    async fn hear_all(&mut self) {
        for (call, asked) in self.asked.drain(..) {
            let told = asked.await.expect("a caller does not panic");
            self.told.entry(call).or_default().push(told);
        }
    }

    /// Callers of each call at once, over both processes. Meanwhile the key is used for something else.
    async fn race(&mut self, random: &mut Random) -> Vec<Told> {
        for call in 0..CALLS {
            let callers = random.one_of(&[2, 4, 8, 16]);
            let jitter = random.one_of(&[0, 1, 5, 25]);
            for caller in 0..callers {
                let delay = u64::try_from(random.below(jitter + 1)).expect("small");
                self.ask(call, caller % 2, First::Plain, Duration::from_millis(delay));
            }
        }
        let mut probes = JoinSet::new();
        // The last two share their key, and one of them would have to wait for the other.
        for call in &self.calls[..CALLS - 2] {
            let (ledger, effect) = (self.site.ledger.clone(), call.effect());
            let (params, place) = (other(call).params(None), Arc::clone(&self.site.places[1]));
            probes.spawn(async move {
                // Not before the call, or this would be the first to use the key.
                inject::until(|| ledger.runs(&effect) > 0).await;
                Told::of(at(&place).call(params, PATIENCE).await.as_ref())
            });
        }
        let probes = probes.join_all().await;
        self.hear_all().await;
        probes
    }

    /// Calls to the first process, some of which stop; then callers at both; then the fault. Says whether
    /// it happened, how many calls it met, and how many had ended before.
    async fn fault(&mut self, random: &mut Random) -> (bool, u64, u64) {
        let fault = self.site.row.fault;
        inject::prepare(self.site, random).await;
        let stopping = self.site.row.stopping();
        let first = match fault {
            Fault::Within(trouble) => First::Trouble(trouble.as_str()),
            _ => fault
                .point()
                .map_or(First::Plain, |point| First::StopAt(point.as_str())),
        };
        for call in 0..stopping {
            self.ask(call, 0, first, Duration::ZERO);
        }
        let met = match fault.point() {
            Some(point) => self.until_stopped(point.as_str(), stopping).await,
            // So that they are those whom the fault meets, and not the callers at the other process.
            None if fault != Fault::SilenceDatabase => self.until_begun(stopping).await,
            None => stopping,
        };
        let before = self.asked.len();
        for call in 0..CALLS {
            for place in [0, 1] {
                if place == 1 || call >= stopping {
                    let delay = u64::try_from(random.below(26)).expect("small");
                    self.ask(call, place, First::Plain, Duration::from_millis(delay));
                }
            }
        }
        // Callers at the other process, of the calls that have stopped.
        let waiting: Vec<_> = self.asked[before..before + stopping]
            .iter()
            .map(|(_, asked)| asked.abort_handle())
            .collect();
        let others = async || {
            inject::until(|| waiting.iter().all(|it| it.is_finished())).await;
        };
        if fault.is_about_the_past() {
            // Those that do not stop are answered before.
            let answered = &self.asked[before..];
            let past = |(call, _): &&(usize, Asked)| (stopping..CALLS).contains(call);
            inject::until(|| answered.iter().filter(past).all(|(_, it)| it.is_finished())).await;
        }
        let ledger = self.site.ledger.clone();
        let calls = &self.calls;
        let let_go = || {
            for call in calls {
                let go = gone_on(&ledger, &call.effect());
                std::fs::write(go, []).expect("our directory");
            }
        };
        let landed = inject::happen(self.site, random, others, let_go).await;
        let_go();
        self.hear_all().await;
        if let Some(relay) = &at(&self.site.places[0]).callers {
            relay.come_up();
        }
        let met = self.seen_to_be_met(stopping).unwrap_or(met);
        let missed = stopping - met;
        let count = |it: usize| u64::try_from(it).expect("a small number");
        (landed && met > 0, count(met), count(missed))
    }

    /// Where what the callers were told shows whether the fault happened: how many of the calls it met.
    fn seen_to_be_met(&self, stopping: usize) -> Option<usize> {
        let first = |call: usize| self.told[&call][0].first();
        match self.site.row.fault {
            Fault::Within(_) | Fault::Fill(Full::Effect | Full::Record) => {
                let failed = |call: &usize| !matches!(first(*call), Some(Told::Done { .. }));
                Some((0..stopping).filter(failed).count())
            }
            Fault::ExhaustPool => {
                let refused = Told::Refused("idempotency_store_unavailable".to_owned());
                let told = |call: &usize| self.told[call].iter().flatten().any(|it| *it == refused);
                (!(stopping..CALLS).any(|call| told(&call))).then_some(0)
            }
            _ => None,
        }
    }

    /// Waits until these calls have begun. Says how many have.
    async fn until_begun(&self, stopping: usize) -> usize {
        let begun = || {
            let begun = |call: &&Call| self.site.ledger.runs(&call.effect()) > 0;
            self.calls[..stopping].iter().filter(begun).count()
        };
        inject::until(|| begun() >= stopping).await;
        begun()
    }

    /// Waits until these calls stand at the point, or have ended. Says how many stand there.
    async fn until_stopped(&self, point: &str, stopping: usize) -> usize {
        let standing = || {
            let there = self.site.ledger.all(point);
            let stands = |call: &&Call| there.contains(&call.effect());
            self.calls[..stopping].iter().filter(stands).count()
        };
        let ended = || self.asked.iter().filter(|(_, asked)| asked.is_finished());
        inject::until(|| standing() + ended().count() >= stopping).await;
        standing()
    }

    /// Asks for each call once more, at both processes, and for its key with something else.
    async fn judge(
        mut self,
        landed: bool,
        met: u64,
        missed: u64,
        mut probes: Vec<Told>,
    ) -> Outcome {
        let early = std::mem::take(&mut self.told);
        let runs = |call: &Call| self.site.ledger.runs(&call.effect());
        let early_runs: Vec<usize> = self.calls.iter().map(runs).collect();
        // One after the other, so that what the second is told came later.
        for place in [0, 1] {
            for call in 0..CALLS {
                self.ask(call, place, First::Plain, Duration::ZERO);
            }
            self.hear_all().await;
        }
        let late = std::mem::take(&mut self.told);
        for (n, call) in self.calls.iter().enumerate() {
            let replayed = late[&n].iter().flatten();
            let mut replayed = replayed.filter(|told| matches!(told, Told::Done { .. }));
            if replayed.next().is_some() && n % 3 == 0 {
                let place = &self.site.places[1];
                let told = until_answered(place, &other(call), First::Plain, PATIENCE).await;
                probes.extend(told.into_iter().next_back());
            }
        }
        let (rows, outside) = (self.site.rows().await, self.site.ledger.all("effect"));
        let mut outcome = Outcome {
            calls: u64::try_from(CALLS).expect("a small number"),
            landed,
            met,
            missed,
            ..Outcome::default()
        };
        let row = self.site.row;
        let stood = row
            .fault
            .point()
            .map(|it| self.site.ledger.all(it.as_str()));
        let stood = stood.unwrap_or_default();
        for (n, call) in self.calls.iter().enumerate() {
            let evidence = Evidence {
                row: &row,
                may_doubt: row.may_leave_doubt_of(n),
                early: &early[&n],
                late: &late[&n],
                runs: self.site.ledger.runs(&call.effect()),
                early_runs: early_runs[n],
                stood: stood.contains(&call.effect()),
                effects: of(call, if row.writes_rows() { &rows } else { &outside }),
                outside: (row.mode == Mode::LateTransaction).then(|| of(call, &outside)),
            };
            outcome.effects += u64::try_from(evidence.effects.len()).expect("a small number");
            outcome.in_doubt += u64::from(evidence.is_in_doubt());
            let name = format!("{} of {}", call.name, call.tenant);
            let found = evidence.findings().into_iter();
            outcome
                .findings
                .extend(found.map(|it| format!("{name}: {it}")));
        }
        let probed = judge::probed(&row, &probes, &rows, &outside);
        outcome.findings.extend(probed);
        outcome
    }
}

/// Something else under the same key.
fn other(call: &Call) -> Call {
    Call {
        name: format!("{}other", call.name),
        ..call.clone()
    }
}

/// The executions that made a call's effects.
fn of(call: &Call, effects: &[String]) -> Vec<String> {
    let prefix = format!("{}/", call.effect());
    let runs = effects.iter().filter_map(|it| it.strip_prefix(&prefix));
    runs.map(str::to_owned).collect()
}
