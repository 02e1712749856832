//! How each attempt gets a connection.

use std::{convert::Infallible, error::Error as StdError, future::Future, sync::Arc};

use rmcp::{
    RoleClient,
    service::{Peer, RunningService, Service},
};

/// Gives each attempt a connection to the server.
///
/// After a lost attempt its session may be gone, so a client should reconnect if it can: any
/// `FnMut(Attempt) -> impl Future<Output = Result<impl Connection, Error>>` will do. A plain
/// `&Peer<RoleClient>` is used for every attempt.
#[diagnostic::on_unimplemented(
    message = "`{Self}` gives no connection to a server",
    note = "pass a `&Peer<RoleClient>`, or a closure that takes an `Attempt` and connects"
)]
pub trait Connect: Send {
    /// What an attempt is made on. It is dropped when the attempt has ended.
    type Connection: Connection;
    /// Why there is no connection.
    type Error: Into<Box<dyn StdError + Send + Sync>>;

    /// Connects, or returns an existing connection.
    ///
    /// # Errors
    ///
    /// There is no connection. Nothing was sent; another attempt follows within the policy's
    /// bounds.
    fn connect(
        &mut self,
        attempt: Attempt,
    ) -> impl Future<Output = Result<Self::Connection, Self::Error>> + Send;
}

impl<F, Connecting, C, Error> Connect for F
where
    F: FnMut(Attempt) -> Connecting + Send,
    Connecting: Future<Output = Result<C, Error>> + Send,
    C: Connection,
    Error: Into<Box<dyn StdError + Send + Sync>>,
{
    type Connection = C;
    type Error = Error;

    fn connect(&mut self, attempt: Attempt) -> impl Future<Output = Result<C, Error>> + Send {
        self(attempt)
    }
}

impl<'a> Connect for &'a Peer<RoleClient> {
    type Connection = &'a Peer<RoleClient>;
    type Error = Infallible;

    async fn connect(&mut self, _: Attempt) -> Result<&'a Peer<RoleClient>, Infallible> {
        Ok(self)
    }
}

/// A connection to a server: rmcp's peer, or a type that owns one and keeps it open.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a connection of an MCP client",
    note = "a `RunningService<RoleClient, _>`, a `Peer<RoleClient>`, and references, `Box` and \
            `Arc` of them are"
)]
pub trait Connection: Send + Sync {
    /// Where calls are sent.
    fn peer(&self) -> &Peer<RoleClient>;
}

impl Connection for Peer<RoleClient> {
    fn peer(&self) -> &Self {
        self
    }
}

impl<S: Service<RoleClient>> Connection for RunningService<RoleClient, S> {
    fn peer(&self) -> &Peer<RoleClient> {
        self
    }
}

impl<C: Connection + ?Sized> Connection for &C {
    fn peer(&self) -> &Peer<RoleClient> {
        (**self).peer()
    }
}

impl<C: Connection + ?Sized> Connection for Box<C> {
    fn peer(&self) -> &Peer<RoleClient> {
        (**self).peer()
    }
}

impl<C: Connection + ?Sized> Connection for Arc<C> {
    fn peer(&self) -> &Peer<RoleClient> {
        (**self).peer()
    }
}

/// Which attempt a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    pub(super) number: u32,
    pub(super) after_answer: bool,
}

impl Attempt {
    /// The first attempt is 1.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.number
    }

    /// Whether the previous attempt's connection may still be good, because the server answered on
    /// it. `false` for the first attempt, and after one that failed below the protocol.
    #[must_use]
    pub const fn may_reuse_connection(self) -> bool {
        self.after_answer
    }
}
