//! The attribute as an author writes it: a named connection, extractors beside it in any order,
//! structured results, and the function behind it called directly.

use mcp_idempotent_tests::{
    client::{CallExt as _, Client, call},
    database::{Database, Postgres, Sqlite, effect},
};
use mcp_idempotent_tower::{
    Idempotency, idempotent,
    store::{postgres::PostgresStore, sqlite::SqliteStore},
    wire,
};
use rmcp::{
    ErrorData, Json, Peer, RoleServer,
    handler::server::{
        common::RequestId,
        tool::{InputResponses, RequestState, ToolName},
        wrapper::Parameters,
    },
    model::{Extensions, RequestMetaObject},
    service::RequestContext,
    tool, tool_router,
};
use serde_json::json;
use sqlx::{Connection as _, PgConnection, SqliteConnection};

use crate::world::engine;

#[derive(Debug, Clone, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Charge {
    name: String,
}

#[derive(Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
struct Receipt {
    name: String,
    tool: String,
    number: i64,
}

fn internal(error: impl ToString) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}

macro_rules! billing {
    ($module:ident, $store:ty, $connection:ty, $database:ty) => {
        mod $module {
            use super::*;

            #[derive(Clone)]
            struct Billing {
                idempotency: Idempotency<$store>,
            }

            #[tool_router(server_handler)]
            impl Billing {
                /// Charges a card, once.
                #[idempotent]
                #[tool(name = "charge", annotations(title = "Charge a card"))]
                async fn charge_card(
                    &self,
                    ToolName(tool): ToolName,
                    connection: &mut $connection,
                    Parameters(charge): Parameters<Charge>,
                ) -> Result<Json<Receipt>, ErrorData> {
                    effect::<$database>(connection, &charge.name)
                        .await
                        .map_err(internal)?;
                    let number = sqlx::query_scalar("SELECT count(*) FROM effects")
                        .fetch_one(connection)
                        .await
                        .map_err(internal)?;
                    Ok(Json(Receipt {
                        name: charge.name,
                        tool: tool.into_owned(),
                        number,
                    }))
                }

                /// Everything that rmcp can extract, around the connection.
                #[idempotent(key_argument = "idempotency_key")]
                #[tool]
                #[allow(clippy::too_many_arguments, reason = "one of each")]
                async fn look_around(
                    &self,
                    Parameters(charge): Parameters<Charge>,
                    RequestId(id): RequestId,
                    extensions: Extensions,
                    context: RequestContext<RoleServer>,
                    connection: &mut $connection,
                    meta: RequestMetaObject,
                    peer: Peer<RoleServer>,
                    RequestState(state): RequestState,
                    InputResponses(responses): InputResponses,
                ) -> Result<String, String> {
                    assert!(state.is_none() && responses.is_none());
                    assert_eq!(context.id, id);
                    assert_eq!(extensions.len(), context.extensions.len());
                    assert!(!peer.is_transport_closed());
                    effect::<$database>(connection, &charge.name)
                        .await
                        .map_err(|error| error.to_string())?;
                    Ok(format!(
                        "{} {}",
                        charge.name,
                        meta.get("author/own").is_some()
                    ))
                }

                /// An `Err` is a tool result here.
                #[idempotent]
                #[tool]
                async fn refuse(&self, connection: &mut $connection) -> Result<String, String> {
                    effect::<$database>(connection, "undone")
                        .await
                        .map_err(|error| error.to_string())?;
                    Err("no".to_owned())
                }
            }

            async fn billing() -> ($database, Billing, Client) {
                let database = <$database>::create().await;
                let idempotency = engine(database.store(2)).build().unwrap();
                let billing = Billing { idempotency };
                let client = Client::of(billing.clone()).await;
                (database, billing, client)
            }

            #[tokio::test]
            async fn a_tool_takes_the_connection_beside_other_extractors() {
                let (database, _, client) = billing().await;
                let first = client.call(call("charge", json!({ "name": "a" }))).await;
                let receipt = json!({ "name": "a", "tool": "charge", "number": 1 });
                assert_eq!(first.result()["structuredContent"], receipt);
                let retry = client.call(call("charge", json!({ "name": "a" }))).await;
                assert!(retry.is_replay());
                assert_eq!(retry.unmarked(), first.json);
                let second = client.call(call("charge", json!({ "name": "b" }))).await;
                assert_eq!(second.result()["structuredContent"]["number"], 2);
                assert_eq!(database.effects().await, ["a", "b"]);
            }

            #[tokio::test]
            async fn each_extractor_gets_what_the_call_brought() {
                let (database, _, client) = billing().await;
                let arguments = json!({ "name": "a", "idempotency_key": "k" });
                let mut params = call("look_around", arguments);
                let mut meta = RequestMetaObject::default();
                meta.insert("author/own".to_owned(), json!(1));
                params.meta = Some(meta);
                let first = client.call(params.clone()).await;
                assert_eq!(first.success(), "a true");
                let retry = client.call(params).await;
                assert!(retry.is_replay());
                // The same key in another place.
                let by_meta = call("look_around", json!({ "name": "a" })).with_key("k");
                assert_eq!(client.call(by_meta).await.unmarked(), first.json);
                assert_eq!(database.effects().await, ["a"]);
                // What the author's own parser refuses is refused as ever.
                let unknown = json!({ "name": "b", "other": 1, "idempotency_key": "l" });
                let refused = client.call(call("look_around", unknown)).await;
                assert_eq!(refused.result()["isError"], true);
                assert!(refused.text().contains("unknown field"), "{}", refused.line);
            }

            #[tokio::test]
            async fn an_err_that_is_a_tool_result_is_rolled_back() {
                let (database, _, client) = billing().await;
                let keyed = || call("refuse", json!({})).with_key("k");
                let first = client.call(keyed()).await;
                assert_eq!(first.result()["isError"], true);
                let retry = client.call(keyed()).await;
                assert!(retry.is_replay());
                assert_eq!(retry.unmarked(), first.json);
                assert!(database.effects().await.is_empty());
            }

            #[tokio::test]
            async fn the_function_behind_a_tool_is_called_directly() {
                let (database, billing, _) = billing().await;
                let mut connection = database.outside().acquire().await.unwrap();
                for number in 1..=2 {
                    let mut transaction = connection.begin().await.unwrap();
                    let charge = Parameters(Charge { name: "a".into() });
                    let receipt = billing
                        .charge_card_unprotected(
                            ToolName("by hand".into()),
                            &mut transaction,
                            charge,
                        )
                        .await
                        .unwrap();
                    assert_eq!(receipt.0.number, number);
                    assert_eq!(receipt.0.tool, "by hand");
                    transaction.commit().await.unwrap();
                }
                // Not deduplicated, and not recorded.
                assert_eq!(database.effects().await, ["a", "a"]);
                assert!(database.records().await.is_empty());
            }

            #[tokio::test]
            async fn a_tools_entry_has_its_contract_beside_the_authors_own() {
                let (_, _, client) = billing().await;
                let tools = client.tools().await;
                let charge = tools.iter().find(|tool| tool["name"] == "charge").unwrap();
                assert_eq!(charge["annotations"]["title"], "Charge a card");
                assert_eq!(charge["description"], "Charges a card, once.");
                assert_eq!(charge["_meta"][wire::CONTRACT]["mode"], "transaction");
                assert!(charge["annotations"].get("idempotentHint").is_none());
                let properties = &charge["outputSchema"]["properties"];
                assert!(properties.get("number").is_some());
                let look_around = tools.iter().find(|tool| tool["name"] == "look_around");
                let properties = &look_around.unwrap()["inputSchema"]["properties"];
                assert!(properties.get("idempotency_key").is_some());
                assert!(properties.get("name").is_some());
            }
        }
    };
}

billing!(postgres, PostgresStore, PgConnection, Postgres);
billing!(sqlite, SqliteStore, SqliteConnection, Sqlite);
