//! JSON-RPC messages, as far as a relay has to read them.

use std::{
    borrow::Cow,
    hash::{Hash, Hasher},
    sync::Arc,
};

use bytes::Bytes;
use serde_json::{Value, value::RawValue};

use crate::raw::{Members, text};

/// The messages in a line: the line itself, or those of a batch, in the revisions that have
/// batches.
pub(super) fn messages(line: &Bytes) -> Vec<Bytes> {
    let batch = || {
        // Before anything else is read, because hardly any line is a batch.
        line.trim_ascii_start().starts_with(b"[").then_some(())?;
        let text = std::str::from_utf8(line).ok()?;
        let messages: Vec<&RawValue> = serde_json::from_str(text).ok()?;
        let lines = messages
            .iter()
            .map(|message| Bytes::from(format!("{message}\n")));
        Some(lines.collect()).filter(|lines: &Vec<_>| !lines.is_empty())
    };
    batch().unwrap_or_else(|| vec![line.clone()])
}

/// The line with what is left of its messages, or `None` if nothing is left.
pub(super) fn rejoined(line: &Bytes, messages: &[Bytes], left: &[Bytes]) -> Option<Bytes> {
    if left.is_empty() {
        return None;
    }
    if left.len() == messages.len() {
        return Some(line.clone());
    }
    let left: Vec<&[u8]> = left.iter().map(|line| line.trim_ascii_end()).collect();
    Some([&b"["[..], &left.join(&b','), b"]\n"].concat().into())
}

/// One message.
pub(super) struct Message<'a> {
    members: Members<'a>,
}

impl<'a> Message<'a> {
    pub(super) fn of(text: &'a str) -> Option<Self> {
        let members = Members::of(text)?;
        Some(Self { members })
    }

    /// The method of a request or a notification.
    pub(super) fn method(&self) -> Option<Cow<'a, str>> {
        self.members.text("method")
    }

    pub(super) fn id(&self) -> Option<&'a RawValue> {
        self.members.get("id")
    }

    pub(super) fn params(&self) -> Option<&'a RawValue> {
        self.members.get("params")
    }

    /// Some servers write both members, with null for the one that does not apply.
    pub(super) fn result(&self) -> Option<&'a RawValue> {
        let result = self.members.get("result")?;
        (result.get() != "null" || self.error().is_none()).then_some(result)
    }

    pub(super) fn error(&self) -> Option<&'a RawValue> {
        self.members
            .get("error")
            .filter(|error| error.get() != "null")
    }
}

/// The id of a request, or a progress token: a string or a number. Equal ones may be spelt
/// differently.
#[derive(Debug, Clone)]
pub(super) struct Id {
    /// As its maker spelt it.
    spelt: Arc<str>,
    value: Value,
}

impl Id {
    pub(super) fn of(raw: &RawValue) -> Option<Self> {
        let value: Value = serde_json::from_str(raw.get()).ok()?;
        let is_id = value.is_string() || value.is_number();
        is_id.then(|| Self {
            spelt: raw.get().into(),
            value,
        })
    }

    pub(super) fn spelt(&self) -> &str {
        &self.spelt
    }

    /// Its number, if it is one of ours.
    pub(super) fn number(&self) -> Option<u64> {
        whole_number(&self.value)
    }
}

/// A whole number, however it is spelt. Some servers know no numbers but doubles, and answer 12 with 12.0 or 1.2e1. Others
/// make a string of it.
pub(super) fn whole_number(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => text.parse().ok(),
        number => number
            .as_u64()
            .or_else(|| number.as_f64()?.to_string().parse().ok()),
    }
}

impl PartialEq for Id {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl Eq for Id {}

impl Hash for Id {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match &self.value {
            Value::String(text) => text.hash(state),
            value => value.as_i64().hash(state),
        }
    }
}

/// A member of the params of a message with this method.
pub(super) fn param<'a>(message: &Message<'a>, method: &str, name: &str) -> Option<&'a RawValue> {
    if message.method()? != method {
        return None;
    }
    Members::of(message.params()?.get())?.get(name)
}

/// Whether a string value is `expected`.
pub(super) fn is(value: Option<&RawValue>, expected: &str) -> bool {
    value.and_then(text).is_some_and(|text| text == expected)
}
