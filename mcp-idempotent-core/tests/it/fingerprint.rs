//! Record ids, fingerprints, secrets.

use std::collections::HashSet;

use mcp_idempotent_core::{
    Application, CanonicalArguments, Fingerprint, IdempotencyKey, Identity, KeyKind, Scope, Secret,
};
use proptest::prelude::*;
use serde_json::Map;

use crate::golden::{text, vectors};

const GOLDEN: &str = include_str!("../golden/identity.json");

const SECRET: &str = "0123456789abcdef";

/// One call; `None` for a derived key.
#[derive(Debug, Clone, PartialEq)]
struct Call {
    application: String,
    scope: String,
    key: Option<String>,
    tool: String,
    arguments: String,
    secret: Option<String>,
}

impl Call {
    fn new(key: Option<&str>) -> Self {
        Self {
            application: "billing".into(),
            scope: "alice".into(),
            key: key.map(Into::into),
            tool: "charge_card".into(),
            arguments: r#"{"cents":100}"#.into(),
            secret: None,
        }
    }

    fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut changed = self.clone();
        change(&mut changed);
        changed
    }

    fn identity(&self) -> Identity {
        let arguments: Map<_, _> = serde_json::from_str(&self.arguments).unwrap();
        Identity::new(
            &Application::new(self.application.as_str()),
            &Scope::new(self.scope.as_str()),
            self.key.as_deref().map(key).as_ref(),
            &self.tool,
            &CanonicalArguments::new(Some(&arguments), &[]),
            self.secret.as_deref().map(secret).as_ref(),
        )
    }
}

fn key(key: &str) -> IdempotencyKey {
    IdempotencyKey::new(key).unwrap()
}

