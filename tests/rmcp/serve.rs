//! rmcp's ways to serve a handler, with the layer around it.

use std::{borrow::Cow, future::Future};

use real::{
    ClientHandler, ErrorData, RoleClient, RoleServer, ServerHandler,
    model::ProtocolVersion,
    service::{
        DynService, NotificationContext, ProgressNotificationToken, RequestContext,
        ServerInitializeError, ServiceRole,
    },
    transport::IntoTransport,
};
use tokio_util::sync::CancellationToken;

use crate::side::{Side, layer, saw, wrap};

pub type RunningService<R, S> = real::service::RunningService<R, <R as Role>::Served<S>>;

pub trait Role: ServiceRole {
    /// What is served for a service of this role.
    type Served<S>;

    /// A service that is served without anything around it.
    fn own<S: Service<Self>>(service: S) -> Self::Served<S>;
}

impl Role for RoleClient {
    type Served<S> = S;

    fn own<S: Service<Self>>(client: S) -> S {
        client
    }
}

impl Role for RoleServer {
    /// Boxed, because each type that rmcp serves costs a second of compilation.
    type Served<S> = Box<dyn DynService<Self>>;

    fn own<S: Service<Self>>(server: S) -> Box<dyn DynService<Self>> {
        Box::new(Own(server))
    }
}

/// What can be served. The methods are those of rmcp's trait, which a test may implement itself.
pub trait Service<R: Role>: Send + Sync + 'static {
    fn handle_request(
        &self,
        request: R::PeerReq,
        context: RequestContext<R>,
    ) -> impl Future<Output = Result<R::Resp, ErrorData>> + Send + '_;

    fn handle_notification(
        &self,
        notification: R::PeerNot,
        context: NotificationContext<R>,
    ) -> impl Future<Output = Result<(), ErrorData>> + Send + '_;

    fn get_info(&self) -> R::Info;

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(ProtocolVersion::KNOWN_VERSIONS)
    }

    /// What is served for it.
    fn served(self) -> R::Served<Self>
    where
        Self: Sized,
    {
        R::own(self)
    }
}

macro_rules! as_rmcp_does {
    ($role:ty) => {
        fn handle_request(
            &self,
            request: <$role as ServiceRole>::PeerReq,
            context: RequestContext<$role>,
        ) -> impl Future<Output = Result<<$role as ServiceRole>::Resp, ErrorData>> + Send + '_ {
            real::Service::handle_request(self, request, context)
        }

        fn handle_notification(
            &self,
            notification: <$role as ServiceRole>::PeerNot,
            context: NotificationContext<$role>,
        ) -> impl Future<Output = Result<(), ErrorData>> + Send + '_ {
            real::Service::handle_notification(self, notification, context)
        }

        fn get_info(&self) -> <$role as ServiceRole>::Info {
            real::Service::get_info(self)
        }

        fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
            real::Service::<$role>::supported_protocol_versions(self)
        }
    };
}

impl<H: ServerHandler> Service<RoleServer> for H {
    as_rmcp_does!(RoleServer);

    fn served(self) -> Box<dyn DynService<RoleServer>> {
        if Side::of_this_run() == Side::Bare {
            saw("bare");
            return Box::new(self);
        }
        Box::new(wrap(self, &layer()))
    }
}

impl<H: ClientHandler> Service<RoleClient> for H {
    as_rmcp_does!(RoleClient);
}

/// For a test that implements the trait itself: it serves no handler, and there is nothing to wrap.
struct Own<S>(S);

impl<S: Service<RoleServer>> real::Service<RoleServer> for Own<S> {
    fn handle_request(
        &self,
        request: <RoleServer as ServiceRole>::PeerReq,
        context: RequestContext<RoleServer>,
    ) -> impl Future<Output = Result<<RoleServer as ServiceRole>::Resp, ErrorData>> + Send + '_
    {
        self.0.handle_request(request, context)
    }

