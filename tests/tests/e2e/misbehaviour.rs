//! Handlers that do with their transaction what they should not.

use mcp_idempotent_tests::{
    client::{Answer, CallExt as _, call},
    database::{Database, Postgres, Sqlite, Stored, effect},
};
use rmcp::model::CallToolRequestParams;
use serde_json::json;
use sqlx::Connection as _;

use crate::{
    server::{is_error, text},
    wire::assert_wire,
    world::{Gate, World, on_each_store, until},
};

fn keyed(n: i64) -> CallToolRequestParams {
    call("work", json!({ "n": n })).with_key(format!("key-{n}"))
}

/// Fails in the database at first, swallows the error and answers with a success.
async fn swallowing<D: Database>(error_result: bool) -> World<D> {
    World::new(move |connection, call| {
        Box::pin(async move {
            effect::<D>(connection, &format!("run {}", call.earlier))
                .await
                .unwrap();
            if call.earlier == 0 {
                drop(D::run(connection, "SELECT * FROM no_such_table").await);
                if error_result {
                    return is_error("something went wrong");
                }
            }
            text("done")
        })
    })
    .await
}

#[tokio::test]
async fn a_success_from_an_aborted_transaction_never_reaches_the_caller() {
    for (said, params) in [
        ("aborted_transaction", keyed(1)),
        (
            "aborted_transaction_without_a_key",
            call("work", json!({ "n": 1 })),
        ),
    ] {
        let world = swallowing::<Postgres>(false).await;
        assert_wire(said, &world.client.call(params.clone()).await);
        world.assert_nothing_is_left().await;
        assert_eq!(world.client.call(params).await.success(), "done");
        world.assert_effects(&["run 1"]).await;
    }
}

// In SQLite an error undoes its statement alone, and the transaction goes on: a handler that
// answers with a success after one may well be right, and what it wrote is committed.
#[tokio::test]
async fn in_sqlite_a_success_after_a_failed_statement_is_a_success() {
    let world = swallowing::<Sqlite>(false).await;
    let first = world.client.call(keyed(1)).await;
    assert_eq!(first.success(), "done");
    world.assert_effects(&["run 0"]).await;
    assert!(world.client.call(keyed(1)).await.is_replay());
}

#[tokio::test]
async fn a_waiter_does_not_get_the_success_of_an_aborted_transaction() {
    let gate = Gate::new();
    let world = World::<Postgres>::new({
        let gate = gate.clone();
        move |connection, call| {
            let gate = gate.clone();
            Box::pin(async move {
                effect::<Postgres>(connection, &format!("run {}", call.earlier))
                    .await
                    .unwrap();
                if call.earlier == 0 {
                    gate.pass().await;
                    drop(Postgres::run(connection, "SELECT 1 / 0").await);
                }
                text(format!("run {}", call.earlier))
            })
        }
    })
    .await;
    let first = world.client.send(keyed(1)).await.unwrap();
    gate.arrival().await;
    let waiter = world.client.send(keyed(1)).await.unwrap();
    until(async || world.server.idempotency.engine().waiting() == 1).await;
    gate.open();
    assert_eq!(first.answer().await.unwrap().outcome(), "not_committed");
    assert_eq!(waiter.answer().await.unwrap().success(), "run 1");
    world.assert_effects(&["run 1"]).await;
}

/// Runs `sql` in the middle of a handler, twice the same call; the second answer.
async fn ending_by<D: Database>(sql: &'static str) -> (World<D>, Answer) {
    let world = World::<D>::new(move |connection, call| {
        Box::pin(async move {
            effect::<D>(connection, &format!("before {}", call.earlier))
                .await
                .unwrap();
            drop(D::run(connection, sql).await);
            drop(effect::<D>(connection, "after").await);
            text("done")
        })
    })
    .await;
    assert_wire("ended_by_handler", &world.client.call(keyed(1)).await);
    let retry = world.client.call(keyed(1)).await;
    assert_eq!(world.server.runs(), 1, "never run again");
    (world, retry)
}

async fn a_handler_that_commits_by_raw_sql_leaves_its_key_in_doubt<D: Database>() {
    for sql in ["COMMIT", "COMMIT; BEGIN", "END"] {
        let (world, retry) = ending_by::<D>(sql).await;
        assert_wire("in_doubt", &retry);
        world.assert_records(&[Stored::InDoubt]).await;
    }
}

async fn a_handler_that_rolls_back_by_raw_sql_leaves_its_key_in_doubt<D: Database>() {
    for sql in ["ROLLBACK", "ROLLBACK; BEGIN"] {
        let (world, retry) = ending_by::<D>(sql).await;
        assert_wire("in_doubt", &retry);
        world.assert_records(&[Stored::InDoubt]).await;
    }
}

