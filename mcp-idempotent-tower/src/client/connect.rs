//! Where each attempt finds its server.

use std::{convert::Infallible, error::Error as StdError, future::Future, ops::Deref};

use rmcp::{RoleClient, service::Peer};

/// Gives each attempt a connected server.
///
/// The session of a lost attempt may be gone, so a client that can connect anew should: any
/// `FnMut(Attempt) -> impl Future<Output = Result<Connection, Error>>` will do, and rmcp's
/// [`RunningService`](rmcp::service::RunningService) is such a connection. A plain
/// `&Peer<RoleClient>` is used as it is, in every attempt.
///
/// The connection is dropped when its attempt has ended.
#[diagnostic::on_unimplemented(
    message = "`{Self}` gives no connection to a server",
    note = "pass a `&Peer<RoleClient>`, or a closure that takes an `Attempt` and connects"
)]
pub trait Connect: Send {
    /// What keeps the connection open for the time of one attempt.
    type Connection: Deref<Target = Peer<RoleClient>> + Send + Sync;
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

impl<F, Connecting, Connection, Error> Connect for F
where
    F: FnMut(Attempt) -> Connecting + Send,
    Connecting: Future<Output = Result<Connection, Error>> + Send,
    Connection: Deref<Target = Peer<RoleClient>> + Send + Sync,
    Error: Into<Box<dyn StdError + Send + Sync>>,
{
    type Connection = Connection;
    type Error = Error;

    fn connect(
        &mut self,
        attempt: Attempt,
    ) -> impl Future<Output = Result<Connection, Error>> + Send {
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
