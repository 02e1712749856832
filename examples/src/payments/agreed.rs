//! Tools that ask before they act (multi round-trip requests). The rounds of a call are one call with one
//! key: a question is not recorded, and once there is a result, each round gets it.

use std::collections::BTreeMap;

use mcp_idempotent_tower::{Attempt, NotExecuted, TransactionStore, idempotent};
use rmcp::{
    ErrorData,
    handler::server::{
        tool::{InputResponses, RequestState},
        wrapper::Parameters,
    },
    model::{CallToolResponse, CallToolResult, InputRequiredResult},
    tool, tool_router,
};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    charge::{Charge, failed},
    outside::Invoice,
    server::{Books, Payments, TransactionBooks},
};

/// The name of the question, and of its answer.
const QUESTION: &str = "agreed";

/// What the client sends back with its answer. A server with more to remember would sign it.
const STATE: &str = "asked";

/// Nothing, if the client's user has agreed. Else what is to be asked.
///
/// # Errors
///
/// The user has declined, or the answer is to another question.
fn question(
    message: &str,
    state: Option<&str>,
    responses: Option<&BTreeMap<String, Value>>,
) -> Result<Option<CallToolResponse>, ErrorData> {
    let Some(responses) = responses else {
        let requests = json!({ QUESTION: { "method": "elicitation/create", "params": {
            "mode": "form", "message": message, "requestedSchema": {
                "type": "object", "properties": { QUESTION: { "type": "boolean" } },
            },
        }}});
        let requests = serde_json::from_value(requests).map_err(failed)?;
        let asked = InputRequiredResult::new(Some(requests), Some(STATE.to_owned()));
        return Ok(Some(asked.into()));
    };
    let answer = responses.get(QUESTION).unwrap_or(&Value::Null);
    if state == Some(STATE) && answer["content"][QUESTION] == true {
        return Ok(None);
    }
    Err(ErrorData::invalid_params(
        "nobody has agreed; nothing was paid",
        None,
    ))
}

fn told(done: &impl Serialize) -> CallToolResponse {
    CallToolResult::structured(json!(done)).into()
}

#[tool_router(router = agreed_in_transaction, vis = "pub(super)")]
impl<B: TransactionBooks> Payments<B> {
    /// Charge a card when the user has agreed, once per idempotency key.
    #[idempotent(key_argument = "idempotency_key")]
    #[tool]
    async fn charge_card_if_agreed(
        &self,
        tx: &mut <B::Store as TransactionStore>::Connection,
        RequestState(state): RequestState,
        InputResponses(responses): InputResponses,
        Parameters(charge): Parameters<Charge>,
    ) -> Result<CallToolResponse, ErrorData> {
        charge.check()?;
        if let Some(asked) = question("Charge the card?", state.as_deref(), responses.as_ref())? {
            return Ok(asked);
        }
        let receipt = B::charge_in(tx, &charge).await?;
        self.ledger
            .executed("charge_card_if_agreed", &charge)
            .await?;
        Ok(told(&receipt))
    }
}

#[tool_router(router = agreed, vis = "pub(super)")]
impl<B: Books> Payments<B> {
    /// Charge a card when the user has agreed, as servers do without protection: each call is a charge.
    #[tool(name = "charge_card_if_agreed_unprotected")]
    async fn charge_without_protection_if_agreed(
        &self,
        RequestState(state): RequestState,
        InputResponses(responses): InputResponses,
        Parameters(charge): Parameters<Charge>,
    ) -> Result<CallToolResponse, ErrorData> {
        charge.check()?;
        if let Some(asked) = question("Charge the card?", state.as_deref(), responses.as_ref())? {
            return Ok(asked);
        }
        let receipt = self.books.charge(&charge).await?;
        self.ledger
            .executed("charge_card_if_agreed_unprotected", &charge)
            .await?;
        Ok(told(&receipt))
    }

    /// Pay an invoice when the user has agreed, once.
    #[idempotent(on_error = in_doubt, on_doubt = rerun, key_argument = "idempotency_key")]
    #[tool]
    async fn pay_invoice_if_agreed(
        &self,
        attempt: Attempt,
        RequestState(state): RequestState,
        InputResponses(responses): InputResponses,
        Parameters(invoice): Parameters<Invoice>,
    ) -> Result<CallToolResponse, ErrorData> {
        invoice.check().map_err(NotExecuted::mark)?;
        // A question frees the key until the next round, and so does an answer that is no yes.
        let asked = question("Pay the invoice?", state.as_deref(), responses.as_ref());
        if let Some(asked) = asked.map_err(NotExecuted::mark)? {
            return Ok(asked);
        }
        let payment = self.outside.pay(&attempt, &invoice).await?;
        self.books.book(&attempt, &payment).await?;
        Ok(told(&payment))
    }

    /// Pay an invoice when the user has agreed, as servers do without protection.
    #[tool(name = "pay_invoice_if_agreed_unprotected")]
    async fn pay_without_protection_if_agreed(
        &self,
        RequestState(state): RequestState,
        InputResponses(responses): InputResponses,
        Parameters(invoice): Parameters<Invoice>,
    ) -> Result<CallToolResponse, ErrorData> {
        invoice.check()?;
        if let Some(asked) = question("Pay the invoice?", state.as_deref(), responses.as_ref())? {
            return Ok(asked);
        }
        Ok(told(&self.outside.pay_without_key(&invoice).await?))
    }
}
