//! What a server that may not rely on its secret is told at its start.

use std::{error::Error, fmt};

use crate::{refusal, store::StoreError};

/// Why an engine may not rely on its secret; see [`Engine::verify_secret`](super::super::Engine::verify_secret).
///
/// It prints the remedy, also as `Debug`, because that is what a `main` that returns an error prints.
#[derive(Debug, Clone)]
pub struct SecretError {
    kind: SecretErrorKind,
    remedy: &'static str,
    source: Option<StoreError>,
}

/// The kind of a [`SecretError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SecretErrorKind {
    /// The records were made under another secret, or under none.
    AnotherSecret,
    /// Records made under the previous secret are still kept.
    TooEarly,
    /// Calls under the previous secret are in progress or in doubt.
    Unsettled,
    /// The store could not be asked.
    Store,
}

impl SecretError {
    pub(super) const fn new(kind: SecretErrorKind) -> Self {
        let remedy = match kind {
            SecretErrorKind::AnotherSecret => refusal::ANOTHER_SECRET,
            SecretErrorKind::TooEarly => refusal::PREVIOUS_SECRET_NEEDED,
            SecretErrorKind::Unsettled => refusal::PREVIOUS_SECRET_UNSETTLED,
            SecretErrorKind::Store => {
                "the store could not be asked which secret the application has; start again once it can"
            }
        };
        Self {
            kind,
            remedy,
            source: None,
        }
    }

    pub(super) fn of_store(error: StoreError) -> Self {
        Self {
            source: Some(error),
            ..Self::new(SecretErrorKind::Store)
        }
    }

    /// What is wrong.
    #[must_use]
    pub const fn kind(&self) -> SecretErrorKind {
        self.kind
    }

    /// What is wrong and what to do, as one sentence.
    #[must_use]
    pub const fn remedy(&self) -> &'static str {
        self.remedy
    }
}

impl fmt::Display for SecretError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.remedy)
    }
}

impl Error for SecretError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        let source = self.source.as_ref()?;
        Some(source)
    }
}
