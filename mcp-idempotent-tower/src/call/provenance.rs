//! Which server an answer comes from.
//!
//! A handler may pass on the answer of another server that also uses our names. So a handler's answer is
//! [settled](settle) before it is believed, recorded or sent: members with our names are kept if this
//! process made them, and are marked as the upstream's otherwise.
//!
//! An answer of ours that a handler gets to see carries a seal: a hash of its contents, under a random key
//! of this process. The seal is removed when the handler's answer is settled.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::LazyLock,
};

use rmcp::{
    ErrorData,
    model::{CallToolResponse, MetaObject},
};
use serde_json::{Map, Value, json};

use super::{not_executed::NotExecuted, refusal, result::ToolResult};
use crate::wire;

/// In a request's extensions: a service of ours further out will settle the answer, so an answer of ours
/// has to be sealed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inside;

/// A seal for `value`. It is worthless for any other value.
pub(crate) fn seal_of(purpose: &str, value: &Value) -> Value {
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    format!("{:016x}", KEY.hash_one((purpose, value.to_string()))).into()
}

/// The sealed members of a refusal's `data`.
const DATA: [&str; 4] = ["type", "outcome", "action", "retryAfterMs"];
/// The sealed members of an answer's `_meta`.
const META: [&str; 2] = [wire::REPLAYED, wire::REFUSAL];

fn seal_of_members(members: &[&str], of: &Map<String, Value>) -> Value {
    let values: Vec<_> = members.iter().map(|name| of.get(*name)).collect();
    seal_of("answer", &json!(values))
}

/// Seals an error of ours that is given to a handler, which may return it.
pub(crate) fn sealed(mut error: ErrorData) -> ErrorData {
    if let Some(Value::Object(data)) = &mut error.data {
        data.insert(wire::SEAL.into(), seal_of_members(&DATA, data));
    }
    error
}

/// Seals an answer of ours that reaches another service of ours through a handler.
pub(crate) fn seal(result: ToolResult) -> ToolResult {
    let mut response = match result {
        Ok(response) => response,
        Err(mut error) => {
            // The mark has its own seal; the error under it may be a refusal.
            let is_not_executed = NotExecuted::unmark(&mut error);
            if is_ours(error.data.as_ref()) {
                error = sealed(error);
            }
            if is_not_executed {
                NotExecuted::mark_in_place(&mut error);
            }
            return Err(error);
        }
    };
    if let Some(meta) = meta(&mut response)
        && META.iter().any(|name| meta.contains_key(*name))
    {
        let seal = seal_of_members(&META, meta);
        meta.insert(wire::SEAL.into(), seal);
    }
    Ok(response)
}

/// What [`settle`] found in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// It is marked as [`NotExecuted`]; the mark is still there.
    NotExecuted,
    Other,
}

/// Marks members with our names as the upstream's, unless this process made them.
pub(crate) fn settle(result: &mut ToolResult) -> Settled {
    match result {
        Ok(response) => {
            if let Some(meta) = meta(response) {
                settle_meta(meta);
            }
        }
        Err(error) => {
            let is_not_executed = NotExecuted::unmark(error);
            settle_data(&mut error.data);
            if is_not_executed {
                NotExecuted::mark_in_place(error);
                return Settled::NotExecuted;
            }
        }
    }
    Settled::Other
}

fn meta(response: &mut CallToolResponse) -> Option<&mut MetaObject> {
    match response {
        CallToolResponse::Complete(result) => result.meta.as_mut(),
        CallToolResponse::Task(task) => task.meta.as_mut(),
        CallToolResponse::InputRequired(required) => required.meta.as_mut(),
        _ => None,
    }
}

fn settle_meta(meta: &mut MetaObject) {
    let is_named = |name: &str| name.starts_with(wire::PREFIX);
    if !meta
        .keys()
        .any(|name| is_named(name) && name != wire::UPSTREAM)
    {
        return;
    }
    if let Some(seal) = meta.remove(wire::SEAL)
        && seal == seal_of_members(&META, meta)
    {
        return;
    }
    let names: Vec<String> = meta.keys().filter(|name| is_named(name)).cloned().collect();
    let upstream: Map<_, _> = names
        .into_iter()
        .filter_map(|name| meta.remove_entry(&name))
        .collect();
    if !upstream.is_empty() {
        meta.insert(wire::UPSTREAM.into(), upstream.into());
    }
}

fn settle_data(data: &mut Option<Value>) {
    if let Some(Value::Object(members)) = data
        && let Some(seal) = members.remove(wire::SEAL)
        && seal == seal_of_members(&DATA, members)
    {
        return;
    }
    if is_ours(data.as_ref()) {
        *data = data.take().map(|data| json!({ "upstream": data }));
    }
}

/// Whether an error's `data` uses our names.
fn is_ours(data: Option<&Value>) -> bool {
    let Some(Value::Object(data)) = data else {
        return false;
    };
    let kind = data.get("type").and_then(Value::as_str);
    kind.is_some_and(refusal::is_a_type_of_ours)
        || data.keys().any(|name| name.starts_with(wire::PREFIX))
}

#[cfg(test)]
mod tests {
    use rmcp::model::CallToolResult;

    use super::*;

    fn refusal() -> ErrorData {
        let data = json!({ "type": "idempotency_key_conflict", "outcome": "not_committed" });
        ErrorData::invalid_params("no", Some(data))
    }

    fn meta_of(result: ToolResult) -> Value {
        json!(meta(&mut result.unwrap()))
    }

    fn settled(error: ErrorData) -> Option<Value> {
        let mut result = Err(error);
        settle(&mut result);
        result.unwrap_err().data
    }

    #[test]
    fn what_is_sealed_here_is_kept_and_loses_its_seal() {
        assert_eq!(settled(sealed(refusal())), refusal().data);
    }

    #[test]
    fn a_seal_is_worth_nothing_on_another_refusal() {
        let seal = sealed(refusal()).data.unwrap()[wire::SEAL].take();
        let mut forged = refusal();
        let data = forged.data.as_mut().unwrap();
        data["outcome"] = "committed".into();
        let expected = json!({ "upstream": data });
        data[wire::SEAL] = seal;
        assert_eq!(settled(forged), Some(expected));
    }

    #[test]
    fn a_mark_of_not_executed_passes_and_keeps_the_refusal_that_it_was_made_on() {
        let mut result = seal(Err(NotExecuted::mark(refusal())));
        assert_eq!(settle(&mut result), Settled::NotExecuted);
        let mut error = result.unwrap_err();
        assert!(NotExecuted::unmark(&mut error));
        assert_eq!(error.data, refusal().data);
    }

    #[test]
    fn an_answer_of_an_inner_server_is_kept_and_an_upstreams_is_not() {
        let mut result = CallToolResult::default();
        let mut meta = MetaObject::default();
        meta.insert(wire::REPLAYED.into(), json!({ "at": "now" }));
        result.meta = Some(meta.clone());

        let mut ours = seal(Ok(result.clone().into()));
        settle(&mut ours);
        assert_eq!(meta_of(ours), json!(meta));

        let mut theirs = Ok(result.into());
        settle(&mut theirs);
        assert_eq!(meta_of(theirs), json!({ wire::UPSTREAM: meta }));
    }
}
