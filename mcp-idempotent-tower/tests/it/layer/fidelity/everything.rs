//! A server that implements every method.
#![expect(
    deprecated,
    reason = "rmcp's deprecated methods have to be delegated too"
)]

use std::{
    borrow::Cow,
    sync::{Arc, Mutex},
};

use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams,
        CancelledNotificationParam, CompleteRequestParams, CompleteResult, CustomNotification,
        CustomRequest, CustomResult, DiscoverResult, GetPromptRequestParams, GetPromptResponse,
        GetPromptResult, GetSkillRequestParams, GetSkillResult, GetTaskParams, GetTaskResult,
        InitializeRequestParams, InitializeResult, ListPromptsResult, ListResourceTemplatesResult,
        ListResourcesResult, ListSkillsResult, ListToolsResult, PaginatedRequestParams,
        ProgressNotificationParam, ProtocolVersion, ReadResourceDirectoryRequestParams,
        ReadResourceDirectoryResult, ReadResourceRequestParams, ReadResourceResponse,
        ReadResourceResult, ServerConfig, SetLevelRequestParams, SubscribeRequestParams,
        SubscriptionFilter, Tool, UnsubscribeRequestParams, UpdateTaskParams,
    },
    service::{NotificationContext, RequestContext, SubscriptionContext},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Implements every method, and writes down which were called.
#[derive(Clone, Default)]
pub(super) struct Everything(Arc<Mutex<Vec<&'static str>>>);

impl Everything {
    fn note(&self, method: &'static str) {
        self.0.lock().unwrap().push(method);
    }

    pub(super) fn notes(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().clone()
    }
}

fn from<T: DeserializeOwned>(json: Value) -> T {
    serde_json::from_value(json).unwrap()
}

fn skill() -> Value {
    json!({
        "uri": "skill://greet/SKILL.md",
        "frontmatter": { "name": "greet", "description": "Greets." },
        "resources": "dynamic",
    })
}

macro_rules! answers {
    ($($method:ident($params:ty) -> $result:ty = $json:tt;)*) => {$(
        async fn $method(
            &self,
            _: $params,
            _: RequestContext<RoleServer>,
        ) -> Result<$result, ErrorData> {
            self.note(stringify!($method));
            Ok(from(json!($json)))
        }
    )*};
}

macro_rules! hears {
    ($($method:ident($params:ty);)*) => {$(
        async fn $method(&self, _: $params, _: NotificationContext<RoleServer>) {
            self.note(stringify!($method));
        }
    )*};
}

#[expect(
    deprecated,
    reason = "rmcp's deprecated methods have to be delegated too"
)]
impl ServerHandler for Everything {
    answers! {
        complete(CompleteRequestParams) -> CompleteResult = { "completion": { "values": ["a"] } };
        set_level(SetLevelRequestParams) -> () = null;
        list_prompts(Option<PaginatedRequestParams>) -> ListPromptsResult = { "prompts": [{ "name": "p" }] };
        list_resources(Option<PaginatedRequestParams>) -> ListResourcesResult = { "resources": [{ "uri": "r://1", "name": "r" }] };
        list_resource_templates(Option<PaginatedRequestParams>) -> ListResourceTemplatesResult = { "resourceTemplates": [{ "uriTemplate": "r://{x}", "name": "t" }] };
        subscribe(SubscribeRequestParams) -> () = null;
        unsubscribe(UnsubscribeRequestParams) -> () = null;
        get_task(GetTaskParams) -> GetTaskResult = {
            "resultType": "complete", "taskId": "t", "status": "working",
            "createdAt": "2026-11-29T12:00:00Z", "lastUpdatedAt": "2026-11-29T12:00:00Z", "ttlMs": null
        };
        update_task(UpdateTaskParams) -> () = null;
        cancel_task(CancelTaskParams) -> () = null;
        list_skills(Option<PaginatedRequestParams>) -> ListSkillsResult = { "skills": [skill()] };
        get_skill(GetSkillRequestParams) -> GetSkillResult = { "skill": skill() };
        read_resource_directory(ReadResourceDirectoryRequestParams) -> ReadResourceDirectoryResult = { "resources": [] };
        on_custom_request(CustomRequest) -> CustomResult = { "custom": true };
    }

    hears! {
        on_cancelled(CancelledNotificationParam);
        on_progress(ProgressNotificationParam);
        on_custom_notification(CustomNotification);
    }

    async fn ping(&self, _: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        self.note("ping");
        Ok(())
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        self.note("initialize");
        context.peer.set_peer_info(request.clone());
        let mut result = self.negotiate_initialize(&request)?;
        result.instructions = Some("initialized".into());
        Ok(result)
    }

    fn negotiate_initialize(
        &self,
        request: &InitializeRequestParams,
    ) -> Result<InitializeResult, ErrorData> {
        self.note("negotiate_initialize");
        let mut result = self.get_info();
        result.protocol_version = request.protocol_version.clone();
        Ok(result)
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        vec![ProtocolVersion::V_2025_11_25, ProtocolVersion::V_2026_07_28].into()
    }

    async fn discover(&self, _: RequestContext<RoleServer>) -> Result<DiscoverResult, ErrorData> {
        self.note("discover");
        let versions = self.supported_protocol_versions().into_owned();
        let mut result = DiscoverResult::from_server_info(versions, self.get_info());
        result.instructions = Some("discovered".into());
        Ok(result)
    }

    async fn get_prompt(
        &self,
        _: GetPromptRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        self.note("get_prompt");
        Ok(from::<GetPromptResult>(json!({ "messages": [] })).into())
    }

    async fn read_resource(
        &self,
        _: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        self.note("read_resource");
        Ok(from::<ReadResourceResult>(json!({ "contents": [] })).into())
    }

    fn accepted_subscription_filter(
        &self,
        wanted: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        self.note("accepted_subscription_filter");
        Some(wanted.clone())
    }

    async fn listen(&self, _: SubscriptionContext) -> Result<(), ErrorData> {
        self.note("listen");
        Ok(())
    }

    async fn call_tool(
        &self,
        _: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.note("call_tool");
        let result = json!({ "content": [], "structuredContent": { "n": 1 }, "isError": false });
        Ok(from::<CallToolResult>(result).into())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(
            self.get_tool("t").into_iter().collect(),
        ))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        (name == "t").then(|| Tool::new("t", "A tool.", Arc::default()))
    }

    async fn on_initialized(&self, _: NotificationContext<RoleServer>) {
        self.note("on_initialized");
    }

    async fn on_roots_list_changed(&self, _: NotificationContext<RoleServer>) {
        self.note("on_roots_list_changed");
    }

    fn get_info(&self) -> ServerConfig {
        let mut info: ServerConfig = from(json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {
                "extensions": {
                    "io.modelcontextprotocol/tasks": {},
                    "io.modelcontextprotocol/skills": { "directoryRead": true },
                },
                "logging": {},
                "completions": {},
                "prompts": { "listChanged": true },
                "resources": { "subscribe": true, "listChanged": true },
                "tools": { "listChanged": true },
            },
            "serverInfo": { "name": "everything", "version": "7" },
        }));
        info.instructions = Some("about me".into());
        info
    }
}
