//! The markers that an answer of the handler carries: members of `_meta`, in an error of its `data`.

use mcp_idempotent_core::{Refusal, Timestamp};
use serde_json::{Map, Value, json};

use super::refusal::refusal_data;
use crate::{call::Meta, wire};

/// Says that a result is a replay.
pub(crate) fn add_replayed(meta: &mut Option<Meta>, at: Timestamp) {
    meta.get_or_insert_with(Meta::default)
        .insert(wire::REPLAYED.into(), json!({ "at": at.to_string() }));
}

/// Says that an equal call was made under another key.
pub(crate) fn add_rotated(meta: &mut Option<Meta>, at: Option<Timestamp>) {
    meta.get_or_insert_with(Meta::default)
        .insert(wire::ROTATED_KEY.into(), rotated(at));
}

/// What the marker of such a result says.
pub(crate) fn rotated(at: Option<Timestamp>) -> Value {
    json!({ "at": at.map(|at| at.to_string()) })
}

/// Says that a result is not recorded, because the store could not be reached.
pub(crate) fn add_unrecorded(meta: &mut Option<Meta>) {
    meta.get_or_insert_with(Meta::default)
        .insert(wire::UNRECORDED.into(), unrecorded());
}

/// What the marker of such a result says.
pub(crate) fn unrecorded() -> Value {
    let message = "The call was executed, but its result could not be recorded. Keep it, and do not send \
                   the call again.";
    json!({ "message": message })
}

/// Says that the call of a result is in doubt.
pub(crate) fn add_in_doubt(meta: &mut Option<Meta>, refusal: &Refusal) {
    meta.get_or_insert_with(Meta::default)
        .insert(wire::IN_DOUBT.into(), in_doubt(refusal));
}

/// Says the same in the `data` of an error, if the author's data has room for a member.
pub(crate) fn add_in_doubt_to_data(data: &mut Option<Value>, refusal: &Refusal) {
    let data = data.get_or_insert_default();
    if data.is_null() {
        *data = Value::Object(Map::new());
    }
    if let Value::Object(data) = data {
        data.insert(wire::IN_DOUBT.into(), in_doubt(refusal));
    }
}

/// What the marker of such an answer says.
pub(crate) fn in_doubt(refusal: &Refusal) -> Value {
    Value::Object(refusal_data(refusal))
}
