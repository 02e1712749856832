use std::time::Duration;

use mcp_idempotent_tower::{DownstreamKey, NotExecuted};
use rmcp::ErrorData;
use serde_json::{Value, json};

/// Where payment APIs expect the key.
pub const KEY_HEADER: &str = "Idempotency-Key";

/// The client of a payment API.
#[derive(Debug, Clone)]
pub struct PaymentApi {
    client: reqwest::Client,
    url: String,
}

fn failed(error: &reqwest::Error) -> ErrorData {
    ErrorData::internal_error(format!("the payment API: {error}"), None)
}

impl PaymentApi {
    pub fn new(url: impl Into<String>, timeout: Duration) -> Self {
        let client = reqwest::Client::builder()
            .timeout(timeout)
            .no_proxy()
            .build()
            .unwrap();
        Self {
            client,
            url: url.into(),
        }
    }

    /// Pays, and answers the payment's number.
    pub async fn pay(&self, key: &DownstreamKey, name: &str) -> Result<String, ErrorData> {
        let request = self
            .client
            .post(format!("{}/charges", self.url))
            .header(KEY_HEADER, key.as_str())
            .json(&json!({ "name": name }));
        let response = request.send().await.map_err(|error| {
            if error.is_connect() {
                NotExecuted::mark(failed(&error))
            } else {
                failed(&error)
            }
        })?;
        let response = response
            .error_for_status()
            .map_err(|error| failed(&error))?;
        let paid: Value = response.json().await.map_err(|error| failed(&error))?;
        Ok(paid["id"].as_str().unwrap().to_owned())
    }

    /// The number of the payment that was made under a key, if there is one.
    pub async fn find(&self, key: &DownstreamKey) -> Result<Option<String>, reqwest::Error> {
        let request = self
            .client
            .get(format!("{}/charges", self.url))
            .query(&[("key", key.as_str())]);
        let response = request.send().await?;
        if response.status() == reqwest::StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let found: Value = response.error_for_status()?.json().await?;
        Ok(Some(found["id"].as_str().unwrap().to_owned()))
    }
}
