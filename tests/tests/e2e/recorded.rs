//! Each row of the table of what is recorded, in transaction mode.

use mcp_idempotent_tests::{
    client::{CallExt as _, call},
    database::{Database, Postgres, Stored, effect},
};
use mcp_idempotent_tower::NotExecuted;
use rmcp::{
    ErrorData,
    model::{CallToolRequestParams, CallToolResponse, InputRequiredResult},
};
use serde_json::json;

use crate::{
    server::{ToolResult, is_error, protocol_error, text},
    wire::assert_wire,
    world::{Gate, World, on_each_store, run, until, writing},
};

/// Writes one effect and answers so the first time, with a success later.
async fn at_first<D: Database>(
    answer: impl Fn() -> ToolResult + Clone + Send + Sync + 'static,
) -> World<D> {
    World::new(move |connection, call| {
        let answer = answer.clone();
        Box::pin(async move {
            effect::<D>(connection, &format!("run {}", call.earlier))
                .await
                .unwrap();
            if call.earlier == 0 {
                answer()
            } else {
                text("a later run")
            }
        })
    })
    .await
}

fn keyed(tool: &str) -> CallToolRequestParams {
    call(tool, json!({ "n": 1 })).with_key("k")
}

fn unkeyed(tool: &str) -> CallToolRequestParams {
    call(tool, json!({ "n": 1 }))
}

/// The first answer is `first`, and the retry runs anew: nothing was left of the first.
async fn assert_left_nothing<D: Database>(world: &World<D>, params: CallToolRequestParams) {
    world.assert_nothing_is_left().await;
    assert_eq!(world.client.call(params).await.success(), "a later run");
    world.assert_effects(&["run 1"]).await;
}

/// The retry gets the recorded error, and the effect is gone.
async fn assert_recorded_without_effect<D: Database>(
    world: &World<D>,
    params: CallToolRequestParams,
    first: &mcp_idempotent_tests::client::Answer,
) {
    world.assert_effects(&[]).await;
    world.assert_records(&[Stored::Completed]).await;
    let retry = world.client.call(params).await;
    assert_eq!(retry.unmarked(), first.json);
    assert_eq!(world.server.runs(), 1);
}

async fn an_error_result_under_an_explicit_key_is_recorded_without_its_effect<D: Database>() {
    let world = at_first::<D>(|| is_error("no such card")).await;
    let first = world.client.call(keyed("work")).await;
    assert_eq!(first.result()["isError"], true);
    assert_recorded_without_effect(&world, keyed("work"), &first).await;
    assert!(world.client.call(keyed("work")).await.is_replay());
}

async fn an_error_result_under_a_derived_key_is_not_recorded<D: Database>() {
    let world = at_first::<D>(|| is_error("no such card")).await;
    let first = world.client.call(unkeyed("work")).await;
    assert_eq!(first.result()["isError"], true);
    assert_eq!(first.text(), "no such card");
    assert_left_nothing(&world, unkeyed("work")).await;
}

#[tokio::test]
async fn an_error_result_after_a_database_error_is_passed_on_and_not_recorded() {
    let world = World::<Postgres>::new(|connection, call| {
        Box::pin(async move {
            effect::<Postgres>(connection, &format!("run {}", call.earlier))
                .await
                .unwrap();
            if call.earlier > 0 {
                return text("a later run");
            }
            let failed = Postgres::run(connection, "SELECT 1 / 0").await;
            is_error(failed.unwrap_err().to_string())
        })
    })
    .await;
    let first = world.client.call(keyed("work")).await;
    assert_eq!(first.result()["isError"], true);
    assert!(first.text().contains("zero"), "{}", first.line);
    assert_left_nothing(&world, keyed("work")).await;
}

async fn a_protocol_error_is_rolled_back_and_not_recorded<D: Database>() {
    for params in [keyed("work"), unkeyed("work")] {
        let world = at_first::<D>(|| protocol_error("not today")).await;
        let first = world.client.call(params.clone()).await;
        assert_wire("protocol_error_of_the_author", &first);
        assert_left_nothing(&world, params).await;
    }
}

async fn an_error_marked_as_not_executed_is_sent_without_the_mark<D: Database>() {
    let world =
        at_first::<D>(|| Err(NotExecuted::mark(ErrorData::invalid_params("no", None)))).await;
    let first = world.client.call(keyed("work_that_records_errors")).await;
    assert_wire("not_executed_error_of_the_author", &first);
    assert_left_nothing(&world, keyed("work_that_records_errors")).await;
}

async fn a_panic_is_rolled_back_and_answered_with_an_error<D: Database>() {
    for (said, params) in [
        ("handler_panicked", keyed("work")),
        (
            "handler_panicked_without_a_key",
            unkeyed("work_that_records_errors"),
        ),
    ] {
        let world = at_first::<D>(|| panic!("the handler panics")).await;
        let first = world.client.call(params.clone()).await;
        assert_wire(said, &first);
        assert_left_nothing(&world, params).await;
    }
}

