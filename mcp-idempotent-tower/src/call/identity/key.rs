//! The only reader of idempotency keys.
//!
//! A key is in one of these places, read in this order. Two different keys are refused.
//!
//! 1. `_meta["idempotency-key"]`
//! 2. `_meta["io.github.mcp-idempotent/idempotency-key"]`
//! 3. the argument that the tool's policy names. `null` there means no key: models often fill an
//!    optional field with null.
//!
//! (`params.idempotencyKey` has been moved to the first by then: over HTTP by
//! [`LiftKeyLayer`](crate::http::LiftKeyLayer), over stdio by
//! [`LiftKeyReader`](crate::stdio::LiftKeyReader), in the proxy by its relay.)

use mcp_idempotent_core::{
    Action, CommitOutcome, ErrorKind, IdempotencyKey, InvalidKey, KeyKind, Policy, Refusal,
};
use serde_json::Value;

use crate::{call::Object, wire};

/// Where a call may carry its key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places<'a, 'p> {
    pub(crate) meta: Option<&'a Object>,
    pub(crate) arguments: Option<&'a Object>,
    /// A JSON pointer to the argument that may carry the key.
    pub(crate) argument: Option<&'p str>,
}

/// Who made the key of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyMaker {
    /// Client code, in `_meta` or in `params.idempotencyKey`.
    Client,
    /// A model, in an argument.
    Model,
    /// Nobody: the call has no key.
    Nobody,
}

impl KeyMaker {
    pub(crate) const fn kind(self) -> KeyKind {
        match self {
            Self::Client | Self::Model => KeyKind::Explicit,
            Self::Nobody => KeyKind::Derived,
        }
    }

    /// As far as `_meta` tells: a key in an argument is not seen.
    pub(crate) fn of_meta(meta: &Object) -> Self {
        let places = Places {
            meta: Some(meta),
            arguments: None,
            argument: None,
        };
        places.maker()
    }
}

/// Why a call's key could not be read.
#[derive(Debug)]
pub(crate) enum Unreadable {
    Invalid(InvalidKey),
    /// Two places carry different keys.
    Contradiction,
}

impl<'a, 'p> Places<'a, 'p> {
    pub(crate) fn of(meta: &'a Object, arguments: Option<&'a Object>, policy: &'p Policy) -> Self {
        Self {
            meta: Some(meta),
            arguments,
            argument: policy.key_argument.as_deref(),
        }
    }

    /// The values in the places for a key, valid or not.
    pub(crate) fn values(self) -> impl Iterator<Item = &'a Value> + use<'a> {
        let [key, alias] = self.in_meta();
        [key, alias, self.in_arguments()].into_iter().flatten()
    }

    fn in_meta(self) -> [Option<&'a Value>; 2] {
        [wire::KEY, wire::KEY_ALIAS].map(|name| self.meta.and_then(|meta| meta.get(name)))
    }

    fn in_arguments(self) -> Option<&'a Value> {
        self.arguments
            .zip(self.argument)
            .and_then(|(arguments, pointer)| at_pointer(arguments, pointer))
            .filter(|value| !value.is_null())
    }

    /// Who made the call's key, valid or not.
    pub(crate) fn maker(self) -> KeyMaker {
        if self.in_meta().iter().any(Option::is_some) {
            KeyMaker::Client
        } else if self.in_arguments().is_some() {
            KeyMaker::Model
        } else {
            KeyMaker::Nobody
        }
    }

    /// The key of the call.
    pub(crate) fn key(self) -> Result<Option<IdempotencyKey>, Unreadable> {
        read(self.values())
    }
}

/// The one key that `values` hold, or none.
pub(crate) fn read<'a>(
    values: impl Iterator<Item = &'a Value>,
) -> Result<Option<IdempotencyKey>, Unreadable> {
    let mut key: Option<&str> = None;
    for value in values {
        let Value::String(value) = value else {
            return Err(Unreadable::Invalid(InvalidKey::not_a_string()));
        };
        if key.is_some_and(|key| key != value) {
            return Err(Unreadable::Contradiction);
        }
        key = Some(value);
    }
    key.map(IdempotencyKey::new)
        .transpose()
        .map_err(Unreadable::Invalid)
}

/// Like [`Value::pointer`], for an object that is not wrapped in a [`Value`].
fn at_pointer<'a>(arguments: &'a Object, pointer: &str) -> Option<&'a Value> {
    let rest = pointer.strip_prefix('/')?;
    let (first, rest) = match rest.find('/') {
        Some(end) => rest.split_at(end),
        None => (rest, ""),
    };
    let first = first.replace("~1", "/").replace("~0", "~");
    arguments.get(&first)?.pointer(rest)
}

impl From<Unreadable> for Refusal {
    fn from(unreadable: Unreadable) -> Self {
        let (action, message) = match unreadable {
            Unreadable::Invalid(error) => (
                Action::UseNewKey,
                format!("The call was not executed: {error}."),
            ),
            // One of the two may have been used already, so with a third the call could run twice.
            Unreadable::Contradiction => (
                Action::RetrySameKey,
                "The call was not executed: it carries two different idempotency keys. Send one: \
                 the key of your first attempt, in one place only."
                    .to_owned(),
            ),
        };
        Self::new(
            ErrorKind::KeyInvalid,
            CommitOutcome::NotCommitted,
            action,
            message,
        )
    }
}
