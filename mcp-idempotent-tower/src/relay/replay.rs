//! Results that carry a marker of ours: a recorded one, as a repeated call gets it, and one that
//! could not be recorded.

use bytes::Bytes;
use mcp_idempotent_core::{Refusal, Replay, RotatedKey, answer};
use serde_json::{json, value::RawValue};

use super::{
    answer::{refused, response},
    message::{Id, Message},
};
use crate::{
    call::{
        reader::Reader,
        refusal,
        result::{marker, tag, unstored},
    },
    raw::{Edit, Members, edited, first_in, range},
    wire,
};

/// A recorded result under the caller's own id, with the marker of a replay.
pub(super) fn replayed(replay: &Replay, id: &Id, reader: &Reader, announce: bool) -> Bytes {
    let Some((tag, json)) = unstored(&replay.response) else {
        tracing::error!("a stored result could not be read");
        return refused(&answer::unreadable(), id, reader);
    };
    if tag == tag::ERROR {
        return response(id, "error", json);
    }
    match replay.at {
        None => response(id, "result", json),
        Some(at) => {
            let notice = announce.then(|| refusal::text_block(reader.notice(replay, at)));
            let of_other_key = replay.rotated.then(|| {
                let said = marker::rotated(Some(at)).to_string();
                marked(json, wire::ROTATED_KEY, &said, None)
            });
            let json = of_other_key.as_deref().unwrap_or(json);
            let said = json!({ "at": at.to_string() }).to_string();
            let marked = marked(
                json,
                wire::REPLAYED,
                &said,
                notice.filter(|_| tag == tag::RESULT).as_deref(),
            );
            response(id, "result", &marked)
        }
    }
}

/// The server's answer, with the marker of one that could not be recorded. An error stays as it is.
pub(super) fn unrecorded(answer: Bytes) -> Bytes {
    let said = marker::unrecorded().to_string();
    with_marker(answer, wire::UNRECORDED, &said, None)
}

/// The server's answer, with the marker of an equal call under another key.
pub(super) fn rotated(answer: Bytes, rotated: RotatedKey, announce: bool) -> Bytes {
    let said = marker::rotated(rotated.at).to_string();
    let notice = announce.then(|| refusal::text_block(Reader::rotated_notice(rotated.at)));
    with_marker(answer, wire::ROTATED_KEY, &said, notice.as_deref())
}

/// The server's error, with the marker of a call that it leaves in doubt.
pub(super) fn left_in_doubt(answer: Bytes, refusal: &Refusal, reader: &Reader) -> Bytes {
    let said = marker::in_doubt(refusal).to_string();
    let read = std::str::from_utf8(&answer).ok().and_then(Message::of);
    if let Some(error) = read.and_then(|answer| answer.error()) {
        let marked = marked_in("data", error.get(), wire::IN_DOUBT, &said, None);
        return edited(&answer, &mut [(range(&answer, error), &marked)]);
    }
    let notice = reader.doubt_notice(refusal).map(refusal::text_block);
    with_marker(answer, wire::IN_DOUBT, &said, notice.as_deref())
}

fn with_marker(answer: Bytes, name: &str, said: &str, notice: Option<&str>) -> Bytes {
    let read = std::str::from_utf8(&answer).ok().and_then(Message::of);
    let Some(result) = read.and_then(|answer| answer.result()) else {
        return answer;
    };
    let marked = marked(result.get(), name, said, notice);
    edited(&answer, &mut [(range(&answer, result), &marked)])
}

/// `result` with a marker of this name in its `_meta`, which says this, and a notice at the end of its content.
fn marked(result: &str, name: &str, said: &str, notice: Option<&str>) -> String {
    marked_in("_meta", result, name, said, notice)
}

