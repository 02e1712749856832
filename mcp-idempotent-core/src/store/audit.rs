//! Who resolves a record, and why.

use std::{fmt, sync::Arc, time::Duration};

/// Who resolves a record, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Audit {
    /// Who.
    pub who: Arc<str>,
    /// Why.
    pub why: Arc<str>,
    /// How long to keep the audit trail of a freed key that is not claimed again. A completed
    /// record keeps its trail for its own retention.
    pub kept: Duration,
}

/// The audit has no name or no reason, or one of them is not acceptable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct InvalidAudit;

impl fmt::Display for InvalidAudit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "`who` and `why` of a resolution must each have 1 to 1000 characters, not be blank, and not contain U+0000",
        )
    }
}

impl std::error::Error for InvalidAudit {}

impl Audit {
    /// How long the audit trail of a freed key is kept: 90 days.
    pub const DEFAULT_KEPT: Duration = Duration::from_secs(90 * 24 * 60 * 60);
    const LONGEST: usize = 1000;

    /// Makes an audit of who resolves the record, and why.
    ///
    /// # Errors
    ///
    /// `who` or `why` is blank, longer than 1000 characters, or contains U+0000.
    pub fn new(who: impl Into<Arc<str>>, why: impl Into<Arc<str>>) -> Result<Self, InvalidAudit> {
        let (who, why) = (who.into(), why.into());
        for said in [&who, &why] {
            let length = said.chars().count();
            if said.trim().is_empty() || length > Self::LONGEST || said.contains('\0') {
                return Err(InvalidAudit);
            }
        }
        Ok(Self {
            who,
            why,
            kept: Self::DEFAULT_KEPT,
        })
    }
}
