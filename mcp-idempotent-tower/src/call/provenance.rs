//! Whose an answer is.
//!
//! A handler may pass on what another server said, in the names that are ours. So what a handler
//! returns is [settled](settle) before anything is believed, recorded or sent: what carries our
//! names is kept where it was made in this process, and is marked as the upstream's otherwise.
//!
//! What we give into a handler's hands carries a seal: a hash, under a key that each process draws
//! anew, of what is sealed. It is removed where the handler's answer is settled.

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

/// In a request's extensions: a service of ours takes the answer and settles it, so an answer of
/// ours has to be sealed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inside;

/// A seal of `value`. Whoever sees one can show it for the same value only.
pub(crate) fn seal_of(purpose: &str, value: &Value) -> Value {
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    format!("{:016x}", KEY.hash_one((purpose, value.to_string()))).into()
}

/// What a refusal says: the rest of its `data` may be anything.
const DATA: [&str; 4] = ["type", "outcome", "action", "retryAfterMs"];
/// What an answer of ours has in `_meta`.
const META: [&str; 2] = [wire::REPLAYED, wire::REFUSAL];

fn seal_of_members(members: &[&str], of: &Map<String, Value>) -> Value {
    let values: Vec<_> = members.iter().map(|name| of.get(*name)).collect();
    seal_of("answer", &json!(values))
}

/// An error of ours that a handler is given, and may return.
pub(crate) fn sealed(mut error: ErrorData) -> ErrorData {
    if let Some(Value::Object(data)) = &mut error.data {
        data.insert(wire::SEAL.into(), seal_of_members(&DATA, data));
    }
    error
}

/// Seals an answer of ours that is on its way to a service of ours, by way of a handler.
pub(crate) fn seal(result: ToolResult) -> ToolResult {
    let mut response = match result {
        Ok(response) => response,
        Err(mut error) => {
            // The mark has a seal of its own; what it was made on may be a refusal.
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

/// What was found in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// It is marked as [`NotExecuted`], and still is.
    NotExecuted,
    Other,
}

/// Of what an author's code returned, keeps what was made in this process, and marks as the
/// upstream's what has our names all the same.
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

/// Whether the `data` of an error has our names.
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
