//! Where each attempt finds its server.

use std::{convert::Infallible, error::Error as StdError, future::Future, sync::Arc};

use rmcp::{
    RoleClient,
    service::{Peer, RunningService, Service},
};

/// Gives each attempt a connected server.
///
/// The session of a lost attempt may be gone, so a client that can connect anew should: any
/// `FnMut(Attempt) -> impl Future<Output = Result<impl Connection, Error>>` will do. A plain
/// `&Peer<RoleClient>` is used as it is, in every attempt.
#[diagnostic::on_unimplemented(
    message = "`{Self}` gives no connection to a server",
    note = "pass a `&Peer<RoleClient>`, or a closure that takes an `Attempt` and connects"
)]
pub trait Connect: Send {
    /// What an attempt is made on. It is dropped when the attempt has ended.
    type Connection: Connection;
    /// Why there is none.
    type Error: Into<Box<dyn StdError + Send + Sync>>;

    /// Connects, or hands out a connection that is there.
    ///
    /// # Errors
    ///
    /// There is no connection. Nothing was sent; another attempt follows within the policy's bounds.
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

/// A connection to a server: rmcp's peer, or what owns one and keeps it open.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no connection of an MCP client",
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

    /// Whether the connection of the attempt before this one may still be good: the server answered
    /// on it. `false` for the first attempt, and after one that failed below the protocol.
    #[must_use]
    pub const fn may_reuse_connection(self) -> bool {
        self.after_answer
    }
}
