//! The tool that is called.

use anyhow::{Context as _, bail};
use serde_json::{Map, Value, json};

use super::connection::Connection;

const CONTRACT: &str = "io.github.mcp-idempotent/idempotency";

/// A tool, and the arguments that it is called with.
#[derive(Debug)]
pub(super) struct Subject {
    pub(super) tool: String,
    arguments: Map<String, Value>,
    /// What `tools/list` says of it, if it does.
    pub(super) contract: Option<Value>,
    /// Another tool that only reads.
    pub(super) reader: Option<String>,
}

impl Subject {
    /// # Errors
    ///
    /// The server has no such tool, or none that is protected.
    pub(super) async fn find(
        connection: &mut Connection,
        name: Option<&str>,
        arguments: Option<Map<String, Value>>,
    ) -> anyhow::Result<Self> {
        let listed = connection.ask("tools/list", "{}").await?;
        let tools = listed["result"]["tools"]
            .as_array()
            .context("the server lists no tools")?;
        let is_reader = |tool: &Value| tool["annotations"]["readOnlyHint"] == true;
        let wanted = |tool: &&Value| match name {
            Some(name) => tool["name"] == name,
            None => tool["_meta"].get(CONTRACT).is_some() && !is_reader(tool),
        };
        let Some(tool) = tools.iter().find(wanted) else {
            bail!("the server has no tool with a contract: name one with --tool");
        };
        let contract = tool["_meta"].get(CONTRACT).cloned();
        let no_arguments = |tool: &&Value| {
            let required = tool["inputSchema"]["required"].as_array();
            is_reader(tool) && required.is_none_or(Vec::is_empty)
        };
        let reader = tools
            .iter()
            .find(no_arguments)
            .and_then(|tool| tool["name"].as_str());
        Ok(Self {
            tool: tool["name"].as_str().unwrap_or_default().to_owned(),
            arguments: arguments
                .unwrap_or_else(|| made_from(&tool["inputSchema"], contract.as_ref())),
            contract,
            reader: reader.map(str::to_owned),
        })
    }

    pub(super) fn arguments(&self) -> String {
        json!(self.arguments).to_string()
    }

    /// Arguments that ask for something else, if there is anything to change.
    pub(super) fn other_arguments(&self) -> Option<String> {
        let mut other = self.arguments.clone();
        let changed = other.values_mut().find_map(|value| match value {
            Value::String(text) => {
                text.push('!');
                Some(())
            }
            Value::Number(number) => {
                *value = json!(number.as_i64()? + 1);
                Some(())
            }
            _ => None,
        });
        changed.map(|()| json!(other).to_string())
    }

    /// The same arguments, spelt differently: in another order, with white space, escapes and fractions.
    pub(super) fn spelt_differently(&self) -> String {
        let member = |(name, value): (&String, &Value)| {
            let value = match value {
                Value::Number(number) if number.is_i64() => format!("{number}.0"),
                Value::String(text) if text.starts_with(|first: char| first.is_ascii()) => {
                    let first = u32::from(text.chars().next().unwrap_or_default());
                    let rest = json!(text[1..]).to_string();
                    format!("\"\\u{first:04x}{}", &rest[1..])
                }
                other => other.to_string(),
            };
            format!(" {} : {value}", json!(name))
        };
        let members: Vec<_> = self.arguments.iter().rev().map(member).collect();
        format!("{{{} }}", members.join(" ,"))
    }

    /// The arguments with one more.
    pub(super) fn arguments_with(&self, name: &str, value: Value) -> String {
        let mut arguments = self.arguments.clone();
        arguments.insert(name.to_owned(), value);
        json!(arguments).to_string()
    }

    /// A member of the contract.
    pub(super) fn says(&self, member: &str) -> Option<&str> {
        self.contract.as_ref()?.get(member)?.as_str()
    }

    /// The top-level argument that may carry the key.
    pub(super) fn key_argument(&self) -> Option<&str> {
        let name = self.says("keyArgument")?.strip_prefix('/')?;
        (!name.contains(['/', '~'])).then_some(name)
    }
}

fn made_from(schema: &Value, contract: Option<&Value>) -> Map<String, Value> {
    let key_argument = contract.and_then(|contract| contract["keyArgument"].as_str());
    let mut arguments = Map::new();
    for name in schema["required"].as_array().into_iter().flatten() {
        let name = name.as_str().unwrap_or_default();
        if key_argument.and_then(|pointer| pointer.strip_prefix('/')) == Some(name) {
            continue;
        }
        let value = match schema["properties"][name]["type"].as_str() {
            Some("integer" | "number") => json!(7),
            Some("boolean") => json!(true),
            Some("array") => json!([]),
            Some("object") => json!({}),
            _ => json!("wire check"),
        };
        arguments.insert(name.to_owned(), value);
    }
    arguments
}
