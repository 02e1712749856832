//! A tool call as a relay received it.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use mcp_idempotent_core::{RecordId, Scope, engine::Round};
use serde_json::{Value, value::RawValue};
use sha2::{Digest as _, Sha256};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use super::{
    message::{Id, Message},
    pending::PendingCall,
};
use crate::{
    call::{
        Incoming, Object,
        incoming::round,
        key::{KeyMaker, Places},
        scope::{AuthorizeHook, Denied, NoScope, ScopeSource},
    },
    lift::lift_into,
    raw::{Edit, Members, edited, range, text},
};

/// One `tools/call`.
pub(crate) struct RelayedCall {
    pub(super) id: Id,
    pub(super) tool: String,
    arguments: Option<Object>,
    meta: Object,
    round: Round,
    pub(super) key_maker: KeyMaker,
    pub(super) progress_token: Option<Id>,
    caller: Caller,
    pub(super) pending: Arc<PendingCall>,
    /// Its share of the memory for calls.
    pub(super) held: Option<OwnedSemaphorePermit>,
    line: Bytes,
    id_at: Range<usize>,
    token_at: Option<Range<usize>>,
}

/// What is known about a caller, besides its call.
#[derive(Clone, Default)]
pub(super) struct Caller {
    /// The head of the HTTP request.
    pub(super) head: Option<Arc<http::request::Parts>>,
    /// Calls without a key are recognised within this run only.
    pub(super) run_id: Arc<str>,
}

/// Which of the servers at one address a request goes to. A query may have a secret in it, so operators see its digest.
fn place(uri: &http::Uri) -> String {
    let digest = |query: &str| {
        let digest = Sha256::digest(query);
        digest[..8]
            .iter()
            .fold("?".to_owned(), |text, byte| format!("{text}{byte:02x}"))
    };
    format!(
        "{}{}",
        uri.path(),
        uri.query().map_or(String::new(), digest)
    )
}

/// Why a call cannot be protected. It is not sent.
#[derive(Debug)]
pub(super) struct Unprotectable {
    pub(super) id: Id,
    pub(super) why: &'static str,
}

const NOT_UTF8: &str =
    "The call was not executed: it is not UTF-8, so it cannot be told from other calls.";

const UNCOMPARABLE: &str = "The call was not executed: it has a number that is too large, half of a surrogate \
     pair, or is nested too deeply, to be compared with other calls.";

impl RelayedCall {
    /// The tool call in `line`. `None` if the line holds something else, or something that no
    /// server takes for a tool call.
    ///
    /// # Errors
    ///
    /// It cannot be compared with other calls.
    pub(super) fn of(
        line: &Bytes,
        message: &Message<'_>,
        key_argument: Option<&str>,
        caller: Caller,
    ) -> Result<Option<Self>, Unprotectable> {
        let parts = || {
            let is_call = message.method()? == "tools/call";
            let raw_id = message.id().filter(|_| is_call)?;
            let params = Members::of(message.params()?.get())?;
            let tool = params.text("name")?.into_owned();
            Some((raw_id, Id::of(raw_id)?, tool, params))
        };
        let Some((raw_id, id, tool, params)) = parts() else {
            return Ok(None);
        };
        let refuse = |why| Unprotectable {
            id: id.clone(),
            why,
        };
        if std::str::from_utf8(line).is_err() {
            return Err(refuse(NOT_UTF8));
        }
        let read = || {
            let arguments = object(params.get("arguments"))?;
            let mut meta = object(params.get("_meta"))?.flatten().unwrap_or_default();
            lift_into(&mut meta, &params)?;
            Ok((arguments, meta, round_of(&params)?))
        };
        let read: serde_json::Result<_> = read();
        let (arguments, meta, round) = read.map_err(|_| refuse(UNCOMPARABLE))?;
        let Some(arguments) = arguments else {
            return Ok(None);
        };
        let places = Places {
            meta: Some(&meta),
            arguments: arguments.as_ref(),
            argument: key_argument,
        };
        let key_maker = places.maker();
        let meta_text = params.get("_meta").and_then(|meta| Members::of(meta.get()));
        let token = meta_text.and_then(|meta| meta.get("progressToken"));
        let token = token.and_then(|raw| Some((Id::of(raw)?, range(line, raw))));
        let (progress_token, token_at) = token.unzip();
        Ok(Some(Self {
            id_at: range(line, raw_id),
            id,
            tool,
            arguments,
            meta,
            round,
            key_maker,
            progress_token,
            token_at,
            caller,
            pending: Arc::default(),
            held: None,
            line: line.clone(),
        }))
    }

