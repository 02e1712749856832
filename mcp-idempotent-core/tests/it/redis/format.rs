//! What is stored, byte for byte: `tests/golden/redis.json`.

use std::collections::BTreeMap;

use mcp_idempotent_core::{
    Application, Audit, IdempotencyKey, Identity, OperatorStore as _, Resolution,
};
use serde_json::Value;

use super::*;
use crate::{
    golden::{text, vectors},
    stores::lease,
};

const GOLDEN: &str = include_str!("../../golden/redis.json");
/// A moment between two steps of one vector is less than this, in microseconds.
const A_SECOND: i64 = 1_000_000;
const TIMES: [&str; 6] = [
    "created_at",
    "lease_until",
    "completed_at",
    "expires_at",
    "purge_at",
    "resolved_at",
];

/// The call of the example in `docs/stored-format.md`.
fn example() -> Claim {
    let arguments = serde_json::json!({"card": "c1", "cents": 100});
    let scope = Scope::new("alice");
    let identity = Identity::new(
        &Application::new("billing"),
        &scope,
        Some(&IdempotencyKey::new("k-1").unwrap()),
        "charge_card",
        &CanonicalArguments::new(arguments.as_object(), &[]),
        None,
    );
    let call = CallInfo::new("charge_card", scope);
    let mut claim = Claim::new(identity.id, identity.fingerprint, call);
    claim.application = Some(Application::new("billing"));
    claim.key_prefix = identity.key_prefix;
    claim
}

async fn make(store: &RedisStore, vector: &Value) {
    let (claim, held) = (example(), lease(store, &example()).await);
    let ended = match text(vector, "after") {
        "claim" => return,
        "complete" => {
            let day = Duration::from_secs(86_400);
            let mut completion = completion(b"done");
            (completion.retention, completion.tombstone) = (day, day);
            store.complete(&held, completion).await
        }
        "abandon" => store.abandon(&held).await,
        "release" => store.release(&held, Duration::from_secs(600)).await,
        "resolve" => {
            let audit = Audit::new("who", "why").unwrap();
            let resolution = Resolution::NotCommitted;
            let resolved = store.resolve(claim.id, held.token, &resolution, &audit);
            resolved.await.unwrap();
            return;
        }
        other => panic!("no such step: {other}"),
    };
    ended.unwrap();
}

/// The fields as the vectors have them: moments relative to the claim, bytes in hex.
fn normalised(fields: BTreeMap<String, Vec<u8>>) -> BTreeMap<String, String> {
    let number = |name: &str| -> Option<i64> {
        String::from_utf8(fields.get(name)?.clone())
            .ok()?
            .parse()
            .ok()
    };
    let begun = number("created_at").expect("every record has it");
    let show = |name: &str, value: &[u8]| match name {
        name if TIMES.contains(&name) => {
            let after = (number(name).expect(name) - begun) / A_SECOND;
            if after == 0 {
                "now".to_owned()
            } else {
                format!("now+{after}s")
            }
        }
        // Both are the clock of the server.
        "token" | "origin" if number(name) == Some(begun) => "token".to_owned(),
        "token" => "resolution".to_owned(),
        "fingerprint" => value.iter().map(|byte| format!("{byte:02x}")).collect(),
        _ => String::from_utf8_lossy(value).into_owned(),
    };
    fields
        .iter()
        // The mark of the last change is random.
        .filter(|(name, _)| *name != "change")
        .map(|(name, value)| (name.clone(), show(name, value)))
        .collect()
}

fn expected(vector: &Value) -> BTreeMap<String, String> {
    let fields = vector["fields"].as_object().expect("fields");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    fields
        .iter()
        .map(|(name, value)| (name.clone(), text(value)))
        .collect()
}

#[tokio::test]
async fn records_are_stored_as_they_always_were() {
    for vector in vectors(GOLDEN, "records") {
        let server = Server::start();
        let mut connection = connect(&server.url()).await;
        make(&store(&server.url()), &vector).await;
        let fields = redis::cmd("HGETALL")
            .arg(record_key(&example()))
            .query_async(&mut connection)
            .await
            .unwrap();
        assert_eq!(normalised(fields), expected(&vector), "{}", vector["after"]);
    }
}

#[tokio::test]
async fn keys_are_named_as_they_always_were() {
    let server = Server::start();
    lease(&store(&server.url()), &example()).await;
    let mut found: Vec<String> = redis::cmd("KEYS")
        .arg("*")
        .query_async(&mut connect(&server.url()).await)
        .await
        .unwrap();
    let mut expected: Vec<_> = vectors(GOLDEN, "keys")
        .iter()
        .map(|key| key.as_str().expect("a key").to_owned())
        .collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

#[tokio::test]
async fn stored_records_are_read_as_they_always_were() {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let now = i64::try_from(now.as_micros()).unwrap();
    for vector in vectors(GOLDEN, "records") {
        let server = Server::start();
        let mut plant = redis::cmd("HSET");
        plant.arg(record_key(&example()));
        for (name, value) in expected(&vector) {
            let seconds = value
                .strip_prefix("now+")
                .and_then(|it| it.strip_suffix('s'));
            let value = match (&*value, seconds) {
                (_, Some(seconds)) => {
                    let after: i64 = seconds.parse().unwrap();
                    (now + after * A_SECOND).to_string().into_bytes()
                }
                ("now" | "token" | "resolution", _) => now.to_string().into_bytes(),
                _ if name == "fingerprint" => example().fingerprint.to_stored().to_vec(),
                _ => value.into_bytes(),
            };
            plant.arg(name).arg(value);
        }
        let mut connection = connect(&server.url()).await;
        plant.query_async::<()>(&mut connection).await.unwrap();
        let info = store(&server.url()).show(example().id).await.unwrap();
        let info = info.expect("a record");
        assert_eq!(info.status.as_str(), text(&vector, "status"));
        assert_eq!((&*info.tool, info.token), ("charge_card", now));
        assert_eq!(
            info.response.is_some(),
            text(&vector, "after") == "complete"
        );
        assert_eq!(info.resolved.is_some(), text(&vector, "after") == "resolve");
    }
}
