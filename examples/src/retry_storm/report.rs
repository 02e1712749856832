//! What is printed.

use std::{
    env,
    fmt::{self, Write as _},
    io::{self, IsTerminal as _, Write as _},
};

use super::{
    call::summary,
    case::{Case, Outcome, Side},
    latency::Latency,
};

/// What came of everything.
#[derive(Debug)]
pub struct Report {
    database: &'static str,
    outcomes: Vec<Outcome>,
    latency: Latency,
}

/// Widths of the columns: the case, and for each side executions, charges, what the client saw.
const CASE: usize = 30;
const RAN: usize = 3;
const CHARGED: usize = 7;
const SEEN: [usize; 2] = [16, 21];

#[derive(Debug, Clone, Copy)]
enum Style {
    Bold,
    Dim,
    Red,
    Green,
}

impl Report {
    /// A report of these.
    #[must_use]
    pub fn new(database: &'static str, mut outcomes: Vec<Outcome>, latency: Latency) -> Self {
        outcomes.sort_by_key(|outcome| outcome.case.letter());
        Self {
            database,
            outcomes,
            latency,
        }
    }

    /// Prints it to standard output; in colour on a terminal.
    ///
    /// # Errors
    ///
    /// Standard output is gone.
    pub fn print(&self) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        let colour = stdout.is_terminal() && env::var_os("NO_COLOR").is_none_or(|no| no.is_empty());
        let mut text = String::new();
        self.write(&mut text, colour).map_err(io::Error::other)?;
        for line in text.lines() {
            writeln!(stdout, "{}", line.trim_end())?;
        }
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
        Ok(())
    }

    fn write(&self, out: &mut String, colour: bool) -> fmt::Result {
        let paint = |style: Style, text: String| paint(colour, style, text);
        let sides = [Side::Unprotected, Side::Protected].into_iter().zip(SEEN);
        writeln!(
            out,
            "\nEach line sends the same calls, with the same key, to two tools of one server ({}).\n",
            self.database
        )?;
        let mut titles = format!(" {:CASE$}", "");
        let mut heads = titles.clone();
        let mut rule = "─".repeat(CASE + 1);
        for (side, seen) in sides.clone() {
            let width = RAN + CHARGED + seen + 3;
            let title = match side {
                Side::Unprotected => "charge_card_unprotected",
                Side::Protected => "#[idempotent] charge_card",
            };
            let head = format!(
                "{:>RAN$} {:>CHARGED$}  {:seen$}",
                "ran", "charged", "the client saw"
            );
            write!(
                titles,
                "│ {} ",
                paint(Style::Bold, format!("{title:width$}"))
            )?;
            write!(heads, "│ {} ", paint(Style::Dim, head))?;
            write!(rule, "┼{}", "─".repeat(width + 2))?;
        }
        writeln!(out, "{titles}\n{heads}\n{rule}")?;
        for case in Case::ALL {
            write!(
                out,
                " {:CASE$}",
                format!("{} {}", case.letter(), case.label())
            )?;
            for (side, seen) in sides.clone() {
                let outcome = self
                    .outcomes
                    .iter()
                    .find(|outcome| outcome.case == case && outcome.side == side);
                if let Some(outcome) = outcome {
                    let style = if outcome.charges == 1 {
                        Style::Green
                    } else {
                        Style::Red
                    };
                    write!(
                        out,
                        "│ {:>RAN$} {}  {:seen$} ",
                        outcome.executions,
                        paint(style, format!("{:>CHARGED$}", outcome.charges)),
                        summary(&outcome.seen),
                    )?;
                }
            }
            writeln!(out)?;
        }
        if self.verdict().is_ok() {
            writeln!(
                out,
                "\nLook at \"charged\": one intent is one charge on the right, whatever happens. In d the tool runs\n\
                 twice, because the crash rolled the first run back (on the left it commits as it writes, as\n\
                 servers without protection do, so the charge stands when it is killed); in f the second call\n\
                 is refused with the error idempotency_key_conflict, not executed."
            )?;
        }
        self.write_latency(out)
    }

    fn write_latency(&self, out: &mut String) -> fmt::Result {
        let Latency {
            rounds,
            protected,
            bare,
            bare_again,
        } = self.latency;
        let over = protected.as_secs_f64() / bare.as_secs_f64();
        let noise = bare_again.as_secs_f64() / bare.as_secs_f64();
        writeln!(
            out,
            "\nAdded latency of a first call: ×{over:.2} ({protected:.2?} against {bare:.2?} for the same work in a\n\
             bare transaction; medians of {rounds} interleaved calls over stdio). Noise: the bare tool against\n\
             itself is ×{noise:.2}."
        )?;
        if cfg!(debug_assertions) {
            writeln!(
                out,
                "This is an unoptimised build; `cargo run --release --example retry_storm` measures the real thing."
            )?;
        }
        writeln!(out)
    }
}

fn paint(colour: bool, style: Style, text: String) -> String {
    if !colour {
        return text;
    }
    let code = match style {
        Style::Bold => 1,
        Style::Dim => 2,
        Style::Red => 31,
        Style::Green => 32,
    };
    format!("\u{1b}[{code}m{text}\u{1b}[0m")
}
