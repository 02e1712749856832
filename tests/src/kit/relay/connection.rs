//! One connection through a relay: a thread for what the client asks, and one for the answers.

use std::{
    io::{self, Read as _},
    mem,
    net::{Shutdown, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use super::{
    Cut, State,
    line::Line,
    message::{self, Lie, LieOf},
};

#[derive(Debug)]
pub(super) struct Connection {
    client: TcpStream,
    server: TcpStream,
    to_client: Line,
    to_server: Line,
    state: Arc<State>,
    /// For the client it has ended, for the server it has not.
    is_held: AtomicBool,
    server_spoke: AtomicBool,
    /// Nothing passes any more, and no side sees it end.
    is_silent: AtomicBool,
    /// Answers are not passed on.
    is_deaf: AtomicBool,
    /// Said in place of the next answer.
    lie: Mutex<Option<Lie>>,
}

impl Connection {
    pub(super) fn relay(
        client: TcpStream,
        server: TcpStream,
        late_by: Duration,
        state: &Arc<State>,
    ) {
        let connection = Arc::new(Self {
            to_client: Line::to(&client, late_by),
            to_server: Line::to(&server, late_by),
            client,
            server,
            state: Arc::clone(state),
            is_held: AtomicBool::new(false),
            server_spoke: AtomicBool::new(false),
            is_silent: AtomicBool::new(false),
            is_deaf: AtomicBool::new(false),
            lie: Mutex::default(),
        });
        state.open.lock().unwrap().push(Arc::downgrade(&connection));
        let (done, answered) = mpsc::channel();
        let answering = Arc::clone(&connection);
        // An error is the end of a side, of which the other is told below.
        thread::spawn(move || drop(answering.pass_answers(&done)));
        thread::spawn(move || drop(connection.pass_requests(&answered)));
    }

    /// Ends it for both sides.
    pub(super) fn end(&self) {
        for side in [&self.client, &self.server] {
            // It may have ended by itself.
            drop(side.shutdown(Shutdown::Both));
        }
    }

    /// Ends it for the client alone.
    pub(super) fn hold(self: &Arc<Self>) {
        self.is_held.store(true, Ordering::SeqCst);
        self.state.held.lock().unwrap().push(Arc::clone(self));
        drop(self.client.shutdown(Shutdown::Both));
    }

    fn is_silent(&self) -> bool {
        self.is_silent.load(Ordering::SeqCst)
    }

    /// Whether a message is kept from the other side, because the connection is silent or falls silent
    /// with it.
    fn keeps_back(self: &Arc<Self>) -> bool {
        if self.state.counts.load(Ordering::SeqCst) && self.state.is_the_last() {
            self.fall_silent();
        }
        self.is_silent()
    }

    /// Nothing passes from now on, and no side sees it end.
    pub(super) fn fall_silent(self: &Arc<Self>) {
        if !self.is_silent.swap(true, Ordering::SeqCst) {
            self.state.held.lock().unwrap().push(Arc::clone(self));
        }
    }

    fn take(&self, pending: &mut Vec<u8>, has_started: &mut bool) -> Option<Vec<u8>> {
        if !self.state.is_any {
            return message::take(pending, has_started);
        }
        (!pending.is_empty()).then(|| mem::take(pending))
    }

    fn pass_requests(self: &Arc<Self>, answered: &mpsc::Receiver<()>) -> io::Result<()> {
        let mut pending = Vec::new();
        let mut has_started = false;
        let mut chunk = vec![0; 64 * 1024];
        while let Ok(size @ 1..) = (&self.client).read(&mut chunk) {
            if self.server_spoke.swap(false, Ordering::SeqCst) {
                self.state.turns.fetch_add(1, Ordering::SeqCst);
            }
            if let Some(heard) = &mut *self.state.heard.lock().unwrap() {
                heard.extend_from_slice(&chunk[..size]);
            }
            pending.extend_from_slice(&chunk[..size]);
            while let Some(message) = self.take(&mut pending, &mut has_started) {
                if !self.pass(message, answered)? {
                    return Ok(());
                }
            }
        }
        if !self.is_held.load(Ordering::SeqCst) && !self.is_silent() {
            self.to_server.close();
        }
        Ok(())
    }

    /// Passes one message on, or does with it what the test wants; answers whether to go on.
    fn pass(
        self: &Arc<Self>,
        mut message: Vec<u8>,
        answered: &mpsc::Receiver<()>,
    ) -> io::Result<bool> {
        if self.keeps_back() {
            return Ok(true);
        }
        match self.cut(&message) {
            Some(Cut::BeforeTheServer) => {
                self.end();
                return Ok(false);
            }
            Some(Cut::AfterTheServer) => {
                self.is_deaf.store(true, Ordering::SeqCst);
                self.to_server.send(message)?;
                // An error says that the server has ended the connection.
                let _ = answered.recv();
                self.end();
                return Ok(false);
            }
            Some(Cut::OnTheClientsSideOnly) => {
                self.hold();
                return Ok(false);
            }
            Some(Cut::WhileTheServerWorks) => {
                self.hold();
                self.to_server.send(message)?;
                return Ok(false);
            }
            Some(Cut::Lie(lie)) if lie.of == LieOf::Request => {
                self.to_client.send(lie.told(b""))?;
                if lie.ends_connection() {
                    self.end();
                }
                return Ok(!lie.ends_connection());
            }
            Some(Cut::Lie(lie)) => *self.lie.lock().unwrap() = Some(lie),
            Some(Cut::Hold) => {
                let may_go = self.state.may_go.lock().unwrap();
                let waited = self.state.let_go.wait_while(may_go, |may_go| !*may_go);
                *waited.unwrap() = false;
            }
            None => {}
        }
        let forgets = self.state.is_forgetful.load(Ordering::SeqCst);
        if forgets && message::queries(&message, b"PREPARE ") {
            message = b"Q\0\0\0\x0dSELECT 1\0".to_vec();
        }
        self.to_server.send(message)?;
        Ok(true)
    }

    fn cut(&self, message: &[u8]) -> Option<Cut> {
        if message::queries(message, b"COMMIT") {
            self.state.next_commit.lock().unwrap().take()
        } else {
            None
        }
    }

    /// Relays what the server says, until nothing is to be passed on; then waits for the whole
    /// answer only.
    fn pass_answers(self: &Arc<Self>, done: &mpsc::Sender<()>) -> io::Result<()> {
        let mut chunk = vec![0; 64 * 1024];
        let mut kept_back = Vec::new();
        let mut counted = Vec::new();
        while let Ok(size @ 1..) = (&self.server).read(&mut chunk) {
            let said = &chunk[..size];
            if self.state.counts.load(Ordering::SeqCst) {
                counted.extend_from_slice(said);
                while let Some(message) = self.take(&mut counted, &mut true) {
                    self.server_spoke.store(true, Ordering::SeqCst);
                    if message.starts_with(b"E") {
                        self.state.errors.fetch_add(1, Ordering::SeqCst);
                    }
                    if !self.keeps_back() {
                        self.to_client.send(message)?;
                    }
                }
                continue;
            }
            if self.is_silent() {
                continue;
            }
            let is_ready = message::is_ready(said);
            if self.is_deaf.load(Ordering::SeqCst) {
                if is_ready {
                    let _ = done.send(());
                }
                continue;
            }
            let mut lie = self.lie.lock().unwrap();
            let told = match *lie {
                Some(_) if !is_ready => {
                    kept_back.extend_from_slice(said);
                    continue;
                }
                Some(lie) => {
                    kept_back.extend_from_slice(said);
                    lie.told(&mem::take(&mut kept_back))
                }
                None => said.to_vec(),
            };
            let ends = lie.take().is_some_and(Lie::ends_connection);
            drop(lie);
            self.server_spoke.store(true, Ordering::SeqCst);
            self.to_client.send(told)?;
            if ends {
                break;
            }
        }
        if !self.is_silent() {
            self.to_client.close();
        }
        Ok(())
    }
}
