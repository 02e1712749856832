//! `doctor`: whether a store can keep its promises. Each finding names its remedy.

mod postgres;
mod probe;
mod redis;
mod sqlite;

use clap::Args;
use serde_json::{Value, json};

use super::{
    Ended, Failure, print,
    store::{Opened, StoreOptions, with_store},
};

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    #[command(flatten)]
    store: StoreOptions,
}

/// What was found in the database itself.
struct Examined {
    findings: Vec<Finding>,
    /// Of all records.
    largest_token: Option<i64>,
}

impl Examined {
    /// What was found before the question that the database did not answer, if there was one.
    fn until(
        asked: Result<(), sqlx::Error>,
        mut findings: Vec<Finding>,
        largest_token: Option<i64>,
    ) -> Self {
        if let Err(error) = asked {
            findings.push(Finding::wrong(
                "questions",
                format!("could not all be asked: {}", chain(&error)),
                "fix the problems above, and run this again",
            ));
        }
        Self {
            findings,
            largest_token,
        }
    }
}

/// What was found about one thing.
struct Finding {
    what: &'static str,
    verdict: Verdict,
    said: String,
    remedy: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Good,
    /// Works, but somebody should know.
    Warning,
    Wrong,
}

impl Verdict {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Warning => "warning",
            Self::Wrong => "wrong",
        }
    }
}

impl Finding {
    fn good(what: &'static str, said: impl Into<String>) -> Self {
        Self {
            what,
            verdict: Verdict::Good,
            said: said.into(),
            remedy: None,
        }
    }

    fn warning(what: &'static str, said: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Warning,
            remedy: Some(remedy.into()),
            ..Self::good(what, said)
        }
    }

    fn wrong(what: &'static str, said: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Wrong,
            ..Self::warning(what, said, remedy)
        }
    }

    /// What a check of the store itself said; its error names the remedy.
    fn of<E: std::error::Error>(what: &'static str, good: &str, checked: Result<(), E>) -> Self {
        match checked {
            Ok(()) => Self::good(what, good),
            Err(error) => Self {
                what,
                verdict: Verdict::Wrong,
                said: chain(&error),
                remedy: None,
            },
        }
    }

    fn as_json(&self) -> Value {
        json!({
            "what": self.what,
            "verdict": self.verdict.as_str(),
            "said": self.said,
            "remedy": self.remedy,
        })
    }
}

/// An error with its causes, each said once.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        let said = source.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = source.source();
    }
    text
}

impl Doctor {
    pub(super) async fn run(self) -> Result<Ended, Failure> {
        let opened = self.store.open().await?;
        let Examined {
            mut findings,
            largest_token,
        } = match &opened {
            Opened::Postgres(store, pool) => {
                postgres::examine(store, pool, &self.store.schema).await
            }
            Opened::Sqlite(store, pool) => {
                sqlite::examine(store, pool, self.store.table_prefix()).await
            }
            Opened::Redis(store, client) => redis::examine(store, client).await,
        };
        findings.extend(with_store!(&opened, store => probe::examine(store, largest_token).await));
        if self.store.json {
            let findings: Vec<_> = findings.iter().map(Finding::as_json).collect();
            print::line(format_args!("{:#}", Value::from(findings)))?;
        } else {
            for finding in &findings {
                print::line(format_args!(
                    "{:8} {:20} {}",
                    finding.verdict.as_str(),
                    finding.what,
                    print::one_line(&finding.said)
                ))?;
                if let Some(remedy) = &finding.remedy {
                    print::line(format_args!("{:29} → {remedy}", ""))?;
                }
            }
        }
        let is_wrong = findings.iter().any(|it| it.verdict == Verdict::Wrong);
        Ok(if is_wrong { Ended::Wrong } else { Ended::Done })
    }
}

/// How far this machine's clock is from the store's, which decides.
fn clock(store: i64) -> Finding {
    const TOLERATED: i64 = 2_000_000;
    let ahead = print::now() - store;
    let seconds = ahead.abs() / 1_000_000;
    if ahead.abs() < TOLERATED {
        return Finding::good("clock", "the store's clock and this machine's agree");
    }
    let side = if ahead > 0 { "ahead of" } else { "behind" };
    Finding::warning(
        "clock",
        format!("this machine's clock is {seconds} s {side} the store's"),
        "calls are not affected, because the store's clock decides; set the wrong clock by slewing it (chrony, ntpd)",
    )
}

/// Whether anybody sweeps: how long the oldest record that could be removed has been waiting.
fn sweeping(waiting: Option<std::time::Duration>) -> Finding {
    const USUAL: std::time::Duration = std::time::Duration::from_secs(3600);
    match waiting {
        Some(waiting) if waiting > USUAL => Finding::warning(
            "sweep",
            format!(
                "a record has been waiting to be removed for {}, so no sweep has finished since then",
                print::duration(waiting)
            ),
            "run `mcp-idempotent records sweep`, and let a server call `sweep_in_background`",
        ),
        _ => Finding::good(
            "sweep",
            "no record has been waiting to be removed for over an hour",
        ),
    }
}
