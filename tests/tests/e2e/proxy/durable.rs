//! Stores that outlive a proxy, and that several proxies share.

use mcp_idempotent_tests::kit::redis::Server;
use serde_json::json;

use super::program::{PLAIN, Place, Program, charge, outcome_of, proxy, text_of};

/// A store on disk or on a server, and all that names it on the command line.
struct Durable {
    name: &'static str,
    options: Vec<String>,
    /// Ends with this.
    _redis: Option<Server>,
}

impl Durable {
    fn all(place: &Place) -> [Self; 3] {
        let sqlite = format!("sqlite://{}", place.path("calls.db"));
        let postgres = std::env::var("DATABASE_URL").expect("DATABASE_URL names a database");
        let redis = Server::start();
        [
            Self::new("sqlite", &sqlite, place, None),
            Self::new("postgres", &postgres, place, None),
            Self::new("redis", &redis.url(), place, Some(redis)),
        ]
    }

    fn new(name: &'static str, url: &str, place: &Place, redis: Option<Server>) -> Self {
        // Nobody else has this path, so the records are the test's own.
        let application = place.path(name);
        let options = [
            "--store",
            url,
            "--scope",
            "tests",
            "--application",
            &application,
        ];
        Self {
            name,
            options: options.map(str::to_owned).into(),
            _redis: redis,
        }
    }

    fn with<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        let options = self.options.iter().map(String::as_str);
        options.chain(more.iter().copied()).collect()
    }
}

#[tokio::test]
async fn the_environment_may_name_the_store() {
    let place = Place::new();
    let store = format!("MCP_IDEMPOTENT_STORE=sqlite://{}", place.path("calls.db"));
    let proxy = proxy();
    let (proxy, ledger) = (proxy.to_str().unwrap(), place.ledger());
    let started = [&store, proxy, "--run-id", "desk-1", "--", PLAIN, &ledger];
    for _ in 0..2 {
        let mut proxy = Program::start("env", started);
        let told = proxy.call(&charge(1, json!({ "cents": 5 }))).await;
        assert_eq!(text_of(&told), "charged 5");
        proxy.close();
        proxy.end().await;
    }
    assert_eq!(place.charges().len(), 1);
}

#[tokio::test]
async fn a_killed_proxy_that_is_started_again_answers_the_retry_from_the_record() {
    for_each_store(async |place, store| {
        let with_run_id = store.with(&["--run-id", "desk-1"]);
        let mut proxy = place.start(&with_run_id);
        let told = proxy.call(&charge(1, json!({ "cents": 5 }))).await;
        assert_eq!(text_of(&told), "charged 5", "{}", store.name);
        proxy.signal("KILL").await;
        proxy.end().await;
        let mut proxy = place.start(&with_run_id);
        let told = proxy.call(&charge(1, json!({ "cents": 5 }))).await;
        assert_eq!(text_of(&told), "charged 5", "{}", store.name);
        assert_eq!(place.charges().len(), 1, "{}", store.name);

        // Without a fixed run id only calls with a key are recognised.
        let mut keyed = charge(1, json!({ "cents": 6 }));
        keyed["params"]["idempotencyKey"] = json!("k");
        for charges in [3, 4] {
            let mut proxy = place.start(&store.with(&[]));
            proxy.call(&charge(1, json!({ "cents": 5 }))).await;
            assert_eq!(text_of(&proxy.call(&keyed).await), "charged 6");
            assert_eq!(place.charges().len(), charges, "{}", store.name);
        }
    })
    .await;
}

#[tokio::test]
async fn a_proxy_that_is_killed_during_a_call_leaves_it_unrepeated() {
    for_each_store(async |place, store| {
        let options = store.with(&["--run-id", "desk-1", "--wait-ms", "0"]);
        let mut proxy = place.start(&options);
        let held = json!({ "cents": 5, "hold": place.path("go") });
        proxy.say(&charge(1, held.clone())).await;
        place.until_charged(1).await;
        proxy.signal("KILL").await;
        proxy.end().await;
        place.release("go");
        // It is in progress until its lease has ended, and in doubt from then on.
        let told = place.start(&options).call(&charge(1, held)).await;
        assert_eq!(outcome_of(&told), "unknown", "{}: {told}", store.name);
        assert_eq!(place.charges().len(), 1, "{}", store.name);
    })
    .await;
}

#[tokio::test]
async fn two_proxies_over_one_store_that_race_for_a_call_run_it_once() {
    for_each_store(async |place, store| {
        let options = store.with(&["--run-id", "desk-1"]);
        let (mut one, mut other) = (place.start(&options), place.start(&options));
        for round in 1..=5 {
            let go = format!("go-{round}");
            let held = json!({ "cents": round, "hold": place.path(&go) });
            let held = charge(7, held);
            tokio::join!(one.say(&held), other.say(&held));
            place.until_charged(round).await;
            place.release(&go);
            let (one, other) = tokio::join!(one.hear(), other.hear());
            for told in [one, other] {
                assert_eq!(text_of(&told), format!("charged {round}"), "{}", store.name);
            }
            assert_eq!(place.charges().len(), round, "{}", store.name);
        }
    })
    .await;
}

async fn for_each_store(test: impl AsyncFn(&Place, &Durable)) {
    let shared = Place::new();
    for store in Durable::all(&shared) {
        test(&Place::new(), &store).await;
    }
}
