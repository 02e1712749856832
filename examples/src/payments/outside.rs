//! The other systems that the tools act on: a service that sends receipts, a payment API. No
//! transaction covers them.
//!
//! Each call goes out with the attempt's downstream key in the header `Idempotency-Key`: the same
//! key, however often the tool runs for one call of the client's.

use std::time::Duration;

use anyhow::Context as _;
use mcp_idempotent_tower::{Attempt, NotExecuted};
use reqwest::StatusCode;
use rmcp::ErrorData;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::json;

use super::ledger::Ledger;

/// The header in which payment APIs expect the key.
pub const KEY_HEADER: &str = "Idempotency-Key";

/// A receipt to be sent.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Message {
    /// To whom.
    pub customer: String,
    /// What it says.
    pub message: String,
}

impl Message {
    /// Refuses what cannot be sent.
    ///
    /// # Errors
    ///
    /// Nobody is named.
    pub fn check(&self) -> Result<(), ErrorData> {
        if self.customer.trim().is_empty() {
            return Err(ErrorData::invalid_params(
                "customer is empty; nothing was sent",
                None,
            ));
        }
        Ok(())
    }
}

/// A receipt that was sent.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Sent {
    /// The other side's number of it.
    pub receipt_id: String,
}

/// An invoice to be paid.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Invoice {
    /// Its number.
    pub invoice: String,
    /// How much, in cents.
    pub amount_cents: i64,
}

impl Invoice {
    /// Refuses what cannot be paid.
    ///
    /// # Errors
    ///
    /// The amount is not positive, or no invoice is named.
    pub fn check(&self) -> Result<(), ErrorData> {
        if self.amount_cents <= 0 || self.invoice.trim().is_empty() {
            return Err(ErrorData::invalid_params(
                "an invoice has a number and an amount of more than 0; nothing was paid",
                None,
            ));
        }
        Ok(())
    }
}

/// A payment that was made.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Payment {
    /// The payment API's number of it.
    pub payment_id: String,
    /// What it was for.
    pub invoice: String,
    /// How much, in cents.
    pub amount_cents: i64,
}

/// Writes a payment; the same text for SQLite and Postgres.
pub(super) const INSERT: &str =
    "INSERT INTO payments (payment_id, invoice, amount_cents) VALUES ($1, $2, $3)";

/// What either of the other systems answers.
#[derive(Deserialize)]
struct Done {
    id: String,
}

/// Where a call is held up, so that something can be done to its server there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are two sides of a call")]
pub enum Place {
    /// Before it goes out.
    BeforeCall,
    /// When it was answered, and nothing is recorded.
    AfterCall,
}

impl Place {
    /// What the ledger says when a call comes here, before the name of what it is about.
    #[must_use]
    pub const fn note(self) -> &'static str {
        match self {
            Self::BeforeCall => "calling for",
            Self::AfterCall => "answered for",
        }
    }
}

/// The other systems. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Outside {
    client: reqwest::Client,
    receipts: Option<String>,
    payments: Option<String>,
    hold_at: Option<(Place, Duration)>,
    ledger: Ledger,
}

impl Outside {
    /// Calls these URLs, and waits so long for their answers.
    ///
    /// # Errors
    ///
    /// The HTTP client cannot be made.
    pub fn new(
        receipts: Option<String>,
        payments: Option<String>,
        timeout: Duration,
        hold_at: Option<(Place, Duration)>,
        ledger: Ledger,
    ) -> anyhow::Result<Self> {
        let client = reqwest::Client::builder()
            .timeout(timeout)
            // A payment is not to be taken elsewhere.
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .context("cannot make an HTTP client")?;
        Ok(Self {
            client,
            receipts,
            payments,
            hold_at,
            ledger,
        })
    }

