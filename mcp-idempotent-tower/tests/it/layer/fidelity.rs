//! A wrapped server answers every method as the bare one does.
#![expect(
    deprecated,
    reason = "rmcp's deprecated methods have to be delegated too"
)]

use std::{
    borrow::Cow,
    sync::{Arc, Mutex},
    time::Duration,
};

use mcp_idempotent_tower::{ServerExt as _, layer::Rule, wire};
use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt as _,
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
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};
use tower::layer::util::Identity;

use super::{layer, lease, until};

/// Implements every method, and writes down which were called.
#[derive(Clone, Default)]
struct Everything(Arc<Mutex<Vec<&'static str>>>);

impl Everything {
    fn note(&self, method: &'static str) {
        self.0.lock().unwrap().push(method);
    }

    fn notes(&self) -> Vec<&'static str> {
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

/// Talks to a server line by line.
struct Line {
    stream: BufReader<DuplexStream>,
    heard: Vec<Value>,
}

impl Line {
    fn to(server: impl ServerHandler) -> Self {
        let (here, there) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move {
            let running = server.serve(there).await.unwrap();
            running.waiting().await.unwrap();
        });
        Self {
            stream: BufReader::new(here),
            heard: Vec::new(),
        }
    }

    async fn say(&mut self, message: Value) {
        let text = format!("{message}\n");
        self.stream
            .get_mut()
            .write_all(text.as_bytes())
            .await
            .unwrap();
    }

    /// Sends a request and keeps what comes, up to its answer.
    async fn ask(&mut self, id: usize, method: &str, params: &Value) {
        self.say(json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))
            .await;
        loop {
            let mut line = String::new();
            let read = self.stream.read_line(&mut line);
            let read = tokio::time::timeout(Duration::from_secs(20), read).await;
            let read = read.unwrap_or_else(|_| panic!("no answer to {method}"));
            assert_ne!(read.unwrap(), 0, "the server hung up at {method}");
            let message: Value = serde_json::from_str(&line).unwrap();
            let is_answer = message["id"] == json!(id) && message.get("method").is_none();
            self.heard.push(message);
            if is_answer {
                return;
            }
        }
    }
}

const METHODS: [&str; 23] = [
    "ping",
    "tools/list",
    "tools/call",
    "prompts/list",
    "prompts/get",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "resources/directory/read",
    "completion/complete",
    "logging/setLevel",
    "tasks/get",
    "tasks/update",
    "tasks/cancel",
    "skills/list",
    "skills/get",
    "subscriptions/listen",
    "author/custom",
    "tools/call",
    "server/discover",
    "tools/list",
];

fn params(method: &str) -> Value {
    match method {
        "tools/call" => json!({ "name": "t", "arguments": { "a": 1 } }),
        "prompts/get" => json!({ "name": "p" }),
        "resources/read" | "resources/subscribe" | "resources/unsubscribe" => {
            json!({ "uri": "r://1" })
        }
        "resources/directory/read" => json!({ "uri": "skill://greet/" }),
        "skills/get" => json!({ "uri": "skill://greet/SKILL.md" }),
        "completion/complete" => json!({
            "ref": { "type": "ref/prompt", "name": "p" }, "argument": { "name": "a", "value": "b" },
        }),
        "logging/setLevel" => json!({ "level": "info" }),
        "tasks/get" | "tasks/cancel" => json!({ "taskId": "t" }),
        "tasks/update" => json!({ "taskId": "t", "inputResponses": {} }),
        "subscriptions/listen" => json!({ "notifications": { "toolsListChanged": true } }),
        _ => json!({}),
    }
}