async fn after_a_handler_that_ended_its_transaction_others_are_served_as_ever<D: Database>() {
    let database = D::create().await;
    let store = database.store(1);
    let world = World::<D>::on(
        database,
        store,
        |_| {},
        |connection, call| {
            Box::pin(async move {
                effect::<D>(connection, &format!("effect {}", call.n))
                    .await
                    .unwrap();
                match call.n {
                    1 => drop(D::run(connection, "COMMIT; BEGIN").await),
                    2 => drop(D::run(connection, "ROLLBACK").await),
                    3 => drop(D::run(connection, "COMMIT").await),
                    _ => {}
                }
                text("done")
            })
        },
    )
    .await;
    for n in 1..=3 {
        assert_eq!(world.client.call(keyed(n)).await.outcome(), "unknown");
        let honest = keyed(10 + n);
        assert_eq!(world.client.call(honest.clone()).await.success(), "done");
        assert!(world.client.call(honest).await.is_replay());
    }
    for n in 11..=13 {
        let name = format!("effect {n}");
        assert!(world.database.effects().await.contains(&name), "{name}");
    }
}

async fn a_transaction_begun_by_the_handler_is_a_savepoint<D: Database>() {
    let world = World::<D>::new(|connection, call| {
        Box::pin(async move {
            let mut kept = connection.begin().await.unwrap();
            effect::<D>(&mut kept, "kept").await.unwrap();
            kept.commit().await.unwrap();
            let mut undone = connection.begin().await.unwrap();
            effect::<D>(&mut undone, "undone").await.unwrap();
            undone.rollback().await.unwrap();
            let mut forgotten = connection.begin().await.unwrap();
            effect::<D>(&mut forgotten, "undone").await.unwrap();
            drop(forgotten);
            if call.n == 2 {
                return is_error("no");
            }
            text("done")
        })
    })
    .await;
    world.client.call(keyed(2)).await;
    world.assert_effects(&[]).await;
    assert_eq!(world.client.call(keyed(1)).await.success(), "done");
    world.assert_effects(&["kept"]).await;
    assert!(world.client.call(keyed(1)).await.is_replay());
}

#[tokio::test]
async fn a_savepoint_that_fails_lets_the_handler_go_on() {
    let world = World::<Postgres>::new(|connection, _| {
        Box::pin(async move {
            effect::<Postgres>(connection, "kept").await.unwrap();
            let failed = connection
                .transaction(|savepoint| {
                    Box::pin(async move { Postgres::run(savepoint, "SELECT 1 / 0").await })
                })
                .await;
            failed.unwrap_err();
            text("done")
        })
    })
    .await;
    assert_eq!(world.client.call(keyed(1)).await.success(), "done");
    world.assert_effects(&["kept"]).await;
}

async fn a_unique_violation_of_the_author_is_the_authors<D: Database>() {
    let world = World::<D>::new(|connection, call| {
        Box::pin(async move {
            // Of the same shape as ours.
            drop(D::run(connection, "INSERT INTO mine (id) VALUES (1)").await);
            let written = D::run(
                connection,
                &format!("INSERT INTO mine (id) VALUES ({})", call.n),
            )
            .await;
            match written {
                Ok(()) => text("written"),
                Err(error) => {
                    assert!(error.as_database_error().unwrap().is_unique_violation());
                    is_error("that one is there already")
                }
            }
        })
    })
    .await;
    world
        .database
        .execute("CREATE TABLE mine (id INTEGER CONSTRAINT records_pkey PRIMARY KEY)")
        .await;
    let answer = world.client.call(keyed(1)).await;
    assert_eq!(answer.text(), "that one is there already");
    assert_eq!(answer.result()["isError"], true);
    assert_eq!(world.client.call(keyed(2)).await.success(), "written");
}

// A deferred constraint of the author's is found at the COMMIT itself.
#[tokio::test]
async fn a_commit_that_the_database_refuses_is_not_committed() {
    let world = World::<Postgres>::new(|connection, call| {
        Box::pin(async move {
            Postgres::run(
                connection,
                &format!("INSERT INTO child VALUES ({})", call.n),
            )
            .await
            .unwrap();
            text("done")
        })
    })
    .await;
    world
        .database
        .execute(
            "CREATE TABLE parent (id integer PRIMARY KEY); INSERT INTO parent VALUES (1); \
             CREATE TABLE child (id integer REFERENCES parent DEFERRABLE INITIALLY DEFERRED)",
        )
        .await;
    let refused = world.client.call(keyed(2)).await;
    assert_eq!(refused.refusal(), "idempotency_not_committed");
    assert_eq!(refused.outcome(), "not_committed");
    world.assert_nothing_is_left().await;
    assert_eq!(world.client.call(keyed(1)).await.success(), "done");
    assert!(world.client.call(keyed(1)).await.is_replay());
}

on_each_store! {
    a_handler_that_commits_by_raw_sql_leaves_its_key_in_doubt,
    a_handler_that_rolls_back_by_raw_sql_leaves_its_key_in_doubt,
    after_a_handler_that_ended_its_transaction_others_are_served_as_ever,
    a_transaction_begun_by_the_handler_is_a_savepoint,
    a_unique_violation_of_the_author_is_the_authors,
}
