//! Rules for what an operator does.

use std::sync::Arc;

use super::{
    Harness,
    step::{
        MINUTE, abandon, age, assert_fenced, assert_result, claim_of, complete,
        completed as completed_of, fresh_claim, fresh_key, lease_of, record_of, release, result,
        sweep,
    },
};
use crate::{
    fingerprint::RecordId,
    store::{
        Audit, Claim, Lease, OperatorStore, RecordInfo, RecordQuery, RecordStatus, Resolution,
        ResolutionKind, Resolved,
    },
};

pub(super) fn audit() -> Audit {
    Audit::new("o'hara; DROP", "ticket \"42\" \\ ü").expect("who and why")
}

pub async fn an_operator_sees_where_each_record_stands<H: Harness<Store: OperatorStore>>(
    harness: Arc<H>,
) {
    let store = harness.store();
    let [running, lapsed, doubtful, completed, released, expired] =
        std::array::from_fn(|_| fresh_claim());
    // A store may have one clock for all records, so the old record comes first.
    let lease = lease_of(store, &expired).await;
    complete(store, &lease, result("old")).await;
    age(&harness, &expired, 2 * MINUTE).await;
    assert_eq!(show(store, &expired).await.status, RecordStatus::Expired);
    lease_of(store, &lapsed).await;
    age(&harness, &lapsed, lapsed.lease + MINUTE).await;
    lease_of(store, &running).await;
    let lease = lease_of(store, &doubtful).await;
    abandon(store, &lease).await;
    let lease = lease_of(store, &completed).await;
    complete(store, &lease, result("kept")).await;
    let lease = lease_of(store, &released).await;
    release(store, &lease, MINUTE).await;
    for (claim, status) in [
        (&running, RecordStatus::InProgress),
        (&lapsed, RecordStatus::InDoubt),
        (&doubtful, RecordStatus::InDoubt),
        (&completed, RecordStatus::Completed),
        (&released, RecordStatus::Released),
    ] {
        let info = show(store, claim).await;
        assert_eq!(info.status, status, "{info:?}");
        assert_eq!(info.id, claim.id);
        assert_eq!(&*info.tool, "tool");
        assert_eq!(info.application.as_deref(), Some("conformance"));
        assert_eq!(info.scope.as_deref(), Some("conformance"));
        assert_eq!(info.fingerprint, claim.fingerprint);
        assert_eq!(info.origin, Some(info.token));
        assert_eq!(info.key_prefix.as_deref(), Some("conforma"));
        assert_eq!(info.attempts, 1);
        assert!(info.resolved.is_none());
        let query = query(|query| query.status = Some(status));
        let listed = store.list(&query).await.expect("the store answers");
        let listed: Vec<_> = listed
            .iter()
            .filter(|listed| listed.id == claim.id)
            .collect();
        assert_eq!(listed.len(), 1, "{status}");
        assert!(listed.iter().all(|listed| listed.response.is_none()));
    }
    let info = show(store, &completed).await;
    assert_eq!(info.response.as_deref(), Some(&b"kept"[..]));
    assert!(info.completed_at.is_some() && info.expires_at > info.completed_at);
    assert!(show(store, &running).await.lease_until.is_some());
    let unknown = RecordId::from_bytes([7; 32]);
    assert!(matches!(store.show(unknown).await, Ok(None)));
}

