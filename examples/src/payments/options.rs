//! The command line of `payments`.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::Context as _;
use lexopt::{
    Arg::{Long, Short},
    ValueExt as _,
};
use mcp_idempotent_tower::Policy;

use super::{
    ledger::Ledger,
    outside::{Outside, Place},
};
use crate::command_line::Stop;

/// Where charges and records are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Store {
    /// In a SQLite file.
    Sqlite(PathBuf),
    /// In the Postgres database of this URL.
    Postgres(String),
    /// In memory.
    Memory,
}

impl Store {
    /// Reads `sqlite://FILE`, `postgres://URL` or `memory`.
    ///
    /// # Errors
    ///
    /// It is none of these; the text says so.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(file) = text.strip_prefix("sqlite:") {
            let file = file.strip_prefix("//").unwrap_or(file);
            if file.is_empty() || file == ":memory:" {
                return Err("--store sqlite://FILE needs a file".to_owned());
            }
            return Ok(Self::Sqlite(file.into()));
        }
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            return Ok(Self::Postgres(text.to_owned()));
        }
        if text == "memory" {
            return Ok(Self::Memory);
        }
        Err(format!(
            "--store {text:?} is neither sqlite://FILE, postgres://URL nor memory"
        ))
    }
}

/// What `payments` was told.
#[derive(Debug)]
#[non_exhaustive]
pub struct Options {
    /// Where charges and records are kept.
    pub store: Store,
    /// Postgres: the schema for the tables.
    pub schema: String,
    /// Serve HTTP here instead of stdio.
    pub http: Option<SocketAddr>,
    /// How long each answer is held back.
    pub answer_delay: Duration,
    /// How long a claim is honoured without a heartbeat.
    pub lease: Duration,
    ledger: Option<PathBuf>,
    hold: Duration,
    receipts: Option<String>,
    payments: Option<String>,
    outside_timeout: Duration,
    hold_at: Option<(Place, Duration)>,
}

impl Options {
    /// Reads the command line.
    ///
    /// # Errors
    ///
    /// `--help`, or arguments that make no sense.
    pub fn parse(mut arguments: lexopt::Parser) -> Result<Self, Stop> {
        let mut options = Self {
            store: Store::Sqlite("payments.db".into()),
            schema: "payments".to_owned(),
            http: None,
            answer_delay: Duration::ZERO,
            lease: Policy::DEFAULT_LEASE,
            ledger: None,
            hold: Duration::ZERO,
            receipts: None,
            payments: None,
            outside_timeout: Duration::from_secs(10),
            hold_at: None,
        };
        while let Some(argument) = arguments.next()? {
            match argument {
                Long("store") => {
                    let store = arguments.value()?.string()?;
                    options.store = Store::parse(&store).map_err(Stop::Usage)?;
                }
                Long("schema") => options.schema = schema(arguments.value()?.string()?)?,
                Long("http") => options.http = Some(loopback(&arguments.value()?.string()?)?),
                Long("ledger") => options.ledger = Some(arguments.value()?.into()),
                Long("hold-ms") => options.hold = millis(&mut arguments, "--hold-ms")?,
                Long("answer-delay-ms") => {
                    options.answer_delay = millis(&mut arguments, "--answer-delay-ms")?;
                }
                Long("receipt-url") => {
                    options.receipts = Some(url(&mut arguments, "--receipt-url")?);
                }
                Long("payment-url") => {
                    options.payments = Some(url(&mut arguments, "--payment-url")?);
                }
                Long("outside-timeout-ms") => {
                    options.outside_timeout = millis(&mut arguments, "--outside-timeout-ms")?;
                }
                Long("hold-before-call-ms") => {
                    let hold = millis(&mut arguments, "--hold-before-call-ms")?;
                    options.hold_at = Some((Place::BeforeCall, hold));
                }
                Long("hold-after-call-ms") => {
                    let hold = millis(&mut arguments, "--hold-after-call-ms")?;
                    options.hold_at = Some((Place::AfterCall, hold));
                }
                Long("lease-ms") => options.lease = millis(&mut arguments, "--lease-ms")?,
                Long("help") | Short('h') => return Err(Stop::Help),
                other => return Err(other.unexpected().into()),
            }
        }
        Ok(options)
    }

    /// Opens the ledger.
    ///
    /// # Errors
    ///
    /// The file cannot be opened.
    pub fn ledger(&self) -> anyhow::Result<Ledger> {
        Ledger::open(self.ledger.as_deref(), self.hold).with_context(|| {
            let ledger = self.ledger.clone().unwrap_or_default();
            format!("cannot open the ledger {}", ledger.display())
        })
    }

    /// The systems that `send_receipt` and `pay_invoice` act on.
    ///
    /// # Errors
    ///
    /// The ledger or the HTTP client cannot be opened.
    pub fn outside(&self) -> anyhow::Result<Outside> {
        Outside::new(
            self.receipts.clone(),
            self.payments.clone(),
            self.outside_timeout,
            self.hold_at,
            self.ledger()?,
        )
    }
}

fn millis(arguments: &mut lexopt::Parser, option: &str) -> Result<Duration, Stop> {
    let text = arguments.value()?.string()?;
    let millis = text.parse().map_err(|_| {
        Stop::Usage(format!(
            "{option} {text:?} is no number of milliseconds, for example 250"
        ))
    })?;
    Ok(Duration::from_millis(millis))
}

fn url(arguments: &mut lexopt::Parser, option: &str) -> Result<String, Stop> {
    let text = arguments.value()?.string()?;
    if !text.starts_with("http://") {
        return Err(Stop::Usage(format!(
            "{option} {text:?} is no URL for this example, which has no TLS: http://HOST:PORT/PATH"
        )));
    }
    Ok(text)
}

fn loopback(text: &str) -> Result<SocketAddr, Stop> {
    let address: SocketAddr = text.parse().map_err(|_| {
        Stop::Usage(format!(
            "--http {text:?} is no address with a port, for example 127.0.0.1:8080"
        ))
    })?;
    if !address.ip().is_loopback() {
        return Err(Stop::Usage(format!(
            "--http {address} can be reached from other machines, and this example asks nobody who \
             they are: use 127.0.0.1"
        )));
    }
    Ok(address)
}

/// A plain name needs no quotes anywhere.
pub(crate) fn schema(name: String) -> Result<String, Stop> {
    let plain = name
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    if !plain
        || name.is_empty()
        || name.len() > 40
        || name.starts_with(|c: char| c.is_ascii_digit())
    {
        return Err(Stop::Usage(format!(
            "--schema {name:?} is not made of at most 40 small letters, digits and underscores"
        )));
    }
    Ok(name)
}
