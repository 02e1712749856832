//! What is logged, in a process of its own: the SQL drivers log from threads that only a
//! subscriber of the whole process sees.

use std::{process::Command, sync::Arc};

use mcp_idempotent_core::{
    Begun, CallInfo, CanonicalArguments, Engine, IdempotencyKey, MemoryStore, OnError, Policy,
    Request, ResultKind, Scope, Secret, Store,
};

use super::Reply;

const KEY: &str = "0aKEYbcdefgh-nobody-may-see-the-rest-of-it";
const ARGUMENT: &str = "SECRET-ARGUMENT";
const SCOPE: &str = "SECRET-SCOPE";
const SECRET: &str = "SECRET-OF-THE-SERVER-0123456789abcdef";
const TOOL: &str = "charge-of-this-test";

/// Set in the process whose output is looked at.
const CHILD: &str = "MCP_IDEMPOTENT_TEST_OF_LOGS";

fn engine<S: Store>(store: S) -> Engine<S> {
    Engine::builder("application-of-this-test", store)
        .with_secret(Secret::new(SECRET).unwrap())
        .build()
}

/// A call with a key, or without one.
fn request<'a, S: Store>(
    engine: &Engine<S>,
    key: Option<&str>,
    policy: &'a Arc<Policy>,
) -> Request<'a> {
    let arguments = serde_json::json!({ "card": ARGUMENT, "amount": 1 });
    let arguments = CanonicalArguments::new(arguments.as_object(), &[]);
    let scope = Scope::new(SCOPE);
    let key = key.map(|key| IdempotencyKey::new(key).unwrap());
    let identity = engine.identify(&scope, key.as_ref(), TOOL, &arguments);
    Request::new(CallInfo::new(TOOL, scope), identity, policy)
}

async fn under_leases<S: Store>(engine: &Engine<S>, policy: &Arc<Policy>) {
    for key in [None, Some(KEY), Some("0aKEYbcd-another-one")] {
        for kind in [ResultKind::Success, ResultKind::Interrupted] {
            if let Begun::Attempt(mut attempt) =
                engine.begin_lease(request(engine, key, policy)).await
            {
                let ran = attempt
                    .run(async { tracing::info!("in the handler") })
                    .await;
                ran.unwrap();
                attempt.finish(&Reply::new(kind, "one")).await;
            }
        }
    }
    // One in doubt, one that is dropped.
    for kind in [ResultKind::Interrupted, ResultKind::Success] {
        let key = format!("{KEY}-{kind:?}");
        let begun = engine
            .begin_lease(request(engine, Some(&key), policy))
            .await;
        if let Begun::Attempt(attempt) = begun
            && kind == ResultKind::Interrupted
        {
            attempt.finish(&Reply::new(kind, "")).await;
        }
        engine
            .begin_lease(request(engine, Some(&key), policy))
            .await;
    }
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
async fn in_transactions<S>(engine: &Engine<S>, policy: &Arc<Policy>)
where
    S: mcp_idempotent_core::TransactionStore,
{
    for key in [None, Some("0aKEYbcd-in-a-transaction")] {
        for kind in [
            ResultKind::Interrupted,
            ResultKind::ErrorResult,
            ResultKind::Success,
            ResultKind::Success,
        ] {
            let request = request(engine, key, policy);
            if let Ok((transaction, attempt)) = engine.begin_transaction(request).await {
                let ran = attempt
                    .run(async { tracing::info!("in the handler") })
                    .await;
                ran.unwrap();
                let reply = Reply::new(kind, "one");
                attempt.finish(Some(transaction), &reply).await;
            }
        }
    }
}

/// Makes calls on every store that is compiled in.
async fn calls() {
    let mut policy = Policy::default();
    policy.on_error = OnError::InDoubt;
    let policy = Arc::new(policy);
    under_leases(&engine(MemoryStore::new()), &policy).await;
    #[cfg(feature = "sqlite")]
    {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("data.db");
        let store = mcp_idempotent_core::store::sqlite::SqliteStore::open(&path)
            .await
            .unwrap();
        let engine = engine(store);
        in_transactions(&engine, &policy).await;
        under_leases(&engine, &policy).await;
        engine.store().close().await;
    }
    #[cfg(feature = "postgres")]
    {
        let database = crate::postgres::database::Database::new().await;
        let engine = engine(database.another_process(|builder| builder));
        in_transactions(&engine, &policy).await;
        under_leases(&engine, &policy).await;
    }
}

/// The same module path for both processes.
const THIS: &str =
    "engine::logs::logs_show_eight_characters_of_a_key_and_nothing_of_what_is_secret";

#[test]
fn logs_show_eight_characters_of_a_key_and_nothing_of_what_is_secret() {
    if std::env::var_os(CHILD).is_some() {
        tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
            .with_span_events(tracing_subscriber::fmt::format::FmtSpan::FULL)
            .with_ansi(false)
            .with_writer(std::io::stderr)
            .init();
        tokio::runtime::Runtime::new().unwrap().block_on(calls());
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", THIS, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let logged = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{printed}\n{logged}");
    assert!(printed.contains("1 passed"), "{printed}");

    // The looking glass works: it sees the span, the handler in it, and what the drivers log.
    for expected in [
        "idempotent_call{",
        TOOL,
        "application-of-this-test",
        r#"mode="lease""#,
        r#"key_kind="explicit""#,
        r#"key_kind="derived""#,
        "record=",
        r#"outcome="executed""#,
        r#"outcome="in_doubt""#,
    ] {
        assert!(logged.contains(expected), "not there: {expected}\n{logged}");
    }
    let handler = logged
        .lines()
        .find(|line| line.ends_with("in the handler"))
        .unwrap();
    assert!(handler.contains("idempotent_call{"), "{handler}");
    if cfg!(any(feature = "sqlite", feature = "postgres")) {
        assert!(logged.contains("sqlx::query"), "{logged}");
        assert!(logged.contains(r#"mode="transaction""#), "{logged}");
    }

    let eight = &KEY[..8];
    assert!(logged.contains(&format!(r#"key_prefix="{eight}""#)));
    for line in logged.lines().chain(printed.lines()) {
        for (at, _) in line.match_indices(eight) {
            let next = line[at + 8..].chars().next();
            assert!(
                next.is_none_or(|next| !KEY[8..].starts_with(next) && next != '-'),
                "more than eight characters of a key: {line}"
            );
        }
        // The driver shows its statements, and the stored scope is in them.
        let by_driver = line.contains("sqlx::query");
        let scope = (!by_driver).then_some(SCOPE);
        for secret in [ARGUMENT, SECRET].into_iter().chain(scope) {
            for hidden in [secret.to_owned(), hex(secret)] {
                assert!(!line.contains(&hidden), "{secret}: {line}");
            }
        }
        assert!(!line.contains(&hex(&KEY[..9])), "{line}");
    }
}

/// As a dump of bytes would show it.
fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}
