//! Putting `params.idempotencyKey` into `params._meta`, byte for byte.

use bytes::{Bytes, BytesMut};
use serde_json::{Value, value::RawValue};

use crate::{
    raw::{Members, edited, first_in, range, text},
    wire,
};

/// The body with the key in `_meta`, or `None` if there is nothing to do: it is not a tool call, has no
/// `idempotencyKey`, or already has the same key in `_meta`. What does not parse is left to rmcp.
///
/// If `_meta` has a different key, the lifted one is added under the alias. The call then has two keys and
/// is refused like any such call.
pub(super) fn lift(body: &Bytes) -> Option<Bytes> {
    if !contains(body, wire::KEY_MEMBER.as_bytes()) {
        return None;
    }
    let message: Members<'_> = serde_json::from_slice(body).ok()?;
    if text(message.get("method")?).as_deref() != Some("tools/call") {
        return None;
    }
    let params = message.get("params")?;
    let members = Members::of(params.get())?;
    let key = members.get(wire::KEY_MEMBER)?;
    let Some(meta) = members.get("_meta") else {
        let inserted = format!(r#""_meta":{{"{}":{key}}},"#, wire::KEY);
        return Some(edited(body, &mut [(first_in(body, params), &inserted)]));
    };
    let Some(metas) = Members::of(meta.get()) else {
        // `null` counts as absent. Anything else is refused by rmcp.
        let is_null = meta.get() == "null";
        let replaced = format!(r#"{{"{}":{key}}}"#, wire::KEY);
        return is_null.then(|| edited(body, &mut [(range(body, meta), &replaced)]));
    };
    let name = match metas.get(wire::KEY) {
        None => wire::KEY,
        Some(other) if is_equal(key, other) => return None,
        Some(_) => wire::KEY_ALIAS,
    };
    if let Some(alias) = metas.get(name) {
        return Some(edited(body, &mut [(range(body, alias), key.get())]));
    }
    let comma = if metas.is_empty() { "" } else { "," };
    let inserted = format!(r#""{name}":{key}{comma}"#);
    Some(edited(body, &mut [(first_in(body, meta), &inserted)]))
}

/// Whether the answer to this request will list the server's capabilities.
pub(super) fn asks_for_capabilities(body: &[u8]) -> bool {
    const METHODS: [&str; 2] = ["initialize", "server/discover"];
    if !METHODS
        .iter()
        .any(|method| contains(body, method.as_bytes()))
    {
        return false;
    }
    let message: Option<Members<'_>> = serde_json::from_slice(body).ok();
    let method = message.and_then(|message| text(message.get("method")?));
    method.is_some_and(|method| METHODS.contains(&&*method))
}

/// An answer with `capabilities.tools.idempotency` added: JSON, or a stream of events with JSON in their
/// `data` lines. `None` if the answer has no `capabilities.tools`.
pub(super) fn advertise(body: &Bytes) -> Option<Bytes> {
    if let Some(edited) = advertise_in(body) {
        return Some(edited);
    }
    let mut start = 0;
    for line in body.split_inclusive(|byte| *byte == b'\n') {
        let end = start + line.len();
        if let Some(data) = line.strip_prefix(b"data:")
            && let Some(edited) = advertise_in(&body.slice(end - data.len()..end))
        {
            let mut whole = BytesMut::with_capacity(body.len() + edited.len() - data.len());
            whole.extend_from_slice(&body[..end - data.len()]);
            whole.extend_from_slice(&edited);
            whole.extend_from_slice(&body[end..]);
            return Some(whole.freeze());
        }
        start = end;
    }
    None
}

fn advertise_in(json: &Bytes) -> Option<Bytes> {
    let message: Members<'_> = serde_json::from_slice(json).ok()?;
    let capabilities = Members::of(message.get("result")?.get())?.get("capabilities")?;
    let tools = Members::of(capabilities.get())?.get("tools")?;
    let members = Members::of(tools.get())?;
    if members.get(wire::SEP_CAPABILITY).is_some() {
        return None;
    }
    let comma = if members.is_empty() { "" } else { "," };
    let inserted = format!(r#""{}":{{}}{comma}"#, wire::SEP_CAPABILITY);
    Some(edited(json, &mut [(first_in(json, tools), &inserted)]))
}

fn contains(body: &[u8], name: &[u8]) -> bool {
    body.windows(name.len()).any(|window| window == name)
}

fn is_equal(one: &RawValue, other: &RawValue) -> bool {
    let parse = |raw: &RawValue| serde_json::from_str::<Value>(raw.get()).ok();
    parse(one) == parse(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lifted(body: &str) -> Option<String> {
        let body = Bytes::copy_from_slice(body.as_bytes());
        lift(&body).map(|edited| String::from_utf8(edited.to_vec()).unwrap())
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
    fn the_capability_is_put_into_json_and_into_events() {
        let advertised = |body: &'static str| {
            let edited = advertise(&Bytes::from_static(body.as_bytes()));
            edited.map(|edited| String::from_utf8(edited.to_vec()).unwrap())
        };
        for (body, expected) in [
            (
                r#"{"result":{"capabilities":{"tools":{"listChanged":true}}}}"#,
                r#"{"result":{"capabilities":{"tools":{"idempotency":{},"listChanged":true}}}}"#,
            ),
            (
                "id: 0\ndata:\n\ndata: {\"result\":{\"capabilities\":{\"tools\":{ }}}}\n\n",
                "id: 0\ndata:\n\ndata: {\"result\":{\"capabilities\":{\"tools\":{\"idempotency\":{} }}}}\n\n",
            ),
        ] {
            assert_eq!(advertised(body).as_deref(), Some(expected));
            assert_eq!(advertise(&Bytes::from_static(expected.as_bytes())), None);
        }
        for body in [
            r#"{"result":{"capabilities":{}}}"#,
            r#"{"error":{"code":1}}"#,
            "data: not JSON",
            "",
        ] {
            assert_eq!(advertised(body), None, "{body}");
        }
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
