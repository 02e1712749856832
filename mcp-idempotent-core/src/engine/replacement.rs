//! The replacement of an application's secret, or of its name: what its earlier records were made under.

use std::time::Duration;

use crate::{
    engine::plan,
    error::Refusal,
    fingerprint::{Identity, Secret},
    policy::{OnExpired, Policy},
    refusal,
    scope::Application,
};

/// What the application's earlier records were made under.
pub(super) struct Replacement {
    pub(super) application: Application,
    pub(super) secret: Option<Secret>,
    /// How long those records are kept.
    pub(super) period: Duration,
}

/// How long a call's record may still decide an answer.
pub(super) fn kept_for(policy: &Policy, identity: &Identity) -> Duration {
    let retention = plan::retention(policy, identity.kind);
    match policy.on_expired {
        OnExpired::Refuse => retention.saturating_add(policy.tombstone),
        OnExpired::New => retention,
    }
}

impl Replacement {
    /// Checks that the records of such a call have expired by the time the previous secret is dropped.
    ///
    /// # Errors
    ///
    /// They are kept for longer than the period, or the policy minds rotated keys, for which a call
    /// would need a second guard. The call is refused.
    pub(super) fn keeps(
        &self,
        tool: &str,
        policy: &Policy,
        identity: &Identity,
    ) -> Result<(), Refusal> {
        if identity.equal.is_some() {
            return Err(refusal::rotated_keys_during_replacement(tool));
        }
        let kept = kept_for(policy, identity);
        if kept <= self.period {
            return Ok(());
        }
        Err(refusal::rotation_too_short(tool, kept, self.period))
    }
}
