//! Counts executions, apart from their effects.

use std::{
    fmt,
    fs::{File, OpenOptions},
    io::{self, Write as _},
    path::Path,
    sync::Arc,
    time::Duration,
};

use rmcp::ErrorData;

use super::charge::{Charge, failed};

/// Notes each execution in a file, then holds it up as a slow tool would. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Ledger {
    file: Option<Arc<File>>,
    hold: Duration,
}

impl Ledger {
    /// Opens the file to append to it. `hold` is for calls that say nothing else.
    ///
    /// # Errors
    ///
    /// The file cannot be opened.
    pub fn open(path: Option<&Path>, hold: Duration) -> io::Result<Self> {
        let file = path
            .map(|path| OpenOptions::new().create(true).append(true).open(path))
            .transpose()?
            .map(Arc::new);
        Ok(Self { file, hold })
    }

    /// Notes that `tool` has written `charge`, and holds it up.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub async fn executed(&self, tool: &str, charge: &Charge) -> Result<(), ErrorData> {
        self.note(format_args!(
            "{tool} {} {}",
            charge.customer, charge.amount_cents
        ))
        .map_err(failed)?;
        let hold = charge.hold_ms.map_or(self.hold, Duration::from_millis);
        tokio::time::sleep(hold).await;
        Ok(())
    }
    /// Appends a line.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn note(&self, line: fmt::Arguments<'_>) -> io::Result<()> {
        match &self.file {
            // One write to a file opened for appending: lines of several processes do not mix.
            Some(file) => (&**file).write_all(format!("{line}\n").as_bytes()),
            None => Ok(()),
        }
    }
}
