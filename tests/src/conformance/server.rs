use std::{sync::LazyLock, time::Duration};

use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestParams,
        CompleteResult, GetPromptRequestParams, GetPromptResponse, GetPromptResult,
        ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
        PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse,
        ReadResourceResult, ServerConfig, SetLevelRequestParams, SubscribeRequestParams,
        SubscriptionFilter, Tool, UnsubscribeRequestParams,
    },
    service::{RequestContext, SubscriptionContext},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::{sync::broadcast, time::sleep};

use super::{
    asking::{Round, Step},
    tools::{called, text},
};

pub(super) static LISTS: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("lists.json")).unwrap());

/// Between two notifications, so that each is sent by itself.
pub(super) const MOMENT: Duration = Duration::from_millis(50);

/// A list that changes.
#[derive(Debug, Clone, Copy)]
enum List {
    Tools,
    Prompts,
}

/// The server.
#[derive(Debug, Clone)]
pub struct Conformance {
    changes: broadcast::Sender<List>,
}

impl Default for Conformance {
    fn default() -> Self {
        let (changes, _) = broadcast::channel(16);
        Self { changes }
    }
}

impl Conformance {
    /// Tells the subscribers, who may just have been told that they are.
    async fn change(&self, list: List) {
        sleep(MOMENT).await;
        drop(self.changes.send(list));
    }
}

pub(super) fn from<T: DeserializeOwned>(json: Value) -> T {
    serde_json::from_value(json).unwrap()
}

/// A result that ends its request. rmcp takes the mark away for a peer of an earlier revision.
fn complete<T: DeserializeOwned>(mut result: Value) -> T {
    result["resultType"] = "complete".into();
    from(result)
}

fn all_tools() -> Vec<Tool> {
    let plain = LISTS["plainTools"].as_array().into_iter().flatten();
    let plain = plain.map(|name| {
        json!({
            "name": name, "description": "A tool of the suite", "inputSchema": { "type": "object" },
        })
    });
    let tools = LISTS["tools"].as_array().into_iter().flatten().cloned();
    plain.chain(tools).map(from).collect()
}

impl ServerHandler for Conformance {
    fn get_info(&self) -> ServerConfig {
        from(json!({
            "protocolVersion": "2025-11-25",
            "capabilities": LISTS["capabilities"],
            "serverInfo": { "name": "conformance", "version": "1" },
        }))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        all_tools().into_iter().find(|tool| tool.name == name)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(all_tools()))
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Ok(complete(json!({ "resources": LISTS["resources"] })))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(complete(
            json!({ "resourceTemplates": LISTS["resourceTemplates"] }),
        ))
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Ok(complete(json!({ "prompts": LISTS["prompts"] })))
    }

    async fn read_resource(
        &self,
        params: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let uri = &params.uri;
        let id = uri
            .strip_prefix("test://template/")
            .and_then(|rest| rest.strip_suffix("/data"));
        let contents = match (uri.as_str(), id) {
            ("test://static-text" | "test://watched-resource", _) => json!({
                "uri": uri, "mimeType": "text/plain",
                "text": "This is the content of the static text resource.",
            }),
            ("test://static-binary", _) => {
                json!({ "uri": uri, "mimeType": "image/png", "blob": LISTS["png"] })
            }
            (_, Some(id)) => {
                let data =
                    json!({ "id": id, "templateTest": true, "data": format!("Data for ID: {id}") });
                json!({ "uri": uri, "mimeType": "application/json", "text": data.to_string() })
            }
            (_, None) => {
                let data = json!({ "uri": uri });
                return Err(ErrorData::invalid_params("Resource not found", Some(data)));
            }
        };
        Ok(complete::<ReadResourceResult>(json!({ "contents": [contents] })).into())
    }

    async fn get_prompt(
        &self,
        params: GetPromptRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let arguments = json!(params.arguments);
        let responses = json!(params.input_responses);
        let round = Round {
            responses: &responses,
            state: params.request_state.as_deref(),
            capabilities: &Value::Null,
        };
        let said = match &*params.name {
            "test_simple_prompt" => "This is a simple prompt for testing.".to_owned(),
            "test_prompt_with_arguments" => {
                let argument = |name: &str| arguments[name].as_str().unwrap_or_default();
                let (one, two) = (argument("arg1"), argument("arg2"));
                format!("Prompt with arguments: arg1='{one}', arg2='{two}'")
            }
            "test_prompt_with_embedded_resource" => {
                let resource = json!({
                    "uri": arguments["resourceUri"], "mimeType": "text/plain",
                    "text": "Embedded resource content for testing.",
                });
                let embedded = json!({ "type": "resource", "resource": resource });
                return Ok(prompt(&[
                    embedded,
                    block("Please process the embedded resource above."),
                ]));
            }
            "test_prompt_with_image" => {
                let image =
                    json!({ "type": "image", "data": LISTS["png"], "mimeType": "image/png" });
                return Ok(prompt(&[image, block("Please analyze the image above.")]));
            }
            other => match round.step(other)? {
                Some(Step::Told(text)) => text,
                Some(Step::Asked(question)) => return Ok(question.into()),
                None => return Err(ErrorData::invalid_params("no such prompt", None)),
            },
        };
        Ok(prompt(&[block(&said)]))
    }

    async fn complete(
        &self,
        _: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        Ok(complete(
            json!({ "completion": { "values": ["paris", "park"], "total": 2, "hasMore": false } }),
        ))
    }

    async fn set_level(
        &self,
        _: SetLevelRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn subscribe(
        &self,
        _: SubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn unsubscribe(
        &self,
        _: UnsubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let mut changes = self.changes.subscribe();
        loop {
            let changed = tokio::select! {
                () = context.cancelled() => return Ok(()),
                changed = changes.recv() => changed,
            };
            // The sink leaves out what was not asked for.
            let sink = context.sink();
            match changed {
                Ok(List::Tools) => drop(sink.notify_tool_list_changed().await),
                Ok(List::Prompts) => drop(sink.notify_prompt_list_changed().await),
                Err(_) => return Ok(()),
            }
        }
    }

    async fn call_tool(
        &self,
        params: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = json!(params.arguments);
        let responses = json!(params.input_responses);
        let capabilities = json!(context.client_capabilities());
        let round = Round {
            responses: &responses,
            state: params.request_state.as_deref(),
            capabilities: &capabilities,
        };
        match &*params.name {
            "test_trigger_tool_change" => self.change(List::Tools).await,
            "test_trigger_prompt_change" => self.change(List::Prompts).await,
            _ => {}
        }
        if let Some(step) = round.step(&params.name)? {
            return Ok(match step {
                Step::Told(said) => complete::<CallToolResult>(text(said)).into(),
                Step::Asked(question) => question.into(),
            });
        }
        let result = called(&params.name, &arguments, &context).await?;
        Ok(complete::<CallToolResult>(result).into())
    }
}

fn block(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

fn prompt(blocks: &[Value]) -> GetPromptResponse {
    let messages: Vec<_> = blocks
        .iter()
        .map(|content| json!({ "role": "user", "content": content }))
        .collect();
    complete::<GetPromptResult>(json!({ "messages": messages })).into()
}
