//! What a single tool changes in its server's policy.

use std::{borrow::Cow, sync::Arc, time::Duration};

use super::{
    InvalidPolicy, KeyRequirement, OnDoubt, OnError, OnErrorResult, OnExpired, Policy, PolicyUse,
    RotatedKeys, Wait,
};

/// The modes in which an option has an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are two modes")]
pub enum AppliesIn {
    /// Both modes.
    Both,
    /// Lease mode alone.
    Lease,
    /// Transaction mode alone.
    Transaction,
}

macro_rules! words {
    (Both) => {
        "both modes"
    };
    (Lease) => {
        "lease mode"
    };
    (Transaction) => {
        "transaction mode"
    };
}

macro_rules! options {
    ($(#[$page:meta])* $($mode:ident $option:ident: $type:ty,)*) => {
        $(#[$page])*
        ///
        /// | Option | Has an effect in |
        /// | --- | --- |
        $(#[doc = concat!(
            "| [`", stringify!($option), "`](Policy::", stringify!($option), ") | ", words!($mode), " |"
        )])*
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        #[expect(
            clippy::exhaustive_structs,
            reason = "the attribute's expansion builds it in a constant"
        )]
        pub struct PolicyOverride {
            $(#[doc = concat!("See [`Policy::", stringify!($option), "`].")]
            pub $option: Option<$type>,)*
        }

        impl PolicyOverride {
            /// Nothing differs.
            pub const NONE: Self = Self {
                $($option: None,)*
            };

            /// All options, each with the modes in which it has an effect.
            pub const OPTIONS: &'static [(&'static str, AppliesIn)] =
                &[$((stringify!($option), AppliesIn::$mode),)*];

            /// The options that are given.
            fn given(&self) -> impl Iterator<Item = (&'static str, AppliesIn)> {
                let given = [$(self.$option.is_some(),)*];
                let options = Self::OPTIONS.iter().copied().zip(given);
                options.filter_map(|(option, is_given)| is_given.then_some(option))
            }
        }
    };
}

options! {
    /// What a single tool changes in its server's [`Policy`]. `None` keeps the server's rule. The
    /// fields are the same as in [`Policy`], and [`ignored`](Policy::ignored) replaces the server's list.
    ///
    /// This is the list of all options. The attribute's options and the setters of the layer's rule
    /// fill it.
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
    Both key: KeyRequirement,
    Both key_argument: Cow<'static, str>,
    Both ignored: Cow<'static, [Cow<'static, str>]>,
    Both also_known_as: Cow<'static, str>,
    Both retention: Duration,
    Both window: Duration,
    Both wait: Wait,
    Both rotated_keys: RotatedKeys,
    Both rotated_keys_window: Duration,
    Both on_error: OnError,
    Lease on_error_result: OnErrorResult,
    Both on_expired: OnExpired,
    Both tombstone: Duration,
    Lease lease: Duration,
    Lease heartbeat: Duration,
    Lease on_doubt: OnDoubt,
    Lease verify_timeout: Duration,
    Both in_doubt_retention: Duration,
    Transaction transaction_timeout: Duration,
    Both max_result_bytes: usize,
    Lease run_unprotected_when_store_is_unavailable: bool,
}

impl PolicyOverride {
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
            rotated_keys,
            rotated_keys_window,
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
            rotated_keys: rotated_keys.unwrap_or(base.rotated_keys),
            rotated_keys_window: rotated_keys_window.unwrap_or(base.rotated_keys_window),
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
        if matches!(of, PolicyUse::Lease { .. })
            && let Some((option, _)) = self
                .given()
                .find(|(_, applies)| *applies == AppliesIn::Transaction)
        {
            return Err(in_vain(option, "lease"));
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
        let mut of_leases = self
            .given()
            .filter(|(_, applies)| *applies == AppliesIn::Lease);
        // This mode always refuses calls while the store is unavailable, so a tool may say so.
        let is_said_anyway = |option| {
            option == "run_unprotected_when_store_is_unavailable"
                && self.run_unprotected_when_store_is_unavailable == Some(false)
        };
        match of_leases.find(|(option, _)| !is_said_anyway(*option)) {
            Some((option, _)) => Err(in_vain(option, "transaction")),
            None => Ok(()),
        }
    }
}

fn in_vain(option: &str, mode: &str) -> InvalidPolicy {
    InvalidPolicy::new(format!(
        "`{option}` has no effect in {mode} mode; remove it"
    ))
}
