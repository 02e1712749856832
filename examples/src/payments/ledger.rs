//! Counts executions, apart from their effects.

use std::{
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
        if let Some(file) = &self.file {
            let line = format!("{tool} {} {}\n", charge.customer, charge.amount_cents);
            // One write to a file opened for appending: lines of several processes do not mix.
            (&**file).write_all(line.as_bytes()).map_err(failed)?;
        }
        let hold = charge.hold_ms.map_or(self.hold, Duration::from_millis);
        tokio::time::sleep(hold).await;
        Ok(())
    }
}
