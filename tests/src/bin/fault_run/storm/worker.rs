//! A process that makes calls.

use std::{
    io::Write as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use mcp_idempotent_tower::{
    IdempotencyKey, Policy, Scope,
    core::{
        Answer, Begun, Bytes, CallInfo, CanonicalArguments, Engine, ErrorKind, HandlerResult,
        Request, ResultKind,
    },
    store::postgres::PostgresStore,
};
use sqlx::{PgPool, postgres::PgPoolOptions};
use tokio::io::{AsyncBufReadExt as _, BufReader, stdin};

const PATIENCE: Duration = Duration::from_secs(2);

struct Process {
    engine: Engine<PostgresStore>,
    /// For effects outside the transaction.
    outside: PgPool,
    runs: AtomicU64,
}

/// What a handler returned: the number of its run, or an error.
struct Ran(Option<String>);

impl HandlerResult for Ran {
    fn kind(&self) -> ResultKind {
        match self.0 {
            Some(_) => ResultKind::Success,
            None => ResultKind::ProtocolError,
        }
    }

    fn encode(&self) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Bytes::from(self.0.clone().unwrap_or_default()))
    }
}

/// Makes the calls whose numbers come in, until the input ends, and says what each was told.
pub(crate) async fn work(url: &str) {
    let options = url.parse().expect("a URL");
    let store = PostgresStore::builder_with(options)
        .with_answer_timeout(PATIENCE)
        .with_recovery_timeout(PATIENCE)
        .with_acquire_timeout(PATIENCE)
        .build()
        .expect("settings");
    let outside = PgPoolOptions::new()
        .max_connections(4)
        .acquire_timeout(PATIENCE)
        .connect_lazy(url)
        .expect("a URL");
    let process = Arc::new(Process {
        engine: Engine::new("faults", store),
        outside,
        runs: AtomicU64::new(0),
    });
    let mut lines = BufReader::new(stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let call: u64 = line.parse().expect("a number");
        let process = Arc::clone(&process);
        drop(tokio::spawn(async move {
            let told = process.until_answered(call).await;
            // In one piece, so that a kill leaves no half of a line.
            let line = format!("{call} {told}\n");
            std::io::stdout()
                .write_all(line.as_bytes())
                .expect("a pipe");
        }));
    }
}

impl Process {
    async fn until_answered(&self, call: u64) -> String {
        loop {
            let run = format!(
                "{}-{}",
                std::process::id(),
                self.runs.fetch_add(1, Ordering::Relaxed)
            );
            let answer = if call % 4 == 3 {
                self.outside(call, &run).await
            } else {
                self.inside(call, &run).await
            };
            match answer {
                Some(Answer::Executed) => return format!("done {run}"),
                Some(Answer::Replayed(replay)) => {
                    let result = String::from_utf8_lossy(&replay.response);
                    return format!("done {result}");
                }
                // Its result was not kept, and the next one is told so.
                Some(Answer::Unrecorded) => return format!("unrecorded {run}"),
                Some(Answer::Refused(refusal)) if refusal.kind() == ErrorKind::OutcomeUnknown => {
                    // Transaction mode finds out, once the server is back.
                    if call % 4 == 3 {
                        return "unknown".to_owned();
                    }
                }
                Some(Answer::LeftInDoubt(_)) => return "unknown".to_owned(),
                Some(Answer::Refused(_)) | None => {}
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn request(&self, call: u64, tool: &'static str) -> Request<'static> {
        static POLICY: std::sync::LazyLock<Arc<Policy>> = std::sync::LazyLock::new(|| {
            let mut policy = Policy::default();
            policy.lease = Duration::from_secs(3);
            Arc::new(policy)
        });
        let scope = Scope::new("faults");
        let key = IdempotencyKey::new(call.to_string()).expect("a valid key");
        let arguments = CanonicalArguments::new(None, &[]);
        let identity = self.engine.identify(&scope, Some(&key), tool, &arguments);
        Request::new(CallInfo::new(tool, scope), identity, &POLICY)
    }

    /// In transaction mode. `None`: the handler itself failed.
    async fn inside(&self, call: u64, run: &str) -> Option<Answer> {
        let begun = self.engine.begin_transaction(self.request(call, "inside"));
        let (mut transaction, attempt) = match begun.await {
            Ok(begun) => begun,
            Err(answer) => return Some(answer),
        };
        let ran = attempt.run(async {
            let written = write(call, run).execute(&mut *transaction).await;
            tokio::time::sleep(Duration::from_millis(call % 5)).await;
            written
        });
        let ran = Ran(matches!(ran.await, Ok(Ok(_))).then(|| run.to_owned()));
        let answer = attempt.finish(Some(transaction), &ran).await;
        // The result of a handler that failed is the answer too.
        (ran.0.is_some() || !matches!(answer, Answer::Executed)).then_some(answer)
    }

    /// In lease mode.
    async fn outside(&self, call: u64, run: &str) -> Option<Answer> {
        let mut attempt = match self.engine.begin_lease(self.request(call, "outside")).await {
            Begun::Answer(answer) => return Some(answer),
            Begun::Attempt(attempt) => attempt,
            Begun::FailOpen => unreachable!("not asked for"),
        };
        let ran = attempt.run(async { write(call, run).execute(&self.outside).await });
        let ran = Ran(matches!(ran.await, Ok(Ok(_))).then(|| run.to_owned()));
        let answer = attempt.finish(&ran).await;
        (ran.0.is_some() || !matches!(answer, Answer::Executed)).then_some(answer)
    }
}

fn write(
    call: u64,
    run: &str,
) -> sqlx::query::Query<'_, sqlx::Postgres, sqlx::postgres::PgArguments> {
    sqlx::query("INSERT INTO effects VALUES ($1, $2)")
        .bind(i64::try_from(call).expect("a small number"))
        .bind(run)
}
