//! What a single tool changes in its server's policy.

use std::{borrow::Cow, sync::Arc, time::Duration};

use super::{
    InvalidPolicy, KeyRequirement, OnDoubt, OnError, OnErrorResult, OnExpired, Policy, PolicyUse,
    Wait,
};

/// What a single tool changes in its server's [`Policy`]. `None` keeps the server's rule. The
/// fields are the same as in [`Policy`].
///
/// It can be a constant. Set the fields that differ, and end with `..PolicyOverride::NONE`, because
/// fields may be added later.
///
/// ```
/// # use mcp_idempotent_core::{KeyRequirement, Policy, PolicyOverride};
/// const STRICT: PolicyOverride = PolicyOverride {
///     key: Some(KeyRequirement::Required),
///     ..PolicyOverride::NONE
/// };
/// let policy = STRICT.over(&Policy::default());
/// assert_eq!(policy.key, KeyRequirement::Required);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "the attribute's expansion builds it in a constant"
)]
pub struct PolicyOverride {
    /// See [`Policy::key`].
    pub key: Option<KeyRequirement>,
    /// See [`Policy::key_argument`].
    pub key_argument: Option<Cow<'static, str>>,
    /// See [`Policy::ignored`]. It replaces the server's list.
    pub ignored: Option<Cow<'static, [Cow<'static, str>]>>,
    /// See [`Policy::also_known_as`].
    pub also_known_as: Option<Cow<'static, str>>,
    /// See [`Policy::retention`].
    pub retention: Option<Duration>,
    /// See [`Policy::window`].
    pub window: Option<Duration>,
    /// See [`Policy::wait`].
    pub wait: Option<Wait>,
    /// See [`Policy::on_error`].
    pub on_error: Option<OnError>,
    /// See [`Policy::on_error_result`].
    pub on_error_result: Option<OnErrorResult>,
    /// See [`Policy::on_expired`].
    pub on_expired: Option<OnExpired>,
    /// See [`Policy::tombstone`].
    pub tombstone: Option<Duration>,
    /// See [`Policy::lease`].
    pub lease: Option<Duration>,
    /// See [`Policy::heartbeat`].
    pub heartbeat: Option<Duration>,
    /// See [`Policy::on_doubt`].
    pub on_doubt: Option<OnDoubt>,
    /// See [`Policy::verify_timeout`].
    pub verify_timeout: Option<Duration>,
    /// See [`Policy::in_doubt_retention`].
    pub in_doubt_retention: Option<Duration>,
    /// See [`Policy::transaction_timeout`].
    pub transaction_timeout: Option<Duration>,
    /// See [`Policy::max_result_bytes`].
    pub max_result_bytes: Option<usize>,
    /// See [`Policy::run_unprotected_when_store_is_unavailable`].
    pub run_unprotected_when_store_is_unavailable: Option<bool>,
}

impl PolicyOverride {
    /// Nothing differs.
    pub const NONE: Self = Self {
        key: None,
        key_argument: None,
        ignored: None,
        also_known_as: None,
        retention: None,
        window: None,
        wait: None,
        on_error: None,
        on_error_result: None,
        on_expired: None,
        tombstone: None,
        lease: None,
        heartbeat: None,
        on_doubt: None,
        verify_timeout: None,
        in_doubt_retention: None,
        transaction_timeout: None,
        max_result_bytes: None,
        run_unprotected_when_store_is_unavailable: None,
    };

