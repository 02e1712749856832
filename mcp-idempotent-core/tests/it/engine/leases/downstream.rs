//! The keys that a handler passes on.

use std::{collections::HashSet, time::Duration};

use mcp_idempotent_core::{
    Begun, CallInfo, CanonicalArguments, DownstreamKey, Engine, IdempotencyKey, LeaseHandle,
    OnDoubt, OnError, Policy, Record, Request, ResultKind, Scope, Secret, StoreError,
    fingerprint::DownstreamSeed,
    store::{Claim, Claimed, Completion, Lease, LeaseEnd, Reach, Store},
};
use tokio::time::sleep;

use super::{
    super::{Reply, Server},
    HOUR, faulty, seconds,
    store::Faulty,
};
use crate::golden::{text, vectors};

const GOLDEN: &str = include_str!("../../../golden/downstream.json");

/// One call whose handler passes on a key for `step` and then ends in some way.
async fn passes_on(server: &Server<Faulty>, key: Option<&str>, kind: ResultKind) -> DownstreamKey {
    let mut passed_on = None;
    let handler = async |handle: LeaseHandle| {
        passed_on = Some(handle.downstream_key("charge"));
        assert_eq!(passed_on, Some(handle.clone().downstream_key("charge")));
        assert_ne!(passed_on, Some(handle.downstream_key("refund")));
        Reply::new(kind, "…")
    };
    server
        .call_with(server.request(server.identity(key, "{}")), handler)
        .await;
    passed_on.expect("the handler ran")
}

