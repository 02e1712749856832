//! What the tools do that ask nothing by an `input_required`.

use rmcp::{ErrorData, RoleServer, model::ErrorCode, service::RequestContext};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::server::{LISTS, MOMENT, from};

pub(super) fn text(text: impl Into<String>) -> Value {
    json!({ "content": [{ "type": "text", "text": text.into() }] })
}

/// # Errors
///
/// There is no such tool, or the client cannot do what it asks.
pub(super) async fn called(
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
        "test_logging_tool" => {
            // From revision 2026-07-28 on, only who asks for log messages gets any.
            if context.meta.log_level().is_some() {
                let message = json!({ "level": "info", "data": "Tool called" });
                context.peer.notify_logging_message(from(message)).await.ok();
            }
            text("It was logged if that was asked for.")
        }
        "test_missing_capability" => {
            let capabilities = json!(context.client_capabilities());
            if capabilities.get("sampling").is_none() {
                let missing = json!({ "requiredCapabilities": { "sampling": {} } });
                let code = ErrorCode::MISSING_REQUIRED_CLIENT_CAPABILITY;
                return Err(ErrorData::new(code, "this tool needs sampling", Some(missing)));
            }
            text("The client can sample.")
        }
        "test_trigger_tool_change" | "test_trigger_prompt_change" => text("It was told."),
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
        "json_schema_2020_12_tool" | "test_custom_header" => text(arguments.to_string()),
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
