//! Checks that a policy's rules are consistent.

use std::{fmt, time::Duration};

use super::{OnDoubt, OnError, OnExpired, Policy, Wait};
use crate::{
    canonical::is_json_pointer,
    error::{Action, CommitOutcome, ErrorKind, Refusal},
};

/// What the policy is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyUse {
    /// A server. Its tools may use either mode, and may override the policy.
    Server,
    /// A tool in transaction mode.
    Transaction,
    /// A tool in lease mode.
    Lease {
        /// Whether the tool has a verify function for [`OnDoubt::Verify`].
        can_verify: bool,
    },
}

impl Policy {
    /// Checks the rules and says which one cannot hold. `transaction_limit` is the store's
    /// ([`Store::transaction_limit`](crate::Store::transaction_limit)).
    ///
    /// A server and a layer check their rules when they are built. An annotated tool's rules are
    /// checked at its first call, or before that if the server asks for it. What can be seen in the
    /// attribute alone, the macro already refuses.
    ///
    /// # Errors
    ///
    /// The message names the rule and what it must be. The causes are:
    ///
    /// - a duration is zero, or longer than [`Policy::LONGEST`];
    /// - the heartbeat is longer than half the lease, so that a single lost renewal would end the
    ///   lease;
    /// - records in doubt would be removed before completed ones;
    /// - the key argument, or an ignored argument, is not a JSON pointer to an argument;
    /// - the lease is not more than three times the store's limit on transactions (in such a
    ///   store no lease can be renewed while a transaction is open);
    /// - the rule about errors belongs to the other mode, or is missing in lease mode;
    /// - [`OnDoubt::Verify`] is set without a verify function;
    /// - the earlier name of a tool is empty, or set for a whole server.
    pub fn check(
        &self,
        of: PolicyUse,
        transaction_limit: Option<Duration>,
    ) -> Result<(), InvalidPolicy> {
        let limit = match of {
            PolicyUse::Transaction => None,
            PolicyUse::Server | PolicyUse::Lease { .. } => transaction_limit,
        };
        self.check_times(limit)?;
        self.check_pointers()?;
        self.check_name(of)?;
        self.check_errors(of)?;
        self.check_doubt(of)
    }

    /// The part of [`Policy::check`] that stores and heartbeats rely on.
    pub(crate) fn check_times(
        &self,
        transaction_limit: Option<Duration>,
    ) -> Result<(), InvalidPolicy> {
        let wait = match self.wait {
            Wait::UpTo(bound) => Some(bound),
            Wait::Reject => None,
        };
        // A tombstone that is not used may also be zero. It must not be endless.
        let tombstone = match self.on_expired {
            OnExpired::New if self.tombstone.is_zero() => None,
            _ => Some(self.tombstone),
        };
        for (name, lasts) in [
            ("lease", Some(self.lease)),
            ("retention", Some(self.retention)),
            ("window", Some(self.window)),
            ("rotated_keys_window", Some(self.rotated_keys_window)),
            ("tombstone", tombstone),
            ("verify_timeout", Some(self.verify_timeout)),
            ("in_doubt_retention", Some(self.in_doubt_retention)),
            ("wait", wait),
            ("transaction_timeout", self.transaction_timeout),
        ] {
            let Some(lasts) = lasts else { continue };
            if lasts.is_zero() || lasts > Self::LONGEST {
                return Err(InvalidPolicy::new(format!(
                    "the {name} is {lasts:?}; it must be more than zero and at most a hundred years"
                )));
            }
        }
        let heartbeat = self.heartbeat_period();
        if heartbeat.is_zero() || heartbeat > self.lease / 2 {
            return Err(InvalidPolicy::new(format!(
                "the heartbeat is {heartbeat:?}; it must be more than zero and at most half of the lease, {:?}",
                self.lease
            )));
        }
        for (name, retention) in [("retention", self.retention), ("window", self.window)] {
            if self.in_doubt_retention < retention {
                return Err(InvalidPolicy::new(format!(
                    "records in doubt are kept for {:?}; that must be at least the {name}, {retention:?}",
                    self.in_doubt_retention
                )));
            }
        }
        match transaction_limit {
            Some(limit) if self.lease <= limit.saturating_mul(3) => Err(InvalidPolicy {
                message: format!(
                    "the lease is {:?}; with this store it must be more than three times the limit on transactions, {limit:?}",
                    self.lease
                ),
                lease_is_too_short: true,
            }),
            _ => Ok(()),
        }
    }

