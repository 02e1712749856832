//! A server that the author's own macro writes.

use mcp_idempotent_tower::{Idempotency, MemoryStore, SqliteStore, idempotent};
use rmcp::{handler::server::wrapper::Parameters, tool, tool_router};
use sqlx::SqliteConnection;

#[derive(serde::Deserialize, schemars::JsonSchema)]
pub struct Greeting {
    pub name: String,
}

macro_rules! server {
    ($server:ident, $store:ty, $greeting:ty, $($transaction:ty)?) => {
        #[derive(Clone)]
        pub struct $server {
            pub idempotency: Idempotency<$store>,
        }

        #[tool_router]
        impl $server {
            #[idempotent(on_error = release)]
            #[tool]
            pub async fn greet(
                &self,
                $(_tx: $transaction,)?
                Parameters(greeting): Parameters<$greeting>,
            ) -> String {
                greeting.name
            }

            #[idempotent(on_error = release, idempotency = self.idempotency)]
            #[tool]
            pub fn count(&self, $(_tx: $transaction)?) -> String {
                String::new()
            }
        }
    };
}

server!(Outside, MemoryStore, Greeting,);
server!(Inside, SqliteStore, Greeting, &mut SqliteConnection);

fn main() {}
