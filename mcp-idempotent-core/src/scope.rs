//! Whose records these are, and whose key it is.

use std::{fmt, sync::Arc};

/// The name of the application whose records these are. It is part of every record id, so two
/// servers on one database never meet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Application(Arc<str>);

impl Application {
    /// Names the application.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn to_shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }
}

impl<T: Into<Arc<str>>> From<T> for Application {
    fn from(name: T) -> Self {
        Self::new(name)
    }
}

/// Whose key it is: the authorization boundary (SEP-3182, MUST). Equal keys of two scopes are two
/// records. Choose what survives a token refresh: the subject, never the token or the session.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Scope(Arc<str>);

impl Scope {
    /// A scope from a stable name of the principal.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The scope's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A scope may name a person, so `Debug` does not show it.
impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scope(…)")
    }
}
