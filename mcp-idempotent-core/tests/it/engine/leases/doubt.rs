//! What a call means whose earlier attempt is in doubt.

use mcp_idempotent_core::{Begun, LeaseHandle, OnDoubt, OnError, Policy, ResultKind, Wait};
use tokio::{sync::oneshot, time::sleep};

use super::{
    super::{
        Outcome, Reply, Server, in_doubt, in_doubt_until_retried, joined, own, replayed, succeed,
        until,
    },
    ASK_AGAIN, CONFLICT, IN_DOUBT, IN_PROGRESS, elsewhere, ends, faulty, never, seconds, settle,
    start,
    store::{Fault, Faulty},
};

fn rerunning(change: impl FnOnce(&mut Policy)) -> Server<Faulty> {
    faulty(|policy| {
        policy.on_doubt = OnDoubt::Rerun;
        change(policy);
    })
}

#[tokio::test(start_paused = true)]
async fn under_fail_a_call_in_doubt_stays_so_and_is_not_run_again() {
    let server = faulty(|_| {});
    server.leave_in_doubt("k").await;
    let token = server.token("k").await;
    for _ in 0..3 {
        assert_eq!(server.call("k", never()).await, IN_DOUBT);
        assert_eq!(elsewhere(&server).call("k", never()).await, IN_DOUBT);
        sleep(super::HOUR).await;
    }
    assert_eq!(server.token("k").await, token);
}

/// Its record would say that the call took effect.
#[tokio::test(start_paused = true)]
async fn an_error_that_is_too_large_to_keep_leaves_its_call_in_doubt() {
    let server = faulty(|policy| policy.max_result_bytes = 3);
    let declined = server.call("k", ends(ResultKind::ErrorResult, "declined"));
    assert_eq!(declined.await, in_doubt("declined"));
    assert_eq!(server.call("k", never()).await, IN_DOUBT);
    let small = server.call("small", ends(ResultKind::ErrorResult, "no"));
    assert_eq!(small.await, own("no"));
    assert_eq!(server.call("small", never()).await, replayed("no"));
}

#[tokio::test(start_paused = true)]
async fn a_call_in_doubt_is_new_once_its_own_retention_has_passed() {
    let server = faulty(|policy| {
        policy.in_doubt_retention = seconds(24 * 3600);
    });
    server.leave_in_doubt("k").await;
    sleep(seconds(24 * 3600 - 1)).await;
    assert_eq!(server.call("k", never()).await, IN_DOUBT);
    sleep(seconds(2)).await;
    assert_eq!(server.call("k", succeed("two")).await, own("two"));
}

