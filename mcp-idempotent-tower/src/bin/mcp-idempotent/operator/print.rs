//! What a command prints, for people or as JSON.

use std::{
    io::{self, IsTerminal as _, Write as _},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use mcp_idempotent_tower::{RecordInfo, core::Timestamp};
use serde_json::{Value, json};

/// Prints one line on standard output.
///
/// # Errors
///
/// Nobody reads it any more.
pub(crate) fn line(text: impl std::fmt::Display) -> io::Result<()> {
    writeln!(io::stdout(), "{text}")
}

/// Reports the progress of long work, if somebody watches.
pub(crate) fn progress(text: impl std::fmt::Display) {
    if io::stderr().is_terminal() {
        let _ = write!(io::stderr(), "\r{text}");
    }
}

/// A table whose columns are as wide as they have to be.
///
/// # Errors
///
/// Nobody reads it any more.
pub(crate) fn table(rows: &[Vec<String>]) -> io::Result<()> {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..columns).map(width).collect();
    for row in rows {
        let mut text = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            text += &format!("{cell:width$}  ");
        }
        line(text.trim_end())?;
    }
    Ok(())
}

/// Text from a record, which may hold anything, on one line.
pub(crate) fn one_line(text: &str) -> String {
    text.chars()
        .map(|character| {
            if character.is_control() {
                '?'
            } else {
                character
            }
        })
        .collect()
}

/// This machine's clock.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// How long ago, in the two largest units.
pub(crate) fn ago(moment: Timestamp) -> String {
    let micros = u64::try_from(now().saturating_sub(moment.as_micros())).unwrap_or(0);
    duration(Duration::from_micros(micros))
}

/// A duration in its two largest units, such as `3h 12m`.
pub(crate) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let units = [(86_400, "d"), (3600, "h"), (60, "m"), (1, "s")];
    let mut left = seconds;
    let mut parts = Vec::new();
    for (length, unit) in units {
        if left >= length {
            parts.push(format!("{}{unit}", left / length));
            left %= length;
        }
    }
    parts.truncate(2);
    if parts.is_empty() {
        return "0s".to_owned();
    }
    parts.join(" ")
}

/// A record as JSON. Times are RFC 3339.
pub(crate) fn record(info: &RecordInfo) -> Value {
    let time = |moment: Option<Timestamp>| moment.map(|moment| moment.to_string());
    json!({
        "id": info.id.to_string(),
        "state": info.status.as_str(),
        "application": info.application.as_deref(),
        "scope": info.scope.as_deref(),
        "tool": &*info.tool,
        "keyPrefix": info.key_prefix.as_deref(),
        "token": info.token,
        "attempts": info.attempts,
        "createdAt": info.created_at.to_string(),
        "leaseUntil": time(info.lease_until),
        "completedAt": time(info.completed_at),
        "expiresAt": time(info.expires_at),
        "resolved": info.resolved.as_ref().map(|resolved| json!({
            "as": resolved.kind.as_str(),
            "by": &*resolved.who,
            "why": &*resolved.why,
            "at": resolved.at.to_string(),
        })),
    })
}