/// The same in another member: `_meta` of a result, `data` of an error.
fn marked_in(place: &str, result: &str, name: &str, said: &str, notice: Option<&str>) -> String {
    let Some(members) = Members::of(result) else {
        return result.to_owned();
    };
    let text = result.as_bytes();
    let object = |raw: &'_ str| Members::of(raw).is_some();
    let comma = |is_empty| if is_empty { "" } else { "," };
    let (at, inserted) = match members.get(place).filter(|it| it.get() != "null") {
        Some(meta) if object(meta.get()) => {
            match Members::of(meta.get()).and_then(|it| it.get(name)) {
                // The server has marked it itself.
                Some(theirs) => (range(text, theirs), said.to_owned()),
                None => {
                    let comma = comma(Members::of(meta.get()).is_some_and(|it| it.is_empty()));
                    (first_in(text, meta), format!(r#""{name}":{said}{comma}"#))
                }
            }
        }
        Some(_) => return result.to_owned(),
        None => {
            let meta = format!(r#"{{"{name}":{said}}}"#);
            match members.get(place) {
                Some(null) => (range(text, null), meta),
                None => {
                    let comma = comma(members.is_empty());
                    (1..1, format!(r#""{place}":{meta}{comma}"#))
                }
            }
        }
    };
    let content = members
        .get("content")
        .zip(notice)
        .and_then(|(content, notice)| {
            let blocks: Vec<&RawValue> = serde_json::from_str(content.get()).ok()?;
            let end = range(text, content).end - 1;
            let comma = comma(blocks.is_empty());
            Some((end..end, format!("{comma}{notice}")))
        });
    let mut edits: Vec<Edit<'_>> = vec![(at, &inserted)];
    if let Some((at, block)) = &content {
        edits.push((at.clone(), block));
    }
    String::from_utf8_lossy(&edited(text, &mut edits)).into_owned()
}

#[cfg(test)]
mod tests {
    use mcp_idempotent_core::{Action, CommitOutcome, ErrorKind};

    use super::*;
    use crate::{RefusalForm, call::key::KeyMaker};

    #[test]
    fn a_result_that_could_not_be_recorded_says_so_and_an_error_stays_as_it_is() {
        let answer = unrecorded(Bytes::from_static(br#"{"id":1,"result":{"content":[]}}"#));
        let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap();
        let marker = &answer["result"]["_meta"][wire::UNRECORDED]["message"];
        assert!(marker.as_str().unwrap().contains("could not be recorded"));
        let error = Bytes::from_static(br#"{"id":1,"error":{"code":1,"message":""}}"#);
        assert_eq!(unrecorded(error.clone()), error);
    }

    #[test]
    fn an_error_that_leaves_its_call_in_doubt_says_so_and_keeps_its_own_words() {
        let refusal = Refusal::new(
            ErrorKind::OutcomeUnknown,
            CommitOutcome::Unknown,
            Action::AskOperator,
            "It may have acted.",
        );
        let reader = Reader::of_any_tool(RefusalForm::ByKeyMaker, KeyMaker::Nobody);
        let marker = r#""io.github.mcp-idempotent/in-doubt":{"action":"ask_operator","outcome":"unknown","type":"idempotency_outcome_unknown"}"#;
        for (answer, expected) in [
            (
                r#"{"id":1,"error":{"code":1,"message":"no"}}"#,
                format!(r#"{{"id":1,"error":{{"data":{{{marker}}},"code":1,"message":"no"}}}}"#),
            ),
            (
                r#"{"id":1,"error":{"data":{ "a":1},"code":1}}"#,
                format!(r#"{{"id":1,"error":{{"data":{{{marker}, "a":1}},"code":1}}}}"#),
            ),
            (
                r#"{"id":1,"error":{"data":null}}"#,
                format!(r#"{{"id":1,"error":{{"data":{{{marker}}}}}}}"#),
            ),
            (
                r#"{"id":1,"error":{"data":[1]}}"#,
                r#"{"id":1,"error":{"data":[1]}}"#.to_owned(),
            ),
            (
                r#"{"id":1,"result":{"isError":true,"content":[]}}"#,
                format!(
                    r#"{{"id":1,"result":{{"_meta":{{{marker}}},"isError":true,"content":[{{"text":"It may have acted.","type":"text"}}]}}}}"#
                ),
            ),
        ] {
            let marked = left_in_doubt(Bytes::from_static(answer.as_bytes()), &refusal, &reader);
            assert_eq!(marked, expected.as_bytes(), "{answer}");
        }
    }

    #[test]
    fn a_marker_changes_no_other_byte() {
        for (result, notice, expected) in [
            (
                r#"{}"#,
                None,
                r#"{"_meta":{"io.github.mcp-idempotent/replayed":1}}"#,
            ),
            (
                r#"{ "x" : 1.50 }"#,
                None,
                r#"{"_meta":{"io.github.mcp-idempotent/replayed":1}, "x" : 1.50 }"#,
            ),
            (
                r#"{"_meta": {},"content":[]}"#,
                Some("2"),
                r#"{"_meta": {"io.github.mcp-idempotent/replayed":1},"content":[2]}"#,
            ),
            (
                r#"{"content":[ 0 ],"_meta":{"a":"b"}}"#,
                Some("2"),
                r#"{"content":[ 0 ,2],"_meta":{"io.github.mcp-idempotent/replayed":1,"a":"b"}}"#,
            ),
            (
                r#"{"_meta":null}"#,
                None,
                r#"{"_meta":{"io.github.mcp-idempotent/replayed":1}}"#,
            ),
            (
                r#"{"_meta":{"io.github.mcp-idempotent/replayed":{"at":"x"}}}"#,
                None,
                r#"{"_meta":{"io.github.mcp-idempotent/replayed":1}}"#,
            ),
            (r#"7"#, Some("2"), r#"7"#),
        ] {
            assert_eq!(marked(result, wire::REPLAYED, "1", notice), expected);
        }
    }
}
