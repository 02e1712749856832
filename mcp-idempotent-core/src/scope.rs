//! Whose records these are (the application), and whose key it is (the scope).

use std::{fmt, sync::Arc};

/// The name of the application that owns the records. It is part of every record id, so two
/// applications that share a database never see each other's records.
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

    pub(crate) fn to_shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }
}

impl<T: Into<Arc<str>>> From<T> for Application {
    fn from(name: T) -> Self {
        Self::new(name)
    }
}

/// Whose key it is: the authorization boundary (SEP-3182, MUST). The same key in two scopes means
/// two records. Choose something that survives a token refresh: the subject, never the token or the
/// session.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Scope(Arc<str>);

impl Scope {
    /// A scope, from a stable name of the principal.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The scope's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn to_shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }
}

/// A scope may name a person, so `Debug` does not show it.
impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scope(…)")
    }
}