async fn a_waiter_runs_itself_when_the_first_panics<D: Database>() {
    let gate = Gate::new();
    let world = World::<D>::new({
        let gate = gate.clone();
        move |connection, call| {
            let gate = gate.clone();
            Box::pin(async move {
                effect::<D>(connection, &format!("run {}", call.earlier))
                    .await
                    .unwrap();
                if call.earlier == 0 {
                    gate.pass().await;
                    panic!("the handler panics");
                }
                text("a later run")
            })
        }
    })
    .await;
    let first = world.client.send(keyed("work")).await.unwrap();
    gate.arrival().await;
    let mut waiters = Vec::new();
    for _ in 0..4 {
        waiters.push(world.client.send(keyed("work")).await.unwrap());
    }
    until(async || world.server.idempotency.engine().waiting() == 4).await;
    gate.open();
    assert_eq!(
        first.answer().await.unwrap().refusal(),
        "idempotency_handler_panicked"
    );
    let mut replays = 0;
    for sent in waiters {
        let answer = sent.answer().await.unwrap();
        assert_eq!(answer.success(), "a later run");
        replays += usize::from(answer.is_replay());
    }
    assert_eq!((replays, world.server.runs()), (3, 2));
    world.assert_effects(&["run 1"]).await;
}

async fn arguments_that_do_not_parse_leave_the_key_free<D: Database>() {
    let world = at_first::<D>(|| text("done")).await;
    let wrong = call("work", json!({ "n": "one" })).with_key("k");
    for _ in 0..2 {
        let answer = world.client.call(wrong.clone()).await;
        assert_eq!(answer.result()["isError"], true);
        // rmcp's own prefix: should it change, arguments that do not parse would look like an
        // error of the handler's.
        assert!(
            answer
                .text()
                .starts_with("failed to deserialize parameters: "),
            "{}",
            answer.line
        );
        assert!(!answer.is_replay());
    }
    assert_eq!(world.server.runs(), 0);
    world.assert_nothing_is_left().await;
    let other = world.client.call(keyed("work")).await;
    assert_eq!(other.success(), "done");
}

/// Asks twice, then does it.
async fn in_rounds<D: Database>() -> World<D> {
    World::new(writing::<D, _>(run, |call| match call.state.as_deref() {
        None => ask("one"),
        Some("one") => ask("two"),
        Some(state) => text(format!("done after {state}")),
    }))
    .await
}

fn ask(state: &str) -> ToolResult {
    Ok(CallToolResponse::InputRequired(
        InputRequiredResult::from_request_state(state),
    ))
}

async fn rounds_record_nothing_and_the_final_one_answers_them_all<D: Database>() {
    for params in [keyed("work"), unkeyed("work")] {
        let world = in_rounds::<D>().await;
        let first = world.client.call(params.clone()).await;
        assert_eq!(first.result()["resultType"], "input_required");
        assert_eq!(first.result()["requestState"], "one");
        world.assert_nothing_is_left().await;
        let second = world.client.call(params.clone().with_state("one")).await;
        assert_eq!(second.result()["requestState"], "two");
        world.assert_nothing_is_left().await;
        // Before the final round a round may be asked again.
        let again = world.client.call(params.clone()).await;
        assert_eq!(again.result(), first.result());
        let last = world.client.call(params.clone().with_state("two")).await;
        assert_eq!(last.success(), "done after two");
        assert!(!last.is_replay());
        world.assert_effects(&["run 3"]).await;
        world.assert_records(&[Stored::Completed]).await;
        for params in [
            params.clone(),
            params.clone().with_state("one"),
            params.clone().with_state("two"),
        ] {
            let retry = world.client.call(params).await;
            assert!(retry.is_replay());
            assert_eq!(retry.unmarked(), last.json);
        }
        assert_eq!(world.server.runs(), 4);
    }
}

async fn calls_of_one_round_join_and_another_round_waits_its_turn<D: Database>() {
    let gate = Gate::new();
    let world = World::<D>::new({
        let gate = gate.clone();
        move |connection, call| {
            let gate = gate.clone();
            Box::pin(async move {
                effect::<D>(connection, &format!("run {}", call.earlier))
                    .await
                    .unwrap();
                gate.pass().await;
                match call.state {
                    None => ask("one"),
                    Some(state) => text(format!("done after {state}")),
                }
            })
        }
    })
    .await;
    let engine = world.server.idempotency.engine();
    let first = world.client.send(keyed("work")).await.unwrap();
    gate.arrival().await;
    let joined = world.client.send(keyed("work")).await.unwrap();
    until(async || engine.waiting() == 1).await;
    let next = world.client.send(keyed("work").with_state("one"));
    let next = next.await.unwrap();
    until(async || engine.waiting() == 2).await;
    gate.open();
    let first = first.answer().await.unwrap();
    assert_eq!(first.result()["requestState"], "one");
    assert_eq!(joined.answer().await.unwrap().result(), first.result());
    gate.arrival().await;
    assert_eq!(world.server.runs(), 2);
    gate.open();
    assert_eq!(next.answer().await.unwrap().success(), "done after one");
    assert_eq!(
        world.client.call(keyed("work")).await.success(),
        "done after one"
    );
    world.assert_effects(&["run 1"]).await;
}

