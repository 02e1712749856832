//! Which server an answer comes from.
//!
//! A handler may pass on the answer of another server that also uses our names. So a handler's answer is
//! [settled](settle) before it is believed, recorded or sent: members with our names are kept if we made
//! them for this call, and are marked as the upstream's otherwise.
//!
//! One of our answers that a handler gets to see carries a seal, which holds only in the handler's own run.
//! The seal is removed when the handler's answer is settled.
//!
//! Five things tell who said what:
//!
//! | | Who sets it | Who removes it | What it proves |
//! | --- | --- | --- | --- |
//! | mark ([`NotExecuted`]) | the author's code on its failure; the layer again, for itself | [`settle`] | the handler did nothing. It holds in the run that made it, on the same content |
//! | seal ([`seal`](mod@super::seal)) | [`seal`] and [`sealed`], on our answer before a handler sees it | [`settle`] | we made the answer for this call. It holds in the run that made it, on the same content |
//! | [`Inside`] | the layer, in the request, before it calls the handler | nobody; it ends with the request | which handler is called, and so whether our answer needs a seal |
//! | [`Entries`](super::entries::Entries) | the layer counts each entry into the handler | the layer takes an entry back on a mark | whether the handler was entered at all, whatever services say |
//! | upstream ([`UPSTREAM`](wire::UPSTREAM)) | [`settle`], around our names without a valid seal | nobody; it is recorded and sent | nothing: another server said it |

use std::any::TypeId;

use rmcp::{
    ErrorData,
    model::{CallToolResponse, MetaObject},
};
use serde_json::{Map, Value, json};

use super::{not_executed::NotExecuted, refusal, seal::seal_of};
use crate::{call::ToolResult, wire};

/// In a request's extensions: the handler below one of our services was called. If it returns one of our
/// answers, and the answer is to this very call, the answer must be sealed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inside {
    /// The type of the handler.
    pub(crate) handler: TypeId,
    /// Our layer runs the call.
    pub(crate) is_executed: bool,
}

impl Inside {
    /// Whether `S`'s answer is an answer to this call. If the call was only passed on, it is. If a layer ran
    /// the call, it is only if the handler is `S` itself: any other handler may have acted before it called
    /// `S` with its own context.
    pub(crate) fn answers<S: 'static>(self) -> bool {
        !self.is_executed || self.handler == TypeId::of::<S>()
    }
}

/// The sealed members of a refusal's `data`.
const DATA: [&str; 5] = ["type", "outcome", "action", "retryAfterMs", wire::IN_DOUBT];
/// The sealed members of an answer's `_meta`.
const META: [&str; 5] = [
    wire::REPLAYED,
    wire::REFUSAL,
    wire::IN_DOUBT,
    wire::UNRECORDED,
    wire::ROTATED_KEY,
];

fn seal_of_members(members: &[&str], of: &Map<String, Value>) -> Option<Value> {
    let values: Vec<_> = members.iter().map(|name| of.get(*name)).collect();
    seal_of("answer", &json!(values))
}

fn put_seal(members: &[&str], on: &mut Map<String, Value>) {
    if let Some(seal) = seal_of_members(members, on) {
        on.insert(wire::SEAL.into(), seal);
    }
}

/// Removes the seal, and says whether it is ours.
fn take_seal(members: &[&str], of: &mut Map<String, Value>) -> bool {
    let seal = of.remove(wire::SEAL);
    seal.is_some() && seal == seal_of_members(members, of)
}

/// Seals one of our errors that is given to a handler, which may return it.
pub(crate) fn sealed(mut error: ErrorData) -> ErrorData {
    if let Some(Value::Object(data)) = &mut error.data {
        put_seal(&DATA, data);
    }
    error
}

/// Seals one of our answers that reaches another of our services through a handler.
pub(crate) fn seal(mut result: ToolResult) -> ToolResult {
    // The mark has its own seal; the failure under it may be a refusal.
    let is_not_executed = NotExecuted::unmark(&mut result);
    match &mut result {
        Ok(response) => {
            if let Some(meta) = meta(response)
                && META.iter().any(|name| meta.contains_key(*name))
            {
                put_seal(&META, meta);
            }
        }
        Err(error) => {
            if uses_our_names(error.data.as_ref())
                && let Some(Value::Object(data)) = &mut error.data
            {
                put_seal(&DATA, data);
            }
        }
    }
    if is_not_executed {
        NotExecuted::mark_answer(&mut result);
    }
    result
}

