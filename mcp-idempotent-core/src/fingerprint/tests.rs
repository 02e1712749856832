//! Ids of the engine's own records, which no public function computes. If one of them changed, processes of
//! two versions would not find each other's records.

use serde_json::Value;

use super::{CheckRecord, Identity, RecordId, Secret};
use crate::{
    canonical::CanonicalArguments,
    key::IdempotencyKey,
    scope::{Application, Scope},
};

const GOLDEN: &str = include_str!("../../tests/golden/own_records.json");

/// Compares the ids of a list, each with the one that `id` computes.
fn assert_frozen(list: &str, id: impl Fn(&Value) -> RecordId) {
    let golden: Value = serde_json::from_str(GOLDEN).unwrap();
    let vectors = golden[list].as_array().unwrap();
    assert!(!vectors.is_empty());
    for vector in vectors {
        assert_eq!(id(vector).to_string(), text(vector, "id"), "{vector}");
    }
}

fn text<'a>(vector: &'a Value, name: &str) -> &'a str {
    vector[name].as_str().unwrap()
}

fn number(vector: &Value, name: &str) -> u64 {
    vector[name].as_u64().unwrap()
}

#[test]
fn the_ids_of_check_records_are_frozen() {
    assert_frozen("check_records", |vector| {
        let number = number(vector, "number");
        let record = match text(vector, "kind") {
            "secret" => CheckRecord::Secret(number),
            "successor" => CheckRecord::Successor(number),
            _ => CheckRecord::Unaware(number),
        };
        record.id(&Application::new(text(vector, "application")))
    });
}

#[test]
fn the_ids_of_guard_witnesses_are_frozen() {
    assert_frozen("witnesses", |vector| {
        let token = i64::try_from(number(vector, "token")).unwrap();
        RecordId::of_guard_witness(text(vector, "guarded").parse().unwrap(), token)
    });
}

#[test]
fn the_ids_of_tickets_are_frozen() {
    assert_frozen("tickets", |vector| {
        let secret = vector["secret"].as_str();
        let secret = secret.map(|secret| Secret::new(secret).unwrap());
        RecordId::of_ticket(
            &Application::new(text(vector, "application")),
            &Scope::new(text(vector, "scope")),
            u32::try_from(number(vector, "number")).unwrap(),
            secret.as_ref(),
        )
    });
}

#[test]
fn the_id_of_the_trace_of_the_last_sweep_is_frozen() {
    assert_frozen("last_sweep", |_| RecordId::of_last_sweep());
}

#[test]
fn the_records_that_equal_calls_share_are_frozen() {
    assert_frozen("equal_calls", |vector| {
        let application = Application::new(text(vector, "application"));
        let scope = Scope::new(text(vector, "scope"));
        let key = IdempotencyKey::new(text(vector, "key")).unwrap();
        let tool = text(vector, "tool");
        let arguments: Value = serde_json::from_str(text(vector, "arguments")).unwrap();
        let arguments = CanonicalArguments::new(arguments.as_object(), &[]);
        let secret = vector["secret"].as_str();
        let secret = secret.map(|secret| Secret::new(secret).unwrap());
        let (key, secret) = (Some(&key), secret.as_ref());
        let identity = Identity::new(&application, &scope, key, tool, &arguments, secret);
        let identity = identity.with_equal_calls(&application, &scope, tool, &arguments, secret);
        let equal = identity.equal.unwrap();
        let fingerprint = equal.fingerprint.to_stored();
        let hex: String = fingerprint
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(hex, text(vector, "fingerprint"), "{vector}");
        equal.id
    });
}
