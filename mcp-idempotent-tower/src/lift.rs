//! Putting the key of a tool call into `params._meta`, where the rest of this crate looks for it. No other
//! byte changes.

use bytes::Bytes;
use serde_json::{Value, value::RawValue};

#[cfg(feature = "relay")]
use crate::call::Object;
use crate::{
    raw::{Members, edited, first_in, range, text},
    wire,
};

/// The message with the key of `params.idempotencyKey`, and those in `more`, in `_meta`. `None` if there is
/// nothing to do: it is not a tool call, has no such key, or already has the same key in `_meta`. What does
/// not parse is left to rmcp.
///
/// If two keys differ, one is put under the name and the other under the alias. The call then has two keys
/// and is refused like any such call.
pub(crate) fn lift(message: &[u8], more: &[Box<RawValue>]) -> Option<Bytes> {
    if more.is_empty() && !may_name_the_member(message) {
        return None;
    }
    let whole: Members<'_> = serde_json::from_slice(message).ok()?;
    if text(whole.get("method")?).as_deref() != Some("tools/call") {
        return None;
    }
    let params = whole.get("params")?;
    let members = Members::of(params.get())?;
    let member = members.get(wire::KEY_MEMBER);
    let keys: Vec<&RawValue> = member
        .into_iter()
        .chain(more.iter().map(|it| &**it))
        .collect();
    let first = *keys.first()?;
    let Some(meta) = members.get("_meta").filter(|meta| meta.get() != "null") else {
        let meta = with_both(first, different(&keys, first));
        return Some(match members.get("_meta") {
            None => {
                let comma = if members.is_empty() { "" } else { "," };
                let inserted = format!(r#""_meta":{meta}{comma}"#);
                edited(message, &mut [(first_in(message, params), &inserted)])
            }
            Some(null) => edited(message, &mut [(range(message, null), &meta)]),
        });
    };
    // What is neither an object nor null is refused by rmcp.
    let metas = Members::of(meta.get())?;
    let Some(present) = metas.get(wire::KEY) else {
        return Some(
            match (different(&keys, first), metas.get(wire::KEY_ALIAS)) {
                (Some(other), Some(alias)) => {
                    let inserted = format!(r#""{}":{first},"#, wire::KEY);
                    let edits = &mut [
                        (first_in(message, meta), &*inserted),
                        (range(message, alias), other.get()),
                    ];
                    edited(message, edits)
                }
                (other, _) => {
                    let both = with_both(first, other);
                    let inner = &both[1..both.len() - 1];
                    let comma = if metas.is_empty() { "" } else { "," };
                    let inserted = format!("{inner}{comma}");
                    edited(message, &mut [(first_in(message, meta), &inserted)])
                }
            },
        );
    };
    let other = different(&keys, present)?;
    Some(match metas.get(wire::KEY_ALIAS) {
        Some(alias) => edited(message, &mut [(range(message, alias), other.get())]),
        None => {
            let inserted = format!(r#""{}":{other},"#, wire::KEY_ALIAS);
            edited(message, &mut [(first_in(message, meta), &inserted)])
        }
    })
}

/// As [`lift`], for a `_meta` that has been read: puts `params.idempotencyKey` into it.
#[cfg(feature = "relay")]
pub(crate) fn lift_into(meta: &mut Object, params: &Members<'_>) -> serde_json::Result<()> {
    let Some(key) = params.get(wire::KEY_MEMBER) else {
        return Ok(());
    };
    let key: Value = serde_json::from_str(key.get())?;
    let name = match meta.get(wire::KEY) {
        Some(other) if *other == key => return Ok(()),
        Some(_) => wire::KEY_ALIAS,
        None => wire::KEY,
    };
    meta.insert(name.to_owned(), key);
    Ok(())
}

/// The first of `keys` that is not `key`.
fn different<'a>(keys: &[&'a RawValue], key: &RawValue) -> Option<&'a RawValue> {
    let parse = |raw: &RawValue| serde_json::from_str::<Value>(raw.get()).ok();
    let key = parse(key);
    keys.iter().copied().find(|other| parse(other) != key)
}

