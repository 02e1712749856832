//! A payment API that counts what it was sent and what it did, and fails as a test says.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

use mcp_idempotent_tests::outside::KEY_HEADER;
use serde_json::{Value, json};
use wiremock::{
    Mock, MockServer, Request, Respond, ResponseTemplate,
    matchers::{method, path},
};

/// What the API does with a request to pay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Behaviour {
    /// Acts and answers.
    Prompt,
    /// Acts, and answers after this time.
    ActsAndAnswersAfter(Duration),
    /// Acts, and answers 500.
    ActsAndFails,
}

/// Longer than any test waits for the API.
pub(super) const NEVER: Duration = Duration::from_secs(120);

#[derive(Debug)]
struct State {
    honours_keys: bool,
    plan: Mutex<VecDeque<Behaviour>>,
    received: Mutex<Vec<Received>>,
    charges: Mutex<Vec<Received>>,
    /// Questions about payments are answered 503.
    knows_nothing: Mutex<bool>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Received {
    key: String,
    name: String,
}

pub(super) struct Api {
    server: MockServer,
    state: Arc<State>,
}

impl Api {
    /// One that recognises a key, or one that takes no notice.
    pub(super) async fn start(honours_keys: bool) -> Self {
        let state = Arc::new(State {
            honours_keys,
            plan: Mutex::default(),
            received: Mutex::default(),
            charges: Mutex::default(),
            knows_nothing: Mutex::default(),
        });
        let server = MockServer::builder().start().await;
        Mock::given(method("POST"))
            .and(path("/charges"))
            .respond_with(Charges(Arc::clone(&state)))
            .mount(&server)
            .await;
        Mock::given(method("GET"))
            .and(path("/charges"))
            .respond_with(Questions(Arc::clone(&state)))
            .mount(&server)
            .await;
        Self { server, state }
    }

    pub(super) fn url(&self) -> String {
        self.server.uri()
    }

    /// How the next requests are treated; the rest is prompt.
    pub(super) fn plan<const N: usize>(&self, behaviours: [Behaviour; N]) {
        self.state.plan.lock().unwrap().extend(behaviours);
    }

    pub(super) fn know_nothing(&self, yes: bool) {
        *self.state.knows_nothing.lock().unwrap() = yes;
    }

    /// How many requests to pay there were for `name`.
    pub(super) fn calls(&self, name: &str) -> usize {
        let received = self.state.received.lock().unwrap();
        received.iter().filter(|call| call.name == name).count()
    }

    /// How many different keys came with them.
    pub(super) fn keys(&self, name: &str) -> usize {
        let received = self.state.received.lock().unwrap();
        let keys: BTreeSet<_> = received
            .iter()
            .filter(|call| call.name == name)
            .map(|call| &call.key)
            .collect();
        keys.len()
    }

    /// How often it acted for `name`.
    pub(super) fn charges(&self, name: &str) -> usize {
        let charges = self.state.charges.lock().unwrap();
        charges.iter().filter(|charge| charge.name == name).count()
    }

    /// Requests, keys, charges.
    pub(super) fn counts(&self, name: &str) -> [usize; 3] {
        [self.calls(name), self.keys(name), self.charges(name)]
    }

    /// Whether a text says anything of a key that was received.
    pub(super) fn has_received_anything_like(&self, text: &str) -> bool {
        let received = self.state.received.lock().unwrap();
        received.iter().any(|call| call.key.contains(text))
    }
}

struct Charges(Arc<State>);

impl Respond for Charges {
    fn respond(&self, request: &Request) -> ResponseTemplate {
        let key = request.headers.get(KEY_HEADER).unwrap();
        let key = key.to_str().unwrap().to_owned();
        let body: Value = request.body_json().unwrap();
        let name = body["name"].as_str().unwrap().to_owned();
        let call = Received { key, name };
        let mut charges = self.0.charges.lock().unwrap();
        let known = charges.iter().position(|charge| charge.key == call.key);
        let place = match known {
            Some(place) if self.0.honours_keys => place,
            _ => {
                charges.push(call.clone());
                charges.len() - 1
            }
        };
        drop(charges);
        let behaviour = self.0.plan.lock().unwrap().pop_front();
        // Last, because this is what tests wait for.
        self.0.received.lock().unwrap().push(call);
        let paid = ResponseTemplate::new(200).set_body_json(json!({ "id": format!("ch_{place}") }));
        match behaviour.unwrap_or(Behaviour::Prompt) {
            Behaviour::Prompt => paid,
            Behaviour::ActsAndAnswersAfter(delay) => paid.set_delay(delay),
            Behaviour::ActsAndFails => ResponseTemplate::new(500),
        }
    }
}

struct Questions(Arc<State>);

impl Respond for Questions {
    fn respond(&self, request: &Request) -> ResponseTemplate {
        if *self.0.knows_nothing.lock().unwrap() {
            return ResponseTemplate::new(503);
        }
        let mut pairs = request.url.query_pairs();
        let (_, key) = pairs.find(|(name, _)| name == "key").unwrap();
        let charges = self.0.charges.lock().unwrap();
        match charges.iter().position(|charge| charge.key == key) {
            Some(place) => {
                ResponseTemplate::new(200).set_body_json(json!({ "id": format!("ch_{place}") }))
            }
            None => ResponseTemplate::new(404),
        }
    }
}