    /// Sends a receipt.
    ///
    /// # Errors
    ///
    /// It was not sent (the error is marked so), or nobody knows.
    pub async fn send_receipt(
        &self,
        attempt: &Attempt,
        message: &Message,
    ) -> Result<Sent, ErrorData> {
        let url = configured(self.receipts.as_deref(), "--receipt-url")?;
        let sent: Done = self
            .act(attempt, "receipt", url, &message.customer, message)
            .await?;
        Ok(Sent {
            receipt_id: sent.id,
        })
    }

    /// Pays an invoice.
    ///
    /// # Errors
    ///
    /// It was not paid (the error is marked so), or nobody knows.
    pub async fn pay(&self, attempt: &Attempt, invoice: &Invoice) -> Result<Payment, ErrorData> {
        let url = configured(self.payments.as_deref(), "--payment-url")?;
        let paid: Done = self
            .act(attempt, "payment", url, &invoice.invoice, invoice)
            .await?;
        Ok(Payment {
            payment_id: paid.id,
            invoice: invoice.invoice.clone(),
            amount_cents: invoice.amount_cents,
        })
    }

    /// Pays an invoice, and again if asked again: the other side is sent no key.
    ///
    /// # Errors
    ///
    /// It was not paid, or nobody knows.
    pub async fn pay_without_key(&self, invoice: &Invoice) -> Result<Payment, ErrorData> {
        let url = configured(self.payments.as_deref(), "--payment-url")?;
        let response = self.client.post(url).json(invoice).send().await;
        let response = response.and_then(reqwest::Response::error_for_status);
        let response = response.map_err(|error| failed(&error))?;
        let paid: Done = response.json().await.map_err(|error| failed(&error))?;
        Ok(Payment {
            payment_id: paid.id,
            invoice: invoice.invoice.clone(),
            amount_cents: invoice.amount_cents,
        })
    }

    async fn act<T: DeserializeOwned>(
        &self,
        attempt: &Attempt,
        step: &str,
        url: &str,
        name: &str,
        body: &impl Serialize,
    ) -> Result<T, ErrorData> {
        self.pass(Place::BeforeCall, name)
            .await
            .map_err(NotExecuted::mark)?;
        let key = attempt.downstream_key(step);
        // A process that was stopped for a while may have lost its lease without noticing.
        attempt.ensure_current().await.map_err(NotExecuted::mark)?;
        let request = self.client.post(url).header(KEY_HEADER, key.as_str());
        let response = request.json(body).send().await.map_err(|error| {
            let message = failed(&error);
            // Without a connection nothing was sent. With one it may have been.
            if error.is_connect() {
                NotExecuted::mark(message)
            } else {
                message
            }
        })?;
        let status = response.status();
        if !status.is_success() {
            let error = failed(&format_args!("it answered {status}"));
            return Err(if refuses(status) {
                NotExecuted::mark(error)
            } else {
                error
            });
        }
        let done = response.json().await.map_err(|error| failed(&error))?;
        self.pass(Place::AfterCall, name).await?;
        Ok(done)
    }

    async fn pass(&self, place: Place, name: &str) -> Result<(), ErrorData> {
        self.ledger
            .note(format_args!("{} {name}", place.note()))
            .map_err(|error| failed(&error))?;
        if let Some((at, hold)) = self.hold_at
            && at == place
        {
            tokio::time::sleep(hold).await;
        }
        Ok(())
    }
}

/// Whether the other side says that it has not acted. A server error, a timeout and a conflict with
/// a request that is under way say nothing of the kind.
fn refuses(status: StatusCode) -> bool {
    status.is_client_error()
        && status != StatusCode::REQUEST_TIMEOUT
        && status != StatusCode::CONFLICT
}

fn configured<'a>(url: Option<&'a str>, option: &str) -> Result<&'a str, ErrorData> {
    url.ok_or_else(|| {
        NotExecuted::mark(ErrorData::internal_error(
            format!("this server was started without {option}, so nothing was done"),
            None,
        ))
    })
}

fn failed(error: &impl std::fmt::Display) -> ErrorData {
    ErrorData::internal_error(
        "the call to the other system failed",
        Some(json!({ "cause": error.to_string() })),
    )
}
