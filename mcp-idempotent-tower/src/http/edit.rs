//! Adding to answers the places where a key may stand.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use crate::{
    lift::contains,
    raw::{Members, edited, first_in, range, text},
    wire,
};

/// What the layer says in the answers of its server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Advertised {
    /// `capabilities.tools.idempotency`.
    pub(super) sep_capability: bool,
    /// The header that may carry a key is one of the places.
    pub(super) header: bool,
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

/// An answer that says where a key may stand: JSON, or a stream of events with JSON in their `data`
/// lines. `None` if there is nothing to say. The places are added to those that our layer lists, if
/// it does.
pub(super) fn advertise(body: &Bytes, what: Advertised) -> Option<Bytes> {
    if let Some(edited) = advertise_in(body, what) {
        return Some(edited);
    }
    let mut start = 0;
    for line in body.split_inclusive(|byte| *byte == b'\n') {
        let end = start + line.len();
        if let Some(data) = line.strip_prefix(b"data:")
            && let Some(edited) = advertise_in(&body.slice(end - data.len()..end), what)
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

fn advertise_in(json: &Bytes, what: Advertised) -> Option<Bytes> {
    let message: Members<'_> = serde_json::from_slice(json).ok()?;
    let capabilities = Members::of(message.get("result")?.get())?.get("capabilities")?;
    let capabilities = Members::of(capabilities.get())?;
    let mut edits = Vec::new();
    let sep_capability = what
        .sep_capability
        .then(|| sep_capability(json, &capabilities));
    edits.extend(sep_capability.flatten());
    edits.extend(places(json, &capabilities, what));
    let mut edits: Vec<_> = edits
        .iter()
        .map(|(range, with)| (range.clone(), &**with))
        .collect();
    (!edits.is_empty()).then(|| edited(json, &mut edits))
}

type Insertion = (Range<usize>, String);

fn sep_capability(json: &[u8], capabilities: &Members<'_>) -> Option<Insertion> {
    let tools = capabilities.get("tools")?;
    let members = Members::of(tools.get())?;
    if members.get(wire::SEP_CAPABILITY).is_some() {
        return None;
    }
    let comma = if members.is_empty() { "" } else { "," };
    let inserted = format!(r#""{}":{{}}{comma}"#, wire::SEP_CAPABILITY);
    Some((first_in(json, tools), inserted))
}

/// The places that this layer reads, added after those that the server's idempotency layer lists.
fn places(json: &[u8], capabilities: &Members<'_>, what: Advertised) -> Option<Insertion> {
    let extensions = Members::of(capabilities.get("extensions")?.get())?;
    let ours = Members::of(extensions.get(wire::EXTENSION)?.get())?;
    let keys = ours.get("keys")?;
    let listed: Vec<String> = serde_json::from_str(keys.get()).ok()?;
    let header = what.header.then_some(wire::KEY_HEADER_PLACE);
    let missing: Vec<_> = [Some(wire::KEY_MEMBER_PLACE), header]
        .into_iter()
        .flatten()
        .filter(|place| !listed.iter().any(|listed| listed == place))
        .map(|place| format!(r#""{place}""#))
        .collect();
    if listed.is_empty() || missing.is_empty() {
        return None;
    }
    let end = range(json, keys).end - 1;
    Some((end..end, format!(",{}", missing.join(","))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEP: Advertised = Advertised {
        sep_capability: true,
        header: false,
    };

    #[test]
    fn the_places_are_added_to_those_that_our_layer_lists() {
        let body = r#"{"result":{"capabilities":{"extensions":{"io.github.mcp-idempotent/idempotency":{"keys":["a"]}}}}}"#;
        for (header, expected) in [
            (false, r#"["a","params.idempotencyKey"]"#),
            (
                true,
                r#"["a","params.idempotencyKey","header Idempotency-Key"]"#,
            ),
        ] {
            let what = Advertised {
                sep_capability: false,
                header,
            };
            let once = advertise(&Bytes::from_static(body.as_bytes()), what).unwrap();
            let text = String::from_utf8(once.to_vec()).unwrap();
            assert_eq!(text, body.replace(r#"["a"]"#, expected));
            assert_eq!(advertise(&once, what), None);
        }
    }

    #[test]
    fn the_capability_is_put_into_json_and_into_events() {
        let advertised = |body: &'static str| {
            let edited = advertise(&Bytes::from_static(body.as_bytes()), SEP);
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
            assert_eq!(
                advertise(&Bytes::from_static(expected.as_bytes()), SEP),
                None
            );
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
}
