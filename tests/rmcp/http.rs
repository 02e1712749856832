//! rmcp's server over HTTP, with the layer around the handlers that it makes.

use std::{
    convert::Infallible,
    fmt::Display,
    io,
    sync::Arc,
    task::{Context, Poll},
};

use real::{
    ServerHandler,
    transport::streamable_http_server::{
        SessionManager, StreamableHttpServerConfig, tower as real_tower,
    },
};
use tower_service::Service;

use crate::side::{Side, Wrapped, layer, saw, wrap};

pub enum StreamableHttpService<H, M>
where
    H: ServerHandler,
{
    Bare(real_tower::StreamableHttpService<H, M>),
    Wrapped(real_tower::StreamableHttpService<Wrapped<H>, M>),
}

impl<H: ServerHandler, M: SessionManager> StreamableHttpService<H, M> {
    pub fn new(
        factory: impl Fn() -> io::Result<H> + Send + Sync + 'static,
        sessions: Arc<M>,
        config: StreamableHttpServerConfig,
    ) -> Self {
        if Side::of_this_run() == Side::Bare {
            let factory = move || factory().inspect(|_| saw("bare"));
            return Self::Bare(real_tower::StreamableHttpService::new(
                factory, sessions, config,
            ));
        }
        let layer = layer();
        let factory = move || factory().map(|handler| wrap(handler, &layer));
        Self::Wrapped(real_tower::StreamableHttpService::new(
            factory, sessions, config,
        ))
    }

    pub async fn handle<B>(
        &self,
        request: ::http::Request<B>,
    ) -> <Self as Service<::http::Request<B>>>::Response
    where
        B: http_body::Body<Data: Send, Error: Display> + Send + 'static,
    {
        match self {
            Self::Bare(service) => service.handle(request).await,
            Self::Wrapped(service) => service.handle(request).await,
        }
    }
}

impl<H: ServerHandler, M> Clone for StreamableHttpService<H, M> {
    fn clone(&self) -> Self {
        match self {
            Self::Bare(service) => Self::Bare(service.clone()),
            Self::Wrapped(service) => Self::Wrapped(service.clone()),
        }
    }
}

impl<B, H, M> Service<::http::Request<B>> for StreamableHttpService<H, M>
where
    B: http_body::Body<Data: Send, Error: Display> + Send + 'static,
    H: ServerHandler,
    M: SessionManager,
{
    type Response =
        <real_tower::StreamableHttpService<H, M> as Service<::http::Request<B>>>::Response;
    type Error = Infallible;
    type Future = <real_tower::StreamableHttpService<H, M> as Service<::http::Request<B>>>::Future;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ::http::Request<B>) -> Self::Future {
        match self {
            Self::Bare(service) => service.call(request),
            Self::Wrapped(service) => service.call(request),
        }
    }
}