#[tokio::test(start_paused = true)]
async fn who_waited_for_an_attempt_that_leaves_doubt_is_told_what_the_policy_makes_of_it() {
    for (on_doubt, told) in [
        (OnDoubt::Fail, IN_DOUBT),
        (OnDoubt::Rerun, ASK_AGAIN),
        // There is no function to ask.
        (OnDoubt::Verify, IN_DOUBT),
    ] {
        let server = faulty(|policy| policy.on_doubt = on_doubt);
        let (end, ended) = oneshot::channel();
        let first = start(&server, "k", async { ended.await.unwrap() });
        until(|| server.executions() == 1).await;
        let waiting = start(&server, "k", never());
        until(|| server.engine.waiting() == 1).await;
        end.send(Reply::new(ResultKind::ProtocolError, "timed out"))
            .ok()
            .unwrap();
        let Outcome::Refused(_, _, action) = told else {
            unreachable!("a refusal")
        };
        let left = Outcome::LeftInDoubt("timed out".to_owned(), action);
        assert_eq!(first.await.unwrap(), left, "{on_doubt:?}");
        assert_eq!(waiting.await.unwrap(), told, "{on_doubt:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn under_rerun_the_next_call_runs_as_another_attempt_and_its_result_is_kept() {
    let server = rerunning(|_| {});
    server.leave_in_doubt("k").await;
    let before = server.token("k").await;
    let handler = async |handle: LeaseHandle| {
        assert_eq!(handle.number(), 2);
        assert!(handle.token() > before);
        sleep(super::HOUR).await;
        Reply::new(ResultKind::Success, "two")
    };
    assert_eq!(server.call_handled("k", handler).await, own("two"));
    assert_eq!(server.call("k", never()).await, replayed("two"));
    assert_eq!(server.executions(), 2);
}

#[tokio::test(start_paused = true)]
async fn under_rerun_a_lapsed_call_waits_for_the_end_of_its_lease_and_runs_then() {
    let server = rerunning(|policy| policy.lease = seconds(120));
    // As a process that was killed: nobody tells the store.
    server.engine.store().abandon.set(Fault::Fails);
    server.leave_in_doubt("k").await;
    let elsewhere = elsewhere(&server);
    let impatient = elsewhere.under(|policy| policy.wait = Wait::Reject);
    assert_eq!(impatient.call("k", never()).await, IN_PROGRESS);
    // A patient caller's bound is shorter than the lease.
    assert_eq!(elsewhere.call("k", never()).await, IN_PROGRESS);
    let patient = elsewhere.under(|policy| policy.wait = Wait::UpTo(super::HOUR));
    assert_eq!(patient.call("k", succeed("two")).await, own("two"));
}

#[tokio::test(start_paused = true)]
async fn while_a_call_runs_again_its_duplicates_wait_or_are_told_that_it_runs() {
    let server = rerunning(|_| {});
    server.leave_in_doubt("k").await;
    let (end, ended) = oneshot::channel();
    let again = start(&server, "k", async { ended.await.unwrap() });
    until(|| server.executions() == 2).await;
    let waiting = start(&server, "k", never());
    until(|| server.engine.waiting() == 1).await;
    let elsewhere = elsewhere(&server);
    for server in [&server, &elsewhere] {
        let impatient = server.under(|policy| policy.wait = Wait::Reject);
        assert_eq!(impatient.call("k", never()).await, IN_PROGRESS);
        let other = server.request(server.identity(Some("k"), r#"{"other":true}"#));
        assert_eq!(server.call_as(other, never()).await, CONFLICT);
    }
    let waiting_elsewhere = start(&elsewhere, "k", never());
    settle().await;
    end.send(Reply::new(ResultKind::Success, "two"))
        .ok()
        .unwrap();
    assert_eq!(again.await.unwrap(), own("two"));
    assert_eq!(waiting.await.unwrap(), joined("two"));
    assert_eq!(waiting_elsewhere.await.unwrap(), replayed("two"));
}

#[tokio::test(start_paused = true)]
async fn of_64_duplicates_that_find_a_call_in_doubt_one_runs_it() {
    let server = rerunning(|_| {});
    server.leave_in_doubt("k").await;
    let elsewhere = elsewhere(&server);
    let calls: Vec<_> = (0..64)
        .map(|number| {
            let server = if number % 2 == 0 { &server } else { &elsewhere };
            start(server, "k", async {
                sleep(seconds(10)).await;
                Reply::new(ResultKind::Success, "two")
            })
        })
        .collect();
    let mut own_results = 0;
    for call in calls {
        match call.await.unwrap() {
            Outcome::Own(text) => {
                own_results += 1;
                assert_eq!(text, "two");
            }
            Outcome::Joined(text) | Outcome::Replayed(text) => assert_eq!(text, "two"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(own_results, 1);
    assert_eq!(server.executions() + elsewhere.executions(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_did_nothing_does_not_free_what_an_earlier_one_may_have_done() {
    for kind in [
        ResultKind::NotExecuted,
        ResultKind::NotCalled,
        ResultKind::InputRequired,
        ResultKind::ProtocolError,
        ResultKind::Interrupted,
    ] {
        let server = rerunning(|policy| policy.on_error = OnError::InDoubt);
        server.leave_in_doubt("k").await;
        let releasing = server.under(|policy| policy.on_error = OnError::Release);
        let left = in_doubt_until_retried("no");
        assert_eq!(releasing.call("k", ends(kind, "no")).await, left);
        let strict = server.under(|policy| policy.on_doubt = OnDoubt::Fail);
        assert_eq!(strict.call("k", never()).await, IN_DOUBT, "{kind:?}");
        assert_eq!(
            server.call("k", succeed("two")).await,
            own("two"),
            "{kind:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_dropped_before_it_started_leaves_the_doubt_as_it_was() {
    let server = rerunning(|_| {});
    server.leave_in_doubt("k").await;
    drop(server.attempt("k").await);
    settle().await;
    let strict = server.under(|policy| policy.on_doubt = OnDoubt::Fail);
    assert_eq!(strict.call("k", never()).await, IN_DOUBT);
    assert_eq!(server.call("k", succeed("two")).await, own("two"));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_is_dropped_while_it_takes_over_leaves_the_doubt_as_it_was() {
    let server = rerunning(|_| {});
    server.leave_in_doubt("k").await;
    server.engine.store().take_over.set(Fault::Waits);
    let call = start(&server, "k", never());
    settle().await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    server.engine.store().take_over.set(Fault::None);
    settle().await;
    let strict = server.under(|policy| policy.on_doubt = OnDoubt::Fail);
    assert_eq!(strict.call("k", never()).await, IN_DOUBT);
}

#[tokio::test(start_paused = true)]
async fn another_call_under_a_key_in_doubt_is_a_conflict_and_takes_nothing_over() {
    let server = rerunning(|_| {});
    server.leave_in_doubt("k").await;
    let token = server.token("k").await;
    let other = server.request(server.identity(Some("k"), r#"{"other":true}"#));
    assert_eq!(server.call_as(other, never()).await, CONFLICT);
    assert_eq!(server.token("k").await, token);
    assert_eq!(server.call("k", succeed("two")).await, own("two"));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_cannot_be_taken_over_is_not_run_without_protection_either() {
    let server = rerunning(|policy| policy.run_unprotected_when_store_is_unavailable = true);
    server.leave_in_doubt("k").await;
    server.engine.store().take_over.set(Fault::Fails);
    let request = server.request(server.identity(Some("k"), "{}"));
    let Begun::Answer(answer) = server.engine.begin_lease(request).await else {
        panic!("it is known to be in doubt");
    };
    assert_eq!(Outcome::from(answer, None), ASK_AGAIN);
    server.engine.store().take_over.set(Fault::None);
    assert_eq!(server.call("k", succeed("two")).await, own("two"));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_goes_on_while_another_runs_changes_nothing_and_is_told_so() {
    let server = rerunning(|policy| policy.lease = seconds(120));
    let elsewhere = elsewhere(&server);
    let (end, ended) = oneshot::channel();
    let late = start(&server, "k", async { ended.await.unwrap() });
    until(|| server.executions() == 1).await;
    server.engine.store().renew.set(Fault::Fails);
    sleep(seconds(130)).await;
    server.engine.store().renew.set(Fault::None);
    let (end_again, ended_again) = oneshot::channel();
    let again = start(&elsewhere, "k", async { ended_again.await.unwrap() });
    until(|| elsewhere.executions() == 1).await;
    end.send(Reply::new(ResultKind::Success, "late"))
        .ok()
        .unwrap();
    assert_eq!(late.await.unwrap(), ASK_AGAIN);
    end_again
        .send(Reply::new(ResultKind::Success, "again"))
        .ok()
        .unwrap();
    assert_eq!(again.await.unwrap(), own("again"));
    assert_eq!(server.call("k", never()).await, replayed("again"));
}

#[tokio::test(start_paused = true)]
async fn a_late_attempt_is_fenced_also_from_a_key_that_was_swept_and_claimed_anew() {
    let server = faulty(|policy| {
        policy.lease = seconds(120);
        policy.retention = seconds(600);
        policy.window = seconds(600);
        policy.in_doubt_retention = seconds(600);
    });
    let elsewhere = elsewhere(&server);
    let (end, ended) = oneshot::channel();
    let late = start(&server, "k", async { ended.await.unwrap() });
    until(|| server.executions() == 1).await;
    server.engine.store().renew.set(Fault::Fails);
    sleep(seconds(721)).await;
    server.engine.store().renew.set(Fault::None);
    assert_eq!(server.engine.sweep(&Default::default()).await.unwrap(), 1);
    let (end_anew, ended_anew) = oneshot::channel();
    let anew = start(&elsewhere, "k", async { ended_anew.await.unwrap() });
    until(|| elsewhere.executions() == 1).await;
    end.send(Reply::new(ResultKind::Success, "late"))
        .ok()
        .unwrap();
    assert_eq!(late.await.unwrap(), IN_DOUBT);
    end_anew
        .send(Reply::new(ResultKind::Success, "anew"))
        .ok()
        .unwrap();
    assert_eq!(anew.await.unwrap(), own("anew"));
    assert_eq!(server.call("k", never()).await, replayed("anew"));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_goes_on_without_its_lease_keeps_nobody_waiting() {
    let server = faulty(|policy| {
        policy.lease = seconds(120);
        policy.wait = Wait::UpTo(super::HOUR);
    });
    let hung = start(&server, "k", std::future::pending());
    until(|| server.executions() == 1).await;
    let waiting = start(&server, "k", never());
    until(|| server.engine.waiting() == 1).await;
    server.engine.store().renew.set(Fault::Fails);
    assert_eq!(waiting.await.unwrap(), IN_DOUBT);
    assert_eq!(server.call("k", never()).await, IN_DOUBT);
    assert!(!hung.is_finished());

    // Where a repeat is safe it is made, and what comes of the late one changes nothing.
    let server = server.under(|policy| policy.on_doubt = OnDoubt::Rerun);
    server.engine.store().renew.set(Fault::None);
    let (end, ended) = oneshot::channel();
    let again = start(&server, "k", async { ended.await.unwrap() });
    until(|| server.executions() == 2).await;
    let waiting = start(&server, "k", never());
    until(|| server.engine.waiting() == 1).await;
    hung.abort();
    settle().await;
    assert!(!waiting.is_finished(), "the late one has nobody to tell");
    end.send(Reply::new(ResultKind::Success, "two"))
        .ok()
        .unwrap();
    assert_eq!(again.await.unwrap(), own("two"));
    assert_eq!(waiting.await.unwrap(), joined("two"));
}

#[tokio::test(start_paused = true)]
async fn beside_a_call_that_runs_elsewhere_nothing_runs_without_protection() {
    let server = faulty(|policy| policy.run_unprotected_when_store_is_unavailable = true);
    let elsewhere = elsewhere(&server);
    let (end, ended) = oneshot::channel();
    let running = start(&elsewhere, "k", async { ended.await.unwrap() });
    until(|| elsewhere.executions() == 1).await;
    let waiting = start(&server, "k", never());
    sleep(seconds(1)).await;
    server.engine.store().claim.set(Fault::Fails);
    assert_eq!(waiting.await.unwrap(), IN_PROGRESS);
    server.engine.store().claim.set(Fault::None);
    end.send(Reply::new(ResultKind::Success, "one"))
        .ok()
        .unwrap();
    assert_eq!(running.await.unwrap(), own("one"));
    assert_eq!(server.call("k", never()).await, replayed("one"));
}
