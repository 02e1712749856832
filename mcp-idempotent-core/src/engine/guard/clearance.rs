//! What a call holds when it claims its record.

use super::of_call::{Guard, Under};
use crate::{answer::RotatedKey, fingerprint::Identity, record::Record};

/// What a call has obtained before its own record is claimed. It lasts until the call has its claim, over
/// any number of tries.
#[derive(Default)]
pub(in crate::engine) enum Clearance {
    /// Nothing yet. Most calls need nothing.
    #[default]
    Nothing,
    /// A guard, which the call holds.
    Guard(Box<Guard>),
    /// An equal call was made under another key. The call goes on all the same, or gets its result.
    Rotated(RotatedKey),
}

impl Clearance {
    /// The call's record is claimed.
    pub(in crate::engine) fn claimed(&mut self) {
        if let Self::Guard(guard) = self {
            guard.claimed();
        }
    }

    /// The call was found to have this record. Its guard gets the same record.
    pub(in crate::engine) async fn settle(self, record: &Record, identity: &Identity) {
        if let Self::Guard(guard) = self {
            guard.settle(record, identity).await;
        }
    }

    /// The record in doubt that the guard was taken over from.
    pub(in crate::engine) fn in_doubt(&self) -> Option<Record> {
        match self {
            Self::Guard(guard) => guard.in_doubt(),
            Self::Nothing | Self::Rotated(_) => None,
        }
    }

    pub(in crate::engine) const fn rotated(&self) -> Option<RotatedKey> {
        match self {
            Self::Rotated(rotated) => Some(*rotated),
            Self::Nothing | Self::Guard(_) => None,
        }
    }

    pub(in crate::engine) fn into_guard(self) -> Option<Box<Guard>> {
        match self {
            Self::Guard(guard) => Some(guard),
            Self::Nothing | Self::Rotated(_) => None,
        }
    }

    /// The call holds this guard now.
    pub(super) fn hold(&mut self, guard: Guard) -> Under {
        let under = guard.under.clone();
        *self = Self::Guard(Box::new(guard));
        under
    }
}
