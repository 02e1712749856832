//! The walk over the arguments, whose members are put in order.

use std::{cmp::Ordering, mem, ptr, slice, vec};

use serde_json::{Map, Value, map};

use super::scalar::{write_number, write_string};

/// Enough for most calls, so that the text is seldom reallocated.
const FIRST_CAPACITY: usize = 256;

/// The canonical text of `arguments` without what `left_out` refers to.
///
/// Left-out values are recognised by address, which no two values of one tree share. Open
/// containers are kept on the heap, because a value that a program has built can be deeper than a
/// thread's stack.
pub(super) fn canonical_text(arguments: &Map<String, Value>, left_out: &[&Value]) -> String {
    let mut text = String::with_capacity(FIRST_CAPACITY);
    let mut outer = Vec::new();
    let mut current = Container::open_object(arguments, &mut text);
    loop {
        if let Some(inner) = current.write_until_inner(&mut text, left_out) {
            outer.push(mem::replace(&mut current, inner));
        } else {
            text.push(current.closing());
            match outer.pop() {
                Some(container) => current = container,
                None => return text,
            }
        }
    }
}

/// A container whose opening bracket is written, and its unwritten rest.
enum Container<'a> {
    Array(slice::Iter<'a, Value>),
    Object(map::Iter<'a>),
    /// An object whose map is not in canonical order.
    Sorted(vec::IntoIter<(&'a String, &'a Value)>),
}

impl<'a> Container<'a> {
    fn open_array(elements: &'a [Value], text: &mut String) -> Self {
        text.push('[');
        Self::Array(elements.iter())
    }

    /// A map is ordered by bytes, or by insertion under `serde_json/preserve_order`. Byte order is
    /// nearly always canonical already, and checking is cheaper than sorting.
    fn open_object(members: &'a Map<String, Value>, text: &mut String) -> Self {
        text.push('{');
        if is_in_utf16_order(members.keys()) {
            return Self::Object(members.iter());
        }
        let mut sorted: Vec<_> = members.iter().collect();
        sorted.sort_unstable_by(|(one, _), (other, _)| utf16_order(one, other));
        Self::Sorted(sorted.into_iter())
    }

    const fn closing(&self) -> char {
        match self {
            Self::Array(_) => ']',
            Self::Object(_) | Self::Sorted(_) => '}',
        }
    }

    /// Writes up to the end, or up to and including the opening bracket of a nested container.
    fn write_until_inner(&mut self, text: &mut String, left_out: &[&Value]) -> Option<Self> {
        match self {
            Self::Array(elements) => elements.find_map(|element| {
                write_comma(text);
                if is_left_out(element, left_out) {
                    text.push_str("null");
                    return None;
                }
                write_value(element, text)
            }),
            Self::Object(members) => write_members(members, text, left_out),
            Self::Sorted(members) => write_members(members, text, left_out),
        }
    }
}

fn write_members<'a>(
    members: &mut impl Iterator<Item = (&'a String, &'a Value)>,
    text: &mut String,
    left_out: &[&Value],
) -> Option<Container<'a>> {
    members
        .filter(|(_, value)| !is_left_out(value, left_out))
        .find_map(|(name, value)| {
            write_comma(text);
            write_string(name, text);
            text.push(':');
            write_value(value, text)
        })
}

/// Writes a scalar, or opens a container and returns it.
fn write_value<'a>(value: &'a Value, text: &mut String) -> Option<Container<'a>> {
    match value {
        Value::Null => text.push_str("null"),
        Value::Bool(true) => text.push_str("true"),
        Value::Bool(false) => text.push_str("false"),
        Value::Number(number) => write_number(number, text),
        Value::String(string) => write_string(string, text),
        Value::Array(elements) => return Some(Container::open_array(elements, text)),
        Value::Object(members) => return Some(Container::open_object(members, text)),
    }
    None
}

/// Writes a comma unless this is the first item. No written value ends in an opening bracket.
fn write_comma(text: &mut String) {
    if !matches!(text.as_bytes().last(), Some(b'[' | b'{')) {
        text.push(',');
    }
}

fn is_left_out(value: &Value, left_out: &[&Value]) -> bool {
    left_out.iter().any(|left_out| ptr::eq(*left_out, value))
}

/// Whether all names are in canonical order.
fn is_in_utf16_order<'a>(names: impl Iterator<Item = &'a String>) -> bool {
    names.is_sorted_by(|one, other| utf16_order(one, other).is_lt())
}

/// Compares by UTF-16 code units, without encoding to UTF-16.
///
/// UTF-8 orders by code points. UTF-16 differs in one respect: characters from U+10000 on are
/// encoded as surrogates (0xD800 to 0xDFFF), so they come before U+E000 to U+FFFF. In UTF-8 only
/// these two groups start with a byte of 0xEE or more: 0xF0 and up for the first, 0xEE and 0xEF for
/// the second.
fn utf16_order(one: &str, other: &str) -> Ordering {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    match one
        .iter()
        .zip(other)
        .find(|(byte, against)| byte != against)
    {
        None => one.len().cmp(&other.len()),
        Some((byte, against)) => {
            let crosses = (*byte >= 0xF0) != (*against >= 0xF0) && byte.min(against) >= &0xEE;
            if crosses {
                against.cmp(byte)
            } else {
                byte.cmp(against)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_order_is_that_of_utf16_code_units(
            one in "[a\u{7f}é\u{d7ff}\u{e000}\u{ffff}\u{10000}\u{10ffff}]{0,4}|\\PC{0,4}",
            other in "[a\u{7f}é\u{d7ff}\u{e000}\u{ffff}\u{10000}\u{10ffff}]{0,4}|\\PC{0,4}",
        ) {
            prop_assert_eq!(
                utf16_order(&one, &other),
                one.encode_utf16().cmp(other.encode_utf16())
            );
        }
    }
}
