//! A relay between sqlx and the server, which counts turns, loses answers and forgets prepared
//! statements as a pooler does.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use mcp_idempotent_core::store::postgres::PostgresStoreBuilder;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};

use super::database::Database;

/// What to do with the next message that asks for a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// Both sides see the connection end; the server never sees the message.
    BeforeTheServer,
    /// The server does as asked; its answer is lost.
    AfterTheServer,
    /// The client sees the connection end; the server's side stays open, without the message.
    OnTheClientsSideOnly,
    /// The client sees the connection end; the server has the message and is at work.
    WhileTheServerWorks,
    /// The server is as if paused: it gets the message when the test lets it go.
    Hold,
    /// The client gets an error that no server gave.
    Lie(Lie),
}

/// An error that a pooler makes up, in place of the server's answer to a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lie {
    /// `FATAL` ends the connection as well.
    pub(super) severity: &'static str,
    pub(super) code: &'static str,
    pub(super) of: LieOf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LieOf {
    /// The server did as asked, and all of its answer before the last statement's is passed on.
    LastAnswer,
    /// The server did as asked, and nothing of its answer is passed on.
    WholeAnswer,
    /// The server never saw the message.
    Request,
}

impl Lie {
    fn ends_connection(self) -> bool {
        self.severity == "FATAL"
    }

    fn message(self) -> Vec<u8> {
        let mut fields = Vec::new();
        for (field, value) in [
            (b'S', self.severity),
            (b'V', self.severity),
            (b'C', self.code),
            (b'M', "made up by a pooler"),
        ] {
            fields.push(field);
            fields.extend_from_slice(value.as_bytes());
            fields.push(0);
        }
        fields.push(0);
        let length = u32::try_from(fields.len() + 4).unwrap();
        [&b"E"[..], &length.to_be_bytes(), &fields].concat()
    }

    /// What the client gets, where the server's answer was `answer`.
    fn told(self, answer: &[u8]) -> Vec<u8> {
        let mut rest = answer.to_vec();
        let mut started = true;
        let messages: Vec<_> =
            std::iter::from_fn(|| next_message(&mut rest, &mut started)).collect();
        let last = messages.iter().rposition(|message| message[0] == b'C');
        let mut told = Vec::new();
        if self.of == LieOf::LastAnswer {
            told.extend(messages[..last.unwrap_or(0)].concat());
        }
        told.extend(self.message());
        if !self.ends_connection() {
            told.extend_from_slice(b"Z\0\0\0\x05T");
        }
        told
    }
}

/// What one connection's two directions share.
#[derive(Default)]
struct Shared {
    /// Answers are not passed on.
    deaf: AtomicBool,
    /// Said in place of the next answer.
    lie: Mutex<Option<Lie>>,
}

#[derive(Debug, Default)]
struct State {
    turns: AtomicUsize,
    server_spoke: AtomicBool,
    cut: Mutex<Option<Cut>>,
    forgetful: AtomicBool,
    go: tokio::sync::Notify,
    /// Dropping one would end the connection.
    held: Mutex<Vec<OwnedWriteHalf>>,
}

pub(super) struct Proxy {
    port: u16,
    state: Arc<State>,
}

/// A database, and a store that talks to it through a proxy.
pub(super) async fn proxied(
    connections: u32,
    store: impl FnOnce(PostgresStoreBuilder) -> PostgresStoreBuilder,
) -> (Proxy, Database) {
    let proxy = Proxy::start().await;
    let database = Database::with(
        |options| proxy.connect(options),
        |pool| pool.max_connections(connections),
        store,
    )
    .await;
    (proxy, database)
}