/// Everything that a client can say, under one revision; what came back, and what was called.
async fn converse(bare: &Everything, server: impl ServerHandler, modern: bool) -> Vec<Value> {
    let capabilities = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
    let client = json!({ "name": "client", "version": "1" });
    let mut line = Line::to(server);
    let mut meta = json!({ "progressToken": 5 });
    if modern {
        meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": client,
            "io.modelcontextprotocol/clientCapabilities": capabilities,
        });
        line.ask(0, "server/discover", &json!({ "_meta": meta }))
            .await;
    } else {
        let initialize = json!({
            "protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": client,
        });
        line.ask(0, "initialize", &initialize).await;
        line.say(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }))
            .await;
    }
    for (id, method) in METHODS.into_iter().enumerate() {
        let mut params = params(method);
        params["_meta"] = meta.clone();
        line.ask(id + 1, method, &params).await;
    }
    for (method, params) in [
        (
            "notifications/progress",
            json!({ "progressToken": 1, "progress": 1.0 }),
        ),
        ("notifications/roots/list_changed", json!({})),
        ("notifications/author", json!({})),
        (
            "notifications/cancelled",
            json!({ "requestId": 999, "reason": "why" }),
        ),
    ] {
        let before = bare.notes().len();
        line.say(json!({ "jsonrpc": "2.0", "method": method, "params": params }))
            .await;
        until(method, || bare.notes().len() > before).await;
    }
    line.heard
}

#[tokio::test]
async fn a_wrapped_server_answers_every_method_as_the_bare_one() {
    for modern in [false, true] {
        let bare = Everything::default();
        let expected = converse(&bare, bare.clone(), modern).await;
        assert!(expected.len() > METHODS.len(), "{expected:#?}");

        let layered = Everything::default();
        let heard = converse(&layered, layered.clone().layered(Identity::new()), modern).await;
        assert_same(&heard, &expected);
        assert_eq!(layered.notes(), bare.notes());

        let wrapped = Everything::default();
        let server = wrapped.clone().idempotent(layer(lease()));
        let heard = converse(&wrapped, server, modern).await;
        // Said once for each way in, and once for each list; nothing else differs.
        let mut heard = Value::Array(heard);
        assert!(heard.to_string().contains(wire::EXTENSION), "{heard}");
        forget(&mut heard, wire::EXTENSION);
        assert_same(heard.as_array().unwrap(), &expected);
        assert_eq!(wrapped.notes(), bare.notes());

        let untouched = Everything::default();
        let server = untouched.clone().idempotent(layer(Rule::untouched()));
        assert_eq!(server.get_tool("t"), bare.get_tool("t"));
        assert_eq!(server.get_tool("u"), None);
        assert_eq!(
            server.supported_protocol_versions(),
            bare.supported_protocol_versions()
        );
    }
}

#[tokio::test]
async fn every_method_of_the_handler_is_reached() {
    let handler = Everything::default();
    let server = handler.clone().idempotent(layer(lease()));
    converse(&handler, server.clone(), false).await;
    converse(&handler, server, true).await;
    let notes = handler.notes();
    for method in [
        "ping",
        "initialize",
        "negotiate_initialize",
        "discover",
        "complete",
        "set_level",
        "get_prompt",
        "list_prompts",
        "list_resources",
        "list_resource_templates",
        "read_resource",
        "accepted_subscription_filter",
        "listen",
        "subscribe",
        "unsubscribe",
        "call_tool",
        "on_custom_request",
        "on_cancelled",
        "on_progress",
        "on_initialized",
        "on_roots_list_changed",
        "on_custom_notification",
        "get_task",
        "update_task",
        "cancel_task",
        "list_skills",
        "get_skill",
        "read_resource_directory",
    ] {
        assert!(
            notes.contains(&method),
            "{method} was not called: {notes:?}"
        );
    }
}

fn assert_same(heard: &[Value], expected: &[Value]) {
    assert_eq!(heard.len(), expected.len());
    for (heard, expected) in heard.iter().zip(expected) {
        assert_eq!(heard, expected);
    }
}

/// Removes a member wherever it is, and `_meta` that is empty after that.
fn forget(value: &mut Value, member: &str) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| forget(item, member)),
        Value::Object(members) => {
            members.remove(member);
            members.values_mut().for_each(|value| forget(value, member));
            if members.get("_meta").is_some_and(|meta| *meta == json!({})) {
                members.remove("_meta");
            }
        }
        _ => {}
    }
}