    fn check_pointers(&self) -> Result<(), InvalidPolicy> {
        for pointer in self.ignored.iter().chain(&self.key_argument) {
            if !pointer.is_empty() && is_json_pointer(pointer) {
                continue;
            }
            let remedy = if pointer.is_empty() {
                "name the argument".to_owned()
            } else if pointer.starts_with('/') {
                "in a pointer `~` is written `~0`, and `/` within a name `~1`".to_owned()
            } else {
                format!("write \"/{pointer}\" for the top-level argument of that name")
            };
            return Err(InvalidPolicy::new(format!(
                "{pointer:?} is not a JSON pointer to an argument; {remedy}"
            )));
        }
        Ok(())
    }

    fn check_name(&self, of: PolicyUse) -> Result<(), InvalidPolicy> {
        let message = match self.also_known_as.as_deref() {
            Some("") => "`also_known_as` is empty; write the earlier name of the tool",
            Some(_) if of == PolicyUse::Server => {
                "`also_known_as` is set for all tools; set it on the renamed tool"
            }
            _ => return Ok(()),
        };
        Err(InvalidPolicy::new(message.to_owned()))
    }

    fn check_errors(&self, of: PolicyUse) -> Result<(), InvalidPolicy> {
        match (of, self.on_error) {
            (PolicyUse::Lease { .. }, OnError::InDoubt | OnError::Release)
            | (PolicyUse::Server, _) => Ok(()),
            (PolicyUse::Lease { .. }, other) => Err(InvalidPolicy::new(format!(
                "OnError::{other:?} is not allowed in lease mode; use OnError::InDoubt (an error does not prove that nothing happened) or OnError::Release (it does, or a repeat is safe)"
            ))),
            (PolicyUse::Transaction, OnError::InDoubt) => Err(InvalidPolicy::new(
                "OnError::InDoubt does not apply in transaction mode: an error rolls the transaction back, so nothing is in doubt. Use OnError::Record, Release or Commit, or leave it unset".to_owned(),
            )),
            (PolicyUse::Transaction, _) => Ok(()),
        }
    }

    fn check_doubt(&self, of: PolicyUse) -> Result<(), InvalidPolicy> {
        match (of, self.on_doubt) {
            (PolicyUse::Server, OnDoubt::Verify) => Err(InvalidPolicy::new(
                "OnDoubt::Verify needs a function, so it cannot be set for a whole server; set it per tool: `on_doubt = verify(…)`, or Rule::with_verify".to_owned(),
            )),
            (PolicyUse::Lease { can_verify: false }, OnDoubt::Verify) => Err(InvalidPolicy::new(
                "OnDoubt::Verify needs a function; give the tool one: `on_doubt = verify(…)`, or Rule::with_verify".to_owned(),
            )),
            _ => Ok(()),
        }
    }
}

/// Rules that cannot hold, or contradict each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidPolicy {
    message: String,
    lease_is_too_short: bool,
}

impl InvalidPolicy {
    pub(crate) const fn new(message: String) -> Self {
        Self {
            message,
            lease_is_too_short: false,
        }
    }

    /// Says whose rules these are: `` the tool `pay`: the lease is … ``.
    #[must_use]
    pub fn of(mut self, whose: impl fmt::Display) -> Self {
        self.message = format!("{whose}: {}", self.message);
        self
    }
}

impl fmt::Display for InvalidPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for InvalidPolicy {}

/// The answer to a caller whose call cannot run under its tool's rules. The rules are the server's
/// business: the caller does not see them, and they stay with the refusal as its source.
impl From<InvalidPolicy> for Refusal {
    fn from(error: InvalidPolicy) -> Self {
        let message = if error.lease_is_too_short {
            "The server's lease is too short for its store, so the call was not executed. The \
             server's log names the remedy."
        } else {
            "The server's rules for this tool contradict each other, so the call was not executed. \
             The server's log names the remedy."
        };
        Self::new(
            ErrorKind::Misconfigured,
            CommitOutcome::NotCommitted,
            Action::AskOperator,
            message,
        )
        .with_source(error)
    }
}
