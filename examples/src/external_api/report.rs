//! What is printed.

use std::{
    fmt::{self, Write as _},
    io::{self, Write as _},
};

use super::{
    call::summary,
    fault::{Fault, Outcome, Pairing},
};

/// What came of everything.
#[derive(Debug)]
pub struct Report {
    outcomes: Vec<Outcome>,
}

const FAULT: usize = 32;

impl Report {
    /// A report of these.
    #[must_use]
    pub const fn new(outcomes: Vec<Outcome>) -> Self {
        Self { outcomes }
    }

    /// Prints it to standard output.
    ///
    /// # Errors
    ///
    /// Standard output is gone.
    pub fn print(&self) -> io::Result<()> {
        let mut text = String::new();
        self.write(&mut text).map_err(io::Error::other)?;
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        stdout.flush()
    }

    /// Whether everything is as it has to be.
    ///
    /// # Errors
    ///
    /// Something is not; the text says what.
    pub fn verdict(&self) -> anyhow::Result<()> {
        let wrong: Vec<_> = self
            .outcomes
            .iter()
            .filter_map(|outcome| outcome.check().err())
            .collect();
        anyhow::ensure!(wrong.is_empty(), "{}", wrong.join("\n       "));
        let repeats = self.outcomes.iter().any(|outcome| {
            outcome.pairing == Pairing::RerunWithoutKeys && outcome.counts.charges > 1
        });
        anyhow::ensure!(
            repeats,
            "an API without keys was never charged twice: this shows nothing"
        );
        Ok(())
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        for pairing in Pairing::ALL {
            let title = match pairing {
                Pairing::RerunWithKeys => {
                    "pay_invoice (on_doubt = rerun), and an API that recognises a key"
                }
                Pairing::RerunWithoutKeys => {
                    "pay_invoice (on_doubt = rerun), and an API that takes no notice of keys"
                }
                Pairing::FailWithoutKeys => {
                    "send_receipt (on_doubt = fail), and an API that takes no notice of keys"
                }
            };
            writeln!(out, "\n {title}\n")?;
            writeln!(
                out,
                " {:FAULT$} │ calls  keys  acted │ the client saw",
                "one call of the client's"
            )?;
            writeln!(
                out,
                "─{}─┼─────────────────────┼─{}",
                "─".repeat(FAULT),
                "─".repeat(38)
            )?;
            for fault in Fault::ALL {
                let outcome = self
                    .outcomes
                    .iter()
                    .find(|outcome| outcome.fault == fault && outcome.pairing == pairing);
                if let Some(outcome) = outcome {
                    writeln!(
                        out,
                        " {:FAULT$} │ {:>5} {:>5} {:>6} │ {}",
                        fault.label(),
                        outcome.counts.calls,
                        outcome.counts.keys,
                        outcome.counts.charges,
                        summary(&outcome.seen)
                    )?;
                }
            }
        }
        writeln!(
            out,
            "\nCounted at the API. With keys it acts once, and a retry gets the result. Without, whoever runs\n\
             again may act again; a tool that does not is left with outcome_unknown, for an operator to resolve.\n"
        )
    }
}
