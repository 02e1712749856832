//! Holds answers back, so that a server can be killed between COMMIT and answer.

use std::time::Duration;

use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, ListToolsResult, PaginatedRequestParams,
        ServerConfig, Tool,
    },
    service::RequestContext,
};

/// A server whose answers come late. It passes on what the servers of this example have: tools.
#[derive(Debug, Clone)]
pub struct LateAnswers<H> {
    server: H,
    delay: Duration,
}

impl<H> LateAnswers<H> {
    /// Holds each answer of `server` back.
    pub const fn new(server: H, delay: Duration) -> Self {
        Self { server, delay }
    }
}

impl<H: ServerHandler> ServerHandler for LateAnswers<H> {
    fn get_info(&self) -> ServerConfig {
        self.server.get_info()
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.server.get_tool(name)
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        self.server.list_tools(request, context).await
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        // Whatever was to be committed is committed when this returns.
        let answer = self.server.call_tool(request, context).await;
        tokio::time::sleep(self.delay).await;
        answer
    }
}