#[tokio::test(start_paused = true)]
async fn it_is_the_same_for_every_attempt_at_one_call() {
    let server = faulty(|policy| policy.on_doubt = OnDoubt::Rerun);
    let mut keys = HashSet::new();
    for _ in 0..3 {
        keys.insert(passes_on(&server, Some("k"), ResultKind::ProtocolError).await);
        sleep(HOUR).await;
    }
    keys.insert(passes_on(&server, Some("k"), ResultKind::Success).await);
    assert_eq!(keys.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn it_is_the_same_over_a_release_for_as_long_as_a_result_would_be_kept() {
    for (key, kept) in [(Some("k"), seconds(600)), (None, seconds(60))] {
        let server = faulty(|policy| {
            policy.on_error = OnError::Release;
            policy.retention = seconds(600);
            policy.window = seconds(60);
        });
        let first = passes_on(&server, key, ResultKind::ProtocolError).await;
        sleep(kept - seconds(1)).await;
        let second = passes_on(&server, key, ResultKind::ProtocolError).await;
        assert_eq!(first, second);
        // Each release keeps it anew.
        sleep(kept - seconds(1)).await;
        let third = passes_on(&server, key, ResultKind::ProtocolError).await;
        assert_eq!(first, third);
        sleep(kept + seconds(1)).await;
        let later = passes_on(&server, key, ResultKind::ProtocolError).await;
        assert_ne!(first, later);
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_the_same_over_the_rounds_of_one_call() {
    let server = faulty(|_| {});
    let asks = passes_on(&server, Some("k"), ResultKind::InputRequired).await;
    let acts = passes_on(&server, Some("k"), ResultKind::Success).await;
    assert_eq!(asks, acts);
}

#[tokio::test(start_paused = true)]
async fn a_first_attempt_that_did_nothing_leaves_nothing_to_go_on_from() {
    let server = faulty(|_| {});
    for kind in [ResultKind::NotExecuted, ResultKind::NotCalled] {
        passes_on(&server, Some("k"), kind).await;
        assert_eq!(server.attempt("k").await.handle().number(), 1, "{kind:?}");
        super::settle().await;
        assert!(
            server
                .engine
                .list(&Default::default())
                .await
                .unwrap()
                .is_empty()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_another_one_once_the_record_has_expired() {
    let server = faulty(|policy| policy.retention = seconds(60));
    let first = passes_on(&server, Some("k"), ResultKind::Success).await;
    sleep(seconds(61)).await;
    assert_ne!(
        first,
        passes_on(&server, Some("k"), ResultKind::Success).await
    );

    let server = faulty(|policy| {
        policy.on_doubt = OnDoubt::Rerun;
        policy.retention = seconds(60);
        policy.window = seconds(60);
        policy.in_doubt_retention = seconds(60);
    });
    let first = passes_on(&server, Some("k"), ResultKind::ProtocolError).await;
    sleep(seconds(61)).await;
    assert_ne!(
        first,
        passes_on(&server, Some("k"), ResultKind::Success).await
    );
}

#[tokio::test(start_paused = true)]
async fn it_is_another_one_after_a_restart_that_forgot_the_call() {
    let first = passes_on(&faulty(|_| {}), Some("k"), ResultKind::Success).await;
    std::thread::sleep(Duration::from_micros(10));
    assert_ne!(
        first,
        passes_on(&faulty(|_| {}), Some("k"), ResultKind::Success).await
    );
}

#[test]
fn it_is_another_one_for_each_call_that_nothing_protects() {
    let keys: HashSet<_> = (0..100)
        .map(|_| {
            let seed = DownstreamSeed::unique();
            assert_eq!(seed.key("a"), seed.key("a"));
            assert_ne!(seed.key("a"), seed.key("b"));
            seed.key("a")
        })
        .collect();
    assert_eq!(keys.len(), 100);
}

/// A store in which every attempt is a third one, of one origin.
struct Fixed(i64);

impl Store for Fixed {
    fn reach(&self) -> Reach {
        Reach::Process
    }
    async fn look_up(&self, _: &Claim) -> Result<Option<Record>, StoreError> {
        Ok(None)
    }
    async fn claim(&self, claim: &Claim) -> Result<Claimed<Lease>, StoreError> {
        let lease = Lease::new(claim.id, self.0.saturating_add(5)).after(self.0, 3);
        Ok(Claimed::New(lease))
    }
    async fn take_over(&self, _: &Claim, _: i64) -> Result<Option<Lease>, StoreError> {
        Ok(None)
    }
    async fn renew(&self, _: &Lease, _: Duration) -> Result<LeaseEnd, StoreError> {
        Ok(LeaseEnd::Fenced)
    }
    async fn complete(&self, _: &Lease, _: Completion) -> Result<LeaseEnd, StoreError> {
        Ok(LeaseEnd::Fenced)
    }
    async fn release(&self, _: &Lease, _: Duration) -> Result<LeaseEnd, StoreError> {
        Ok(LeaseEnd::Fenced)
    }
    async fn abandon(&self, _: &Lease) -> Result<LeaseEnd, StoreError> {
        Ok(LeaseEnd::Fenced)
    }
    async fn has_unsettled(&self, _: Duration) -> Result<bool, StoreError> {
        Ok(false)
    }
    async fn sweep(&self, _: u32) -> Result<u64, StoreError> {
        Ok(0)
    }
}

/// What a downstream key is made from.
#[derive(Clone)]
struct Call {
    application: String,
    scope: String,
    key: Option<String>,
    tool: String,
    arguments: String,
    secret: Option<String>,
    origin: i64,
    step: String,
}

impl Call {
    fn new() -> Self {
        Self {
            application: "billing".into(),
            scope: "alice".into(),
            key: Some("k-1".into()),
            tool: "charge_card".into(),
            arguments: r#"{"cents":100}"#.into(),
            secret: None,
            origin: 7,
            step: "charge".into(),
        }
    }

    fn with(change: impl FnOnce(&mut Self)) -> Self {
        let mut call = Self::new();
        change(&mut call);
        call
    }

    async fn downstream_key(&self) -> String {
        let builder = Engine::builder(self.application.as_str(), Fixed(self.origin));
        let engine = match &self.secret {
            Some(secret) => builder.with_secret(Secret::new(secret.as_str()).unwrap()),
            None => builder,
        }
        .build();
        let arguments: serde_json::Value = serde_json::from_str(&self.arguments).unwrap();
        let key = self
            .key
            .as_deref()
            .map(|key| IdempotencyKey::new(key).unwrap());
        let identity = engine.identify(
            &Scope::new(self.scope.as_str()),
            key.as_ref(),
            &self.tool,
            &CanonicalArguments::new(arguments.as_object(), &[]),
        );
        let call = CallInfo::new(self.tool.as_str(), Scope::new(self.scope.as_str()));
        let policy = Policy::default().into();
        match engine
            .begin_lease(Request::new(call, identity, &policy))
            .await
        {
            Begun::Attempt(attempt) => attempt.handle().downstream_key(&self.step).to_string(),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn downstream_keys_are_frozen() {
    for vector in vectors(GOLDEN, "downstream_keys") {
        let optional = |name: &str| vector[name].as_str().map(str::to_owned);
        let call = Call {
            application: text(&vector, "application").into(),
            scope: text(&vector, "scope").into(),
            key: optional("key"),
            tool: text(&vector, "tool").into(),
            arguments: text(&vector, "arguments").into(),
            secret: optional("secret"),
            origin: vector["origin"].as_i64().unwrap(),
            step: text(&vector, "step").into(),
        };
        assert_eq!(
            call.downstream_key().await,
            text(&vector, "downstream_key"),
            "{vector}"
        );
    }
}

#[tokio::test]
async fn whatever_differs_makes_another_key() {
    let calls = [
        Call::new(),
        Call::with(|call| call.application = "ledger".into()),
        Call::with(|call| call.scope = "bob".into()),
        Call::with(|call| call.key = Some("k-2".into())),
        Call::with(|call| call.key = None),
        Call::with(|call| call.tool = "refund".into()),
        Call::with(|call| call.arguments = r#"{"cents":101}"#.into()),
        Call::with(|call| call.secret = Some("0123456789abcdef".into())),
        Call::with(|call| call.secret = Some("0123456789abcdeF".into())),
        Call::with(|call| call.origin = 8),
        Call::with(|call| call.step = "refund".into()),
        Call::with(|call| call.step = String::new()),
    ];
    let mut keys = HashSet::new();
    for call in &calls {
        keys.insert(call.downstream_key().await);
    }
    assert_eq!(keys.len(), calls.len());
    // A secret is part of the seed, not of the ids alone.
    assert_eq!(
        Call::new().downstream_key().await,
        Call::new().downstream_key().await
    );
}

#[tokio::test]
async fn it_is_a_uuid_of_version_8_that_says_nothing_of_the_call() {
    for number in 0..200 {
        let key = format!("client-key-{number}");
        let call = Call::with(|call| call.key = Some(key.clone()));
        let passed_on = call.downstream_key().await;
        assert_eq!(passed_on.len(), 36);
        let groups: Vec<_> = passed_on.split('-').collect();
        let lengths: Vec<_> = groups.iter().map(|group| group.len()).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        let digits = passed_on.bytes().filter(|byte| *byte != b'-');
        assert!(
            digits
                .clone()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        );
        assert!(groups[2].starts_with('8'), "the version: {passed_on}");
        assert!(
            groups[3].starts_with(['8', '9', 'a', 'b']),
            "the variant: {passed_on}"
        );
        for known in [&key, "client", "alice", "billing", "charge"] {
            assert!(!passed_on.contains(known));
        }
    }
}
