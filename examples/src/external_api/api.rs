//! A payment API that is a real HTTP server, counts what it is sent, and fails as it is told.

use std::{
    collections::{BTreeSet, VecDeque},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::Context as _;
use axum::{body::Bytes, extract::State, routing::post};
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use tokio::{sync::Semaphore, task::JoinHandle};

use crate::payments::outside::KEY_HEADER;

/// What the API does with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the ways to answer that there are")]
pub enum Behaviour {
    /// Acts and answers.
    Prompt,
    /// Acts, and answers when the gate is opened.
    ActThenWait,
    /// Acts, and answers 500.
    ActThenFail,
    /// Acts, and answers with something else than JSON.
    ActThenMumble,
}

/// A running API. Dropped, it stops.
#[derive(Debug)]
pub struct Api {
    address: SocketAddr,
    state: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    /// Whether a key that it has seen gets the first answer, as with real payment APIs.
    honours_keys: bool,
    seen: Mutex<Seen>,
    gate: Semaphore,
}

#[derive(Debug, Default)]
struct Seen {
    planned: VecDeque<Behaviour>,
    /// The keys, in the order of the requests.
    received: Vec<String>,
    /// The key of each charge that was made. A charge's number is its place here, from 1.
    charges: Vec<String>,
}

/// What the API has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Requests.
    pub calls: usize,
    /// Different keys among them.
    pub keys: usize,
    /// How often it acted.
    pub charges: usize,
}

impl Api {
    /// Starts one, which treats its first requests as planned and the rest promptly.
    ///
    /// # Errors
    ///
    /// It cannot listen.
    pub async fn start(
        honours_keys: bool,
        planned: impl IntoIterator<Item = Behaviour>,
    ) -> anyhow::Result<Self> {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0))
            .await
            .context("the fake API cannot listen")?;
        let address = listener.local_addr()?;
        let state = Arc::new(Shared {
            honours_keys,
            seen: Mutex::new(Seen {
                planned: planned.into_iter().collect(),
                ..Seen::default()
            }),
            gate: Semaphore::new(0),
        });
        let app = axum::Router::new()
            .route("/charges", post(charge))
            .with_state(Arc::clone(&state));
        let task = tokio::spawn(async move {
            // It ends when it is aborted.
            let _ = axum::serve(listener, app).await;
        });
        Ok(Self {
            address,
            state,
            task,
        })
    }

    /// Where it takes charges.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/charges", self.address)
    }

    /// What it has counted so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let seen = self.state.seen();
        Counts {
            calls: seen.received.len(),
            keys: seen.received.iter().collect::<BTreeSet<_>>().len(),
            charges: seen.charges.len(),
        }
    }

    /// Lets one answer go that waits.
    pub fn open_gate(&self) {
        self.state.gate.add_permits(1);
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request, and acts. Answers the charge's number.
    fn act(&self, key: String) -> (Behaviour, usize) {
        let mut seen = self.seen();
        let behaviour = seen.planned.pop_front().unwrap_or(Behaviour::Prompt);
        seen.received.push(key.clone());
        let known = seen.charges.iter().position(|charged| *charged == key);
        let place = match known {
            Some(place) if self.honours_keys => place,
            _ => {
                seen.charges.push(key);
                seen.charges.len() - 1
            }
        };
        (behaviour, place + 1)
    }
}

async fn charge(
    State(state): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, String) {
    let key = headers.get(KEY_HEADER).and_then(|key| key.to_str().ok());
    let Some(key) = key.filter(|_| serde_json::from_slice::<Value>(&body).is_ok()) else {
        return (StatusCode::BAD_REQUEST, String::new());
    };
    let (behaviour, number) = state.act(key.to_owned());
    let charged = json!({ "id": format!("ch_{number}") }).to_string();
    match behaviour {
        Behaviour::Prompt => {}
        Behaviour::ActThenWait => {
            if let Ok(permit) = state.gate.acquire().await {
                permit.forget();
            }
        }
        Behaviour::ActThenFail => {
            return (StatusCode::INTERNAL_SERVER_ERROR, "out of order".to_owned());
        }
        Behaviour::ActThenMumble => return (StatusCode::OK, "<html>done</html>".to_owned()),
    }
    (StatusCode::OK, charged)
}
