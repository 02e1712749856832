//! `mcp-idempotent records`, `migrate` and `doctor`, against real stores.

mod doctor;
mod place;

use std::sync::Arc;

use mcp_idempotent_tower::{
    OnError, Policy, RecordId, Scope, Store,
    core::{
        Begun, Bytes, CanonicalArguments, Engine, HandlerResult, IdempotencyKey, Identity,
        LeaseAttempt, Request, ResultKind, Secret, store::CallInfo,
    },
};
use serde_json::Value;

use self::place::Place;

const KEY: &str = "0b5cb0a6-5b7e-4c39-9c47-1d0a3f0a7f4e";
const SAID: [&str; 4] = ["--who", "ann", "--why", "not in the provider's log"];

/// Two looks at one record differ in how long ago things were.
fn without_ages(shown: &str) -> String {
    let (mut text, mut rest) = (String::new(), shown);
    while let Some((before, after)) = rest.split_once("Z (") {
        let (_age, after) = after.split_once(" ago)").expect("an age");
        text += before;
        rest = after;
    }
    text + rest
}

/// What `billing` does with `charge_card` for `alice`.
struct Billing<S> {
    engine: Engine<S>,
    policy: Arc<Policy>,
}

impl<S: Store> Billing<S> {
    fn new(store: S) -> Self {
        Self::with_secret(store, None)
    }

    fn with_secret(store: S, secret: Option<Secret>) -> Self {
        let mut builder = Engine::builder("billing", store);
        if let Some(secret) = secret {
            builder = builder.with_secret(secret);
        }
        let mut policy = Policy::default();
        policy.on_error = OnError::InDoubt;
        Self {
            engine: builder.build(),
            policy: Arc::new(policy),
        }
    }

    fn id(&self, key: &str) -> RecordId {
        self.identity(key).id
    }

    fn identity(&self, key: &str) -> Identity {
        let key = IdempotencyKey::new(key).unwrap();
        let arguments = CanonicalArguments::new(None, &[]);
        self.engine
            .identify(&Scope::new("alice"), Some(&key), "charge_card", &arguments)
    }

    async fn attempt(&self, key: &str) -> LeaseAttempt<S> {
        let call = CallInfo::new("charge_card", Scope::new("alice"));
        let request = Request::new(call, self.identity(key), &self.policy);
        match self.engine.begin_lease(request).await {
            Begun::Attempt(attempt) => attempt,
            other => panic!("expected an attempt, found {other:?}"),
        }
    }

    /// Its handler could not tell whether it acted. Returns the key that it passed on.
    async fn leave_in_doubt(&self, key: &str) -> String {
        let mut attempt = self.attempt(key).await;
        let passed_on = attempt.handle().downstream_key("charge").to_string();
        attempt.run(async {}).await.expect("no panic");
        attempt.finish(&TimedOut).await;
        passed_on
    }
}

/// What the outside call came to.
struct TimedOut;

impl HandlerResult for TimedOut {
    fn kind(&self) -> ResultKind {
        ResultKind::ProtocolError
    }

    fn encode(&self) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Bytes::from_static(b"timed out"))
    }
}

