//! Playing a check, and what comes of it.

use std::fmt;

use super::{check::Check, door::Door, play::Play, report::Report, scenes};

impl Check {
    /// Checks a server that is reached in some other way. For one in this process there is
    /// [`run`](Self::run).
    ///
    /// # Errors
    ///
    /// There are findings, or the check could not be played. The calls that were made stay made.
    pub async fn run_at(&self, door: &dyn Door) -> Result<Report, CheckError> {
        let mut play = Play::new(self, door);
        let played = scenes::play(&mut play).await;
        if let Some(faults) = &self.faults {
            faults.mend();
        }
        let report = play.into_report();
        match played {
            Err(why) => Err(CheckError {
                kind: CheckErrorKind::NotPlayed,
                text: why,
                report,
            }),
            Ok(()) if !report.is_fine() => Err(CheckError {
                kind: CheckErrorKind::Wrong,
                text: report.to_string(),
                report,
            }),
            Ok(()) => Ok(report),
        }
    }
}

/// What a check found, or why it could not be played.
#[derive(Debug)]
pub struct CheckError {
    kind: CheckErrorKind,
    text: String,
    report: Report,
}

/// Which of the two it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckErrorKind {
    /// There are findings.
    Wrong,
    /// The server could not be reached, the call failed without any fault, or nothing could be counted.
    NotPlayed,
}

impl CheckError {
    /// Which of the two it is.
    #[must_use]
    pub const fn kind(&self) -> CheckErrorKind {
        self.kind
    }

    /// What was played.
    #[must_use]
    pub const fn report(&self) -> &Report {
        &self.report
    }
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for CheckError {}
