//! A relay between clients and a Postgres server. It passes everything on, except where a test says
//! otherwise: it cuts connections, holds messages, answers in the server's place, or is late.
//!
//! It is made of threads, so that it can be late by less than a tick of a runtime's timer, and so
//! that a test's runtime may be blocked. It goes on until the process ends.

#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    unused_imports,
    clippy::exhaustive_enums,
    clippy::unwrap_used,
    reason = "support of tests, taken by path: each takes a part, and a panic is a failed test"
)]

mod connection;
mod line;
mod message;

use std::{
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use sqlx::postgres::{PgConnectOptions, PgSslMode};

use self::connection::Connection;
pub use self::message::{Lie, LieOf};

/// What to do with the next message that asks for a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
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

/// What all connections share.
#[derive(Debug, Default)]
struct State {
    /// Host and port of the server that new connections are led to.
    target: Mutex<(String, u16)>,
    /// The messages are not those of Postgres.
    is_any: bool,
    next_commit: Mutex<Option<Cut>>,
    turns: AtomicUsize,
    /// PREPARE is kept from the server.
    is_forgetful: AtomicBool,
    /// New connections end at once.
    is_down: AtomicBool,
    /// What clients have said, where a test wants to know.
    heard: Mutex<Option<Vec<u8>>>,
    /// How many messages both sides have said since the test began to count, and the one with which
    /// its connection falls silent; zero for none.
    said: AtomicUsize,
    silent_at: AtomicUsize,
    /// Errors among what the server has said meanwhile.
    errors: AtomicUsize,
    counts: AtomicBool,
    may_go: Mutex<bool>,
    let_go: Condvar,
    open: Mutex<Vec<Weak<Connection>>>,
    /// Those that have ended for the client alone; dropping one ends it for the server.
    held: Mutex<Vec<Arc<Connection>>>,
}

impl State {
    /// Counts a message; answers whether its connection falls silent with it.
    fn is_the_last(&self) -> bool {
        let said = self.said.fetch_add(1, Ordering::SeqCst) + 1;
        said == self.silent_at.load(Ordering::SeqCst)
    }
}

/// Listens on a port of its own.
#[derive(Debug)]
pub struct Relay {
    port: u16,
    state: Arc<State>,
}

impl Relay {
    /// To the server of these options.
    pub fn start(target: &PgConnectOptions) -> Self {
        Self::start_late(target, Duration::ZERO)
    }

    /// As [`start`](Self::start); every message arrives this much later.
    pub fn start_late(target: &PgConnectOptions, by: Duration) -> Self {
        Self::listen_for(target.get_host(), target.get_port(), by, State::default())
    }

    /// To a server of any other protocol, on this machine. What is read at once counts as a message.
    pub fn start_to_any(port: u16) -> Self {
        let state = State {
            is_any: true,
            ..State::default()
        };
        Self::listen_for("127.0.0.1", port, Duration::ZERO, state)
    }

    fn listen_for(host: &str, port: u16, by: Duration, state: State) -> Self {
        *state.target.lock().unwrap() = (host.to_owned(), port);
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(state);
        thread::spawn({
            let state = Arc::clone(&state);
            move || {
                for client in listener.incoming().map_while(Result::ok) {
                    if state.is_down.load(Ordering::SeqCst) {
                        continue;
                    }
                    let (host, port) = state.target.lock().unwrap().clone();
                    if let Ok(server) = TcpStream::connect((&*host, port)) {
                        Connection::relay(client, server, by, &state);
                    }
                }
            }
        });
        Self { port, state }
    }

    /// New connections go to another server from now on. Open ones stay where they are.
    pub fn lead_to(&self, target: &PgConnectOptions) {
        *self.state.target.lock().unwrap() = (target.get_host().to_owned(), target.get_port());
    }

    /// The way to the same server through here.
    pub fn options(&self, options: PgConnectOptions) -> PgConnectOptions {
        options
            .host("127.0.0.1")
            .port(self.port)
            .ssl_mode(PgSslMode::Disable)
    }

    pub const fn port(&self) -> u16 {
        self.port
    }

    /// How often a client has spoken after the server had: round trips, all connections together.
    pub fn turns(&self) -> usize {
        self.state.turns.load(Ordering::SeqCst)
    }

    pub fn cut_next_commit(&self, cut: Cut) {
        *self.state.next_commit.lock().unwrap() = Some(cut);
    }

    pub fn has_cut(&self) -> bool {
        self.state.next_commit.lock().unwrap().is_none()
    }

    pub async fn until_cut(&self) {
        for _ in 0..2000 {
            if self.has_cut() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("nobody asked for a commit");
    }

    /// Sends on what was held.
    pub fn let_go(&self) {
        *self.state.may_go.lock().unwrap() = true;
        self.state.let_go.notify_one();
    }

    /// PREPARE is answered and has no effect, as if the next statement went to another session.
    pub fn forget_prepared_statements(&self) {
        self.state.is_forgetful.store(true, Ordering::SeqCst);
    }

    /// Cuts the client's side of all connections now; the server does not notice. Says how many.
    pub fn cut_clients(&self) -> usize {
        let open = std::mem::take(&mut *self.state.open.lock().unwrap());
        let open = open.iter().filter_map(Weak::upgrade);
        open.inspect(|connection| connection.hold()).count()
    }

    /// Lets all open connections fall silent now. Says how many.
    pub fn silence(&self) -> usize {
        let open = self.state.open.lock().unwrap();
        let open = open.iter().filter_map(Weak::upgrade);
        open.inspect(|connection| connection.fall_silent()).count()
    }

    /// New connections are refused. Open ones live on.
    pub fn refuse(&self) {
        self.state.is_down.store(true, Ordering::SeqCst);
    }

    /// As if the database were away: connections are cut, and new ones refused.
    pub fn go_down(&self) {
        self.state.is_down.store(true, Ordering::SeqCst);
        self.cut_clients();
    }

    /// The database is back, and sees the ends of the connections that ended for the client alone, or
    /// fell silent.
    pub fn come_up(&self) {
        self.state.is_down.store(false, Ordering::SeqCst);
        for connection in self.state.held.lock().unwrap().drain(..) {
            connection.end();
        }
    }

    /// Lets the connection of the `message`th message from now fall silent: neither that message nor any
    /// other passes, in either direction, and no side sees it end. Zero only counts.
    pub fn fall_silent_at(&self, message: usize) {
        self.state.said.store(0, Ordering::SeqCst);
        self.state.errors.store(0, Ordering::SeqCst);
        self.state.silent_at.store(message, Ordering::SeqCst);
        self.state.counts.store(true, Ordering::SeqCst);
    }

    /// Whether that message has come.
    pub fn has_fallen_silent(&self) -> bool {
        let silent_at = self.state.silent_at.load(Ordering::SeqCst);
        silent_at > 0 && self.messages() >= silent_at
    }

    /// Waits for that message. A client that awaits no answer may be done before its message is here.
    pub async fn until_silent(&self) {
        for _ in 0..2000 {
            if self.has_fallen_silent() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("the message has not come");
    }

    /// How many messages both sides have said since.
    pub fn messages(&self) -> usize {
        self.state.said.load(Ordering::SeqCst)
    }

    /// How many errors the server has answered since.
    pub fn errors(&self) -> usize {
        self.state.errors.load(Ordering::SeqCst)
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
