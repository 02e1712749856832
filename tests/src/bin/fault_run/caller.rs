//! One caller of one call: what it is told, until there is nothing more to ask.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use mcp_idempotent_tests::client::{Answer, call};
use mcp_idempotent_tower::wire;
use rmcp::model::{CallToolRequestParams, MetaObject};
use serde_json::{Map, json};

use crate::{
    link::Server,
    server::{LARGE_RESULT, STOP_AT, TENANT, TROUBLE},
};

/// Longer than any wait of a server's, twice over.
const BOUND: Duration = Duration::from_secs(90);
const REST: Duration = Duration::from_millis(25);

/// The server process at a place; another after a restart.
pub(crate) type Place = Arc<Mutex<Arc<Server>>>;

pub(crate) fn at(place: &Place) -> Arc<Server> {
    Arc::clone(&place.lock().expect("no panic"))
}

/// What a call is, apart from who makes it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    pub(crate) tool: &'static str,
    pub(crate) tenant: &'static str,
    pub(crate) key: String,
    pub(crate) name: String,
}

impl Call {
    /// What its effect is called.
    pub(crate) fn effect(&self) -> String {
        format!("{}.{}", self.tenant, self.name)
    }

    pub(crate) fn params(&self, more: Option<(&str, &str)>) -> CallToolRequestParams {
        let mut params = call(self.tool, json!({ "name": self.name }));
        let mut meta = Map::new();
        meta.insert(wire::KEY.to_owned(), self.key.as_str().into());
        meta.insert(TENANT.to_owned(), self.tenant.into());
        if let Some((name, value)) = more {
            meta.insert(name.to_owned(), value.into());
        }
        params.meta = Some(MetaObject(meta).into());
        params
    }
}

/// How a caller's first attempt differs from those that follow.
#[derive(Debug, Clone, Copy)]
pub(crate) enum First {
    Plain,
    StopAt(&'static str),
    Trouble(&'static str),
}

impl First {
    const fn more(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Plain => None,
            Self::StopAt(point) => Some((STOP_AT, point)),
            Self::Trouble(trouble) => Some((TROUBLE, trouble)),
        }
    }
}

/// What one attempt was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Told {
    /// A success, and the execution that made the effect.
    Done {
        run: String,
        is_replay: bool,
    },
    /// A success that is not recorded.
    Unrecorded(String),
    /// The outcome is unknown, and asking again will not tell.
    InDoubt,
    Conflict,
    /// It may be asked again.
    Refused(String),
    /// The handler's own error.
    Failed,
    /// There was no answer.
    Lost,
}

impl Told {
    pub(crate) fn of(answer: Option<&Answer>) -> Self {
        let Some(answer) = answer else {
            return Self::Lost;
        };
        let result = &answer.json["result"];
        if !answer.is_failure() && result["isError"] != true {
            let run = result["structuredContent"]["run"].as_str();
            let mut run = run.unwrap_or_default().to_owned();
            let padding = result["structuredContent"]["padding"].as_str();
            let padding = padding.unwrap_or_default().len();
            if (1..LARGE_RESULT).contains(&padding) {
                run.push_str(" in part");
            }
            if result["_meta"].get(wire::UNRECORDED).is_some() {
                return Self::Unrecorded(run);
            }
            let is_replay = answer.is_replay();
            return Self::Done { run, is_replay };
        }
        let error = answer.json.get("error").map(|error| &error["data"]);
        let data = error.unwrap_or(&result["_meta"][wire::REFUSAL]);
        match (data["type"].as_str(), data["action"].as_str()) {
            (Some("idempotency_key_conflict"), _) => Self::Conflict,
            (Some(_), Some("ask_operator")) => Self::InDoubt,
            (Some(kind), _) => Self::Refused(kind.to_owned()),
            _ => Self::Failed,
        }
    }

    const fn is_last(&self) -> bool {
        matches!(
            self,
            Self::Done { .. } | Self::Unrecorded(_) | Self::InDoubt | Self::Conflict
        )
    }

    /// Of which execution it was told that it succeeded.
    pub(crate) fn success(&self) -> Option<&str> {
        match self {
            Self::Done { run, .. } | Self::Unrecorded(run) => Some(run),
            _ => None,
        }
    }
}

/// Makes the call, and repeats it until it is answered for good. All that it was told.
pub(crate) async fn until_answered(
    place: &Place,
    call: &Call,
    first: First,
    patience: Duration,
) -> Vec<Told> {
    let until = Instant::now() + BOUND;
    let mut told = Vec::new();
    let mut more = first.more();
    while Instant::now() < until {
        let server = at(place);
        let answer = server.call(call.params(more.take()), patience).await;
        let heard = Told::of(answer.as_ref());
        let is_last = heard.is_last();
        // One of a kind says enough of many retries.
        if told.last() != Some(&heard) {
            told.push(heard);
        }
        if is_last {
            break;
        }
        tokio::time::sleep(REST).await;
    }
    told
}
