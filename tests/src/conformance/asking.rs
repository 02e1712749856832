//! Tools and a prompt that ask the client back (multi round-trip requests).

use rmcp::{ErrorData, model::InputRequiredResult};
use serde_json::{Value, json};

use super::server::from;

/// What a round of a request carries.
pub(super) struct Round<'a> {
    /// The client's answers by their names, or null.
    pub(super) responses: &'a Value,
    pub(super) state: Option<&'a str>,
    /// What the client declares, or null.
    pub(super) capabilities: &'a Value,
}

/// The end of a request that asked, or the next question.
pub(super) enum Step {
    Told(String),
    Asked(InputRequiredResult),
}

impl Round<'_> {
    fn answer(&self, name: &str, pointer: &str) -> Option<String> {
        let value = self.responses.get(name)?.pointer(pointer)?;
        Some(
            value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned),
        )
    }

    /// # Errors
    ///
    /// The state is not one of ours.
    pub(super) fn step(&self, name: &str) -> Result<Option<Step>, ErrorData> {
        let told = |text: String| Ok(Some(Step::Told(text)));
        let asked = |requests: Value, state: Option<&str>| {
            let state = state.map(str::to_owned);
            Ok(Some(Step::Asked(InputRequiredResult::new(
                Some(from(requests)),
                state,
            ))))
        };
        match name {
            "test_input_required_result_capabilities" => {
                let mut requests = json!({
                    "elicitation": form("What is your name?", "name"),
                    "sampling": sampling("Generate a greeting", 50),
                    "roots": roots(),
                });
                if let Value::Object(requests) = &mut requests {
                    requests.retain(|name, _| {
                        self.capabilities.get(name).is_some() && self.responses.get(name).is_none()
                    });
                    if requests.is_empty() {
                        return told("There is nothing to ask.".into());
                    }
                }
                asked(requests, None)
            }
            "test_streaming_elicitation" => match self.answer("user_name", "/content/name") {
                Some(name) => told(format!("Hello, {name}!")),
                None => asked(
                    json!({ "user_name": form("What is your name?", "name") }),
                    None,
                ),
            },
            "test_input_required_result_elicitation" => {
                match self.answer("user_name", "/content/name") {
                    Some(name) => told(format!("Hello, {name}!")),
                    None => asked(
                        json!({ "user_name": form("What is your name?", "name") }),
                        None,
                    ),
                }
            }
            "test_input_required_result_prompt" => {
                match self.answer("user_context", "/content/context") {
                    Some(context) => told(format!("The context is {context}.")),
                    None => asked(
                        json!({ "user_context": form("What context should the prompt use?", "context") }),
                        None,
                    ),
                }
            }
            "test_input_required_result_sampling" => {
                match self.answer("capital_question", "/content/text") {
                    Some(text) => told(text),
                    None => asked(
                        json!({ "capital_question": sampling("What is the capital of France?", 100) }),
                        None,
                    ),
                }
            }
            "test_input_required_result_list_roots" => {
                match self.answer("client_roots", "/roots") {
                    Some(roots) => told(format!("Roots: {roots}")),
                    None => asked(json!({ "client_roots": roots() }), None),
                }
            }
            "test_input_required_result_request_state"
            | "test_input_required_result_tampered_state" => {
                match (self.state, self.answer("confirm", "/content/ok")) {
                    (None, _) => asked(
                        json!({ "confirm": form("Please confirm", "ok") }),
                        Some("signed state"),
                    ),
                    (Some("signed state"), Some(_)) => told("state-ok".into()),
                    (Some("signed state"), None) => asked(
                        json!({ "confirm": form("Please confirm", "ok") }),
                        Some("signed state"),
                    ),
                    (Some(_), _) => Err(ErrorData::invalid_params("the state is not ours", None)),
                }
            }
            "test_input_required_result_multiple_inputs" => {
                let answered = ["user_name", "greeting", "client_roots"]
                    .iter()
                    .all(|name| self.responses.get(name).is_some());
                if answered {
                    return told("All three are answered.".into());
                }
                let requests = json!({
                    "user_name": form("What is your name?", "name"),
                    "greeting": sampling("Generate a greeting", 50),
                    "client_roots": roots(),
                });
                asked(requests, Some("three questions"))
            }
            "test_input_required_result_multi_round" => match self.state {
                Some("round 1") if self.responses.get("step1").is_some() => asked(
                    json!({ "step2": form("Step 2: What is your favorite color?", "color") }),
                    Some("round 2"),
                ),
                Some("round 2") if self.responses.get("step2").is_some() => {
                    told("Both steps are done.".into())
                }
                _ => asked(
                    json!({ "step1": form("Step 1: What is your name?", "name") }),
                    Some("round 1"),
                ),
            },
            _ => Ok(None),
        }
    }
}

fn form(message: &str, field: &str) -> Value {
    let kind = if field == "ok" { "boolean" } else { "string" };
    json!({ "method": "elicitation/create", "params": {
        "message": message,
        "requestedSchema": {
            "type": "object", "properties": { field: { "type": kind } }, "required": [field],
        },
    }})
}

fn sampling(text: &str, tokens: u32) -> Value {
    json!({ "method": "sampling/createMessage", "params": {
        "messages": [{ "role": "user", "content": { "type": "text", "text": text } }],
        "maxTokens": tokens,
    }})
}

fn roots() -> Value {
    json!({ "method": "roots/list", "params": {} })
}