fn secret(secret: &str) -> Secret {
    Secret::new(secret).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// **A change of an expected value is a visible decision**: stored records are found by these ids
/// and judged by these fingerprints, so under changed ones every retry would run again. The
/// vectors were made from the description in `docs/stored-format.md`, not by this code.
#[test]
fn ids_and_fingerprints_are_frozen() {
    for vector in vectors(GOLDEN, "identities") {
        let optional = |name: &str| vector[name].as_str().map(str::to_owned);
        let call = Call {
            application: text(&vector, "application").into(),
            scope: text(&vector, "scope").into(),
            key: optional("key"),
            tool: text(&vector, "tool").into(),
            arguments: text(&vector, "arguments").into(),
            secret: optional("secret"),
        };
        let identity = call.identity();
        assert_eq!(hex(identity.id.as_bytes()), text(&vector, "id"), "{call:?}");
        let fingerprint = hex(&identity.fingerprint.to_stored());
        assert_eq!(fingerprint, text(&vector, "fingerprint"), "{call:?}");
    }
}

/// See above: a store that holds a check value would refuse to start.
#[test]
fn check_values_are_frozen() {
    for vector in vectors(GOLDEN, "secrets") {
        let secret = secret(text(&vector, "secret"));
        assert_eq!(hex(&secret.check_value()), text(&vector, "check_value"));
    }
}

#[test]
fn a_key_is_one_record_whatever_it_is_used_for() {
    let call = Call::new(Some("k"));
    let identity = call.identity();
    for other in [
        call.with(|call| call.tool = "refund".into()),
        call.with(|call| call.arguments = r#"{"cents":101}"#.into()),
    ] {
        assert_eq!(other.identity().id, identity.id);
        assert_ne!(other.identity().fingerprint, identity.fingerprint);
    }
}

#[test]
fn everything_else_makes_another_record() {
    for call in [Call::new(Some("k")), Call::new(None)] {
        let mut others = vec![
            call.clone(),
            call.with(|call| call.application = "ledger".into()),
            call.with(|call| call.scope = "bob".into()),
            call.with(|call| call.key = Some("other".into())),
            call.with(|call| call.secret = Some(SECRET.into())),
            call.with(|call| call.secret = Some(SECRET.repeat(2))),
        ];
        if call.key.is_none() {
            others.push(call.with(|call| call.tool = "refund".into()));
            others.push(call.with(|call| call.arguments = r#"{"cents":101}"#.into()));
        }
        let identities: Vec<_> = others.iter().map(Call::identity).collect();
        let ids: HashSet<_> = identities.iter().map(|identity| identity.id).collect();
        let fingerprints: HashSet<_> = identities
            .iter()
            .map(|identity| identity.fingerprint)
            .collect();
        assert_eq!(
            (ids.len(), fingerprints.len()),
            (others.len(), others.len())
        );
    }
}

#[test]
fn an_id_is_no_fingerprint() {
    for call in [Call::new(Some("k")), Call::new(None)] {
        let identity = call.identity();
        assert_ne!(
            identity.id.as_bytes()[..],
            identity.fingerprint.to_stored()[1..]
        );
    }
}

#[test]
fn the_key_is_told_by_kind_and_prefix_only() {
    let explicit = Call::new(Some("0123456789")).identity();
    assert_eq!(explicit.kind, KeyKind::Explicit);
    assert_eq!(explicit.key_prefix.as_deref(), Some("01234567"));
    let derived = Call::new(None).identity();
    assert_eq!(derived.kind, KeyKind::Derived);
    assert_eq!(derived.key_prefix, None);
}

#[test]
fn a_fingerprint_survives_being_stored() {
    let fingerprint = Call::new(Some("k")).identity().fingerprint;
    let stored = fingerprint.to_stored();
    assert_eq!(stored[0], CanonicalArguments::VERSION);
    assert_eq!(fingerprint.version(), CanonicalArguments::VERSION);
    assert_eq!(Fingerprint::from_stored(&stored), Some(fingerprint));

    let mut of_another_version = stored;
    of_another_version[0] += 1;
    assert_ne!(
        Fingerprint::from_stored(&of_another_version),
        Some(fingerprint)
    );
    for malformed in [&[] as &[u8], &stored[..32], &[0; 34]] {
        assert_eq!(Fingerprint::from_stored(malformed), None);
    }
}

#[test]
fn short_secrets_are_refused_with_advice() {
    assert!(Secret::new([0; Secret::MIN_LENGTH]).is_ok());
    let refused = Secret::new("0123456789abcde").unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the secret has 15 bytes; use at least 16 bytes from a random source, \
         such as the output of `openssl rand -hex 32`"
    );
}

#[test]
fn debug_shows_nothing_of_a_secret_and_little_of_a_hash() {
    assert_eq!(format!("{:?}", secret(SECRET)), "Secret(…)");
    let refused = format!("{:?}", Secret::new("hunter2").unwrap_err());
    assert!(!refused.contains("hunter2"), "{refused}");

    let identity = Call::new(Some("k")).identity();
    let id = hex(identity.id.as_bytes());
    assert_eq!(
        format!("{:?}", identity.id),
        format!("RecordId({}…)", &id[..8])
    );
}

#[test]
fn check_values_tell_secrets_apart() {
    let one = secret(SECRET);
    assert_eq!(one.check_value(), one.clone().check_value());
    assert_ne!(one.check_value(), secret("0123456789abcdeF").check_value());
}

fn call() -> impl Strategy<Value = Call> {
    let text = || "[ab\\x00\\x01]{0,3}|explicit|derived";
    let arguments = prop::sample::select(vec!["{}", r#"{"a":"b"}"#, r#"{"ab":""}"#]);
    let secret = prop::option::of(prop::sample::select(vec![SECRET, "0123456789abcdeF"]));
    (
        text(),
        text(),
        prop::option::of("[ab]{1,3}"),
        text(),
        arguments,
        secret,
    )
        .prop_map(|(application, scope, key, tool, arguments, secret)| Call {
            application,
            scope,
            key,
            tool,
            arguments: arguments.into(),
            secret: secret.map(Into::into),
        })
}

proptest! {
    #[test]
    fn fields_do_not_run_into_each_other(one in call(), other in call()) {
        let same_record = match (&one.key, &other.key) {
            (Some(_), Some(_)) => one == other.with(|call| {
                call.tool.clone_from(&one.tool);
                call.arguments.clone_from(&one.arguments);
            }),
            _ => one == other,
        };
        let (identity, against) = (one.identity(), other.identity());
        prop_assert_eq!(identity.id == against.id, same_record);
        prop_assert_eq!(identity.fingerprint == against.fingerprint, one == other);
    }

    #[test]
    fn moving_text_between_fields_makes_another_record(text in "[a-c]{2,12}", cuts in any::<[prop::sample::Index; 2]>()) {
        let split = |cut: prop::sample::Index| {
            let (application, scope) = text.split_at(cut.index(text.len() + 1));
            Call::new(Some("k")).with(|call| {
                call.application = application.into();
                call.scope = scope.into();
            })
        };
        let (one, other) = (split(cuts[0]), split(cuts[1]));
        prop_assert_eq!(one.identity().id == other.identity().id, one == other);
    }
}
