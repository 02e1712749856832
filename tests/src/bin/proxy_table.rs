//! Measures the proxy: `proxy-table [--at-most MICROSECONDS] [STORE]...` prints one row for each store. With a bound
//! it fails if no row keeps to it: the median of a call behind the proxy is that much over the direct one, or four
//! fifths of the direct one, because a slow machine slows both. To try several times, name a store several times.
//!
//! Each row compares a server with the same server behind the proxy, in one run and call by call in turns: how often
//! five identical `charge_card` calls charge, and how long other calls take. Build it and the programs that it starts
//! with `cargo build --release --bins -p mcp-idempotent-tests -p mcp-idempotent-tower --features
//! mcp-idempotent-tower/cli`. Without arguments it measures memory and a SQLite file, and Postgres and Redis if the
//! services of `tests/run --with-services` are there.

use std::{
    env, fs,
    io::{self, BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use mcp_idempotent_tests::kit::redis;
use serde_json::{Value, json};

/// How many identical calls are sent.
const IDENTICAL: usize = 5;
/// How many calls are timed, each way.
const CALLS: u32 = 5000;
/// How many calls go before them.
const WARM: u32 = 500;
/// How much of a direct call the proxy may always add: 50 of 64 µs, as measured for `docs/benchmarks.md`.
const OF_DIRECT: f64 = 0.8;

fn main() -> io::Result<ExitCode> {
    let mut stores: Vec<String> = env::args().skip(1).collect();
    let mut at_most = None;
    if stores.first().is_some_and(|first| first == "--at-most") {
        stores.remove(0);
        at_most = stores.first().and_then(|bound| bound.parse().ok());
        if at_most.is_none() {
            return Err(io::Error::other("--at-most needs a number of microseconds"));
        }
        stores.remove(0);
    }
    let place = tempfile::tempdir()?;
    let mut redis = None;
    if stores.is_empty() {
        let file = place.path().join("calls.db");
        stores = vec!["memory".to_owned(), format!("sqlite://{}", file.display())];
        stores.extend(env::var("DATABASE_URL").ok());
        if env::var("MCP_IDEMPOTENT_TEST_REDIS_SERVER").is_ok_and(|server| !server.is_empty()) {
            stores.push(redis.insert(redis::Server::start()).url());
        }
    }
    let mut out = io::stdout();
    writeln!(
        out,
        "| Store | Duplicate charges, direct | behind the proxy | p50 direct | added | ratio | p99 direct | added |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- |"
    )?;
    let mut least = f64::INFINITY;
    let mut is_kept = at_most.is_none();
    for (n, store) in stores.iter().enumerate() {
        let name = store.split(':').next().unwrap_or_default();
        let (row, direct, added) = row(name, store, &place.path().join(n.to_string()))?;
        writeln!(out, "{row}")?;
        least = least.min(added);
        is_kept |= at_most.is_some_and(|bound: f64| added <= bound.max(OF_DIRECT * direct));
    }
    if is_kept {
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(
        io::stderr(),
        "error: the proxy adds at least {least:.0} µs to a call"
    )?;
    Ok(ExitCode::FAILURE)
}

/// A row, and the microseconds of a direct call and those that the proxy adds, at the median.
fn row(name: &str, store: &str, place: &Path) -> io::Result<(String, f64, f64)> {
    let (direct, proxied) = (
        place.with_extension("direct"),
        place.with_extension("proxied"),
    );
    let mut bare = Server::start(&sibling("plain-server"), &[&direct.display().to_string()])?;
    let server = sibling("plain-server").display().to_string();
    let ledger = proxied.display().to_string();
    let options = ["--store", store, "--scope", "table", "--", &server, &ledger];
    let mut proxy = Server::start(&sibling("mcp-idempotent"), &options)?;
    for _ in 0..IDENTICAL {
        bare.charge(0)?;
        proxy.charge(0)?;
    }
    let duplicates = |ledger| {
        let charges = fs::read_to_string(ledger)?.lines().count();
        io::Result::Ok(format!("{} of {}", charges - 1, IDENTICAL - 1))
    };
    let (bare_duplicates, proxy_duplicates) = (duplicates(&direct)?, duplicates(&proxied)?);
    let (mut bare_times, mut proxy_times) = (Vec::new(), Vec::new());
    for n in 1..=WARM + CALLS {
        let times = (bare.charge(n)?, proxy.charge(n)?);
        if n > WARM {
            bare_times.push(times.0);
            proxy_times.push(times.1);
        }
    }
    bare_times.sort_unstable();
    proxy_times.sort_unstable();
    let at =
        |times: &[Duration], percent: usize| times[times.len() * percent / 100].as_secs_f64() * 1e6;
    let (bare50, bare99) = (at(&bare_times, 50), at(&bare_times, 99));
    let (added50, added99) = (at(&proxy_times, 50) - bare50, at(&proxy_times, 99) - bare99);
    let row = format!(
        "| {name} | {bare_duplicates} | {proxy_duplicates} | {bare50:.0} µs | {added50:.0} µs | {:.2} | {bare99:.0} µs | {added99:.0} µs |",
        (bare50 + added50) / bare50,
    );
    Ok((row, bare50, added50))
}

/// A program that was built beside this one.
fn sibling(name: &str) -> PathBuf {
    let this = env::current_exe().unwrap_or_default();
    this.with_file_name(format!("{name}{}", env::consts::EXE_SUFFIX))
}

/// A running server. It ends when its input is closed.
struct Server {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Server {
    fn start(program: &Path, arguments: &[&str]) -> io::Result<Self> {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn()?;
        let output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self {
            input: child.stdin.take(),
            output: BufReader::new(output),
            child,
        })
    }

    /// Charges, and says how long that took.
    fn charge(&mut self, cents: u32) -> io::Result<Duration> {
        let params = json!({ "name": "charge_card", "arguments": { "cents": cents } });
        let call =
            json!({ "jsonrpc": "2.0", "id": cents, "method": "tools/call", "params": params });
        let call = format!("{call}\n");
        let began = Instant::now();
        let input = self.input.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        input.write_all(call.as_bytes())?;
        let mut answer = String::new();
        self.output.read_line(&mut answer)?;
        let took = began.elapsed();
        let answer: Value = serde_json::from_str(&answer)?;
        let text = &answer["result"]["content"][0]["text"];
        if *text != format!("charged {cents}") {
            return Err(io::Error::other(format!("not charged: {answer}")));
        }
        Ok(took)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.input = None;
        drop(self.child.wait());
    }
}
