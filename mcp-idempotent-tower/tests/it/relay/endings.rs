//! A client or a server that ends in the middle.

use mcp_idempotent_tower::{OnDoubt, relay::RelaySettings};
use serde_json::json;

use super::ends::{Ends, Peer, call, keyed, refusal_of, relay, text, text_of};

#[tokio::test]
async fn a_server_that_ends_during_a_call_leaves_it_unknown_and_a_retry_does_not_run() {
    let relay = relay(RelaySettings::default());
    let Ends {
        mut client,
        mut server,
        running,
    } = Ends::listed(&relay).await;
    let charge = keyed(json!(1), "charge", json!({}), "k");
    client.say(&charge).await;
    server.hear().await;
    drop(server);
    let told = client.hear().await;
    assert_eq!(refusal_of(&told)["outcome"], "unknown");
    assert!(
        told["error"]["message"]
            .as_str()
            .unwrap()
            .starts_with("The call was sent to the server, and the tool may have run")
    );
    assert_eq!(client.line().await, None);
    running.await.unwrap();

    let mut ends = Ends::listed(&relay).await;
    ends.client.say(&charge).await;
    let told = ends.client.hear().await;
    assert_eq!(refusal_of(&told)["type"], "idempotency_outcome_unknown");
    ends.server.hears_only_ping(&mut ends.client).await;
}

#[tokio::test]
async fn what_is_safe_to_repeat_runs_again_after_its_server_has_ended() {
    let mut retry = RelaySettings::default();
    retry.on_doubt = Some(OnDoubt::Rerun);
    for (settings, tool) in [(RelaySettings::default(), "set"), (retry, "charge")] {
        let relay = relay(settings);
        let mut ends = Ends::listed(&relay).await;
        ends.client.say(&call(json!(1), tool, json!({}))).await;
        ends.server.hear().await;
        drop(ends.server);
        let told = ends.client.hear().await;
        assert_eq!(refusal_of(&told)["action"], "retry_same_key");
        ends.running.await.unwrap();

        let mut ends = Ends::listed(&relay).await;
        ends.client.say(&call(json!(1), tool, json!({}))).await;
        let asked = ends.server.hear().await;
        ends.server.answer(&asked, text("done")).await;
        assert_eq!(text_of(&ends.client.hear().await), "done");
    }
}

#[tokio::test]
async fn a_client_that_ends_leaves_its_calls_running_and_the_server_is_told_when_they_have_ended() {
    let relay = relay(RelaySettings::default());
    let mut ends = Ends::listed(&relay).await;
    let charge = call(json!(1), "charge", json!({}));
    ends.client.say(&charge).await;
    let asked = ends.server.hear().await;
    ends.client.close().await;
    ends.server.answer(&asked, text("charged")).await;
    // A client that only writes no more still gets its answer.
    assert_eq!(text_of(&ends.client.hear().await), "charged");
    ends.end().await;

    let mut ends = Ends::listed(&relay).await;
    ends.client.say(&charge).await;
    assert_eq!(text_of(&ends.client.hear().await), "charged");
}

#[tokio::test]
async fn a_client_that_has_gone_leaves_the_result_of_its_call_for_the_retry() {
    let relay = relay(RelaySettings::default());
    let Ends {
        mut client,
        mut server,
        running,
    } = Ends::listed(&relay).await;
    client.say(&call(json!(1), "charge", json!({}))).await;
    let asked = server.hear().await;
    drop(client);
    server.answer(&asked, text("charged")).await;
    assert_eq!(server.line().await, None);
    drop(server);
    running.await.unwrap();

    let mut ends = Ends::listed(&relay).await;
    ends.client.say(&call(json!(1), "charge", json!({}))).await;
    assert_eq!(text_of(&ends.client.hear().await), "charged");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_never_ends_keeps_the_server_for_the_drain_only() {
    let relay = relay(RelaySettings::default());
    let Ends {
        mut client,
        mut server,
        running,
    } = Ends::listed(&relay).await;
    client.say(&call(json!(1), "charge", json!({}))).await;
    server.hear().await;
    drop(client);
    let began = tokio::time::Instant::now();
    assert_eq!(server.line().await, None);
    assert_eq!(
        began.elapsed().as_secs(),
        RelaySettings::DEFAULT_DRAIN.as_secs()
    );
    drop(server);
    running.await.unwrap();
}

#[tokio::test]
async fn a_call_to_a_server_that_reads_no_more_is_not_executed_and_may_run_again() {
    let relay = relay(RelaySettings::default());
    let (client, to_client) = tokio::io::duplex(4096);
    let (answers, from_server) = tokio::io::duplex(4096);
    // It writes, but its input is closed.
    let (input, to_server) = tokio::io::duplex(4096);
    drop(input);
    let running = relay.clone();
    let running = tokio::spawn(async move {
        running
            .run(tokio::io::split(to_client), (from_server, to_server))
            .await;
    });
    let mut client = Peer::new(client);
    client.say(&call(json!(1), "charge", json!({}))).await;
    let told = client.hear().await;
    assert_eq!(refusal_of(&told)["outcome"], "not_committed");
    drop((answers, client));
    running.await.unwrap();

    let mut ends = Ends::listed(&relay).await;
    ends.client.say(&call(json!(1), "charge", json!({}))).await;
    let asked = ends.server.hear().await;
    ends.server.answer(&asked, text("charged")).await;
    assert_eq!(text_of(&ends.client.hear().await), "charged");
}
