//! Every option, in every form that it takes.

use mcp_idempotent_tower::{Idempotency, InDoubt, OnErrorResult, Verdict, idempotent, store::sqlite::SqliteStore};
use rmcp::{model::CallToolResult, tool, tool_router};
use sqlx::SqliteConnection;

#[derive(Clone)]
pub struct Server {
    pub idempotency: Idempotency<SqliteStore>,
}

#[tool_router]
impl Server {
    #[idempotent(
        key = explicit,
        key_argument = "/idempotency_key",
        ignore("trace_id", "/meta/sent_at",),
        also_known_as = "first_of_all",
        retention = "24h",
        window = "1h 30m",
        wait = "30s",
        rotated_keys = refuse,
        rotated_keys_window = "5m",
        on_error = commit,
        on_expired = refuse,
        tombstone = "7days",
        max_result_bytes = 65_536,
        run_unprotected_when_store_is_unavailable = false,
        idempotency = self.idempotency,
        crate = ::mcp_idempotent_tower,
    )]
    #[tool]
    pub async fn first(&self, _tx: &mut SqliteConnection) -> String {
        String::new()
    }

    #[idempotent(key = derived, key_argument = "/meta/key", wait = reject, lease = "5m", heartbeat = "2m", on_error = in_doubt,
        on_doubt = verify(Self::find_out), verify_timeout = "10s", retention = "100years",
        in_doubt_retention = "100years", on_expired = new, run_unprotected_when_store_is_unavailable = true)]
    #[tool]
    pub async fn second(&self) -> String {
        String::new()
    }

    async fn find_out(&self, _: InDoubt<'_>) -> Verdict {
        Verdict::Unknown
    }

    #[idempotent(key = required, on_error = release, on_error_result = record, rotated_keys = join)]
    #[tool]
    pub fn third(&self) {}

    #[idempotent(on_error = in_doubt, on_error_result = classify(Self::meaning), rotated_keys = report)]
    #[tool]
    pub fn fifth(&self) {}

    fn meaning(_: &CallToolResult) -> OnErrorResult {
        OnErrorResult::Record
    }

    #[idempotent(on_error = record, rotated_keys = allow)]
    #[tool]
    pub fn fourth(&self, _tx: &mut SqliteConnection) {}
}

fn main() {}