impl Proxy {
    pub(super) async fn start() -> Self {
        let target = super::database::options();
        let target = (target.get_host().to_owned(), target.get_port());
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State::default());
        tokio::spawn({
            let state = Arc::clone(&state);
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    let server = TcpStream::connect(&target).await.unwrap();
                    tokio::spawn(relay(client, server, Arc::clone(&state)));
                }
            }
        });
        Self { port, state }
    }

    pub(super) fn connect(&self, options: PgConnectOptions) -> PgConnectOptions {
        options
            .host("127.0.0.1")
            .port(self.port)
            .ssl_mode(PgSslMode::Disable)
    }

    /// How often the client has spoken after the server had.
    pub(super) fn turns(&self) -> usize {
        self.state.turns.load(Ordering::SeqCst)
    }

    pub(super) fn cut_next_commit(&self, cut: Cut) {
        *self.state.cut.lock().unwrap() = Some(cut);
    }

    pub(super) fn has_cut(&self) -> bool {
        self.state.cut.lock().unwrap().is_none()
    }

    /// Sends on what was held.
    pub(super) fn let_go(&self) {
        self.state.go.notify_one();
    }

    pub(super) async fn until_cut(&self) {
        for _ in 0..2000 {
            if self.has_cut() {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        panic!("nobody asked for a commit");
    }

    /// PREPARE is answered and has no effect, as if the next statement went to another session.
    pub(super) fn forget_prepared_statements(&self) {
        self.state.forgetful.store(true, Ordering::SeqCst);
    }
}

async fn relay(client: TcpStream, server: TcpStream, state: Arc<State>) {
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let (mut from_client, to_client) = client.into_split();
    let (from_server, mut to_server) = server.into_split();
    let shared = Arc::new(Shared::default());
    let to_client = Arc::new(tokio::sync::Mutex::new(to_client));
    let (done, answered) = tokio::sync::oneshot::channel();
    let back = tokio::spawn(answers(
        from_server,
        Arc::clone(&to_client),
        Arc::clone(&state),
        Arc::clone(&shared),
        done,
    ));
    let mut pending = Vec::new();
    let mut started = false;
    let mut chunk = vec![0; 64 * 1024];
    while let Ok(size @ 1..) = from_client.read(&mut chunk).await {
        if state.server_spoke.swap(false, Ordering::SeqCst) {
            state.turns.fetch_add(1, Ordering::SeqCst);
        }
        pending.extend_from_slice(&chunk[..size]);
        while let Some(message) = next_message(&mut pending, &mut started) {
            let query = message.strip_prefix(b"Q").unwrap_or_default();
            let commits = has(query, b"COMMIT");
            let cut = commits.then(|| state.cut.lock().unwrap().take()).flatten();
            match cut {
                Some(Cut::BeforeTheServer) => {
                    back.abort();
                    return;
                }
                Some(Cut::AfterTheServer) => {
                    shared.deaf.store(true, Ordering::SeqCst);
                    to_server.write_all(&message).await.unwrap();
                    let _ = answered.await;
                    back.abort();
                    return;
                }
                Some(Cut::OnTheClientsSideOnly) => {
                    back.abort();
                    state.held.lock().unwrap().push(to_server);
                    return;
                }
                Some(Cut::WhileTheServerWorks) => {
                    back.abort();
                    to_server.write_all(&message).await.unwrap();
                    state.held.lock().unwrap().push(to_server);
                    return;
                }
                Some(Cut::Hold) => state.go.notified().await,
                Some(Cut::Lie(lie)) if lie.of == LieOf::Request => {
                    to_client
                        .lock()
                        .await
                        .write_all(&lie.told(b""))
                        .await
                        .unwrap();
                    if lie.ends_connection() {
                        back.abort();
                        return;
                    }
                    continue;
                }
                Some(Cut::Lie(lie)) => *shared.lie.lock().unwrap() = Some(lie),
                None => {}
            }
            let prepares = has(query, b"PREPARE ");
            let written = if prepares && state.forgetful.load(Ordering::SeqCst) {
                to_server.write_all(b"Q\0\0\0\x0dSELECT 1\0").await
            } else {
                to_server.write_all(&message).await
            };
            if written.is_err() {
                return;
            }
        }
    }
    let _ = to_server.shutdown().await;
}

/// Relays what the server says, until the relay is to be deaf; then only waits for the whole answer.
async fn answers(
    mut from_server: OwnedReadHalf,
    to_client: Arc<tokio::sync::Mutex<OwnedWriteHalf>>,
    state: Arc<State>,
    shared: Arc<Shared>,
    done: tokio::sync::oneshot::Sender<()>,
) {
    let mut chunk = vec![0; 64 * 1024];
    let mut kept_back = Vec::new();
    while let Ok(size @ 1..) = from_server.read(&mut chunk).await {
        let said = &chunk[..size];
        let is_ready = said.len() >= 6 && said[said.len() - 6..].starts_with(b"Z\0\0\0\x05");
        if shared.deaf.load(Ordering::SeqCst) {
            if is_ready {
                let _ = done.send(());
                return std::future::pending().await;
            }
            continue;
        }
        let lie = *shared.lie.lock().unwrap();
        let told = match lie {
            Some(lie) => {
                kept_back.extend_from_slice(said);
                if !is_ready {
                    continue;
                }
                *shared.lie.lock().unwrap() = None;
                lie.told(&std::mem::take(&mut kept_back))
            }
            None => said.to_vec(),
        };
        state.server_spoke.store(true, Ordering::SeqCst);
        let mut to_client = to_client.lock().await;
        if to_client.write_all(&told).await.is_err() {
            return;
        }
        if lie.is_some_and(Lie::ends_connection) {
            let _ = to_client.shutdown().await;
            return;
        }
    }
}

/// Takes one whole message of the client's off `pending`. The first has no type byte.
fn next_message(pending: &mut Vec<u8>, started: &mut bool) -> Option<Vec<u8>> {
    let skip = usize::from(*started);
    let length: [u8; 4] = pending.get(skip..skip + 4)?.try_into().unwrap();
    let length = skip + usize::try_from(u32::from_be_bytes(length)).unwrap();
    if pending.len() < length {
        return None;
    }
    *started = true;
    Some(pending.drain(..length).collect())
}

fn has(query: &[u8], words: &[u8]) -> bool {
    query.windows(words.len()).any(|window| window == words)
}
