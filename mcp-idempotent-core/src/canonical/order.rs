//! The order of an object's members.

use std::cmp::Ordering;

/// Whether all names are in canonical order.
pub(super) fn is_in_utf16_order<'a>(names: impl Iterator<Item = &'a String>) -> bool {
    names.is_sorted_by(|one, other| utf16_order(one, other).is_lt())
}

/// Compares by UTF-16 code units, without encoding to UTF-16.
///
/// UTF-8 orders by code points. UTF-16 differs in one respect: characters from U+10000 on are
/// encoded as surrogates (0xD800 to 0xDFFF), so they come before U+E000 to U+FFFF. In UTF-8 only
/// these two groups start with a byte of 0xEE or more: 0xF0 and up for the first, 0xEE and 0xEF for
/// the second.
pub(super) fn utf16_order(one: &str, other: &str) -> Ordering {
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
