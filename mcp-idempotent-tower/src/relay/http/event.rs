//! Server-sent events, read with bounded memory and passed on byte for byte.

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use http_body_util::BodyStream;

use super::wire::{WireBody, WireError};

/// One event, as it came.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) text: Bytes,
    /// Its data.
    pub(super) data: String,
    /// Its id, with which a stream can be resumed after it.
    pub(super) id: Option<String>,
    /// How long to wait before that, in milliseconds.
    pub(super) retry: Option<u64>,
}

impl Event {
    fn of(text: Bytes) -> Self {
        let lines = String::from_utf8_lossy(&text)
            .replace("\r\n", "\n")
            .replace('\r', "\n");
        let (mut data, mut id, mut retry) = (Vec::new(), None, None);
        for line in lines.lines() {
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value).to_owned();
            match name {
                "data" => data.push(value),
                "id" => id = Some(value),
                "retry" => retry = value.parse().ok(),
                _ => {}
            }
        }
        Self {
            data: data.join("\n"),
            id,
            retry,
            text,
        }
    }

    /// This event with other data.
    pub(super) fn with_data(&self, data: &str) -> Bytes {
        let id = self.id.as_ref().map(|id| format!("id: {id}\n"));
        format!("{}data: {data}\n\n", id.unwrap_or_default()).into()
    }
}

/// Why no further event can be read.
#[derive(Debug)]
pub(super) enum NoEvent {
    TooLong,
    Lost(WireError),
}

/// The events of a body.
pub(super) struct Events {
    body: BodyStream<WireBody>,
    read: BytesMut,
    limit: usize,
}

impl Events {
    /// An event may have this many bytes.
    pub(super) fn new(body: WireBody, limit: usize) -> Self {
        Self {
            body: BodyStream::new(body),
            read: BytesMut::new(),
            limit,
        }
    }

    /// The next event, or `None` at the end.
    ///
    /// # Errors
    ///
    /// The connection is lost, or the event is too long.
    pub(super) async fn next(&mut self) -> Result<Option<Event>, NoEvent> {
        loop {
            if let Some(end) = end_of_event(&self.read)
                && end <= self.limit
            {
                return Ok(Some(Event::of(self.read.split_to(end).freeze())));
            }
            if self.read.len() > self.limit {
                return Err(NoEvent::TooLong);
            }
            match self.body.next().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.read.extend_from_slice(&data);
                    }
                }
                Some(Err(error)) => return Err(NoEvent::Lost(error)),
                None => return Ok(self.last()),
            }
        }
    }

    /// The event before the end of the stream, if its empty line is a carriage return alone. Until then, a line feed
    /// might have followed.
    fn last(&mut self) -> Option<Event> {
        let ended = [&self.read[..], b"\n"].concat();
        let is_whole = self.read.ends_with(b"\r") && end_of_event(&ended) == Some(ended.len());
        is_whole.then(|| Event::of(self.read.split().freeze()))
    }
}

/// Where an event ends: after an empty line.
fn end_of_event(text: &[u8]) -> Option<usize> {
    let mut line = 0;
    let mut at = 0;
    while at < text.len() {
        let end = match text[at] {
            b'\n' => at + 1,
            b'\r' if text.get(at + 1) == Some(&b'\n') => at + 2,
            // Whether a line feed follows is not known yet.
            b'\r' if at + 1 == text.len() => return None,
            b'\r' => at + 1,
            _ => {
                at += 1;
                continue;
            }
        };
        if at == line {
            return Some(end);
        }
        line = end;
        at = end;
    }
    None
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use tower::BoxError;

    use super::{super::wire::boxed, *};

    #[tokio::test]
    async fn events_come_as_they_were_sent_however_they_are_cut() {
        let text = ": hello\n\nid: 1\ndata: a\ndata:b\n\nretry: 5\r\ndata: c\r\n\r\n";
        for size in [1, 3, text.len()] {
            let parts = text
                .as_bytes()
                .chunks(size)
                .map(|part| Ok::<_, BoxError>(Frame::data(Bytes::copy_from_slice(part))));
            let mut events = Events::new(boxed(StreamBody::new(stream::iter(parts))), 100);
            let mut found = Vec::new();
            while let Some(event) = events.next().await.unwrap() {
                found.push(event);
            }
            let whole: Vec<u8> = found.iter().flat_map(|event| event.text.to_vec()).collect();
            assert_eq!(whole, text.as_bytes());
            let data: Vec<_> = found.iter().map(|event| &*event.data).collect();
            assert_eq!(data, ["", "a\nb", "c"]);
            assert_eq!(
                (found[1].id.as_deref(), found[2].retry),
                (Some("1"), Some(5))
            );
        }
        let by_carriage_returns = stream::iter([Ok::<_, BoxError>(Frame::data(Bytes::from(
            "data: a\r\rdata: b\r\r",
        )))]);
        let mut events = Events::new(boxed(StreamBody::new(by_carriage_returns)), 50);
        for expected in ["a", "b"] {
            assert_eq!(events.next().await.unwrap().unwrap().data, expected);
        }
        assert!(events.next().await.unwrap().is_none());
        let endless = stream::iter(
            (0..9).map(|_| Ok::<_, BoxError>(Frame::data(Bytes::from("data: endless")))),
        );
        let mut events = Events::new(boxed(StreamBody::new(endless)), 50);
        assert!(matches!(events.next().await, Err(NoEvent::TooLong)));
    }
}
