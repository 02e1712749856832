//! What a client or a server can make the relay hold.

use std::time::Duration;

use mcp_idempotent_tower::relay::RelaySettings;
use serde_json::json;
use tokio::time::timeout;

use super::ends::{Ends, call, refusal_of, relay, text};

fn settings(max_message_bytes: usize) -> RelaySettings {
    let mut settings = RelaySettings::default();
    settings.max_message_bytes = max_message_bytes;
    settings
}

#[tokio::test]
async fn a_line_of_twenty_mebibytes_passes_whole_or_in_parts_and_the_next_one_follows() {
    const LONG: usize = 20 * 1024 * 1024;
    for limit in [RelaySettings::DEFAULT_MAX_MESSAGE_BYTES, 1024 * 1024] {
        let relay = relay(settings(limit));
        let Ends { client, server, .. } = Ends::listed(&relay).await;
        let (mut client_hears, mut client) = client.halves();
        let (mut server_hears, mut server) = server.halves();
        let long = json!({ "method": "x", "params": { "text": "x".repeat(LONG) } });
        let next = json!({ "method": "next" });
        let up = async {
            tokio::join!(
                async {
                    client.say(&long).await;
                    client.say(&next).await;
                },
                async {
                    assert_eq!(server_hears.hear().await, long);
                    assert_eq!(server_hears.hear().await, next);
                }
            );
        };
        let down = async {
            tokio::join!(
                async {
                    server.say(&long).await;
                    server.say(&next).await;
                },
                async {
                    assert_eq!(client_hears.hear().await, long);
                    assert_eq!(client_hears.hear().await, next);
                }
            );
        };
        tokio::join!(up, down);
    }
}

#[tokio::test]
async fn a_call_and_a_result_of_sixteen_mebibytes_are_protected() {
    let relay = relay(RelaySettings::default());
    let Ends {
        client, mut server, ..
    } = Ends::listed(&relay).await;
    let (mut hears, mut client) = client.halves();
    let large = "x".repeat(16 * 1024 * 1024 - 1024);
    let charge = call(json!(1), "charge", json!({ "text": large }));
    let (asked, ()) = tokio::join!(server.hear(), client.say(&charge));
    assert_eq!(asked["params"], charge["params"]);
    let (told, ()) = tokio::join!(hears.hear(), server.answer(&asked, text(&large)));
    assert_eq!((&told["id"], &told["result"]), (&json!(1), &text(&large)));
    client.say(&charge).await;
    assert_eq!(
        refusal_of(&hears.hear().await)["type"],
        "idempotency_result_too_large"
    );
}

#[tokio::test]
async fn a_call_whose_answer_is_too_long_to_be_read_is_told_so_and_does_not_run_again() {
    let relay = relay(settings(100 * 1024));
    let Ends {
        client, mut server, ..
    } = Ends::listed(&relay).await;
    let (mut hears, mut client) = client.halves();
    let charge = call(json!(1), "charge", json!({}));
    client.say(&charge).await;
    let asked = server.hear().await;
    let long = text(&"x".repeat(1024 * 1024));
    let (passed, ()) = tokio::join!(hears.hear(), server.answer(&asked, long));
    // Nobody knows this id.
    assert_eq!(passed["id"], asked["id"]);
    let told = hears.hear().await;
    assert_eq!(
        (&told["id"], &refusal_of(&told)["type"]),
        (&json!(1), &json!("idempotency_result_too_large"))
    );
    client.say(&charge).await;
    assert_eq!(refusal_of(&hears.hear().await)["outcome"], "unknown");
}

/// The relay takes no more than its bounds allow from a client that reads nothing, whose calls are all answered
/// from records.
#[tokio::test(start_paused = true)]
async fn a_client_that_reads_nothing_is_read_no_more() {
    let relay = relay(RelaySettings::default());
    let Ends {
        mut client,
        mut server,
        ..
    } = Ends::listed(&relay).await;
    let large = text(&"x".repeat(100 * 1024));
    let charge = call(json!(1), "charge", json!({}));
    client.say(&charge).await;
    let asked = server.hear().await;
    let (_, ()) = tokio::join!(client.line(), server.answer(&asked, large));
    let (mut hears, mut client) = client.halves();
    let mut sent = 0;
    // Time is paused, so it passes only when nobody can do anything more.
    while timeout(Duration::from_secs(1), client.say(&charge))
        .await
        .is_ok()
    {
        sent += 1;
        assert!(sent < 10_000, "the relay reads on");
    }
    // What it has taken is answered, once the client reads.
    for _ in 0..sent {
        assert_eq!(hears.hear().await["id"], 1);
    }
}

/// The relay takes no more answers than its bounds allow from a server whose client reads nothing.
#[tokio::test(start_paused = true)]
async fn answers_that_are_not_written_yet_are_bounded() {
    const CALLS: usize = 30;
    let relay = relay(settings(64 * 1024));
    let Ends {
        mut client,
        mut server,
        ..
    } = Ends::listed(&relay).await;
    let mut asked = Vec::new();
    for n in 0..CALLS {
        client
            .say(&call(json!(n), "charge", json!({ "n": n })))
            .await;
        asked.push(server.hear().await);
    }
    let large = text(&"x".repeat(32 * 1024));
    let mut taken = 0;
    // Time is paused, so it passes only when nobody can do anything more.
    let answering = async {
        for call in &asked {
            server.answer(call, large.clone()).await;
            taken += 1;
        }
    };
    let _ = timeout(Duration::from_secs(1), answering).await;
    // 128 KiB of answers, 64 KiB read ahead, and 64 KiB in each pipe.
    assert!(taken <= 11, "{taken} answers are held");
}

#[tokio::test]
async fn calls_beyond_the_memory_for_calls_are_refused_and_nothing_else_is() {
    // Room for two calls.
    let relay = relay(settings(5 * 1024));
    let mut ends = Ends::listed(&relay).await;
    let mut asked = Vec::new();
    for n in 0..2 {
        ends.client
            .say(&call(json!(n), "charge", json!({ "n": n })))
            .await;
        asked.push(ends.server.hear().await);
    }
    ends.client
        .say(&call(json!(2), "charge", json!({ "n": 2 })))
        .await;
    let told = ends.client.hear().await;
    assert_eq!(
        (&told["id"], &refusal_of(&told)["action"]),
        (&json!(2), &json!("wait"))
    );
    ends.server.hears_only_ping(&mut ends.client).await;
    ends.server.answer(&asked[0], text("charged")).await;
    assert_eq!(ends.client.hear().await["id"], 0);
    ends.client
        .say(&call(json!(3), "charge", json!({ "n": 2 })))
        .await;
    assert_eq!(ends.server.hear().await["params"]["arguments"]["n"], 2);
}
