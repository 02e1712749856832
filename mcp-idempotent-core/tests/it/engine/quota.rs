//! How many new calls a scope may begin.

use std::time::Duration;

use futures_util::future::join_all;
use mcp_idempotent_core::{
    Begun, CallInfo, CanonicalArguments, Engine, IdempotencyKey, Policy, Request, ResultKind, Scope,
};
use tokio::time::{Instant, advance};

use super::{
    Outcome, Reply, Server,
    leases::store::{Fault, Faulty},
    own, replayed, succeed,
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const TOO_MANY: Outcome =
    Outcome::Refused("idempotency_too_many_new_calls", "not_committed", "wait");

/// A process whose scopes may begin so many calls a day.
fn process(store: &Faulty, most: u32) -> Server<Faulty> {
    Server {
        engine: Engine::builder("tests", store.clone())
            .with_new_calls_per_scope(most, DAY)
            .build(),
        ..Server::on(store.clone(), |_| {})
    }
}

/// Makes new calls until one is refused, and says how many were executed. The keys begin with `name`.
async fn until_refused(processes: &[Server<Faulty>], name: &str) -> usize {
    for number in 0..1000 {
        let process = &processes[number % processes.len()];
        let key = format!("{name}-{number}");
        match process.call(&key, succeed("one")).await {
            Outcome::Own(_) => {}
            refused => {
                assert_eq!(refused, TOO_MANY);
                return number;
            }
        }
    }
    panic!("no bound");
}

#[tokio::test(start_paused = true)]
async fn a_scope_begins_no_more_new_calls_than_its_quota_over_all_processes() {
    for (most, at_least) in [(1, 1), (3, 3), (16, 16), (31, 29), (160, 140)] {
        let store = Faulty::default();
        let processes = [process(&store, most), process(&store, most)];
        let begun = until_refused(&processes, "first").await;
        assert!(begun <= most as usize, "{begun} of {most}");
        assert!(begun >= at_least, "{begun} of {most}");
        for process in &processes {
            // One of them may have a part of the quota left.
            until_refused(std::slice::from_ref(process), "rest").await;
            assert_eq!(process.call("new", succeed("one")).await, TOO_MANY);
        }
        let executions = processes.each_ref().map(Server::executions);
        assert_eq!(executions.iter().sum::<usize>(), most as usize);
        advance(DAY + Duration::from_secs(1)).await;
        assert_eq!(
            until_refused(&processes[..1], "next day").await,
            most as usize
        );
    }
}

#[tokio::test(start_paused = true)]
async fn calls_that_begin_at_once_get_the_whole_quota() {
    let store = Faulty::default();
    let server = process(&store, 64);
    let calls: Vec<_> = (0..96)
        .map(|number| {
            let server = server.clone();
            tokio::spawn(async move {
                let key = format!("key-{number}");
                server.call(&key, succeed("one")).await
            })
        })
        .collect();
    let mut begun = 0;
    for call in calls {
        match call.await.unwrap() {
            Outcome::Own(_) => begun += 1,
            refused => assert_eq!(refused, TOO_MANY),
        }
    }
    assert_eq!(begun, 64);
}

/// As many new calls at once as a quota has tickets.
async fn burst(server: &Server<Faulty>) -> Vec<Outcome> {
    join_all((0..16).map(|number| async move {
        let key = format!("burst-{number}");
        server.call(&key, succeed("one")).await
    }))
    .await
}

#[tokio::test(start_paused = true)]
async fn a_burst_in_one_process_leaves_other_processes_their_part_of_the_quota() {
    let store = Faulty::default();
    let (first, second) = (process(&store, 160), process(&store, 160));
    first.engine.verify_secret().await.unwrap();
    store.claim.set(Fault::AnswersLate);
    let answers = async {
        // Time is paused, so it passes only when nobody can do anything more.
        tokio::time::sleep(Duration::from_millis(1)).await;
        store.claim.set(Fault::None);
    };
    let (begun, ()) = tokio::join!(burst(&first), answers);
    assert_eq!(begun, vec![own("one"); 16]);
    assert_eq!(second.call("k", succeed("one")).await, own("one"));
}

#[tokio::test(start_paused = true)]
async fn a_burst_waits_once_for_a_store_that_fails() {
    const TIMEOUT: Duration = Duration::from_secs(10);
    let store = Faulty::default();
    let server = process(&store, 160);
    server.engine.verify_secret().await.unwrap();
    store.claim.set(Fault::FailsAfter(TIMEOUT));
    let asked = Instant::now();
    for answer in burst(&server).await {
        assert!(matches!(
            answer,
            Outcome::Refused("idempotency_store_unavailable", ..)
        ));
    }
    assert_eq!(asked.elapsed(), TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn replays_conflicts_and_other_scopes_need_no_quota() {
    let store = Faulty::default();
    let server = process(&store, 2);
    assert_eq!(server.call("k", succeed("one")).await, own("one"));
    for _ in 0..5 {
        assert_eq!(server.call("k", succeed("two")).await, replayed("one"));
    }
    assert_eq!(server.call("l", succeed("one")).await, own("one"));
    assert_eq!(server.call("m", succeed("one")).await, TOO_MANY);
    assert_eq!(server.call("k", succeed("two")).await, replayed("one"));
    let other = server.request(server.identity(Some("k"), r#"{"other":true}"#));
    assert!(matches!(
        server.call_as(other, succeed("two")).await,
        Outcome::Refused("idempotency_key_conflict", ..)
    ));
    let scope = Scope::new("bob");
    let key = IdempotencyKey::new("k").unwrap();
    let arguments = CanonicalArguments::new(None, &[]);
    let identity = server
        .engine
        .identify(&scope, Some(&key), "tool", &arguments);
    let request = Request::new(CallInfo::new("tool", scope), identity, &server.policy);
    assert_eq!(
        server.call_as(request, succeed("bob's")).await,
        own("bob's")
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_that_did_not_begin_gives_its_part_of_the_quota_back() {
    let store = Faulty::default();
    let server = process(&store, 1);
    // It finds a record, which another process made.
    let elsewhere = Server::on(store.clone(), |_| {});
    assert_eq!(elsewhere.call("k", succeed("one")).await, own("one"));
    assert_eq!(server.call("k", succeed("two")).await, replayed("one"));
    assert_eq!(server.call("l", succeed("one")).await, own("one"));
    assert_eq!(server.call("m", succeed("one")).await, TOO_MANY);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_gives_no_quota_away() {
    let store = Faulty::default();
    let server = process(&store, 1);
    server.engine.verify_secret().await.unwrap();
    store.claim.set(Fault::Fails);
    let refused = server.call("k", succeed("one")).await;
    assert!(
        matches!(
            refused,
            Outcome::Refused("idempotency_store_unavailable", ..)
        ),
        "{refused:?}"
    );
    let open = server.under(|policy: &mut Policy| {
        policy.run_unprotected_when_store_is_unavailable = true;
    });
    let request = open.request(open.identity(Some("k"), "{}"));
    assert!(matches!(
        open.engine.begin_lease(request).await,
        Begun::FailOpen
    ));
    store.claim.set(Fault::None);
    let nothing = async { Reply::new(ResultKind::NotExecuted, "nothing") };
    assert_eq!(server.call("k", nothing).await, own("nothing"));
    assert_eq!(server.call("l", succeed("one")).await, TOO_MANY);
    assert!(
        server
            .engine
            .list(&Default::default())
            .await
            .unwrap()
            .is_empty()
    );
}

/// A quota of 32 has tickets of two calls each.
#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_quota_ends_with_its_period() {
    let store = Faulty::default();
    let server = process(&store, 32);
    assert_eq!(server.call("k", succeed("one")).await, own("one"));
    advance(DAY + Duration::from_secs(1)).await;
    let begun = until_refused(std::slice::from_ref(&server), "next day").await;
    assert_eq!(begun, 32);
}
