//! A hook of the author's sets role and tenant of each transaction.

use super::*;

/// A role without rights of its own beyond the documented grants, subject to the policy that a
/// tenant sees and writes its own rows only.
async fn tenant_role(database: &Postgres) -> String {
    let role = unique("app");
    let schema = database.schema();
    database
        .execute(&format!(
            "CREATE ROLE {role} NOLOGIN NOBYPASSRLS; \
             GRANT USAGE ON SCHEMA {schema} TO {role}; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.records TO {role}; \
             GRANT USAGE ON SEQUENCE {schema}.tokens TO {role}; \
             ALTER TABLE effects ADD COLUMN tenant text NOT NULL \
             DEFAULT current_setting('app.tenant', true); \
             GRANT SELECT, INSERT ON effects TO {role}; \
             ALTER TABLE effects OWNER TO {role}; \
             ALTER TABLE effects ENABLE ROW LEVEL SECURITY; \
             ALTER TABLE effects FORCE ROW LEVEL SECURITY; \
             CREATE POLICY own_rows ON effects \
             USING (tenant = current_setting('app.tenant', true))"
        ))
        .await;
    role
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cycle_holds_under_forced_row_level_security_and_a_role_of_the_hook() {
    let database = Postgres::create().await;
    let role = tenant_role(&database).await;
    let switch = format!("SET LOCAL ROLE {role}");
    let store = database
        .builder(database.pool(database.options(), 3))
        .with_on_begin(move |connection, call| {
            let switch = switch.clone();
            Box::pin(async move {
                sqlx::query("SELECT set_config('app.tenant', $1, true)")
                    .bind(call.scope.as_ref().map(Scope::as_str))
                    .execute(&mut *connection)
                    .await?;
                Postgres::run(connection, &switch).await
            })
        })
        .build()
        .unwrap();
    cycle(&database, &store).await;
    let tenants = "SELECT count(DISTINCT tenant) FROM effects WHERE tenant = 'tester'";
    assert_eq!(database.integer(tenants).await, 1);

    // The policy is in force: another tenant's row is refused, and nothing of the call is kept.
    let foreign = format!(
        "INSERT INTO {}.effects (name, tenant) VALUES ('foreign', 'somebody else')",
        database.schema()
    );
    let server = Server::<Postgres>::new(engine(store).build().unwrap(), move |connection, _| {
        let foreign = foreign.clone();
        Box::pin(async move {
            match Postgres::run(connection, &foreign).await {
                Ok(()) => text("written"),
                Err(error) => is_error(error.to_string()),
            }
        })
    });
    let client = Client::of(server).await;
    let refused = client.keyed("foreign", json!({ "n": 1 })).await;
    assert!(
        refused.text().contains("row-level security"),
        "{}",
        refused.line
    );
    assert!(!database.effects().await.contains(&"foreign".to_owned()));
    database
        .execute(&format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role}"))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hook_that_fails_refuses_the_call_before_its_handler() {
    let database = Postgres::create().await;
    let store = database
        .builder(database.pool(database.options(), 1))
        .with_on_begin(|connection, _| {
            Box::pin(async move { Postgres::run(connection, "SET LOCAL ROLE no_such_role").await })
        })
        .build()
        .unwrap();
    let server = Server::<Postgres>::new(engine(store).build().unwrap(), |_, _| {
        Box::pin(async move { text("it ran") })
    });
    let client = Client::of(server.clone()).await;
    for _ in 0..2 {
        let answer = client.keyed("k", json!({ "n": 1 })).await;
        assert_eq!(answer.outcome(), "not_committed");
    }
    assert_eq!(server.runs(), 0);
    assert!(database.records().await.is_empty());
}
