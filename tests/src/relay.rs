//! A relay in front of Postgres that cuts connections, at a commit or all of them, and listens.

use std::{
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// Where the connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "before or after")]
pub enum Cut {
    /// The server never sees the COMMIT.
    BeforeCommit,
    /// The server has answered the COMMIT, and its answer is lost.
    AfterCommit,
}

#[derive(Debug)]
struct State {
    target: (String, u16),
    armed: Mutex<Option<Cut>>,
    cut_all: watch::Sender<u32>,
    /// The server's side of connections that were cut on the client's side only.
    held: Mutex<Vec<TcpStream>>,
    /// New connections end at once, and old ones are cut.
    is_down: AtomicBool,
    /// What clients have said, where a test wants to know.
    heard: Mutex<Option<Vec<u8>>>,
}

/// Listens on a port of its own.
#[derive(Debug)]
pub struct Relay {
    port: u16,
    state: Arc<State>,
}

impl Relay {
    pub async fn start(target: &PgConnectOptions) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State {
            target: (target.get_host().to_owned(), target.get_port()),
            armed: Mutex::default(),
            cut_all: watch::Sender::new(0),
            held: Mutex::default(),
            is_down: AtomicBool::new(false),
            heard: Mutex::default(),
        });
        tokio::spawn({
            let state = Arc::clone(&state);
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    if state.is_down.load(Ordering::SeqCst) {
                        continue;
                    }
                    let server = TcpStream::connect(&state.target).await.unwrap();
                    tokio::spawn(relay(client, server, Arc::clone(&state)));
                }
            }
        });
        Self { port, state }
    }

    /// The way to the same server through here.
    pub fn options(&self, options: PgConnectOptions) -> PgConnectOptions {
        options
            .host("127.0.0.1")
            .port(self.port)
            .ssl_mode(PgSslMode::Disable)
    }

    /// Cuts at the next COMMIT of a transaction of ours.
    pub fn arm(&self, cut: Cut) {
        *self.state.armed.lock().unwrap() = Some(cut);
    }

    pub fn has_cut(&self) -> bool {
        self.state.armed.lock().unwrap().is_none()
    }

    /// Cuts the client's side of all connections now; the server does not notice.
    pub fn cut_clients(&self) {
        self.state.cut_all.send_modify(|count| *count += 1);
    }

    /// As if the database were away: connections are cut, and new ones refused.
    pub fn go_down(&self) {
        self.state.is_down.store(true, Ordering::SeqCst);
        self.cut_clients();
    }

    /// The database is back.
    pub fn come_up(&self) {
        self.state.is_down.store(false, Ordering::SeqCst);
        self.state.held.lock().unwrap().clear();
    }

    /// Keeps what clients say from now on.
    pub fn listen(&self) {
        *self.state.heard.lock().unwrap() = Some(Vec::new());
    }

    /// What clients have said since.
    pub fn heard(&self) -> Vec<u8> {
        self.state.heard.lock().unwrap().take().unwrap_or_default()
    }
}

async fn relay(mut client: TcpStream, mut server: TcpStream, state: Arc<State>) {
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let mut cut_all = state.cut_all.subscribe();
    let mut asked = Vec::new();
    let mut started = false;
    let (mut from_client, mut from_server) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        tokio::select! {
            _ = cut_all.changed() => {
                state.held.lock().unwrap().push(server);
                return;
            }
            read = server.read(&mut from_server) => {
                let Ok(size @ 1..) = read else { return };
                if client.write_all(&from_server[..size]).await.is_err() {
                    return;
                }
            }
            read = client.read(&mut from_client) => {
                let Ok(size @ 1..) = read else { return };
                if let Some(heard) = &mut *state.heard.lock().unwrap() {
                    heard.extend_from_slice(&from_client[..size]);
                }
                asked.extend_from_slice(&from_client[..size]);
                while let Some(message) = next_message(&mut asked, &mut started) {
                    let cut = if contains(&message, b"COMMIT AND CHAIN") {
                        mem::take(&mut *state.armed.lock().unwrap())
                    } else {
                        None
                    };
                    if cut == Some(Cut::BeforeCommit) {
                        return;
                    }
                    if server.write_all(&message).await.is_err() {
                        return;
                    }
                    if cut == Some(Cut::AfterCommit) {
                        until_ready(&mut server).await;
                        return;
                    }
                }
            }
        }
    }
}

/// Reads what the server says until it is ready for the next query.
async fn until_ready(server: &mut TcpStream) {
    let mut said = Vec::new();
    while !said.ends_with(b"Z\0\0\0\x05T") && !said.ends_with(b"Z\0\0\0\x05I") {
        if server.read_buf(&mut said).await.unwrap() == 0 {
            return;
        }
    }
}

/// Takes one whole message of the client's off `asked`. The first has no type byte.
fn next_message(asked: &mut Vec<u8>, started: &mut bool) -> Option<Vec<u8>> {
    let skip = usize::from(*started);
    let length: [u8; 4] = asked.get(skip..skip + 4)?.try_into().unwrap();
    let length = skip + usize::try_from(u32::from_be_bytes(length)).unwrap();
    if asked.len() < length {
        return None;
    }
    *started = true;
    Some(asked.drain(..length).collect())
}

fn contains(message: &[u8], words: &[u8]) -> bool {
    message.windows(words.len()).any(|window| window == words)
}
