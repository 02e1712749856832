//! Messages of Postgres' protocol, and errors that no server gave.

use std::iter;

/// An error that a pooler makes up, in place of the server's answer to a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lie {
    /// `FATAL` ends the connection as well.
    pub severity: &'static str,
    pub code: &'static str,
    pub of: LieOf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LieOf {
    /// The server did as asked, and all of its answer before the last statement's is passed on.
    LastAnswer,
    /// The server did as asked, and nothing of its answer is passed on.
    WholeAnswer,
    /// The server never saw the message.
    Request,
}

impl Lie {
    pub(super) fn ends_connection(self) -> bool {
        self.severity == "FATAL"
    }

    fn message(self) -> Vec<u8> {
        let mut fields = Vec::new();
        for (field, value) in [
            (b'S', self.severity),
            (b'V', self.severity),
            (b'C', self.code),
            (b'M', "made up by a pooler"),
        ] {
            fields.push(field);
            fields.extend_from_slice(value.as_bytes());
            fields.push(0);
        }
        fields.push(0);
        let length = u32::try_from(fields.len() + 4).unwrap();
        [&b"E"[..], &length.to_be_bytes(), &fields].concat()
    }

    /// What the client gets, where the server's answer was `answer`.
    pub(super) fn told(self, answer: &[u8]) -> Vec<u8> {
        let mut rest = answer.to_vec();
        let messages: Vec<_> = iter::from_fn(|| take(&mut rest, &mut true)).collect();
        let last = messages.iter().rposition(|message| message[0] == b'C');
        let mut told = Vec::new();
        if self.of == LieOf::LastAnswer {
            told.extend(messages[..last.unwrap_or(0)].concat());
        }
        told.extend(self.message());
        if !self.ends_connection() {
            told.extend_from_slice(b"Z\0\0\0\x05T");
        }
        told
    }
}

/// Takes one whole message off `pending`. A client's first has no type byte.
pub(super) fn take(pending: &mut Vec<u8>, has_started: &mut bool) -> Option<Vec<u8>> {
    let skip = usize::from(*has_started);
    let length: [u8; 4] = pending.get(skip..skip + 4)?.try_into().unwrap();
    let length = skip + usize::try_from(u32::from_be_bytes(length)).unwrap();
    if pending.len() < length {
        return None;
    }
    *has_started = true;
    Some(pending.drain(..length).collect())
}

/// Whether the client asks for something with these words, in a simple query.
pub(super) fn queries(message: &[u8], words: &[u8]) -> bool {
    let query = message.strip_prefix(b"Q").unwrap_or_default();
    query.windows(words.len()).any(|window| window == words)
}

/// Whether the server waits for the next query.
pub(super) fn is_ready(said: &[u8]) -> bool {
    said.len() >= 6 && said[said.len() - 6..].starts_with(b"Z\0\0\0\x05")
}
