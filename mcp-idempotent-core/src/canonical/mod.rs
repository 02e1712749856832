//! Canonical arguments: one text for all spellings of the same JSON.
//!
//! The text is that of RFC 8785 (JSON Canonicalization Scheme): members ordered by the UTF-16
//! code units of their names, numbers as ECMAScript prints them, the shortest string escapes, no
//! white space. It is hashed, never stored. In one place it is finer than the RFC.
//!
//! # Numbers
//!
//! 1. A number stands for its exact value if it is written as an integer (digits alone) from
//!    `i64::MIN` to `u64::MAX`. Any other number stands for the nearest double; `1e-400` is `0`.
//! 2. An integral value from `i64::MIN` to `u64::MAX` is written with all its digits, whichever
//!    way it came. Every other double is written as ECMAScript prints it.
//!
//! So `1`, `1.0` and `1e0` are equal, `-0` is `0`, and `1e17` is `100000000000000000`. The RFC
//! would make doubles of integers too, and merge 9007199254740992 with 9007199254740993: a call
//! about one account would be answered with the result of a call about another. Equal texts
//! mean equal values: within ±2^53 and outside of 64 bits the text is the RFC's own, and in
//! between the RFC prints rounded digits (`9223372036854776000` for 2^63) where this form prints
//! the exact ones, so that no double is taken for an integer that it is not.
//!
//! A number too large for a double (`1e400`) is refused by the parser, unless something in the
//! program has switched on `serde_json/arbitrary_precision`. Then it is written with all its
//! digits in the form `1.5e+400`.
//!
//! # What changes the text, and what does not
//!
//! Equal: order of members, white space, escapes, spellings of one number, absent arguments and
//! `{}`. Different: order of elements, `null` and absent, and two Unicode spellings of one
//! character, which stay as they are. Neither `serde_json/arbitrary_precision` nor
//! `serde_json/preserve_order` changes the text that a piece of JSON gets.

mod number;
mod order;
mod pointer;
mod string;
mod writer;

use std::{fmt, sync::Arc};

use serde_json::{Map, Value};

pub use self::pointer::is_json_pointer;

/// The canonical text of a call's arguments. How it is made: [the module](self).
///
/// `Debug` shows the length alone: arguments can be secrets.
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
    ///   places of the other elements still count.
    /// - The empty pointer leaves out everything: the text is `{}`.
    /// - A pointer to something absent, and a text that is not a JSON pointer, leave out nothing.
    ///
    /// Nothing is cloned, and values of any depth are taken: the work is done on the heap, not
    /// on the stack.
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
