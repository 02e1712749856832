//! Lines, read with bounded memory.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// How much is read at a time, at most.
const CHUNK: usize = 64 * 1024;

/// With less room than this left, the next read gets a new chunk.
const LITTLE: usize = 4 * 1024;

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// A line with its end. The last one of a stream may lack it.
    Line(Bytes),
    /// A part of a line that is longer than the limit.
    Part {
        bytes: Bytes,
        /// Whether the line ends with it.
        is_last: bool,
    },
}

/// Reads lines, and lines beyond a limit in parts.
pub(super) struct Lines<R> {
    from: R,
    read: BytesMut,
    /// How much of `read` is known to hold no end of a line.
    searched: usize,
    limit: usize,
    in_parts: bool,
    ended: bool,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(from: R, limit: usize) -> Self {
        Self {
            from,
            read: BytesMut::new(),
            searched: 0,
            limit,
            in_parts: false,
            ended: false,
        }
    }

    /// The next piece, or `None` at the end.
    ///
    /// # Errors
    ///
    /// The stream's errors.
    pub(super) async fn next(&mut self) -> io::Result<Option<Piece>> {
        loop {
            let unsearched = &self.read[self.searched..];
            if let Some(at) = unsearched.iter().position(|byte| *byte == b'\n') {
                return Ok(Some(self.take(self.searched + at + 1, true)));
            }
            self.searched = self.read.len();
            if self.in_parts && self.searched > 0 || self.searched > self.limit {
                return Ok(Some(self.take(self.searched, self.ended)));
            }
            if self.ended {
                let is_left = self.searched > 0 || self.in_parts;
                return Ok(is_left.then(|| self.take(self.searched, true)));
            }
            // Lines share a chunk, so that not every line costs an allocation.
            if self.read.capacity() - self.read.len() < LITTLE {
                self.read.reserve(CHUNK);
            }
            self.ended = self.from.read_buf(&mut self.read).await? == 0;
        }
    }

    fn take(&mut self, length: usize, is_last: bool) -> Piece {
        let bytes = self.read.split_to(length).freeze();
        self.searched = 0;
        let in_parts = self.in_parts || !is_last;
        self.in_parts = in_parts && !is_last;
        if in_parts {
            Piece::Part { bytes, is_last }
        } else {
            Piece::Line(bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn pieces(text: &[u8], limit: usize) -> Vec<(Vec<u8>, Option<bool>)> {
        let mut lines = Lines::new(text, limit);
        let mut pieces = Vec::new();
        while let Some(piece) = lines.next().await.unwrap() {
            pieces.push(match piece {
                Piece::Line(bytes) => (bytes.to_vec(), None),
                Piece::Part { bytes, is_last } => (bytes.to_vec(), Some(is_last)),
            });
        }
        pieces
    }

    #[tokio::test]
    async fn lines_keep_their_ends_and_the_last_may_have_none() {
        let expected = [&b"a\n"[..], b"\n", b"b\r\n", b"\xff"].map(|it| (it.to_vec(), None));
        assert_eq!(pieces(b"a\n\nb\r\n\xff", 10).await, expected);
        assert_eq!(pieces(b"", 10).await, []);
    }

    #[tokio::test]
    async fn a_line_beyond_the_limit_comes_in_parts_and_the_next_one_whole() {
        let long = [b'x'; 3 * CHUNK];
        for end in [&b"\n"[..], b""] {
            let text = [&long[..], end].concat();
            let mut found = pieces(&text, CHUNK).await;
            assert!(found.len() > 1);
            assert_eq!(found.pop().unwrap().1, Some(true));
            assert!(found.iter().all(|(_, is_last)| *is_last == Some(false)));
        }
        let text = [&long[..], b"\nnext\n"].concat();
        let found = pieces(&text, CHUNK).await;
        assert_eq!(found.last().unwrap(), &(b"next\n".to_vec(), None));
        let whole: Vec<u8> = found.into_iter().flat_map(|(bytes, _)| bytes).collect();
        assert_eq!(whole, text);
    }
}