pub async fn a_listing_has_pages_and_filters<H: Harness<Store: OperatorStore>>(harness: Arc<H>) {
    let store = harness.store();
    let claims: Vec<_> = (0..5).map(|_| fresh_claim()).collect();
    for claim in &claims {
        lease_of(store, claim).await;
    }
    let mut seen = Vec::new();
    let mut after = None;
    let mut was_full = true;
    loop {
        let query = query(|query| {
            query.after = after;
            query.limit = 2;
            query.tool = Some("tool".into());
        });
        let page = store.list(&query).await.expect("the store answers");
        assert!(page.len() <= 2);
        let Some(last) = page.last() else {
            break;
        };
        assert!(was_full, "a page that is not full is the last");
        was_full = page.len() == 2;
        after = Some(last.cursor());
        seen.extend(page);
    }
    assert!(
        seen.windows(2)
            .all(|pair| pair[0].cursor() < pair[1].cursor())
    );
    for claim in &claims {
        let times = seen.iter().filter(|info| info.id == claim.id).count();
        assert_eq!(times, 1);
    }
    let changes: [fn(&mut RecordQuery, &'static str); 4] = [
        |query, text| query.tool = Some(text.into()),
        |query, text| query.application = Some(text.into()),
        |query, text| query.scope = Some(text.into()),
        |query, text| query.key_prefix = Some(text.into()),
    ];
    let matching = ["tool", "conformance", "conformance", "conf"];
    for (change, text) in changes.into_iter().zip(matching) {
        for (text, expected) in [(text, claims.len()), ("another", 0)] {
            let query = query(|query| change(query, text));
            let listed = store.list(&query).await.expect("the store answers");
            assert_eq!(listed.len(), expected, "{query:?}");
        }
    }
    // Only the kept part of a longer key counts.
    let query = query(|query| query.key_prefix = Some("conformance-and-more".into()));
    let listed = store.list(&query).await.expect("the store answers");
    assert_eq!(listed.len(), claims.len());
}

pub async fn a_record_is_known_by_its_key<H: Harness<Store: OperatorStore>>(harness: Arc<H>) {
    let (key, another) = (fresh_key(), fresh_key());
    let claim = claim_of(&key);
    lease_of(harness.store(), &claim).await;
    let info = show(harness.store(), &claim).await;
    assert!(info.is_of_key(&key, None));
    assert!(!info.is_of_key(&another, None));
}

pub async fn a_call_resolved_as_committed_is_replayed<H: Harness<Store: OperatorStore>>(
    harness: Arc<H>,
) {
    for (claim, lease) in [running(&harness).await, doubtful(&harness).await] {
        let store = harness.store();
        let resolution = Resolution::Committed(result("by hand"));
        let resolved = resolve(store, &claim, lease.token, &resolution).await;
        let Resolved::Done(at) = resolved else {
            panic!("expected a resolution, found {resolved:?}");
        };
        assert_fenced(&harness, &lease).await;
        assert_result(store, &claim, "by hand").await;
        let info = show(store, &claim).await;
        assert!(info.token != lease.token, "a new token fences the attempt");
        let trail = info.resolved.expect("a trail");
        assert_eq!(trail.kind, ResolutionKind::Committed);
        assert_eq!((trail.who, trail.why), (audit().who, audit().why));
        assert_eq!(trail.at, at);
        age(&harness, &claim, 2 * MINUTE).await;
        assert!(record_of(store, &claim).await.is_none());
    }
}

pub async fn a_call_resolved_as_committed_without_a_result_never_runs_again<
    H: Harness<Store: OperatorStore>,
>(
    harness: Arc<H>,
) {
    let (claim, lease) = doubtful(&harness).await;
    let mut completion = result("");
    completion.response = None;
    let resolution = Resolution::Committed(completion);
    let resolved = resolve(harness.store(), &claim, lease.token, &resolution).await;
    assert!(matches!(resolved, Resolved::Done(_)), "{resolved:?}");
    assert_eq!(completed_of(harness.store(), &claim).await.0, None);
}

pub async fn a_released_call_is_another_attempt_of_its_origin<H: Harness<Store: OperatorStore>>(
    harness: Arc<H>,
) {
    for (claim, lease) in [running(&harness).await, doubtful(&harness).await] {
        let store = harness.store();
        let resolved = resolve(store, &claim, lease.token, &Resolution::Release).await;
        assert!(matches!(resolved, Resolved::Done(_)), "{resolved:?}");
        assert_fenced(&harness, &lease).await;
        assert!(record_of(store, &claim).await.is_none());
        let info = show(store, &claim).await;
        assert_eq!(info.status, RecordStatus::Released);
        let drawn = info.token;
        assert!(drawn > lease.token, "a resolution draws a token");
        let again = lease_of(store, &claim).await;
        assert!(again.token > drawn, "tokens grow");
        assert_eq!((again.origin, again.attempts), (lease.origin, 2));
        assert_fenced(&harness, &lease).await;
        // The trail stays with the record.
        complete(store, &again, result("second")).await;
        let trail = show(store, &claim).await.resolved.expect("a trail");
        assert_eq!(trail.kind, ResolutionKind::Released);
    }
}

pub async fn a_call_resolved_as_not_committed_begins_anew<H: Harness<Store: OperatorStore>>(
    harness: Arc<H>,
) {
    for (claim, lease) in [running(&harness).await, doubtful(&harness).await] {
        let store = harness.store();
        let resolved = resolve(store, &claim, lease.token, &Resolution::NotCommitted).await;
        assert!(matches!(resolved, Resolved::Done(_)), "{resolved:?}");
        assert!(record_of(store, &claim).await.is_none());
        let trail = show(store, &claim).await.resolved.expect("a trail");
        assert_eq!(trail.kind, ResolutionKind::NotCommitted);
        let again = lease_of(store, &claim).await;
        assert_eq!((again.origin, again.attempts), (again.token, 1));
        assert_fenced(&harness, &lease).await;
    }
}

pub async fn only_what_was_seen_is_resolved<H: Harness<Store: OperatorStore>>(harness: Arc<H>) {
    let store = harness.store();
    let (claim, lease) = doubtful(&harness).await;
    let resolved = resolve(store, &claim, lease.token + 1, &Resolution::Release).await;
    assert_eq!(resolved, Resolved::Changed);
    let resolved = resolve(store, &fresh_claim(), lease.token, &Resolution::Release).await;
    assert_eq!(resolved, Resolved::NotFound);
    let (done, _) = completed(&harness).await;
    let token = show(store, &done).await.token;
    let resolved = resolve(store, &done, token, &Resolution::Release).await;
    assert_eq!(resolved, Resolved::Changed);
    // The second time fails, because the record is no longer as it was seen.
    let resolved = resolve(store, &claim, lease.token, &Resolution::Release).await;
    assert!(matches!(resolved, Resolved::Done(_)), "{resolved:?}");
    let resolved = resolve(store, &claim, lease.token, &Resolution::NotCommitted).await;
    assert_eq!(resolved, Resolved::Changed);
}

pub async fn who_and_why_and_the_tool_may_be_any_text<H: Harness<Store: OperatorStore>>(
    harness: Arc<H>,
) {
    let store = harness.store();
    let long = "é".repeat(1000);
    for said in [
        "'; DROP TABLE records; --",
        "back\\slash \\' \\\\ $1 $$ E'\\x'",
        "naïve ‘quotes’ 名前 🦀\n\ttab \u{1}",
        "x",
        &long,
    ] {
        let (claim, lease) = running(&harness).await;
        let audit = Audit::new(said, said).expect("who and why");
        let resolution = Resolution::Release;
        let resolved = store
            .resolve(claim.id, lease.token, &resolution, &audit)
            .await;
        assert!(matches!(resolved, Ok(Resolved::Done(_))), "{resolved:?}");
        let trail = show(store, &claim).await.resolved.expect("a trail");
        assert_eq!((&*trail.who, &*trail.why), (said, said));
    }
    let mut claim = fresh_claim();
    claim.call.tool = "it's a \\ tool 名".into();
    lease_of(store, &claim).await;
    let query = query(|query| query.tool = Some(claim.call.tool.clone()));
    let listed = store.list(&query).await.expect("the store answers");
    assert_eq!(listed.len(), 1);
}

pub async fn the_trail_of_a_free_key_is_swept_when_it_has_been_kept<
    H: Harness<Store: OperatorStore>,
>(
    harness: Arc<H>,
) {
    let store = harness.store();
    let (claim, lease) = doubtful(&harness).await;
    let mut audit = audit();
    audit.kept = 10 * MINUTE;
    store
        .resolve(claim.id, lease.token, &Resolution::Release, &audit)
        .await
        .expect("the store answers");
    age(&harness, &claim, 9 * MINUTE).await;
    sweep(store).await;
    assert!(matches!(store.show(claim.id).await, Ok(Some(_))));
    age(&harness, &claim, 2 * MINUTE).await;
    assert_eq!(sweep(store).await, 1);
    assert!(matches!(store.show(claim.id).await, Ok(None)));
}

fn query(change: impl FnOnce(&mut RecordQuery)) -> RecordQuery {
    let mut query = RecordQuery::default();
    change(&mut query);
    query
}

pub(super) async fn show<S: OperatorStore>(store: &S, claim: &Claim) -> RecordInfo {
    store
        .show(claim.id)
        .await
        .expect("the store answers")
        .expect("a record")
}

pub(super) async fn resolve<S: OperatorStore>(
    store: &S,
    claim: &Claim,
    token: i64,
    resolution: &Resolution,
) -> Resolved {
    store
        .resolve(claim.id, token, resolution, &audit())
        .await
        .expect("the store answers")
}

async fn running<H: Harness>(harness: &Arc<H>) -> (Claim, Lease) {
    let claim = fresh_claim();
    let lease = lease_of(harness.store(), &claim).await;
    (claim, lease)
}

async fn doubtful<H: Harness>(harness: &Arc<H>) -> (Claim, Lease) {
    let (claim, lease) = running(harness).await;
    abandon(harness.store(), &lease).await;
    (claim, lease)
}

async fn completed<H: Harness>(harness: &Arc<H>) -> (Claim, Lease) {
    let (claim, lease) = running(harness).await;
    complete(harness.store(), &lease, result("done")).await;
    (claim, lease)
}
