//! Over stdio: the key in the place that SEP-3182 chose, `params.idempotencyKey`.
//!
//! rmcp drops members of `params` that it does not know before a handler sees them. A call with such a key
//! would then look like a call without one: it would not be protected, or, where keys are derived, two calls
//! that were meant as two would count as one. [`LiftKeyReader`] reads the lines in front of rmcp, and puts
//! the key into `params._meta`. No other byte changes. (Over HTTP, [`http`](crate::http) does the same.)
//!
//! 1. A line without the bytes `idempotencyKey`, and without `\u`, passes unparsed. So does one that is not a
//!    `tools/call`, has no such member in `params`, or does not parse.
//! 2. A call with a different key in `_meta` is refused like any call with two keys
//!    (`idempotency_key_invalid`). A key that is not a string is refused too.
//!
//! # Example
//!
//! ```
//! # use rmcp::{ServerHandler, ServiceExt as _};
//! # async fn serve(server: impl ServerHandler) -> Result<(), Box<dyn std::error::Error>> {
//! use mcp_idempotent_tower::stdio::LiftKeyReader;
//!
//! let input = LiftKeyReader::new(tokio::io::stdin());
//! server.serve((input, tokio::io::stdout())).await?.waiting().await?;
//! # Ok(())
//! # }
//! ```

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};

use crate::lift::lift;

/// How much is read at once, in bytes.
const CHUNK: usize = 8 * 1024;

/// Lines of JSON-RPC, with keys put where the rest of this crate looks for them. See the [module](self).
///
/// It keeps a line until its end has come, as rmcp itself does.
#[derive(Debug)]
pub struct LiftKeyReader<R> {
    inner: R,
    /// The beginning of a line whose end has not come. Up to `searched` it has no line break.
    unfinished: BytesMut,
    searched: usize,
    /// Goes out next.
    ready: Bytes,
    is_at_end: bool,
}

impl<R> LiftKeyReader<R> {
    /// Reads from `inner`, usually standard input.
    pub fn new(inner: R) -> Self {
        Self {
            inner,
            unfinished: BytesMut::new(),
            searched: 0,
            ready: Bytes::new(),
            is_at_end: false,
        }
    }

    /// The next whole line, if there is one, or what is left at the end.
    fn next_line(&mut self) -> Option<Bytes> {
        let ahead = &self.unfinished[self.searched..];
        let Some(end) = ahead.iter().position(|byte| *byte == b'\n') else {
            self.searched = self.unfinished.len();
            let is_last = self.is_at_end && self.searched > 0;
            return is_last.then(|| {
                self.searched = 0;
                self.unfinished.split().freeze()
            });
        };
        let line = self.unfinished.split_to(self.searched + end + 1);
        self.searched = 0;
        Some(line.freeze())
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for LiftKeyReader<R> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.ready.is_empty() {
            if let Some(line) = this.next_line() {
                this.ready = lift(&line, &[]).unwrap_or(line);
                continue;
            }
            if this.is_at_end {
                return Poll::Ready(Ok(()));
            }
            let mut chunk = [0; CHUNK];
            let mut chunk = ReadBuf::new(&mut chunk);
            ready!(Pin::new(&mut this.inner).poll_read(cx, &mut chunk))?;
            this.is_at_end = chunk.filled().is_empty();
            this.unfinished.extend_from_slice(chunk.filled());
        }
        let count = buffer.remaining().min(this.ready.len());
        buffer.put_slice(&this.ready[..count]);
        this.ready.advance(count);
        Poll::Ready(Ok(()))
    }
}