    /// The call as the client sent it.
    pub(super) const fn line(&self) -> &Bytes {
        &self.line
    }

    pub(super) fn has_key(&self) -> bool {
        self.key_maker != KeyMaker::Nobody
    }

    /// The call under another id, which also becomes its progress token.
    pub(super) fn under(&self, id: &str) -> Bytes {
        let token = self.token_at.clone().map(|at| (at, id));
        let mut edits: Vec<Edit<'_>> = token.into_iter().collect();
        edits.push((self.id_at.clone(), id));
        edited(&self.line, &mut edits)
    }

    /// What the protocol itself put into `_meta`: a request of our own on behalf of this call needs
    /// it too.
    pub(super) fn protocol_meta(&self) -> Object {
        let of_protocol =
            |(name, _): &(&String, &Value)| name.starts_with("io.modelcontextprotocol/");
        let members = self.meta.iter().filter(of_protocol);
        members
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    }
}

/// An object, or `Some(None)` if it is absent or null. `None` if it is something else.
fn object(value: Option<&RawValue>) -> serde_json::Result<Option<Option<Object>>> {
    match value.map(RawValue::get) {
        None | Some("null") => Ok(Some(None)),
        Some(text) if text.starts_with('{') => {
            serde_json::from_str(text).map(|object| Some(Some(object)))
        }
        Some(_) => Ok(None),
    }
}

fn round_of(params: &Members<'_>) -> serde_json::Result<Round> {
    let state = params
        .get("requestState")
        .map(|state| text(state).unwrap_or_else(|| state.get().into()));
    let responses: Option<BTreeMap<String, Value>> = params
        .get("inputResponses")
        .map(|responses| serde_json::from_str(responses.get()))
        .transpose()?;
    let texts = responses.as_ref().map(|responses| {
        let texts = responses.iter();
        texts.map(|(name, response)| (&**name, response.to_string()))
    });
    Ok(round(state.as_deref(), texts))
}

impl Incoming for RelayedCall {
    fn tool(&self) -> &str {
        &self.tool
    }

    fn arguments(&self) -> Option<&Object> {
        self.arguments.as_ref()
    }

    fn meta(&self) -> &Object {
        &self.meta
    }

    fn round(&self) -> Round {
        self.round
    }

    fn own_token(&mut self) -> CancellationToken {
        // A server does not see it.
        CancellationToken::new()
    }

    fn claimed(&mut self, _: RecordId) {
        // The server below knows nothing of records.
    }

    fn remove_argument(&mut self, _: &str) {
        // A relay adds none.
    }

    fn identified(&self, record: RecordId) {
        self.pending.identified(record);
    }

    fn scope(&self, source: &ScopeSource) -> Result<Scope, NoScope> {
        let scope = source.resolve_from_head(self.caller.head.as_deref())?;
        Ok(match self.key_maker {
            KeyMaker::Client | KeyMaker::Model => scope,
            // A run id and a path have no space, so no two of these are alike.
            KeyMaker::Nobody => {
                let head = self.caller.head.as_deref();
                let at = head.map_or(String::new(), |head| format!("at {} ", place(&head.uri)));
                let (run, scope) = (&self.caller.run_id, scope.as_str());
                Scope::new(format!("run {run} {at}of {scope}"))
            }
        })
    }

    fn authorize<'a>(
        &'a self,
        _: &'a AuthorizeHook,
        _: &'a str,
    ) -> BoxFuture<'a, Result<(), Denied>> {
        // A relay with such a hook is not built.
        Box::pin(async { Err(Denied::new("The relay cannot ask who may call this tool.")) })
    }
}
