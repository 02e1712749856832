//! JSON as the tests make it: a value, and its many spellings.

use std::{collections::BTreeMap, fmt::Write as _};

use proptest::prelude::*;

/// A JSON value, with numbers by their exact value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    /// From `i64::MIN` to `u64::MAX`.
    Integer(i128),
    /// Anything else that is a number.
    Double(f64),
    String(String),
    Array(Vec<Json>),
    Object(BTreeMap<String, Json>),
}

impl Json {
    pub(crate) fn double(double: f64) -> Self {
        // From 2^64 on no double is an integer of 64 bits.
        if double.fract() == 0.0 && (-(2f64.powi(63))..2f64.powi(64)).contains(&double) {
            Self::Integer(format!("{double:.0}").parse().unwrap())
        } else {
            Self::Double(double)
        }
    }

    /// One spelling of this value, chosen by `style`.
    pub(crate) fn spelled(&self, style: &mut Style) -> String {
        let mut text = String::new();
        self.spell(style, &mut text);
        text
    }

    fn spell(&self, style: &mut Style, text: &mut String) {
        style.space(text);
        match self {
            Self::Null => text.push_str("null"),
            Self::Bool(bool) => write!(text, "{bool}").unwrap(),
            Self::Integer(integer) => spell_integer(*integer, style, text),
            Self::Double(double) => match style.choose(3) {
                0 => write!(text, "{double:e}").unwrap(),
                1 => write!(text, "{double:E}").unwrap(),
                _ => write!(text, "{double:.40e}").unwrap(),
            },
            Self::String(string) => spell_string(string, style, text),
            Self::Array(elements) => {
                text.push('[');
                for (index, element) in elements.iter().enumerate() {
                    text.push_str(if index > 0 { "," } else { "" });
                    element.spell(style, text);
                }
                text.push(']');
            }
            Self::Object(members) => {
                text.push('{');
                let mut members: Vec<_> = members.iter().collect();
                let middle = style.choose(members.len().max(1));
                members.rotate_left(middle);
                if style.choose(2) == 0 {
                    members.reverse();
                }
                for (index, (name, value)) in members.into_iter().enumerate() {
                    text.push_str(if index > 0 { "," } else { "" });
                    style.space(text);
                    spell_string(name, style, text);
                    style.space(text);
                    text.push(':');
                    value.spell(style, text);
                }
                text.push('}');
            }
        }
        style.space(text);
    }
}

fn spell_integer(integer: i128, style: &mut Style, text: &mut String) {
    if integer == 0 {
        let sign = ["", "-"][style.choose(2)];
        let rest = ["", ".0", ".000e0", "E+00", "e-1", "e400"][style.choose(6)];
        text.extend([sign, "0", rest]);
        return;
    }
    let is_exact_as_double = integer.unsigned_abs() <= 1 << 53;
    match style.choose(if is_exact_as_double { 6 } else { 1 }) {
        0 => write!(text, "{integer}"),
        1 => write!(text, "{integer}.0"),
        2 => write!(text, "{integer}.000e0"),
        3 => write!(text, "{integer}E+00"),
        4 => write!(text, "{integer}000e-3"),
        _ => write!(text, "{integer}0.00e-0001"),
    }
    .unwrap();
}

fn spell_string(string: &str, style: &mut Style, text: &mut String) {
    text.push('"');
    for character in string.chars() {
        let short = match character {
            '"' => "\\\"",
            '\\' => "\\\\",
            '/' => "\\/",
            '\u{8}' => "\\b",
            '\t' => "\\t",
            '\n' => "\\n",
            '\u{c}' => "\\f",
            '\r' => "\\r",
            _ => "",
        };
        let must_escape = character < ' ' || character == '"' || character == '\\';
        match style.choose(6) {
            0..3 if !must_escape => text.push(character),
            3 | 4 if !short.is_empty() => text.push_str(short),
            5 => character.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                write!(text, "\\u{unit:04X}").unwrap();
            }),
            _ => character.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                write!(text, "\\u{unit:04x}").unwrap();
            }),
        }
    }
    text.push('"');
}

/// Choices among spellings, drawn by proptest and used up in turns.
#[derive(Debug, Clone)]
pub(crate) struct Style {
    choices: Vec<u8>,
    next: usize,
}

impl Style {
    fn choose(&mut self, among: usize) -> usize {
        self.next += 1;
        usize::from(self.choices[self.next % self.choices.len()]) % among
    }

    fn space(&mut self, text: &mut String) {
        text.push_str(["", "", " ", "\r\n", "\t"][self.choose(5)]);
    }
}

pub(crate) fn style() -> impl Strategy<Value = Style> {
    prop::collection::vec(any::<u8>(), 1..100).prop_map(|choices| Style { choices, next: 0 })
}

/// Any value.
pub(crate) fn json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::Bool),
        any::<i64>().prop_map(|integer| Json::Integer(integer.into())),
        any::<u64>().prop_map(|integer| Json::Integer(integer.into())),
        (-1000..1000i128).prop_map(Json::Integer),
        prop::num::f64::ANY
            .prop_filter("JSON has no such number", |double| double.is_finite())
            .prop_map(Json::double),
        string().prop_map(Json::String),
    ];
    tree(leaf.boxed(), string().boxed())
}

/// Values of so small a world that two of them are often equal, or nearly.
pub(crate) fn few_json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        prop::sample::select(vec![
            0,
            1,
            1 << 53,
            (1 << 53) + 1,
            1 << 63,
            9_223_372_036_854_776_000
        ])
        .prop_map(Json::Integer),
        prop::sample::select(vec![
            0.0,
            -0.0,
            1.0,
            2f64.powi(53),
            2f64.powi(63),
            2f64.powi(64),
            0.5
        ])
        .prop_map(Json::double),
        prop::sample::select(vec!["", "1", "null", "é", "e\u{301}"])
            .prop_map(|string| Json::String(string.to_owned())),
    ];
    let name = prop::sample::select(vec!["a", "b", "\u{ffff}", "\u{10000}"]);
    tree(leaf.boxed(), name.prop_map(str::to_owned).boxed())
}

/// Strings of ordinary and of awkward characters.
fn string() -> impl Strategy<Value = String> {
    prop_oneof![
        ".{0,8}",
        any::<String>(),
        "[\\x00-\\x1f\"\\\\/\u{7f}\u{2028}\u{d7ff}\u{e000}\u{fffd}-\u{10001}\u{10ffff}]{0,6}",
    ]
}

fn tree(leaf: BoxedStrategy<Json>, name: BoxedStrategy<String>) -> impl Strategy<Value = Json> {
    leaf.prop_recursive(4, 24, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Json::Array),
            prop::collection::btree_map(name.clone(), inner, 0..5).prop_map(Json::Object),
        ]
    })
}
