//! JSON as text: the members of an object, and edits that touch no other byte.

use std::{borrow::Cow, fmt, ops::Range};

use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The members of a JSON object, in order, with the text of each value.
pub(crate) struct Members<'a>(Vec<(Name<'a>, &'a RawValue)>);

/// The name of a member. It is copied only if it was spelt with escapes.
struct Name<'a>(Cow<'a, str>);

/// Most objects of the protocol have no more members. Room for more is made when it is needed.
const FEW: usize = 6;

impl<'a> Members<'a> {
    /// The members of `text`, if it is an object.
    pub(crate) fn of(text: &'a str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Of equal names the last one counts, as in most parsers.
    pub(crate) fn get(&self, name: &str) -> Option<&'a RawValue> {
        let mut members = self.0.iter().rev();
        members
            .find(|(member, _)| member.0 == name)
            .map(|(_, value)| *value)
    }

    /// The string of this name.
    #[cfg(feature = "relay")]
    pub(crate) fn text(&self, name: &str) -> Option<Cow<'a, str>> {
        text(self.get(name)?)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::with_capacity(FEW);
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(Object)
    }
}

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl<'de> Visitor<'de> for Text {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Name(text.into()))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Name(text.to_owned().into()))
            }
        }

        deserializer.deserialize_str(Text)
    }
}

/// The string that `value` is. It is copied only if it was spelt with escapes.
pub(crate) fn text(value: &RawValue) -> Option<Cow<'_, str>> {
    let name: Name<'_> = serde_json::from_str(value.get()).ok()?;
    Some(name.0)
}

/// Where a value is in the text that it borrows from.
pub(crate) fn range(text: &[u8], value: &RawValue) -> Range<usize> {
    let start = value.get().as_ptr().addr() - text.as_ptr().addr();
    start..start + value.get().len()
}

/// A change of a text: what replaces a range of it.
pub(crate) type Edit<'a> = (Range<usize>, &'a str);

/// The place of a new first member of `object`.
pub(crate) fn first_in(text: &[u8], object: &RawValue) -> Range<usize> {
    let at = range(text, object).start + 1;
    at..at
}

/// `text` with these changes, which do not overlap.
pub(crate) fn edited(text: &[u8], edits: &mut [Edit<'_>]) -> Bytes {
    edits.sort_by_key(|(range, _)| range.start);
    let added: usize = edits.iter().map(|(_, with)| with.len()).sum();
    let mut edited = Vec::with_capacity(text.len() + added);
    let mut copied = 0;
    for (range, with) in edits {
        edited.extend_from_slice(&text[copied..range.start]);
        edited.extend_from_slice(with.as_bytes());
        copied = range.end;
    }
    edited.extend_from_slice(&text[copied..]);
    edited.into()
}
