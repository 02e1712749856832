//! The matrix as a table of `docs/guarantees.md`.

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

use super::tally::State;
use crate::row::Row;

const PAGE: &str = "docs/guarantees.md";
const BEGIN: &str = "<!-- begin of the matrix, which fault-run writes -->\n";
const END: &str = "<!-- end of the matrix -->\n";

/// Replaces what is between the markers.
pub(crate) fn write(state: &Path) -> ExitCode {
    let state = State::read(state).expect("a state");
    let page = fs::read_to_string(PAGE).expect("the page, from the root of the repository");
    let (before, rest) = page.split_once(BEGIN).expect("the first marker");
    let (_, after) = rest.split_once(END).expect("the second marker");
    let page = format!("{before}{BEGIN}{}{END}{after}", table(&state));
    fs::write(PAGE, page).expect("the page can be written");
    ExitCode::SUCCESS
}

fn table(state: &State) -> String {
    let calls = state.calls();
    let mut text = format!(
        "\nWritten on {} by `tests/run --faults -- table faults.json`, after `tests/run --faults -- long {calls} \
         faults.json --seed {}`: {}.\n\n\
         | Fault | Transport | Store | Mode | Calls | Faults | Calls met | Effects | In doubt | Verdict |\n\
         | --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | --- |\n",
        date(),
        state.seed,
        state.summary()
    );
    for row in Row::all() {
        let Some(tally) = state.tallies.get(&row.to_string()) else {
            writeln!(text, "| {row} | 0 | – | – | – | – | not run |").expect("a text");
            continue;
        };
        let (faults, met) = match row.fault.is_race() {
            true => ("–".to_owned(), "–".to_owned()),
            false => (tally.faults.to_string(), tally.met.to_string()),
        };
        writeln!(
            text,
            "| {row} | {} | {faults} | {met} | {} | {} | {} |",
            tally.calls,
            tally.effects,
            tally.in_doubt,
            tally.verdict(&row)
        )
        .expect("a text");
    }
    text.push('\n');
    text
}

/// Today, in UTC.
fn date() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let days = now.map_or(0, |now| now.as_secs() / 86_400);
    // The civil calendar, in eras of 400 years that begin with March.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month < 3);
    format!("{year}-{month:02}-{day:02}")
}
