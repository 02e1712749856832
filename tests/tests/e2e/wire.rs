//! Answers as they go over the wire, pinned: the same on every store.

use mcp_idempotent_tests::client::Answer;
use mcp_idempotent_tower::wire::REPLAYED;
use serde_json::Value;

/// Compares with the snapshot of that name; moments are left out of it.
pub(crate) fn assert_wire(name: &str, answer: &Answer) {
    let mut json = answer.json.clone();
    if let Some(at) = json.pointer_mut(&format!("/result/_meta/{}/at", REPLAYED.replace('/', "~1")))
    {
        let moment = at.as_str().unwrap().to_owned();
        assert_eq!(
            moment.len(),
            "2026-11-29T12:00:00.000Z".len(),
            "RFC 3339: {moment}"
        );
        *at = Value::from("[moment]");
        if let Some(blocks) = json["result"]["content"].as_array_mut() {
            for block in blocks {
                if let Some(text) = block["text"].as_str() {
                    block["text"] = text.replace(&moment, "[moment]").into();
                }
            }
        }
    }
    without_moments(&mut json);
    insta::assert_json_snapshot!(name, json);
}

/// Replaces the moments in all texts.
fn without_moments(json: &mut Value) {
    match json {
        Value::String(text) => {
            let moment = |at: usize| {
                let part = text.get(at..at + "2026-11-29T12:00:00.000Z".len())?;
                let digits = part.bytes().filter(u8::is_ascii_digit).count();
                (digits == 17 && part.ends_with('Z') && part.contains('T')).then(|| part.to_owned())
            };
            let found: Vec<_> = (0..text.len()).filter_map(moment).collect();
            for moment in found {
                *text = text.replace(&moment, "[moment]");
            }
        }
        Value::Array(items) => items.iter_mut().for_each(without_moments),
        Value::Object(members) => members.values_mut().for_each(without_moments),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
