//! An operator's resolution, from the engine's side.

use std::time::Duration;

use mcp_idempotent_core::{
    Bytes, LeaseHandle, OnDoubt, ResultKind, RotatedKeys, Wait,
    store::{
        Audit, Completion, RecordInfo, RecordQuery, RecordStatus, Resolution, ResolutionKind,
        Resolved,
    },
};
use tokio::{sync::oneshot, time::sleep};

use super::{
    super::{Log, Outcome, Reply, Server, own, replayed, succeed, until},
    ASK_AGAIN, HOUR, IN_DOUBT, faulty, never, seconds, start,
    store::Faulty,
};

fn audit() -> Audit {
    Audit::new("ada", "seen in their books").unwrap()
}

fn committed(text: &'static str) -> Resolution {
    let result = Bytes::from_static(text.as_bytes());
    Resolution::Committed(Completion::new(Some(result), HOUR))
}

impl Server<Faulty> {
    pub(in crate::engine) async fn resolve(&self, key: &str, resolution: &Resolution) {
        let (id, token) = (self.identity(Some(key), "{}").id, self.token(key).await);
        let resolved = self.engine.resolve(id, token, resolution, &audit()).await;
        assert!(matches!(resolved, Ok(Resolved::Done(_))));
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_gets_what_an_operator_made_of_a_call_in_doubt() {
    let too_large = Resolution::Committed(Completion::new(None, HOUR));
    for (resolution, retry) in [
        (committed("by hand"), replayed("by hand")),
        (
            too_large,
            Outcome::Refused("idempotency_result_too_large", "committed", "ask_operator"),
        ),
        (Resolution::NotCommitted, own("two")),
        (Resolution::Release, own("two")),
    ] {
        for on_doubt in [OnDoubt::Fail, OnDoubt::Rerun] {
            let server = faulty(|policy| policy.on_doubt = on_doubt);
            server.leave_in_doubt("k").await;
            server.resolve("k", &resolution).await;
            assert_eq!(
                server.call("k", succeed("two")).await,
                retry,
                "{resolution:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_freed_call_is_no_longer_in_doubt_when_its_next_attempt_did_nothing() {
    for resolution in [Resolution::NotCommitted, Resolution::Release] {
        let server = faulty(|_| {});
        server.leave_in_doubt("k").await;
        server.resolve("k", &resolution).await;
        let no = super::ends(ResultKind::NotExecuted, "no");
        assert_eq!(server.call("k", no).await, own("no"));
        assert_eq!(server.call("k", succeed("two")).await, own("two"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_released_call_goes_on_with_its_downstream_keys_and_one_not_committed_begins_anew() {
    for (resolution, attempts) in [(Resolution::Release, 2), (Resolution::NotCommitted, 1)] {
        let server = faulty(|_| {});
        let mut seen = Vec::new();
        let mut see = async |handle: LeaseHandle| {
            seen.push((handle.downstream_key("charge"), handle.number()));
            Reply::new(ResultKind::ProtocolError, "timed out")
        };
        server.call_handled("k", &mut see).await;
        server.resolve("k", &resolution).await;
        server.call_handled("k", &mut see).await;
        assert_eq!(seen[1].1, attempts);
        assert_eq!(seen[0].0 == seen[1].0, attempts == 2, "{resolution:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_resolution_under_a_running_attempt_fences_it_and_frees_who_waits() {
    for (resolution, waiting_gets, retry_gets) in [
        (
            committed("by hand"),
            replayed("by hand"),
            replayed("by hand"),
        ),
        (Resolution::NotCommitted, own("waited"), replayed("waited")),
        (Resolution::Release, own("waited"), replayed("waited")),
    ] {
        for (on_doubt, late_gets) in [(OnDoubt::Fail, IN_DOUBT), (OnDoubt::Rerun, ASK_AGAIN)] {
            let server = faulty(|policy| {
                policy.on_doubt = on_doubt;
                policy.wait = Wait::UpTo(HOUR);
            });
            let (end, ended) = oneshot::channel();
            let (lost, noticed) = oneshot::channel();
            let late = tokio::spawn({
                let server = server.clone();
                async move {
                    let handler = async |handle: LeaseHandle| {
                        handle.lost().await;
                        lost.send(()).unwrap();
                        ended.await.unwrap()
                    };
                    server.call_handled("k", handler).await
                }
            });
            until(|| server.executions() == 1).await;
            let waiting = start(&server, "k", succeed("waited"));
            until(|| server.engine.waiting() == 1).await;
            server.resolve("k", &resolution).await;
            // With its next heartbeat, although it goes on.
            let lease = server.policy.lease;
            let noticed = tokio::time::timeout(lease, noticed).await;
            noticed.unwrap().unwrap();
            assert_eq!(waiting.await.unwrap(), waiting_gets, "{resolution:?}");
            end.send(Reply::new(ResultKind::Success, "late"))
                .ok()
                .unwrap();
            assert_eq!(late.await.unwrap(), late_gets, "{resolution:?}");
            assert_eq!(server.call("k", never()).await, retry_gets);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_and_why_stand_in_the_record_and_in_that_of_the_next_attempt() {
    let server = faulty(|_| {});
    server.leave_in_doubt("k").await;
    server.resolve("k", &Resolution::Release).await;
    let id = server.identity(Some("k"), "{}").id;
    let released = server.engine.show(id).await.unwrap().unwrap();
    assert_eq!(released.status, RecordStatus::Released);
    server.call("k", succeed("two")).await;
    let completed = server.engine.show(id).await.unwrap().unwrap();
    assert_eq!(completed.status, RecordStatus::Completed);
    for record in [released, completed] {
        let by = record.resolved.unwrap();
        assert_eq!(by.kind, ResolutionKind::Released);
        assert_eq!((&*by.who, &*by.why), ("ada", "seen in their books"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_resolution_of_what_has_changed_since_it_was_seen_changes_nothing() {
    let server = faulty(|policy| policy.on_doubt = OnDoubt::Rerun);
    server.leave_in_doubt("k").await;
    let (id, seen) = (server.identity(Some("k"), "{}").id, server.token("k").await);
    assert_eq!(server.call("k", succeed("two")).await, own("two"));
    let resolve = async |id, token| {
        let release = &Resolution::Release;
        server.engine.resolve(id, token, release, &audit()).await
    };
    assert_eq!(resolve(id, seen).await.unwrap(), Resolved::Changed);
    // A result is not taken back.
    let token = server.token("k").await;
    assert_eq!(resolve(id, token).await.unwrap(), Resolved::Changed);
    assert_eq!(server.call("k", never()).await, replayed("two"));
    let other = server.identity(Some("other"), "{}").id;
    assert_eq!(resolve(other, seen).await.unwrap(), Resolved::NotFound);
}

#[tokio::test(start_paused = true)]
async fn only_what_was_resolved_is_logged_as_resolved() {
    let log = Log::default();
    let _guard = log.capture();
    let server = faulty(|_| {});
    server.leave_in_doubt("k").await;
    let id = server.identity(Some("k"), "{}").id;
    let release = &Resolution::Release;
    let stale = server.token("k").await - 1;
    let resolved = server.engine.resolve(id, stale, release, &audit()).await;
    assert_eq!(resolved.unwrap(), Resolved::Changed);
    assert!(log.text().contains("did not resolve a record"));
    assert!(!log.text().contains("an operator resolved a record"));
    server.resolve("k", release).await;
    assert!(log.text().contains("an operator resolved a record"));
}

/// In lease mode the record that equal calls share is in doubt beside the call's own.
#[tokio::test(start_paused = true)]
async fn records_of_the_engine_take_no_room_in_a_page() {
    let server = faulty(|policy| policy.rotated_keys = RotatedKeys::Refuse);
    for n in 0..4 {
        let arguments = format!(r#"{{"n":{n}}}"#);
        let identity = server.identity(Some(&format!("key-{n}")), &arguments);
        let interrupted = async { Reply::new(ResultKind::Interrupted, "panicked") };
        server.call_as(server.request(identity), interrupted).await;
    }
    let mut query = RecordQuery::default();
    query.status = Some(RecordStatus::InDoubt);
    query.limit = 3;
    let page = server.engine.list(&query).await.unwrap();
    assert_eq!(page.len(), 3);
    query.after = page.last().map(RecordInfo::cursor);
    assert_eq!(server.engine.list(&query).await.unwrap().len(), 1);
    assert_eq!(server.engine.count_in_doubt().await.unwrap(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_call_resolved_as_committed_is_kept_for_as_long_as_the_operator_says() {
    let server = faulty(|_| {});
    server.leave_in_doubt("k").await;
    server.resolve("k", &committed("by hand")).await;
    sleep(HOUR - seconds(1)).await;
    assert_eq!(server.call("k", never()).await, replayed("by hand"));
    sleep(seconds(2)).await;
    assert_eq!(server.call("k", succeed("anew")).await, own("anew"));
}

#[test]
fn a_resolution_needs_a_name_and_a_reason_that_say_something() {
    let long = "ä".repeat(1000);
    assert!(Audit::new(&*long, &*long).is_ok());
    for nothing in ["", "  \n", "a\0b", &"ä".repeat(1001)] {
        assert!(Audit::new(nothing, "why").is_err(), "{nothing:?}");
        assert!(Audit::new("who", nothing).is_err(), "{nothing:?}");
    }
    let audit = audit();
    assert_eq!(audit.kept, Audit::DEFAULT_KEPT);
    assert!(
        Audit::new("", "why")
            .unwrap_err()
            .to_string()
            .contains("`who` and `why`")
    );
}

#[tokio::test(start_paused = true)]
async fn what_an_operator_keeps_for_ever_is_kept() {
    let for_ever = Completion::new(Some(Bytes::from_static(b"by hand")), Duration::MAX);
    for (resolution, status) in [
        (Resolution::Committed(for_ever), RecordStatus::Completed),
        (Resolution::Release, RecordStatus::Released),
    ] {
        let server = faulty(|_| {});
        server.leave_in_doubt("k").await;
        let (id, token) = (server.identity(Some("k"), "{}").id, server.token("k").await);
        let mut audit = audit();
        audit.kept = Duration::MAX;
        let resolved = server.engine.resolve(id, token, &resolution, &audit).await;
        assert!(matches!(resolved, Ok(Resolved::Done(_))), "{resolved:?}");
        sleep(24 * 365 * HOUR).await;
        let shown = server.engine.show(id).await.unwrap().unwrap();
        assert_eq!(shown.status, status);
    }
}