    fn handle_notification(
        &self,
        notification: <RoleServer as ServiceRole>::PeerNot,
        context: NotificationContext<RoleServer>,
    ) -> impl Future<Output = Result<(), ErrorData>> + Send + '_ {
        self.0.handle_notification(notification, context)
    }

    fn get_info(&self) -> <RoleServer as ServiceRole>::Info {
        self.0.get_info()
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        self.0.supported_protocol_versions()
    }
}

pub trait ServiceExt<R: Role>: Service<R> + Sized
where
    R::Served<Self>: real::Service<R>,
{
    fn into_dyn(self) -> Box<dyn DynService<R>> {
        Box::new(self.served())
    }

    fn serve<T, E, A>(
        self,
        transport: T,
    ) -> impl Future<Output = Result<RunningService<R, Self>, R::InitializeError>> + Send
    where
        T: IntoTransport<R, E, A>,
        E: std::error::Error + Send + Sync + 'static,
    {
        self.serve_with_ct(transport, CancellationToken::new())
    }

    fn serve_with_ct<T, E, A>(
        self,
        transport: T,
        token: CancellationToken,
    ) -> impl Future<Output = Result<RunningService<R, Self>, R::InitializeError>> + Send
    where
        T: IntoTransport<R, E, A>,
        E: std::error::Error + Send + Sync + 'static;
}

impl<S: Service<RoleClient> + real::Service<RoleClient>> ServiceExt<RoleClient> for S {
    fn serve_with_ct<T, E, A>(
        self,
        transport: T,
        token: CancellationToken,
    ) -> impl Future<
        Output = Result<
            RunningService<RoleClient, Self>,
            <RoleClient as ServiceRole>::InitializeError,
        >,
    > + Send
    where
        T: IntoTransport<RoleClient, E, A>,
        E: std::error::Error + Send + Sync + 'static,
    {
        real::service::serve_client_with_ct(Service::<RoleClient>::served(self), transport, token)
    }
}

impl<S: Service<RoleServer>> ServiceExt<RoleServer> for S {
    fn serve_with_ct<T, E, A>(
        self,
        transport: T,
        token: CancellationToken,
    ) -> impl Future<Output = Result<RunningService<RoleServer, Self>, ServerInitializeError>> + Send
    where
        T: IntoTransport<RoleServer, E, A>,
        E: std::error::Error + Send + Sync + 'static,
    {
        real::service::serve_server_with_ct(Service::<RoleServer>::served(self), transport, token)
    }
}

pub async fn serve_server<S, T, E, A>(
    service: S,
    transport: T,
) -> Result<RunningService<RoleServer, S>, ServerInitializeError>
where
    S: Service<RoleServer>,
    T: IntoTransport<RoleServer, E, A>,
    E: std::error::Error + Send + Sync + 'static,
{
    real::serve_server(service.served(), transport).await
}

pub async fn serve_server_with_ct<S, T, E, A>(
    service: S,
    transport: T,
    token: CancellationToken,
) -> Result<RunningService<RoleServer, S>, ServerInitializeError>
where
    S: Service<RoleServer>,
    T: IntoTransport<RoleServer, E, A>,
    E: std::error::Error + Send + Sync + 'static,
{
    real::service::serve_server_with_ct(service.served(), transport, token).await
}

pub fn serve_directly<R, S, T, E, A>(
    service: S,
    transport: T,
    peer_info: Option<R::PeerInfo>,
) -> RunningService<R, S>
where
    R: Role,
    R::PeerNot: ProgressNotificationToken,
    R::Served<S>: real::Service<R>,
    S: Service<R>,
    T: IntoTransport<R, E, A>,
    E: std::error::Error + Send + Sync + 'static,
{
    real::service::serve_directly(service.served(), transport, peer_info)
}

pub fn serve_directly_with_ct<R, S, T, E, A>(
    service: S,
    transport: T,
    peer_info: Option<R::PeerInfo>,
    token: CancellationToken,
) -> RunningService<R, S>
where
    R: Role,
    R::PeerNot: ProgressNotificationToken,
    R::Served<S>: real::Service<R>,
    S: Service<R>,
    T: IntoTransport<R, E, A>,
    E: std::error::Error + Send + Sync + 'static,
{
    real::service::serve_directly_with_ct(service.served(), transport, peer_info, token)
}