/// A `_meta` with one key, or with two that contradict each other.
fn with_both(key: &RawValue, other: Option<&RawValue>) -> String {
    match other {
        None => format!(r#"{{"{}":{key}}}"#, wire::KEY),
        Some(other) => format!(r#"{{"{}":{key},"{}":{other}}}"#, wire::KEY, wire::KEY_ALIAS),
    }
}

/// Whether the member may be in there: by its name, or written with escapes (`\u0069dempotencyKey`).
fn may_name_the_member(message: &[u8]) -> bool {
    contains(message, wire::KEY_MEMBER.as_bytes()) || contains(message, br"\u")
}

/// Whether `name` is somewhere in `message`.
pub(crate) fn contains(message: &[u8], name: &[u8]) -> bool {
    message.windows(name.len()).any(|window| window == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lifted(body: &str) -> Option<String> {
        with_header(body, &[])
    }

    fn with_header(body: &str, more: &[&str]) -> Option<String> {
        let raw = |key: &&str| RawValue::from_string((*key).to_owned()).unwrap();
        let more: Vec<_> = more.iter().map(raw).collect();
        lift(body.as_bytes(), &more).map(|edited| String::from_utf8(edited.to_vec()).unwrap())
    }

    #[test]
    fn the_key_is_put_into_meta_and_nothing_else_changes() {
        for (body, expected) in [
            (
                r#"{ "method":"tools/call", "params": { "name" : "a","idempotencyKey":"k" ,"arguments":{"x":1.50}} }"#,
                r#"{ "method":"tools/call", "params": {"_meta":{"idempotency-key":"k"}, "name" : "a","idempotencyKey":"k" ,"arguments":{"x":1.50}} }"#,
            ),
            (
                r#"{"params":{"_meta":{},"idempotencyKey":"k"},"method":"tools/call"}"#,
                r#"{"params":{"_meta":{"idempotency-key":"k"},"idempotencyKey":"k"},"method":"tools/call"}"#,
            ),
            (
                r#"{"params":{"_meta":{ "progressToken":1},"idempotencyKey":"\u006b"},"method":"tools/call"}"#,
                r#"{"params":{"_meta":{"idempotency-key":"\u006b", "progressToken":1},"idempotencyKey":"\u006b"},"method":"tools/call"}"#,
            ),
            (
                r#"{"params":{"_meta":null,"idempotencyKey":5},"method":"tools/call"}"#,
                r#"{"params":{"_meta":{"idempotency-key":5},"idempotencyKey":5},"method":"tools/call"}"#,
            ),
        ] {
            assert_eq!(lifted(body).as_deref(), Some(expected));
        }
    }

    #[test]
    fn a_contradicting_key_becomes_the_alias() {
        assert_eq!(
            lifted(r#"{"method":"tools/call","params":{"_meta":{"idempotency-key":"a"},"idempotencyKey":"b"}}"#).unwrap(),
            r#"{"method":"tools/call","params":{"_meta":{"io.github.mcp-idempotent/idempotency-key":"b","idempotency-key":"a"},"idempotencyKey":"b"}}"#
        );
        // The alias agrees with `_meta`, and would hide the contradiction.
        assert_eq!(
            lifted(r#"{"method":"tools/call","params":{"_meta":{"idempotency-key":"a","io.github.mcp-idempotent/idempotency-key":"a"},"idempotencyKey":"b"}}"#).unwrap(),
            r#"{"method":"tools/call","params":{"_meta":{"idempotency-key":"a","io.github.mcp-idempotent/idempotency-key":"b"},"idempotencyKey":"b"}}"#
        );
    }

    #[test]
    fn a_name_with_escapes_is_found() {
        for body in [
            r#"{"method":"tools/call","params":{"\u0069dempotencyKey":"k"}}"#,
            r#"{"method":"tools\/call","params":{"idempotency\u004bey":"k"}}"#,
            r#"{"\u006dethod":"tools/call","params":{"idempotencyKey":"k"}}"#,
        ] {
            let lifted = lifted(body).unwrap();
            assert!(
                lifted.contains(r#"{"_meta":{"idempotency-key":"k"},"#),
                "{lifted}"
            );
        }
    }

    #[test]
    fn a_key_of_a_header_counts_like_one_of_the_params() {
        for (body, keys, expected) in [
            (
                r#"{"method":"tools/call","params":{}}"#,
                &[r#""k""#][..],
                r#"{"method":"tools/call","params":{"_meta":{"idempotency-key":"k"}}}"#,
            ),
            (
                r#"{"method":"tools/call","params":{"idempotencyKey":"k"}}"#,
                &[r#""k""#],
                r#"{"method":"tools/call","params":{"_meta":{"idempotency-key":"k"},"idempotencyKey":"k"}}"#,
            ),
            // Contradictions are kept, for the reader of keys to refuse.
            (
                r#"{"method":"tools/call","params":{"idempotencyKey":"a"}}"#,
                &[r#""b""#],
                r#"{"method":"tools/call","params":{"_meta":{"idempotency-key":"a","io.github.mcp-idempotent/idempotency-key":"b"},"idempotencyKey":"a"}}"#,
            ),
            (
                r#"{"method":"tools/call","params":{"_meta":null}}"#,
                &[r#""a""#, r#""b""#],
                r#"{"method":"tools/call","params":{"_meta":{"idempotency-key":"a","io.github.mcp-idempotent/idempotency-key":"b"}}}"#,
            ),
            (
                r#"{"method":"tools/call","params":{"_meta":{"x":1}}}"#,
                &[r#""a""#, r#""b""#],
                r#"{"method":"tools/call","params":{"_meta":{"idempotency-key":"a","io.github.mcp-idempotent/idempotency-key":"b","x":1}}}"#,
            ),
            (
                r#"{"method":"tools/call","params":{"_meta":{"io.github.mcp-idempotent/idempotency-key":"a"}}}"#,
                &[r#""a""#, r#""b""#],
                r#"{"method":"tools/call","params":{"_meta":{"idempotency-key":"a","io.github.mcp-idempotent/idempotency-key":"b"}}}"#,
            ),
        ] {
            assert_eq!(with_header(body, keys).as_deref(), Some(expected));
        }
        assert_eq!(with_header(r#"{"method":"ping"}"#, &[r#""k""#]), None);
    }

    #[test]
    fn everything_else_is_left_alone() {
        for body in [
            r#"{"method":"tools/list","params":{"idempotencyKey":"k"}}"#,
            r#"{"method":"tools/call","params":{"arguments":{"idempotencyKey":"k"}}}"#,
            r#"{"method":"tools/call","params":{"_meta":{"idempotency-key":"k"},"idempotencyKey":"\u006b"}}"#,
            r#"{"method":"tools/call","params":{"_meta":7,"idempotencyKey":"k"}}"#,
            r#"[{"method":"tools/call","params":{"idempotencyKey":"k"}}]"#,
            r#"{"method":"tools/call","params":{"idempotencyKey":"k""#,
            r#""idempotencyKey""#,
        ] {
            assert_eq!(lifted(body), None, "{body}");
        }
    }
}
