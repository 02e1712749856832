//! Numbers, by the rule of [the module above](super), and strings, with as few escapes as JSON allows.

use std::fmt::{Display, Write as _};

use serde_json::Number;

/// Writes a number.
///
/// Uses only methods that serde_json has both with and without `arbitrary_precision`. They agree on
/// every number that both builds can parse.
pub(super) fn write_number(number: &Number, text: &mut String) {
    if let Some(integer) = number.as_u64() {
        write_integer(integer, text);
    } else if let Some(integer) = number.as_i64() {
        write_integer(integer, text);
    } else if let Some(double) = number.as_f64() {
        write_double(double, text);
    } else {
        write_huge(&number.to_string(), text);
    }
}

fn write_integer(integer: impl Display, text: &mut String) {
    // Writing to a `String` cannot fail.
    let _ = write!(text, "{integer}");
}

fn write_double(double: f64, text: &mut String) {
    /// 2^63 and 2^64, one past the ends of `i64` and `u64`, which are not doubles themselves.
    const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;
    const TWO_TO_64: f64 = 18_446_744_073_709_551_616.0;

    if double.fract() != 0.0 || !(-TWO_TO_63..TWO_TO_64).contains(&double) {
        text.push_str(ryu_js::Buffer::new().format_finite(double));
        return;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "integral and within the type: the casts are exact"
    )]
    if double < 0.0 {
        write_integer(double as i64, text);
    } else {
        write_integer(double as u64, text);
    }
}

/// Writes a number that no double can hold. Such numbers exist only under `arbitrary_precision`.
///
/// All digits are kept, in ECMAScript's form for large numbers (`1e+400`, `-1.5e+309`), so that
/// equal values have equal texts and different values have different texts. No double has such a
/// text.
fn write_huge(source: &str, text: &mut String) {
    if write_normalised(source, text).is_none() {
        // The exponent does not fit an `i64`, so the source text is kept. No normalised text looks
        // like that. The only loss is that two spellings of such a number differ.
        text.push_str(source);
    }
}

/// Writes nothing when it returns `None`.
fn write_normalised(source: &str, text: &mut String) -> Option<()> {
    let (sign, unsigned) = match source.strip_prefix('-') {
        Some(unsigned) => ("-", unsigned),
        None => ("", source),
    };
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i64>().ok()?),
        None => (unsigned, 0),
    };
    let (integral, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));

    let digits = [integral, fraction].concat();
    let significant = digits.trim_start_matches('0');
    let leading_zeros = digits.len() - significant.len();
    let mut significant = significant.trim_end_matches('0').chars();
    let first = significant.next()?;
    // The exponent of the first significant digit.
    let exponent = exponent
        .checked_add(i64::try_from(integral.len()).ok()? - 1)?
        .checked_sub(i64::try_from(leading_zeros).ok()?)?;

    let rest = significant.as_str();
    let point = if rest.is_empty() { "" } else { "." };
    // Writing to a `String` cannot fail.
    let _ = write!(text, "{sign}{first}{point}{rest}e+{exponent}");
    Some(())
}

/// How many bytes are checked in one go. The compiler vectorises this.
const STRIDE: usize = 32;

/// Writes a string with its quotes. It escapes the quote, the backslash and the control characters
/// below U+0020, with JSON's two-character escape if there is one, otherwise as `\u00xx`.
pub(super) fn write_string(string: &str, text: &mut String) {
    text.push('"');
    let mut rest = string;
    while let Some(place) = first_to_escape(rest.as_bytes()) {
        let (plain, escaped) = rest.split_at(place);
        text.push_str(plain);
        let mut characters = escaped.chars();
        if let Some(character) = characters.next() {
            write_escape(character, text);
        }
        rest = characters.as_str();
    }
    text.push_str(rest);
    text.push('"');
}

fn first_to_escape(bytes: &[u8]) -> Option<usize> {
    let is_escaped = |byte: u8| byte < 0x20 || byte == b'"' || byte == b'\\';
    let mut chunks = bytes.chunks(STRIDE).enumerate();
    let (index, chunk) = chunks.find(|(_, chunk)| {
        // No early exit within a chunk, because that would prevent vectorisation.
        chunk
            .iter()
            .fold(false, |found, byte| found | is_escaped(*byte))
    })?;
    let place = chunk.iter().position(|byte| is_escaped(*byte))?;
    Some(index * STRIDE + place)
}

fn write_escape(character: char, text: &mut String) {
    match character {
        '"' => text.push_str("\\\""),
        '\\' => text.push_str("\\\\"),
        '\u{8}' => text.push_str("\\b"),
        '\t' => text.push_str("\\t"),
        '\n' => text.push_str("\\n"),
        '\u{c}' => text.push_str("\\f"),
        '\r' => text.push_str("\\r"),
        control => {
            // Writing to a `String` cannot fail.
            let _ = write!(text, "\\u{:04x}", u32::from(control));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_beyond_doubles_keep_all_digits_in_one_form() {
        for (spellings, expected) in [
            (
                &["1e400", "1E400", "1e+0400", "10e399", "0.1e401", "1.00e400"] as &[_],
                "1e+400",
            ),
            (&["-1.5e309", "-15e308", "-0.0015e312"], "-1.5e+309"),
            (
                &["1.7976931348623159e308", "17976931348623159e292"],
                "1.7976931348623159e+308",
            ),
            (&["1e9223372036854775807"], "1e+9223372036854775807"),
        ] {
            for spelling in spellings {
                let mut text = String::new();
                write_huge(spelling, &mut text);
                assert_eq!(text, expected, "{spelling}");
            }
        }
    }

    #[test]
    fn exponents_beyond_integers_are_left_as_they_are() {
        for source in ["1e+99999999999999999999", "-12.0e9223372036854775807"] {
            let mut text = String::from("[");
            write_huge(source, &mut text);
            assert_eq!(text, format!("[{source}"));
        }
    }

    #[test]
    fn a_number_beyond_doubles_of_many_digits_is_written_whole() {
        let source = "12".repeat(500);
        let mut text = String::new();
        write_huge(&source, &mut text);
        assert_eq!(text, format!("1.{}e+999", &source[1..]));
    }

    fn written(string: &str) -> String {
        let mut text = String::new();
        write_string(string, &mut text);
        text
    }

    #[test]
    fn only_quote_backslash_and_controls_are_escaped() {
        for (string, expected) in [
            ("", r#""""#),
            (
                "\0\u{1}\u{7}\u{8}\t\n\u{b}\u{c}\r\u{e}\u{1f}",
                r#""\u0000\u0001\u0007\b\t\n\u000b\f\r\u000e\u001f""#,
            ),
            ("\"\\/", r#""\"\\/""#),
            (
                " \u{7f}\u{80}é€\u{2028}\u{feff}\u{10ffff}",
                "\" \u{7f}\u{80}é€\u{2028}\u{feff}\u{10ffff}\"",
            ),
        ] {
            assert_eq!(written(string), expected);
        }
    }

    #[test]
    fn an_escape_is_found_at_every_place_of_a_long_string() {
        for length in 0..100 {
            for place in 0..length {
                let mut string = "é".repeat(place);
                string.push('"');
                string.push_str(&"x".repeat(length - place));
                assert_eq!(
                    written(&string),
                    format!("\"{}\"", string.replace('"', "\\\""))
                );
            }
        }
    }

    proptest! {
        #[test]
        fn a_written_string_is_read_back(string in any::<String>()) {
            prop_assert_eq!(serde_json::from_str::<String>(&written(&string)).unwrap(), string);
        }
    }
}
