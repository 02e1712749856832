//! What the proxy writes to standard error, besides what the server writes there itself.

use std::{
    error::Error,
    io::{self, Write as _},
};

use tracing_subscriber::EnvFilter;

use crate::WrongOptions;

/// Logs what passes the filter.
///
/// # Errors
///
/// It is not a filter.
pub(crate) fn start(filter: &str) -> Result<(), Box<dyn Error>> {
    let filter = EnvFilter::try_new(filter).map_err(|error| {
        WrongOptions(format!("--log {filter:?} is not a filter ({error}); type a level such as `info`, or `mcp_idempotent_core=debug`"))
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .init();
    Ok(())
}

/// Says why the program cannot go on, with all causes.
pub(crate) fn failed(error: &dyn Error) {
    let mut text = format!("mcp-idempotent: {error}");
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    // There is nobody else to tell.
    let _ = writeln!(io::stderr(), "{text}");
}
