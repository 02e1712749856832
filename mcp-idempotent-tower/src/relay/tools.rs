//! What the server says about its tools: asked once, and again after each change.

use std::{
    collections::HashMap,
    future::Future,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};

use super::rule::Hints;
use crate::wire;

/// How long the server may take to list its tools.
const LISTING: Duration = Duration::from_secs(10);

/// How many pages of `tools/list` are read.
const MOST_PAGES: usize = 100;

/// The tools of a server.
#[derive(Debug, Default)]
pub(super) struct Tools {
    /// Grows with each change that the server reports.
    changes: AtomicU64,
    listed: Mutex<Listed>,
}

#[derive(Debug, Default)]
struct Listed {
    /// After which change the server was asked for the list.
    as_of: Option<u64>,
    tools: HashMap<String, Hints>,
    /// When the server was last found not to answer.
    silent: Option<Instant>,
}

/// What the server answered when it was asked for a page of its tools.
pub(super) enum Page {
    /// Its response.
    Response(Bytes),
    /// Nothing, in time.
    Silence,
}

impl Tools {
    /// The server's tools have changed.
    pub(super) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// What the server says about a tool. `ask` sends a `tools/list` with these params.
    pub(super) async fn hints<F>(
        &self,
        tool: &str,
        meta: impl FnOnce() -> Map<String, Value>,
        ask: impl Fn(Value) -> F,
    ) -> Hints
    where
        F: Future<Output = Page>,
    {
        let arrived = Instant::now();
        let mut listed = self.listed.lock().await;
        let changes = self.changes.load(Ordering::Acquire);
        // Who has waited for one question that was not answered asks no other.
        let was_silent = listed.silent.is_some_and(|silent| silent >= arrived);
        if listed.as_of != Some(changes) && !was_silent {
            if let Ok(Some(tools)) = timeout(LISTING, list(meta(), ask)).await {
                (listed.as_of, listed.tools) = (Some(changes), tools);
            } else {
                // Better an old list than none.
                listed.silent = Some(Instant::now());
                tracing::warn!(tool, "the server did not list its tools in time");
            }
        }
        listed.tools.get(tool).copied().unwrap_or_default()
    }
}

/// All tools. None of them, if the server answers with an error. `None` if it does not answer.
async fn list<F>(
    meta: Map<String, Value>,
    ask: impl Fn(Value) -> F,
) -> Option<HashMap<String, Hints>>
where
    F: Future<Output = Page>,
{
    let mut tools = HashMap::new();
    let mut params = Map::new();
    if !meta.is_empty() {
        params.insert("_meta".to_owned(), meta.into());
    }
    for _ in 0..MOST_PAGES {
        let Page::Response(response) = ask(json!(params)).await else {
            return None;
        };
        let Ok(Response { result: page }) = serde_json::from_slice(&response) else {
            break;
        };
        for tool in page.tools {
            let (annotations, meta) = (tool.annotations, tool.meta);
            let hints = Hints {
                is_listed: true,
                read_only: annotations.read_only_hint,
                destructive: annotations.destructive_hint,
                idempotent: annotations.idempotent_hint,
                is_protected: meta.get(wire::CONTRACT).is_some_and(Value::is_object),
            };
            tools.insert(tool.name, hints);
        }
        match page.next_cursor {
            Some(cursor) => params.insert("cursor".to_owned(), cursor.into()),
            None => break,
        };
    }
    Some(tools)
}

#[derive(Deserialize)]
struct Response {
    result: ListedPage,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListedPage {
    tools: Vec<Tool>,
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
struct Tool {
    name: String,
    #[serde(default, deserialize_with = "or_default")]
    annotations: Annotations,
    #[serde(default, rename = "_meta", deserialize_with = "or_default")]
    meta: Map<String, Value>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
#[expect(clippy::struct_field_names, reason = "the names of the protocol")]
struct Annotations {
    read_only_hint: Option<bool>,
    destructive_hint: Option<bool>,
    idempotent_hint: Option<bool>,
}

fn or_default<'de, D, T>(value: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::deserialize(value).map(Option::unwrap_or_default)
}
