use std::{sync::LazyLock, time::Duration};

use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestParams,
        CompleteResult, GetPromptRequestParams, GetPromptResponse, GetPromptResult,
        ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
        PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse,
        ReadResourceResult, ServerConfig, SetLevelRequestParams, SubscribeRequestParams, Tool,
        UnsubscribeRequestParams,
    },
    service::RequestContext,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::asking::{Round, Step};

static LISTS: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("lists.json")).unwrap());

/// Between two notifications, so that each is sent by itself.
const MOMENT: Duration = Duration::from_millis(50);

/// The server.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Conformance;

pub(super) fn from<T: DeserializeOwned>(json: Value) -> T {
    serde_json::from_value(json).unwrap()
}

fn text(text: impl Into<String>) -> Value {
    json!({ "content": [{ "type": "text", "text": text.into() }] })
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
        Ok(from(json!({ "resources": LISTS["resources"] })))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(from(
            json!({ "resourceTemplates": LISTS["resourceTemplates"] }),
        ))
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Ok(from(json!({ "prompts": LISTS["prompts"] })))
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
        Ok(from::<ReadResourceResult>(json!({ "contents": [contents] })).into())
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
        Ok(from(
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

    async fn call_tool(
        &self,
        params: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = json!(params.arguments);
        let responses = json!(params.input_responses);
        let round = Round {
            responses: &responses,
            state: params.request_state.as_deref(),
        };
        if let Some(step) = round.step(&params.name)? {
            return Ok(match step {
                Step::Told(said) => from::<CallToolResult>(text(said)).into(),
                Step::Asked(question) => question.into(),
            });
        }
        let result = called(&params.name, &arguments, &context).await?;
        Ok(from::<CallToolResult>(result).into())
    }
}

async fn called(
    name: &str,
    arguments: &Value,
    context: &RequestContext<RoleServer>,
) -> Result<Value, ErrorData> {
    Ok(match name {
        "test_simple_text" => text("This is a simple text response for testing."),
        "test_image_content" => {
            json!({ "content": [{ "type": "image", "data": LISTS["png"], "mimeType": "image/png" }] })
        }
        "test_audio_content" => {
            json!({ "content": [{ "type": "audio", "data": LISTS["wav"], "mimeType": "audio/wav" }] })
        }
        "test_embedded_resource" => json!({ "content": [{ "type": "resource", "resource": {
            "uri": "test://embedded-resource", "mimeType": "text/plain",
            "text": "This is an embedded resource content.",
        }}]}),
        "test_multiple_content_types" => json!({ "content": [
            { "type": "text", "text": "Multiple content types test:" },
            { "type": "image", "data": LISTS["png"], "mimeType": "image/png" },
            { "type": "resource", "resource": {
                "uri": "test://mixed-content-resource", "mimeType": "application/json",
                "text": "{\"test\":\"data\",\"value\":123}",
            }},
        ]}),
        "test_error_handling" => {
            let mut result = text("This tool intentionally returns an error for testing");
            result["isError"] = true.into();
            result
        }
        "test_tool_with_logging" => {
            for said in ["started", "processing data", "completed"] {
                let message = json!({ "level": "info", "data": format!("Tool {said}") });
                context.peer.notify_logging_message(from(message)).await.ok();
                sleep(MOMENT).await;
            }
            text("It was logged.")
        }
        "test_tool_with_progress" => {
            let token = json!(context.meta.get_progress_token());
            for progress in [0, 50, 100] {
                if !token.is_null() {
                    let step = json!({ "progressToken": token, "progress": progress, "total": 100 });
                    context.peer.notify_progress(from(step)).await.ok();
                }
                sleep(MOMENT).await;
            }
            text("It is done.")
        }
        "test_sampling" => {
            let question = json!({
                "messages": [{ "role": "user", "content": { "type": "text", "text": arguments["prompt"] } }],
                "maxTokens": 100,
            });
            let answer = context.peer.create_message(from(question)).await;
            let answer = json!(answer.map_err(failed)?);
            text(format!("LLM response: {}", answer["content"]["text"]))
        }
        "test_elicitation" => elicited("User response", context, &arguments["message"], json!({
            "username": { "type": "string", "description": "User's response" },
            "email": { "type": "string", "description": "User's email address" },
        })).await?,
        "test_elicitation_sep1034_defaults" => elicited("Elicitation completed", context, &json!("Defaults"), json!({
            "name": { "type": "string", "default": "John Doe" },
            "age": { "type": "integer", "default": 30 },
            "score": { "type": "number", "default": 95.5 },
            "status": { "type": "string", "enum": ["active", "inactive", "pending"], "default": "active" },
            "verified": { "type": "boolean", "default": true },
        })).await?,
        "test_elicitation_sep1330_enums" => elicited("Elicitation completed", context, &json!("Enums"), json!({
            "untitledSingle": { "type": "string", "enum": ["option1", "option2", "option3"] },
            "titledSingle": { "type": "string", "oneOf": [
                { "const": "value1", "title": "First Option" },
                { "const": "value2", "title": "Second Option" },
            ]},
            "legacyEnum": {
                "type": "string", "enum": ["opt1", "opt2", "opt3"],
                "enumNames": ["Option One", "Option Two", "Option Three"],
            },
            "untitledMulti": {
                "type": "array", "items": { "type": "string", "enum": ["option1", "option2", "option3"] },
            },
            "titledMulti": { "type": "array", "items": { "anyOf": [
                { "const": "value1", "title": "First Choice" },
                { "const": "value2", "title": "Second Choice" },
            ]}},
        })).await?,
        "json_schema_2020_12_tool" | "test_custom_header" | "test_input_required_result_capabilities" => {
            text(arguments.to_string())
        }
        _ => return Err(ErrorData::invalid_params("no such tool", None)),
    })
}

/// Asks the client's user for these fields, and says what was answered.
async fn elicited(
    said: &str,
    context: &RequestContext<RoleServer>,
    message: &Value,
    properties: Value,
) -> Result<Value, ErrorData> {
    let question = json!({
        "mode": "form", "message": message,
        "requestedSchema": { "type": "object", "properties": properties },
    });
    let answer = context.peer.create_elicitation(from(question)).await;
    let answer = json!(answer.map_err(failed)?);
    let (action, content) = (&answer["action"], &answer["content"]);
    Ok(text(format!("{said}: action={action}, content={content}")))
}

fn failed(error: impl std::fmt::Display) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}

fn block(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

fn prompt(blocks: &[Value]) -> GetPromptResponse {
    let messages: Vec<_> = blocks
        .iter()
        .map(|content| json!({ "role": "user", "content": content }))
        .collect();
    from::<GetPromptResult>(json!({ "messages": messages })).into()
}