async fn on_call<S: Store>(place: &Place, store: S) {
    let billing = Billing::new(store);
    let passed_on = billing.leave_in_doubt(KEY).await;
    billing.leave_in_doubt("another key").await;
    let id = billing.id(KEY).to_string();

    // Found by the key alone, which is not stored.
    let found = place.json(&["records", "ls", "--key", KEY]);
    assert_eq!(found.as_array().unwrap().len(), 1, "{found}");
    assert_eq!(found[0]["id"], id);
    assert_eq!(found[0]["application"], "billing");
    assert_eq!(found[0]["scope"], "alice");
    let nothing = place.json(&["records", "ls", "--key", "0b5cb0a6 and another end"]);
    assert_eq!(nothing, Value::Array(Vec::new()));
    for (filters, expected) in [
        (vec!["--state", "in-doubt"], 2),
        (vec!["--state", "completed"], 0),
        (
            vec![
                "--application",
                "billing",
                "--scope",
                "alice",
                "--tool",
                "charge_card",
            ],
            2,
        ),
        (vec!["--application", "shipping"], 0),
        (vec!["--scope", "bob"], 0),
        (vec!["--key-prefix", "0b5c"], 1),
        (vec!["--newer-than", "1h"], 2),
        (vec!["--older-than", "1h"], 0),
        (vec!["--limit", "1"], 1),
    ] {
        let found = place.json(&[&["records", "ls"], &filters[..]].concat());
        assert_eq!(found.as_array().unwrap().len(), expected, "{filters:?}");
    }
    let table = place.run(&["records", "ls"]);
    for cell in [
        "in_doubt",
        "charge_card",
        "0b5cb0a6…",
        "billing",
        "alice",
        &id,
    ] {
        assert!(table.out.contains(cell), "{}", table.out);
    }
    assert!(!table.out.contains(KEY));

    let shown = place.run(&["records", "show", &id, "--step", "charge"]);
    assert_eq!(shown.code, 0, "{shown:?}");
    assert!(shown.out.contains(&passed_on), "{}", shown.out);
    assert!(shown.out.contains("What to do"), "{}", shown.out);
    // What it says to type finds the store as it was found here.
    let resolve = format!("records resolve {id} --store ");
    assert!(shown.out.contains(&resolve), "{}", shown.out);
    assert!(!shown.out.contains("postgres://"), "{}", shown.out);
    // As the log shows it.
    let by_beginning = place.run(&["records", "show", &id[..8], "--step", "charge"]);
    assert_eq!(without_ages(&by_beginning.out), without_ages(&shown.out));
    let of_nobody = place.run(&["records", "show", "00000000"]);
    assert_eq!(of_nobody.code, 3, "{of_nobody:?}");
    let as_json = place.json(&["records", "show", &id, "--step", "charge"]);
    assert_eq!(as_json["downstreamKeys"]["charge"], passed_on);
    let token = as_json["token"].to_string();

    let resolve = [
        &[
            "records",
            "resolve",
            &id,
            "--not-committed",
            "--token",
            &token,
        ],
        &SAID[..],
    ]
    .concat();
    assert_eq!(place.run(&resolve).code, 0);
    assert_eq!(
        place.run(&resolve).code,
        4,
        "it is no longer as it was seen"
    );
    let resolved = place.json(&["records", "show", &id]);
    assert_eq!(resolved["resolved"]["by"], "ann");
    assert_eq!(resolved["resolved"]["as"], "not_committed");
    let unknown = "00".repeat(32);
    assert_eq!(place.run(&["records", "show", &unknown]).code, 3);

    let again = billing.attempt(KEY).await;
    assert_ne!(again.handle().downstream_key("charge").as_str(), passed_on);
}

#[tokio::test]
async fn a_call_in_doubt_is_found_by_its_key_shown_and_resolved_on_sqlite() {
    let (place, store) = Place::sqlite().await;
    on_call(&place, store).await;
}

#[tokio::test]
async fn a_call_in_doubt_is_found_by_its_key_shown_and_resolved_on_postgres() {
    let (place, store) = Place::postgres().await;
    on_call(&place, store).await;
}

#[tokio::test]
async fn a_call_in_doubt_is_found_by_its_key_shown_and_resolved_on_redis() {
    let (place, store) = Place::redis();
    on_call(&place, store).await;
}

#[tokio::test]
async fn a_released_call_runs_again_with_the_same_downstream_key() {
    let (place, store) = Place::sqlite().await;
    let billing = Billing::new(store);
    let passed_on = billing.leave_in_doubt(KEY).await;
    let id = billing.id(KEY).to_string();
    let released = place.run(&[&["records", "release", &id], &SAID[..]].concat());
    assert_eq!(released.code, 0, "{released:?}");
    let again = billing.attempt(KEY).await;
    assert_eq!(again.handle().downstream_key("charge").as_str(), passed_on);
}

