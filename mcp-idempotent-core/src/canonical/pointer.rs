//! JSON pointers (RFC 6901).

use std::borrow::Cow;

use serde_json::{Map, Value};

/// Whether `text` is a JSON pointer (RFC 6901): empty, or tokens that each start with `/`, with
/// `~0` for `~` and `~1` for `/` and no other use of `~`.
///
/// `idempotency_key` is not one: it lacks the leading `/`. A text that is not a pointer finds
/// nothing, so check an author's pointers when the server is built.
#[must_use]
pub fn is_json_pointer(text: &str) -> bool {
    (text.is_empty() || text.starts_with('/'))
        && text
            .split('~')
            .skip(1)
            .all(|after| after.starts_with(['0', '1']))
}

/// The value at a pointer of at least one token.
pub(super) fn find<'a>(arguments: &'a Map<String, Value>, pointer: &str) -> Option<&'a Value> {
    if !is_json_pointer(pointer) {
        return None;
    }
    let mut tokens = pointer.split('/').skip(1).map(unescaped);
    let first = arguments.get(&*tokens.next()?)?;
    tokens.try_fold(first, |value, token| match value {
        Value::Object(members) => members.get(&*token),
        Value::Array(elements) => elements.get(index(&token)?),
        _ => None,
    })
}

/// `~1` is replaced first, so that `~01` becomes `~1` and not `/`.
fn unescaped(token: &str) -> Cow<'_, str> {
    if token.contains('~') {
        token.replace("~1", "/").replace("~0", "~").into()
    } else {
        token.into()
    }
}

/// An index has no sign and no leading zero. `-`, the element after the last, is always absent.
fn index(token: &str) -> Option<usize> {
    let is_canonical = token == "0"
        || (!token.starts_with('0') && token.bytes().all(|byte| byte.is_ascii_digit()));
    if is_canonical {
        token.parse().ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(pointer: &str) -> Option<Value> {
        let document = json!({
            "a": {"b": [10, {"c": 11}]},
            "": {"": 12},
            "x/y": 13,
            "x~y": 14,
            "~1": 15,
            "0": {"01": 16},
            "é": 17,
        });
        find(document.as_object().unwrap(), pointer).cloned()
    }

    #[test]
    fn pointers_find_what_rfc_6901_says() {
        for (pointer, expected) in [
            ("/a/b/0", json!(10)),
            ("/a/b/1/c", json!(11)),
            ("/", json!({"": 12})),
            ("//", json!(12)),
            ("/x~1y", json!(13)),
            ("/x~0y", json!(14)),
            ("/~01", json!(15)),
            ("/0/01", json!(16)),
            ("/é", json!(17)),
        ] {
            assert!(is_json_pointer(pointer), "{pointer}");
            assert_eq!(found(pointer), Some(expected), "{pointer}");
        }
    }

    #[test]
    fn absent_values_are_not_found() {
        for pointer in [
            "/b",
            "/a/b/2",
            "/a/b/-",
            "/a/b/00",
            "/a/b/01",
            "/a/b/+1",
            "/a/b/",
            "/a/b/0/c",
            "/a/b/99999999999999999999999",
            "/x/y",
            "/a/",
        ] {
            assert!(is_json_pointer(pointer), "{pointer}");
            assert_eq!(found(pointer), None, "{pointer}");
        }
    }

    #[test]
    fn what_is_no_pointer_finds_nothing() {
        for text in ["a", "a/b", "x~y", "/x~y", "/x~", "/x~2y", "#/a", " /a"] {
            assert!(!is_json_pointer(text), "{text}");
            assert_eq!(found(text), None, "{text}");
        }
    }
}
