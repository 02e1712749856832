//! A finding that comes too late, or that cannot be recorded.

use super::*;

/// An operator says that the call took effect while the function asks, which then says something.
async fn resolved_meanwhile(finding: Verdict) -> Server<Faulty> {
    let server = verifying(|_| {});
    server.leave_in_doubt("k").await;
    let (tell, told) = oneshot::channel();
    let other_side = OtherSide::new([Finding::SaysWhenTold(told)]);
    let first = server.start_verified("k", &other_side, never());
    until(|| other_side.asked() == 1).await;
    let id = server.identity(Some("k"), "{}").id;
    let audit = Audit::new("ada", "seen in their books").unwrap();
    let result = Completion::new(Some(Bytes::from_static(b"by hand")), super::super::HOUR);
    let token = server.token("k").await;
    server
        .engine
        .resolve(id, token, &Resolution::Committed(result), &audit)
        .await
        .unwrap();
    tell.send(finding).unwrap();
    assert_eq!(first.await.unwrap(), ASK_AGAIN);
    assert_eq!(
        server.verified("k", &other_side, never()).await,
        replayed("by hand")
    );
    server
}

#[tokio::test(start_paused = true)]
async fn what_an_operator_has_resolved_meanwhile_is_not_run_on_an_old_finding() {
    let server = resolved_meanwhile(Verdict::NotCommitted).await;
    assert_eq!(server.executions(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_stood_still_while_it_asked_does_not_run_what_another_has_run() {
    let server = verifying(|policy| {
        policy.lease = seconds(120);
        policy.verify_timeout = super::super::HOUR;
    });
    server.leave_in_doubt("k").await;
    let (tell, told) = oneshot::channel();
    let asked_here = OtherSide::new([Finding::SaysWhenTold(told)]);
    let first = server.start_verified("k", &asked_here, never());
    until(|| asked_here.asked() == 1).await;
    server.engine.store().renew.set(Fault::Fails);
    sleep(seconds(130)).await;
    server.engine.store().renew.set(Fault::None);
    let elsewhere = elsewhere(&server);
    let asked_there = OtherSide::new([Finding::Says(Verdict::NotCommitted)]);
    let ran = elsewhere.verified("k", &asked_there, succeed("two")).await;
    assert_eq!(ran, own("two"));
    tell.send(Verdict::NotCommitted).unwrap();
    assert_eq!(first.await.unwrap(), ASK_AGAIN);
    assert_eq!((server.executions(), elsewhere.executions()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_finding_is_not_acted_on_while_the_store_cannot_confirm_the_lease() {
    let server = verifying(|policy| policy.lease = seconds(120));
    server.leave_in_doubt("k").await;
    let other_side = OtherSide::new([
        Finding::Says(Verdict::NotCommitted),
        Finding::Says(Verdict::NotCommitted),
    ]);
    server.engine.store().renew.set(Fault::Fails);
    assert_eq!(server.verified("k", &other_side, never()).await, ASK_AGAIN);
    assert_eq!(server.look("k").await, IN_DOUBT);
    server.engine.store().renew.set(Fault::None);
    let ran = server.verified("k", &other_side, succeed("two")).await;
    assert_eq!(ran, own("two"));
}

#[tokio::test(start_paused = true)]
async fn what_was_found_out_and_cannot_be_recorded_stays_in_doubt() {
    let server = verifying(|policy| policy.wait = Wait::UpTo(super::super::HOUR));
    server.leave_in_doubt("k").await;
    let other_side = OtherSide::new([
        Finding::Says(committed("charged")),
        Finding::Says(committed("charged")),
    ]);
    server.engine.store().complete.set(Fault::Fails);
    assert_eq!(server.verified("k", &other_side, never()).await, ASK_AGAIN);
    server.engine.store().complete.set(Fault::None);
    assert_eq!(
        server.verified("k", &other_side, never()).await,
        replayed("charged")
    );
}

#[tokio::test(start_paused = true)]
async fn what_an_operator_says_meanwhile_counts_for_more() {
    resolved_meanwhile(committed("charged")).await;
}
