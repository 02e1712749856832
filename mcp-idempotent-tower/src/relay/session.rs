//! One client and one server, with lines of JSON-RPC between them.

use std::{future::poll_fn, mem, sync::Arc, task::Poll, time::Duration};

use bytes::Bytes;
use mcp_idempotent_core::Store;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};
use tokio_util::task::TaskTracker;

use super::{
    calls::{Calls, Taken},
    line::{Lines, Piece},
    message::{messages, rejoined},
    outlet::{Outlet, Turn},
    relay::Relay,
    scan::Scan,
    upstream::Upstream,
};

/// How long the records of calls may take once the server has ended.
const RECORDING: Duration = Duration::from_secs(30);

/// How long closing the client's side may take.
const CLOSING: Duration = Duration::from_secs(1);

impl<S: Store> Relay<S> {
    /// Relays lines between a client and a server until the server ends. Each side is a reader and
    /// a writer.
    ///
    /// When it returns, all calls are answered and recorded, unless that takes more than 30 seconds
    /// after the end of the server.
    pub async fn run<C, D, R, W>(&self, client: (C, D), server: (R, W))
    where
        C: AsyncRead + Send + Unpin,
        D: AsyncWrite + Send + Unpin + 'static,
        R: AsyncRead + Send + Unpin,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let most = self.settings().max_message_bytes;
        let memory = most.saturating_mul(2);
        let session = Session {
            calls: Calls::new(
                self.clone(),
                Outlet::new(client.1),
                Arc::new(Upstream::new(Outlet::new(server.1), memory)),
                memory,
            ),
            tasks: TaskTracker::new(),
        };
        let from_client = async {
            session.read_client(Lines::new(client.0, most)).await;
            // The server may still have something to say.
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = session.read_server(Lines::new(server.0, most)) => {}
            () = from_client => {}
        }
        session.calls.server().end();
        session.settle(RECORDING).await;
        // Do not wait for a client that reads nothing.
        let _ = timeout(CLOSING, session.calls.client().close()).await;
    }
}

struct Session<S> {
    calls: Arc<Calls<S>>,
    tasks: TaskTracker,
}

impl<S: Store> Session<S> {
    /// Reads until the client ends, or no longer reads itself. Once its calls have ended, the
    /// server is told.
    async fn read_client(&self, mut lines: Lines<impl AsyncRead + Unpin>) {
        let (client, server) = (self.calls.client(), self.calls.server().out());
        let mut long = None;
        loop {
            let read = tokio::select! {
                read = lines.next() => read,
                () = client.closed() => break,
            };
            match read {
                Ok(Some(Piece::Line(line))) => self.hear_client(line).await,
                Ok(Some(Piece::Part { bytes, is_last })) => {
                    pass_part(server, &mut long, &bytes, is_last).await;
                }
                Ok(None) | Err(_) => break,
            }
        }
        drop(long);
        self.settle(self.calls.settings().drain).await;
        server.close().await;
    }

    /// Reads until the server ends.
    async fn read_server(&self, mut lines: Lines<impl AsyncRead + Unpin>) {
        let client = self.calls.client();
        let (mut long, mut scan) = (None, Scan::default());
        while let Ok(Some(piece)) = lines.next().await {
            match piece {
                Piece::Line(line) => self.hear_server(line).await,
                Piece::Part { bytes, is_last } => {
                    pass_part(client, &mut long, &bytes, is_last).await;
                    scan.read(&bytes);
                    if is_last && let Some(id) = mem::take(&mut scan).id() {
                        self.calls.server().answered_unreadably(id);
                    }
                }
            }
        }
    }

    /// Waits until all protected calls are answered and recorded, or the time is over.
    async fn settle(&self, within: Duration) {
        self.tasks.close();
        let settled = timeout(within, async {
            self.tasks.wait().await;
            let _ = self.calls.shutdown(within).await;
        });
        if settled.await.is_err() {
            tracing::warn!(?within, "calls still run; their outcome will be unknown");
        }
    }

    async fn hear_client(&self, line: Bytes) {
        // Take nothing from a client that reads nothing: its answers would fill the memory.
        let _ = self.calls.client().turn().await;
        let messages = messages(&line);
        let mut left = Vec::new();
        for message in &messages {
            match self.calls.take(message) {
                Taken::Not => left.push(message.clone()),
                Taken::Call(call) => self.start(Arc::clone(&self.calls).answer(call)).await,
                Taken::Cancelled(pending, message) => self.calls.cancel(&pending, &message).await,
                Taken::Refused(answer) => self.calls.tell(&answer).await,
            }
        }
        if let Some(left) = rejoined(&line, &messages, &left) {
            self.calls.pass(&left).await;
        }
    }

    async fn hear_server(&self, line: Bytes) {
        let messages = messages(&line);
        let mut left = Vec::new();
        for message in &messages {
            if !self.calls.hear(message).await {
                left.push(message.clone());
            }
        }
        if let Some(left) = rejoined(&line, &messages, &left) {
            self.calls.tell(&left).await;
        }
    }

    /// Runs a call. If the store answers at once, it is sent from here, without a task of its own.
    async fn start(&self, call: impl Future<Output = ()> + Send + 'static) {
        let mut call = Box::pin(call);
        let has_ended = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_ready())).await;
        if !has_ended {
            self.tasks.spawn(call);
        }
    }
}

/// Writes a part of a long line. Nobody else writes until the line has ended.
async fn pass_part(to: &Outlet, long: &mut Option<Turn>, bytes: &Bytes, is_last: bool) {
    let turn = match long {
        Some(turn) => turn,
        None => {
            tracing::warn!("a message is longer than the limit; it passes unread");
            long.insert(to.turn().await)
        }
    };
    // A peer that has gone is noticed where lines are read.
    let _ = turn.write(bytes).await;
    if is_last {
        *long = None;
    }
}
