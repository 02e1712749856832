//! Strings, with as few escapes as JSON allows.

use std::fmt::Write as _;

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
