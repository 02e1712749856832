//! Bodies that were read, and bodies that pass unread.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};

/// A request's body behind [`LiftKey`](super::LiftKey): read and perhaps edited, or unread.
#[derive(Debug)]
pub struct LiftedBody<B>(Inner<B>);

/// A response's body: passed on unread, or read or made here.
#[derive(Debug)]
pub struct LiftResponseBody<B>(Inner<B>);

#[derive(Debug)]
enum Inner<B> {
    Read(Option<Bytes>),
    AsItCame(Pin<Box<B>>),
}

impl<B: Body> Inner<B> {
    fn poll<D: From<Bytes>>(
        &mut self,
        cx: &mut Context<'_>,
        data: impl FnOnce(B::Data) -> D,
    ) -> Poll<Option<Result<Frame<D>, B::Error>>> {
        match self {
            Self::Read(bytes) => {
                let bytes = bytes.take().filter(|bytes| !bytes.is_empty());
                Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes.into()))))
            }
            Self::AsItCame(body) => {
                let frame = std::task::ready!(body.as_mut().poll_frame(cx));
                Poll::Ready(frame.map(|frame| Ok(frame?.map_data(data))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Read(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Self::AsItCame(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Read(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Self::AsItCame(body) => body.size_hint(),
        }
    }
}

impl<B> LiftedBody<B> {
    pub(super) const fn read(bytes: Bytes) -> Self {
        Self(Inner::Read(Some(bytes)))
    }

    pub(super) fn as_it_came(body: B) -> Self {
        Self(Inner::AsItCame(Box::pin(body)))
    }
}

impl<B: Body> Body for LiftedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        self.0
            .poll(cx, |mut data| data.copy_to_bytes(data.remaining()))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

impl<B> LiftResponseBody<B> {
    pub(super) const fn read(text: Bytes) -> Self {
        Self(Inner::Read(Some(text)))
    }

    pub(super) fn as_it_came(body: B) -> Self {
        Self(Inner::AsItCame(Box::pin(body)))
    }
}

impl<B: Body<Data = Bytes>> Body for LiftResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        self.0.poll(cx, |data| data)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

/// Why a body could not be read.
pub(super) enum Unread<E> {
    TooLarge,
    Failed(E),
}

/// Reads a body of at most `limit` bytes.
pub(super) async fn read<B: Body>(body: B, limit: usize) -> Result<Bytes, Unread<B::Error>> {
    let mut body = Box::pin(body);
    let mut only: Option<Bytes> = None;
    let mut collected = bytes::BytesMut::new();
    let mut length = 0;
    while let Some(frame) = std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        let Ok(mut data) = frame.map_err(Unread::Failed)?.into_data() else {
            continue;
        };
        let more = data.remaining();
        if more > limit - length {
            return Err(Unread::TooLarge);
        }
        length += more;
        let data = data.copy_to_bytes(more);
        // A body in one piece need not be copied.
        if length == more {
            only = Some(data);
        } else {
            if let Some(first) = only.take() {
                collected.extend_from_slice(&first);
            }
            collected.extend_from_slice(&data);
        }
    }
    Ok(only.unwrap_or_else(|| collected.freeze()))
}