    /// The policy that results when these rules replace those of `base`. If a tool keeps its
    /// results for longer than its server does, it also keeps its records in doubt for at least
    /// that long, unless it sets `in_doubt_retention` itself.
    #[must_use]
    pub fn over(&self, base: &Policy) -> Policy {
        // No `..`, so that a new field cannot be forgotten here.
        let Self {
            key,
            key_argument,
            ignored,
            also_known_as,
            retention,
            window,
            wait,
            on_error,
            on_error_result,
            on_expired,
            tombstone,
            lease,
            heartbeat,
            on_doubt,
            verify_timeout,
            in_doubt_retention,
            transaction_timeout,
            max_result_bytes,
            run_unprotected_when_store_is_unavailable,
        } = self;
        let longest_said = (*retention).max(*window).unwrap_or(Duration::ZERO);
        Policy {
            key: key.unwrap_or(base.key),
            key_argument: match key_argument {
                Some(pointer) => Some(Arc::from(&**pointer)),
                None => base.key_argument.clone(),
            },
            ignored: match ignored {
                Some(pointers) => pointers
                    .iter()
                    .map(|pointer| Arc::from(&**pointer))
                    .collect(),
                None => Arc::clone(&base.ignored),
            },
            also_known_as: match also_known_as {
                Some(name) => Some(Arc::from(&**name)),
                None => base.also_known_as.clone(),
            },
            retention: retention.unwrap_or(base.retention),
            window: window.unwrap_or(base.window),
            wait: wait.unwrap_or(base.wait),
            on_error: on_error.unwrap_or(base.on_error),
            on_error_result: on_error_result.or(base.on_error_result),
            on_expired: on_expired.unwrap_or(base.on_expired),
            tombstone: tombstone.unwrap_or(base.tombstone),
            lease: lease.unwrap_or(base.lease),
            heartbeat: heartbeat.or(base.heartbeat),
            on_doubt: on_doubt.unwrap_or(base.on_doubt),
            verify_timeout: verify_timeout.unwrap_or(base.verify_timeout),
            in_doubt_retention: in_doubt_retention
                .unwrap_or_else(|| base.in_doubt_retention.max(longest_said)),
            transaction_timeout: transaction_timeout.or(base.transaction_timeout),
            max_result_bytes: max_result_bytes.unwrap_or(base.max_result_bytes),
            run_unprotected_when_store_is_unavailable: run_unprotected_when_store_is_unavailable
                .unwrap_or(base.run_unprotected_when_store_is_unavailable),
        }
    }

    /// The checked policy of one tool: these rules over its server's. Server rules that only
    /// concern the other mode are ignored.
    ///
    /// # Errors
    ///
    /// Whatever [`Policy::check`] refuses. Also a rule of this tool that would have no effect: a
    /// lease rule in transaction mode, [`Policy::transaction_timeout`] in lease mode, or
    /// [`Policy::verify_timeout`] without [`OnDoubt::Verify`].
    pub fn for_tool(
        &self,
        base: &Policy,
        of: PolicyUse,
        transaction_limit: Option<Duration>,
    ) -> Result<Policy, InvalidPolicy> {
        let mut policy = self.over(base);
        if of == PolicyUse::Transaction {
            self.check_transaction()?;
            if self.on_error.is_none() && policy.on_error == OnError::InDoubt {
                policy.on_error = OnError::Default;
            }
            // A call in transaction mode is in doubt only where its handler ended the transaction
            // itself, and then an operator looks.
            policy.on_doubt = OnDoubt::Fail;
        }
        let asks = policy.on_doubt == OnDoubt::Verify;
        if self.verify_timeout.is_some() && !asks && of != PolicyUse::Server {
            return Err(InvalidPolicy::new(
                "`verify_timeout` has no effect without OnDoubt::Verify; remove it".to_owned(),
            ));
        }
        if self.transaction_timeout.is_some() && matches!(of, PolicyUse::Lease { .. }) {
            return Err(InvalidPolicy::new(
                "`transaction_timeout` has no effect in lease mode; remove it".to_owned(),
            ));
        }
        policy.check(of, transaction_limit)?;
        Ok(policy)
    }

    fn check_transaction(&self) -> Result<(), InvalidPolicy> {
        if self.on_doubt.is_some() {
            return Err(InvalidPolicy::new(
                "a rule for calls in doubt has no effect in transaction mode, where the effect commits with its record; remove it, or use lease mode".to_owned(),
            ));
        }
        for (name, is_said) in [
            ("lease", self.lease.is_some()),
            ("heartbeat", self.heartbeat.is_some()),
            ("verify_timeout", self.verify_timeout.is_some()),
            ("on_error_result", self.on_error_result.is_some()),
            (
                "run_unprotected_when_store_is_unavailable",
                self.run_unprotected_when_store_is_unavailable == Some(true),
            ),
        ] {
            if is_said {
                return Err(InvalidPolicy::new(format!(
                    "`{name}` has no effect in transaction mode; remove it"
                )));
            }
        }
        Ok(())
    }
}
