//! The secret of an application, which keys its hashes.

use std::path::PathBuf;

use clap::Args;
use mcp_idempotent_tower::Secret;

use super::Failure;

/// Holds the secret itself.
const VARIABLE: &str = "MCP_IDEMPOTENT_SECRET";

#[derive(Debug, Args)]
pub(crate) struct SecretOptions {
    /// The file with the application's secret, if it has one [default: $MCP_IDEMPOTENT_SECRET]
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
}

impl SecretOptions {
    /// The secret, if one is given.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or the secret is too short.
    pub(crate) fn read(&self) -> Result<Option<Secret>, Failure> {
        let bytes = match (&self.secret_file, std::env::var(VARIABLE)) {
            (Some(file), _) => {
                std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?
            }
            (None, Ok(secret)) => secret.into_bytes(),
            (None, Err(_)) => return Ok(None),
        };
        // An editor ends a file with a line break, which is not part of the secret.
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        Ok(Some(Secret::new(bytes)?))
    }
}
