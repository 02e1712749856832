//! What records were made under before.

use std::time::Duration;

use crate::{
    engine::plan,
    error::Refusal,
    fingerprint::{Identity, Secret},
    policy::{OnExpired, Policy},
    refusal,
    scope::Application,
};

/// What records were made under before.
pub(in crate::engine) struct Rotation {
    pub(in crate::engine) application: Application,
    pub(in crate::engine) secret: Option<Secret>,
    /// For how long they are kept.
    pub(in crate::engine) period: Duration,
}

/// How long a call's record may be of use.
pub(super) fn kept(policy: &Policy, identity: &Identity) -> Duration {
    let retention = plan::retention(policy, identity.kind);
    match policy.on_expired {
        OnExpired::Refuse => retention.saturating_add(policy.tombstone),
        OnExpired::New => retention,
    }
}

impl Rotation {
    /// Whether the records of such a call are of no use any more when the previous secret is
    /// forgotten.
    pub(in crate::engine) fn keeps(
        &self,
        tool: &str,
        policy: &Policy,
        identity: &Identity,
    ) -> Result<(), Refusal> {
        let kept = kept(policy, identity);
        if kept <= self.period {
            return Ok(());
        }
        Err(refusal::rotation_too_short(tool, kept, self.period))
    }
}
