//! Without the feature `metrics` nothing is measured, and nothing is spent on it.

use std::sync::Arc;

use super::Outcome;
use crate::scope::Application;

/// The measurements of one call.
pub(super) struct Meter;

impl Meter {
    pub(super) const fn start(_: &Application, _: Option<&Arc<str>>) -> Self {
        Self
    }

    pub(super) const fn handler(&self) -> Timer {
        Timer
    }

    pub(super) const fn waiting(&self) -> Timer {
        Timer
    }

    pub(super) const fn rotated_key(&self) {}

    pub(super) const fn end(self, _: Outcome) {}
}

/// Measures nothing.
pub struct Timer;

impl std::fmt::Debug for Timer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Timer")
    }
}

pub(crate) const fn lease_lost(_: &Application) {}

pub(crate) const fn renewal_failed(_: &Application) {}

pub(crate) const fn in_doubt(_: &Application, _: u32) {}

/// Measures nothing.
pub(crate) struct Sweep;

impl Sweep {
    pub(crate) const fn begin(_: &Application) -> Self {
        Self
    }

    pub(crate) const fn removed(&self, _: u64) {}

    pub(crate) const fn end(self) {}
}
