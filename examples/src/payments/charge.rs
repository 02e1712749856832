//! What the tools take and give, whatever keeps it.

use std::fmt;

use mcp_idempotent_tower::{Denied, Scope};
use rmcp::{ErrorData, RoleServer, service::RequestContext};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A charge to be made.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Charge {
    /// Whose card.
    pub customer: String,
    /// How much, in cents.
    pub amount_cents: i64,
    /// How long to wait after the write, as a slow tool would.
    #[serde(default)]
    pub hold_ms: Option<u64>,
}

impl Charge {
    /// Refuses what cannot be charged.
    ///
    /// # Errors
    ///
    /// The amount is not positive, or nobody is named.
    pub fn check(&self) -> Result<(), ErrorData> {
        if self.amount_cents <= 0 {
            return Err(ErrorData::invalid_params(
                "amount_cents must be more than 0; nothing was charged",
                None,
            ));
        }
        if self.customer.trim().is_empty() {
            return Err(ErrorData::invalid_params(
                "customer is empty; nothing was charged",
                None,
            ));
        }
        Ok(())
    }
}

/// A charge that was made.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Receipt {
    /// The charge's number.
    pub charge_id: i64,
    /// Whose card.
    pub customer: String,
    /// How much, in cents.
    pub amount_cents: i64,
}

impl Receipt {
    /// A receipt for `charge`.
    #[must_use]
    pub fn new(charge_id: i64, charge: &Charge) -> Self {
        Self {
            charge_id,
            customer: charge.customer.clone(),
            amount_cents: charge.amount_cents,
        }
    }
}

/// Which charges to list.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Listing {
    /// Only those of this customer.
    #[serde(default)]
    pub customer: Option<String>,
}

/// Charges, the oldest first.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Receipts {
    /// At most a thousand of them.
    pub charges: Vec<Receipt>,
}

impl FromIterator<Receipt> for Receipts {
    fn from_iter<I: IntoIterator<Item = Receipt>>(charges: I) -> Self {
        Self {
            charges: charges.into_iter().collect(),
        }
    }
}

/// A row of [`SELECT`].
pub(super) type Row = (i64, String, i64);

impl From<Row> for Receipt {
    fn from((charge_id, customer, amount_cents): Row) -> Self {
        Self {
            charge_id,
            customer,
            amount_cents,
        }
    }
}

/// Writes a charge; the same text for SQLite and Postgres.
pub(super) const INSERT: &str =
    "INSERT INTO charges (customer, amount_cents) VALUES ($1, $2) RETURNING charge_id";

/// Reads charges; the same text for SQLite and Postgres.
pub(super) const SELECT: &str = "SELECT charge_id, customer, amount_cents FROM charges \
     WHERE customer = $1 OR $1 IS NULL ORDER BY charge_id LIMIT 1000";

/// Something below failed: said to the caller, and nothing of it is recorded.
pub(super) fn failed(error: impl fmt::Display) -> ErrorData {
    ErrorData::internal_error(format!("the charge failed: {error}"), None)
}

/// The header by which the example tells its HTTP callers apart.
pub const USER_HEADER: &str = "x-demo-user";

/// Whose idempotency key it is: equal keys of two users are two charges.
///
/// The example is served over stdio and over HTTP and in no other way, so a call without an HTTP head
/// is of the process that started it. On a socket that would be wrong.
///
/// Over HTTP the example believes a header, because everybody who reaches the loopback address is
/// the same person. A real server takes the subject that its authentication layer has left in
/// `parts.extensions`.
///
/// # Errors
///
/// The header is not readable.
pub fn whose_key(context: &RequestContext<RoleServer>) -> Result<Scope, Denied> {
    let Some(parts) = context.extensions.get::<http::request::Parts>() else {
        return Ok(Scope::new("the process that started this server"));
    };
    match parts.headers.get(USER_HEADER).map(|user| user.to_str()) {
        None => Ok(Scope::new("a user of this machine")),
        Some(Ok(user)) => Ok(Scope::new(format!("user {user}"))),
        Some(Err(_)) => Err(Denied::new(format!("{USER_HEADER} must be ASCII"))),
    }
}
