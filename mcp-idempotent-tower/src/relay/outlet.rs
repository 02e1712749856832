//! Where messages are written, one whole line at a time.

use std::{fmt, sync::Arc};

use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _},
    sync::{Mutex, OwnedMutexGuard},
};
use tokio_util::sync::CancellationToken;

type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// Why a line was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unsent {
    /// None of it was sent.
    Wholly,
    /// Part of it may have been sent.
    Partly,
}

/// A writer that many write to, in turn. Once a write has failed, it takes nothing more.
#[derive(Clone)]
pub(super) struct Outlet {
    writer: Arc<Mutex<Option<Writer>>>,
    closed: CancellationToken,
}

impl Outlet {
    pub(super) fn new(writer: impl AsyncWrite + Send + Unpin + 'static) -> Self {
        Self {
            writer: Arc::new(Mutex::new(Some(Box::new(writer)))),
            closed: CancellationToken::new(),
        }
    }

    /// Writes a line, or several.
    ///
    /// # Errors
    ///
    /// The other side has gone. Says whether it can have read anything.
    pub(super) async fn send(&self, line: &[u8]) -> Result<(), Unsent> {
        self.turn().await.write(line).await
    }

    /// Waits until all that others have begun to write is written.
    pub(super) async fn turn(&self) -> Turn {
        Turn {
            writer: Arc::clone(&self.writer).lock_owned().await,
            closed: self.closed.clone(),
        }
    }

    /// Tells the other side that nothing more comes.
    pub(super) async fn close(&self) {
        if let Some(mut writer) = self.turn().await.writer.take() {
            drop(writer.shutdown().await);
        }
        self.closed.cancel();
    }

    /// Completes when the other side has gone.
    pub(super) async fn closed(&self) {
        self.closed.cancelled().await;
    }
}

impl fmt::Debug for Outlet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outlet").finish_non_exhaustive()
    }
}

/// The sole right to write. It is held across the parts of a long line.
pub(super) struct Turn {
    writer: OwnedMutexGuard<Option<Writer>>,
    closed: CancellationToken,
}

impl Turn {
    /// # Errors
    ///
    /// The same as for [`Outlet::send`].
    pub(super) async fn write(&mut self, mut bytes: &[u8]) -> Result<(), Unsent> {
        let mut unsent = Unsent::Wholly;
        let Some(writer) = self.writer.as_mut() else {
            return Err(unsent);
        };
        while !bytes.is_empty() {
            match writer.write(bytes).await {
                Ok(written) if written > 0 => {
                    unsent = Unsent::Partly;
                    bytes = &bytes[written..];
                }
                _ => return Err(self.fail(unsent)),
            }
        }
        match writer.flush().await {
            Ok(()) => Ok(()),
            Err(_) => Err(self.fail(Unsent::Partly)),
        }
    }

    fn fail(&mut self, unsent: Unsent) -> Unsent {
        *self.writer = None;
        self.closed.cancel();
        unsent
    }
}