async fn a_task_is_committed_and_a_retry_gets_the_same_handle<D: Database>() {
    let world = World::<D>::new(writing::<D, _>(run, |call| {
        let task = json!({
            "resultType": "task", "taskId": format!("task-{}", call.earlier),
            "status": "working", "createdAt": "2026-01-01T00:00:00Z",
            "lastUpdatedAt": "2026-01-01T00:00:00Z", "ttlMs": 60_000
        });
        Ok(CallToolResponse::Task(
            serde_json::from_value(task).unwrap(),
        ))
    }))
    .await;
    let first = world.client.call(keyed("work")).await;
    assert_eq!(first.result()["taskId"], "task-0", "{}", first.line);
    world.assert_effects(&["run 0"]).await;
    world.assert_records(&[Stored::Completed]).await;
    let retry = world.client.call(keyed("work")).await;
    assert!(retry.is_replay());
    assert_eq!(retry.unmarked(), first.json);
    assert_eq!(world.server.runs(), 1);
}

async fn recorded_by_option_is_every_error<D: Database>() {
    let tool = "work_that_records_errors";
    for params in [keyed(tool), unkeyed(tool)] {
        let world = at_first::<D>(|| is_error("no such card")).await;
        let first = world.client.call(params.clone()).await;
        assert_recorded_without_effect(&world, params.clone(), &first).await;

        let world = at_first::<D>(|| protocol_error("not today")).await;
        let first = world.client.call(params.clone()).await;
        assert_recorded_without_effect(&world, params, &first).await;
    }
}

async fn released_by_option_is_every_error<D: Database>() {
    let tool = "work_that_releases_errors";
    for params in [keyed(tool), unkeyed(tool)] {
        let world = at_first::<D>(|| is_error("no such card")).await;
        assert_eq!(
            world.client.call(params.clone()).await.text(),
            "no such card"
        );
        assert_left_nothing(&world, params.clone()).await;

        let world = at_first::<D>(|| protocol_error("not today")).await;
        world.client.call(params.clone()).await.error();
        assert_left_nothing(&world, params).await;
    }
}

async fn committed_by_option_is_the_effect_of_an_error_result<D: Database>() {
    let tool = "work_that_commits_errors";
    for params in [keyed(tool), unkeyed(tool)] {
        let world = at_first::<D>(|| is_error("half done")).await;
        let first = world.client.call(params.clone()).await;
        assert_eq!(first.result()["isError"], true);
        world.assert_effects(&["run 0"]).await;
        world.assert_records(&[Stored::Completed]).await;
        let retry = world.client.call(params.clone()).await;
        assert!(retry.is_replay());
        assert_eq!(retry.unmarked(), first.json);
        assert_eq!(world.server.runs(), 1);

        // A protocol error is no result to go with an effect.
        let world = at_first::<D>(|| protocol_error("not today")).await;
        world.client.call(params.clone()).await.error();
        assert_left_nothing(&world, params).await;
    }
}

#[tokio::test]
async fn an_effect_is_not_committed_with_an_error_result_after_a_database_error() {
    let world = World::<Postgres>::new(|connection, call| {
        Box::pin(async move {
            effect::<Postgres>(connection, &format!("run {}", call.earlier))
                .await
                .unwrap();
            if call.earlier > 0 {
                return text("a later run");
            }
            drop(Postgres::run(connection, "SELECT 1 / 0").await);
            is_error("half done")
        })
    })
    .await;
    let params = keyed("work_that_commits_errors");
    let first = world.client.call(params.clone()).await;
    assert_eq!(first.outcome(), "not_committed");
    assert_left_nothing(&world, params).await;
}

on_each_store! {
    an_error_result_under_an_explicit_key_is_recorded_without_its_effect,
    an_error_result_under_a_derived_key_is_not_recorded,
    a_protocol_error_is_rolled_back_and_not_recorded,
    an_error_marked_as_not_executed_is_sent_without_the_mark,
    a_panic_is_rolled_back_and_answered_with_an_error,
    a_waiter_runs_itself_when_the_first_panics,
    arguments_that_do_not_parse_leave_the_key_free,
    rounds_record_nothing_and_the_final_one_answers_them_all,
    calls_of_one_round_join_and_another_round_waits_its_turn,
    a_task_is_committed_and_a_retry_gets_the_same_handle,
    recorded_by_option_is_every_error,
    released_by_option_is_every_error,
    committed_by_option_is_the_effect_of_an_error_result,
}
