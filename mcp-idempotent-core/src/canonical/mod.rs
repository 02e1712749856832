//! Canonical arguments: one text for all spellings of the same JSON.
//!
//! The text follows RFC 8785 (JSON Canonicalization Scheme): members ordered by the UTF-16 code
//! units of their names, numbers as ECMAScript prints them, the shortest string escapes, no white
//! space. It is hashed, never stored. In one point it is finer than the RFC.
//!
//! # Numbers
//!
//! 1. A number that is written as an integer (digits only) from `i64::MIN` to `u64::MAX` keeps its
//!    exact value. Any other number is read as the nearest double; `1e-400` is `0`.
//! 2. An integral value from `i64::MIN` to `u64::MAX` is printed with all its digits, however it
//!    was written. Every other double is printed as ECMAScript prints it.
//!
//! So `1`, `1.0` and `1e0` are equal, `-0` is `0`, and `1e17` is `100000000000000000`. The RFC
//! would turn integers into doubles too, and merge 9007199254740992 with 9007199254740993: a call
//! about one account would get the result of a call about another. Equal texts mean equal values.
//! Within ±2^53 and outside of 64 bits the text is the same as the RFC's. In between, the RFC
//! prints rounded digits (`9223372036854776000` for 2^63) and this form prints the exact ones, so
//! that a double is never mistaken for a different integer.
//!
//! The parser refuses a number that is too large for a double (`1e400`), unless something in the
//! program has enabled `serde_json/arbitrary_precision`. Then the number is printed with all its
//! digits, in the form `1.5e+400`.
//!
//! # What changes the text, and what does not
//!
//! These make no difference: the order of members, white space, escapes, how a number is spelled,
//! and whether empty arguments are absent or `{}`. These do: the order of elements, `null` instead
//! of absent, and the Unicode spelling of a character (strings are not normalised). Neither
//! `serde_json/arbitrary_precision` nor `serde_json/preserve_order` changes the canonical text of a
//! piece of JSON.

mod pointer;
mod scalar;
mod writer;

use std::{fmt, sync::Arc};

use serde_json::{Map, Value};

pub use self::pointer::is_json_pointer;

/// The canonical text of a call's arguments. [The module](self) says how it is made.
///
/// `Debug` shows only the length, because arguments can be secret.
#[derive(Clone, PartialEq, Eq)]
pub struct CanonicalArguments {
    text: String,
}

impl CanonicalArguments {
    /// The version of the canonical form, stored with each fingerprint.
    pub const VERSION: u8 = 1;

    /// Canonicalises `arguments` (absent means `{}`), leaving out what `left_out` points at.
    ///
    /// `left_out` holds JSON pointers (RFC 6901; see [`is_json_pointer`]).
    ///
    /// - A member of an object is left out with its name, as if the caller had not sent it.
    /// - An element of an array is replaced by `null`, so that the length of the array and the
    ///   positions of the other elements still count.
    /// - The empty pointer leaves out everything: the text is `{}`.
    /// - A pointer to something absent leaves out nothing. Neither does a text that is not a JSON
    ///   pointer.
    ///
    /// Nothing is cloned. Values may be nested to any depth, because the work is done on the heap
    /// and not on the stack.
    #[must_use]
    pub fn new(arguments: Option<&Map<String, Value>>, left_out: &[Arc<str>]) -> Self {
        let everything = left_out.iter().any(|pointer| pointer.is_empty());
        let text = match arguments {
            Some(arguments) if !everything => {
                let left_out: Vec<&Value> = left_out
                    .iter()
                    .filter_map(|pointer| pointer::find(arguments, pointer))
                    .collect();
                writer::canonical_text(arguments, &left_out)
            }
            _ => "{}".to_owned(),
        };
        Self { text }
    }

    /// The canonical text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for CanonicalArguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CanonicalArguments({} bytes)", self.text.len())
    }
}
