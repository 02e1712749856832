//! A server in this process, at the other end of a pipe.

use std::{fmt, io, sync::Arc};

use futures_util::future::BoxFuture;
use http::Request;
use rmcp::{
    RoleServer, ServerHandler, ServiceExt as _,
    model::{ClientJsonRpcMessage, GetExtensions as _},
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::{Transport, async_rw::AsyncRwTransport},
};
use tokio::io::{DuplexStream, ReadHalf, WriteHalf, duplex, split};

use super::{
    check::{Check, EditHead},
    door::{Caller, Door, Wire},
    lines::Lines,
    report::Report,
    run::CheckError,
};

/// How much a pipe holds, in bytes.
const PIPE: usize = 64 * 1024;

/// Plays the [`Check`] on a server in this process, and panics with the report if something is wrong.
///
/// # Panics
///
/// There are findings, or the check could not be played.
pub async fn assert_idempotent<H>(server: H, check: Check)
where
    H: ServerHandler + Clone,
{
    if let Err(error) = check.run(server).await {
        panic!("{error}");
    }
}

impl Check {
    /// Plays it on a server in this process. Each connection gets a clone; a server that is not `Clone`
    /// goes into an [`Arc`].
    ///
    /// # Errors
    ///
    /// There are findings, or the check could not be played. The calls that were made stay made.
    pub async fn run<H>(&self, server: H) -> Result<Report, CheckError>
    where
        H: ServerHandler + Clone,
    {
        let door = InProcess {
            server,
            callers: self.callers.clone(),
        };
        self.run_at(&door).await
    }
}

struct InProcess<H> {
    server: H,
    callers: Option<[EditHead; 2]>,
}

impl<H: ServerHandler + Clone> Door for InProcess<H> {
    fn open(&self, caller: Caller) -> BoxFuture<'_, Result<Arc<dyn Wire>, String>> {
        let (here, there) = duplex(PIPE);
        let (reader, writer) = split(there);
        let transport = Named {
            pipe: AsyncRwTransport::new(reader, writer),
            edit: self.callers.as_ref().map(|[first, other]| match caller {
                Caller::First => Arc::clone(first),
                Caller::Other => Arc::clone(other),
            }),
        };
        let server = self.server.clone();
        tokio::spawn(async move {
            // The client may leave before the handshake; what it was told says all about it.
            if let Ok(running) = server.serve(transport).await {
                drop(running.waiting().await);
            }
        });
        let (reader, writer) = split(here);
        let wire: Arc<dyn Wire> = Arc::new(Lines::new(reader, writer));
        Box::pin(async move { Ok(wire) })
    }

    fn has_another_caller(&self) -> bool {
        self.callers.is_some()
    }
}

/// A pipe whose requests come with the head of an HTTP request, if callers are told apart.
struct Named {
    pipe: AsyncRwTransport<RoleServer, ReadHalf<DuplexStream>, WriteHalf<DuplexStream>>,
    edit: Option<EditHead>,
}

impl fmt::Debug for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Named").finish_non_exhaustive()
    }
}

impl Transport<RoleServer> for Named {
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        self.pipe.send(item)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        let mut message = self.pipe.receive().await?;
        if let (Some(edit), ClientJsonRpcMessage::Request(request)) = (&self.edit, &mut message) {
            let (mut head, ()) = Request::new(()).into_parts();
            edit(&mut head);
            request.request.extensions_mut().insert(head);
        }
        Some(message)
    }

    async fn close(&mut self) -> io::Result<()> {
        self.pipe.close().await
    }
}