#[tokio::test]
async fn a_call_resolved_with_a_result_is_replayed_with_it() {
    let (place, store) = Place::sqlite().await;
    let billing = Billing::new(store);
    billing.leave_in_doubt(KEY).await;
    let id = billing.id(KEY).to_string();
    let result = place.write(
        "result.json",
        r#"{"content": [{"type": "text", "text": "paid"}]}"#,
    );
    let arguments = [
        "records",
        "resolve",
        &id,
        "--committed",
        "--result",
        &result,
    ];
    let resolved = place.run(&[&arguments, &SAID[..]].concat());
    assert_eq!(resolved.code, 0, "{resolved:?}");
    let shown = place.json(&["records", "show", &id]);
    assert_eq!(shown["state"], "completed");
    assert_eq!(shown["result"]["content"][0]["text"], "paid");
    let wrong = place.write("wrong.json", r#"{"text": "paid"}"#);
    let arguments = ["records", "resolve", &id, "--committed", "--result", &wrong];
    assert_eq!(place.run(&[&arguments, &SAID[..]].concat()).code, 1);
}

#[tokio::test]
async fn a_downstream_key_is_not_shown_under_the_wrong_secret() {
    let (place, store) = Place::sqlite().await;
    let secret = "a secret of the application";
    let billing = Billing::with_secret(store, Some(Secret::new(secret).unwrap()));
    let passed_on = billing.leave_in_doubt(KEY).await;
    let id = billing.id(KEY).to_string();
    let show = ["records", "show", &id, "--step", "charge"];
    let refused = place.run(&show);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.err.contains("--secret-file"), "{}", refused.err);
    let file = place.write("secret", &format!("{secret}\n"));
    let shown = place.run(&[&show[..], &["--secret-file", &file]].concat());
    assert!(shown.out.contains(&passed_on), "{shown:?}");
    let found = place.json(&["records", "ls", "--key", KEY, "--secret-file", &file]);
    assert_eq!(found.as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_sweep_tells_how_many_records_it_removed() {
    let (place, store) = Place::sqlite().await;
    let billing = Billing::new(store);
    for key in ["one", "two"] {
        billing.leave_in_doubt(key).await;
    }
    place
        .execute("UPDATE mcp_idempotent_record SET expires_at = 1, purge_at = 1, sweep_at = 1 WHERE tool = 'charge_card'")
        .await;
    assert_eq!(place.json(&["records", "sweep"])["removed"], 2);
    assert_eq!(place.json(&["records", "sweep"])["removed"], 0);
}

#[tokio::test]
async fn migrate_makes_the_tables_and_a_dry_run_only_tells_how() {
    for place in [Place::empty_sqlite(), Place::empty_postgres()] {
        let told = place.run(&["migrate", "--dry-run"]);
        assert!(told.out.contains("CREATE TABLE"), "{told:?}");
        assert_ne!(place.run(&["doctor"]).code, 0, "nothing was created");
        assert_eq!(place.run(&["migrate"]).code, 0);
        assert_eq!(place.run(&["migrate"]).code, 0, "it may run again");
        let doctor = place.run(&["doctor"]);
        assert_eq!(doctor.code, 0, "{doctor:?}");
    }
}

#[tokio::test]
async fn a_wrong_command_says_what_to_type() {
    let nowhere = Place::nowhere();
    let unnamed = nowhere.run(&["records", "ls"]);
    assert_eq!(unnamed.code, 2, "{unnamed:?}");
    assert!(unnamed.err.contains("--store"), "{}", unnamed.err);
    let (place, _) = Place::sqlite().await;
    let id = "00".repeat(32);
    let silent = place.run(&["records", "resolve", &id, "--committed"]);
    assert_eq!(silent.code, 2, "{silent:?}");
    assert!(silent.err.contains("--who"), "{}", silent.err);
    let short = place.run(&["records", "show", "3f1c"]);
    assert!(
        short.code == 2 && short.err.contains("at least the first 8"),
        "{short:?}"
    );
    let help = place.run(&["records", "resolve", "--help"]);
    assert!(help.out.contains("--not-committed"), "{help:?}");
}