/// Marks members with our names as the upstream's, unless they were made for this call. Removes the mark of
/// [`NotExecuted`], and says whether there was one.
pub(crate) fn settle(result: &mut ToolResult) -> bool {
    let is_not_executed = NotExecuted::unmark(result);
    match result {
        Ok(response) => {
            if let Some(meta) = meta(response) {
                settle_meta(meta);
            }
        }
        Err(error) => settle_data(&mut error.data),
    }
    is_not_executed
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
    if take_seal(&META, meta) {
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
        && take_seal(&DATA, members)
    {
        return;
    }
    if uses_our_names(data.as_ref()) {
        *data = data.take().map(|data| json!({ "upstream": data }));
    }
}

/// Whether an error's `data` uses our names.
fn uses_our_names(data: Option<&Value>) -> bool {
    let Some(Value::Object(data)) = data else {
        return false;
    };
    let kind = data.get("type").and_then(Value::as_str);
    kind.is_some_and(refusal::is_a_type_of_ours)
        || data.keys().any(|name| name.starts_with(wire::PREFIX))
}

#[cfg(test)]
mod tests {
    use rmcp::model::{CallToolResult, ContentBlock};

    use super::*;
    use crate::call::seal::run_now;

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
    fn what_is_sealed_in_a_run_is_kept_there_and_loses_its_seal() {
        let data = run_now(|| settled(sealed(refusal())));
        assert_eq!(data, refusal().data);
    }

    #[test]
    fn a_seal_is_worth_nothing_in_another_run() {
        let sealed = run_now(|| sealed(refusal()));
        let data = run_now(|| settled(sealed));
        assert_eq!(data, Some(json!({ "upstream": refusal().data })));
    }

    #[test]
    fn a_seal_is_worth_nothing_on_another_refusal() {
        let (data, expected) = run_now(|| {
            let seal = sealed(refusal()).data.unwrap()[wire::SEAL].take();
            let mut forged = refusal();
            let data = forged.data.as_mut().unwrap();
            data["outcome"] = "committed".into();
            let expected = json!({ "upstream": data });
            data[wire::SEAL] = seal;
            (settled(forged), expected)
        });
        assert_eq!(data, Some(expected));
    }

    #[test]
    fn a_mark_of_not_executed_passes_and_keeps_the_refusal_that_it_was_made_on() {
        let error = run_now(|| {
            let mut result = seal(Err(NotExecuted::mark(refusal())));
            assert!(settle(&mut result));
            result.unwrap_err()
        });
        assert_eq!(error.data, refusal().data);
    }

    #[test]
    fn a_mark_of_not_executed_holds_for_what_was_marked_in_its_run() {
        let failed = || CallToolResult::error(vec![ContentBlock::text("closed")]);
        let marked = |result: CallToolResult| settle(&mut Ok(result.into()));
        run_now(|| {
            assert!(marked(NotExecuted::mark(failed())));
            assert!(!marked(failed()));
            let mut changed = NotExecuted::mark(failed());
            changed.content.push(ContentBlock::text("and acted"));
            assert!(!marked(changed));
            let success = CallToolResult::success(vec![]);
            assert!(!marked(NotExecuted::mark(success)));
        });
        let of_another_run = run_now(|| NotExecuted::mark(failed()));
        assert!(!run_now(|| marked(of_another_run)));
        assert_eq!(NotExecuted::mark(failed()), failed());
    }

    #[test]
    fn an_answer_of_an_inner_server_is_kept_and_an_upstreams_is_not() {
        let mut result = CallToolResult::default();
        let mut meta = MetaObject::default();
        meta.insert(wire::REPLAYED.into(), json!({ "at": "now" }));
        result.meta = Some(meta.clone());

        let ours = run_now(|| {
            let mut ours = seal(Ok(result.clone().into()));
            settle(&mut ours);
            ours
        });
        assert_eq!(meta_of(ours), json!(meta));

        let mut theirs = Ok(result.into());
        settle(&mut theirs);
        assert_eq!(meta_of(theirs), json!({ wire::UPSTREAM: meta }));
    }
}
