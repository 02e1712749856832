//! An outside API that acts and does not say so, and handlers that return the error with `?`.

use std::time::Duration;

use mcp_idempotent_tests::{
    database::Database,
    outside::{Settings, pay},
};
use mcp_idempotent_tower::{
    Audit, RecordStatus, Resolution, Resolved, core::store::Completion, wire,
};

use super::{
    Site,
    api::{Api, Behaviour, NEVER},
    assert_is_in_doubt, paid,
};
use crate::world::on_each_store;

const LATE: Behaviour = Behaviour::ActsAndAnswersAfter(NEVER);

fn impatient(settings: &mut Settings) {
    settings.timeout = Duration::from_millis(300);
}

/// The handler's own error, which says nothing of a key.
fn assert_is_the_handlers_error(answer: &mcp_idempotent_tests::client::Answer) {
    let message = answer.error()["message"].as_str().unwrap();
    assert!(message.starts_with("the payment API"), "{}", answer.line);
}

async fn a_call_that_acted_and_timed_out_is_in_doubt_and_not_repeated<D: Database>() {
    let site = Site::<D>::new().await;
    let process = site.start_with(impatient).await;
    for (name, behaviour) in [("late", LATE), ("500", Behaviour::ActsAndFails)] {
        site.api.plan([behaviour]);
        let first = process.client.call(pay("pay_or_fail", name)).await;
        assert_is_the_handlers_error(&first);
        let left = &first.error()["data"][wire::IN_DOUBT];
        for _ in 0..2 {
            let retry = process.client.call(pay("pay_or_fail", name)).await;
            assert_is_in_doubt(&retry);
            // The first caller has heard it too.
            assert_eq!(left, retry.refused());
        }
        assert_eq!(site.api.counts(name), [1, 1, 1]);
        assert_eq!(site.ledger.runs(name), 1);
    }
}

/// What `on_error = release` says is the author's word: here it is wrong, as the call had acted. The
/// retry has the same key, and it is the API that makes one charge of the two calls.
async fn an_error_that_frees_the_key_is_repeated_with_the_same_key_for_the_api<D: Database>() {
    for (honours_keys, charges) in [(true, 1), (false, 2)] {
        let site = Site::<D>::with_api(Api::start(honours_keys).await).await;
        let process = site.start_with(impatient).await;
        site.api.plan([LATE]);
        let first = process.client.call(pay("pay_or_release", "a")).await;
        assert_is_the_handlers_error(&first);
        let retry = process.client.call(pay("pay_or_release", "a")).await;
        paid(&retry);
        assert!(!retry.is_replay());
        assert_eq!(site.api.counts("a"), [2, 1, charges]);
    }
}

async fn an_api_that_is_late_or_fails_or_is_slow_twice_sees_one_key_and_acts_once<D: Database>() {
    let site = Site::<D>::new().await;
    let process = site.start_with(impatient).await;
    for tool in ["pay_or_rerun", "pay_and_write"] {
        let plans = [
            ("late", vec![LATE]),
            ("500", vec![Behaviour::ActsAndFails]),
            ("slow twice", vec![LATE, LATE]),
        ];
        for (what, plan) in plans {
            let name = &format!("{tool}-{}", what.replace(' ', "-"));
            let failures = plan.len();
            for behaviour in plan {
                site.api.plan([behaviour]);
            }
            for _ in 0..failures {
                let failed = process.client.call(pay(tool, name)).await;
                assert_is_the_handlers_error(&failed);
            }
            let retry = process.client.call(pay(tool, name)).await;
            paid(&retry);
            assert!(process.client.call(pay(tool, name)).await.is_replay());
            assert_eq!(site.api.counts(name), [failures + 1, 1, 1], "{name}");
        }
    }
    assert_eq!(site.database.effects().await.len(), 3);
}

async fn an_api_that_knows_no_keys_acts_again_under_rerun_and_never_under_fail<D: Database>() {
    let site = Site::<D>::with_api(Api::start(false).await).await;
    let process = site.start_with(impatient).await;
    for (tool, charges) in [
        ("pay_or_rerun", 2),
        ("pay_or_fail", 1),
        ("pay_or_verify", 1),
    ] {
        site.api.plan([LATE]);
        let first = process.client.call(pay(tool, tool)).await;
        assert_is_the_handlers_error(&first);
        let retry = process.client.call(pay(tool, tool)).await;
        if tool == "pay_or_fail" {
            assert_is_in_doubt(&retry);
        } else {
            paid(&retry);
        }
        assert_eq!(site.api.counts(tool), [charges, 1, charges]);
    }
}

async fn a_connection_that_is_refused_proves_that_nothing_was_sent<D: Database>() {
    let site = Site::<D>::new().await;
    // Reserved, and never listening.
    let nobody = tokio::net::TcpSocket::new_v4().unwrap();
    nobody.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}", nobody.local_addr().unwrap());
    let settings = Settings::new(&site.database, &site.ledger, &url);
    let program = env!("CARGO_BIN_EXE_ledger-server");
    let cut_off = settings.start(program, "outside").await;
    assert_is_the_handlers_error(&cut_off.client.call(pay("pay_or_fail", "a")).await);

    let process = site.start().await;
    let retry = process.client.call(pay("pay_or_fail", "a")).await;
    paid(&retry);
    assert_eq!(site.api.counts("a"), [1, 1, 1]);
}

async fn an_operator_resolves_a_payment_in_doubt_and_the_retry_is_answered_so<D: Database>() {
    let site = Site::<D>::new().await;
    let process = site.start_with(impatient).await;
    let operator = site.operator();
    let audit = Audit::new("the operator", "asked the payment API").unwrap();

    // Paid, as the API says: the result of another such payment stands for it.
    let model = process.client.call(pay("pay_or_fail", "model")).await;
    paid(&model);
    let response = site.record().await.response;
    site.api.plan([LATE]);
    let first = process.client.call(pay("pay_or_fail", "a")).await;
    assert_is_the_handlers_error(&first);
    let mut query = mcp_idempotent_tower::RecordQuery::default();
    query.status = Some(RecordStatus::InDoubt);
    let listed = operator.engine().list(&query).await.unwrap();
    let [record] = &*listed else {
        panic!("one record in doubt: {listed:?}");
    };
    let day = Duration::from_secs(24 * 60 * 60);
    let resolution = Resolution::Committed(Completion::new(response, day));
    let resolved = operator
        .engine()
        .resolve(record.id, record.token, &resolution, &audit)
        .await
        .unwrap();
    assert!(matches!(resolved, Resolved::Done(_)), "{resolved:?}");
    let retry = process.client.call(pay("pay_or_fail", "a")).await;
    assert!(retry.is_replay(), "{}", retry.line);
    assert_eq!(retry.unmarked(), model.unmarked());
    assert_eq!(site.api.counts("a"), [1, 1, 1]);
    let kept = operator.engine().show(record.id).await.unwrap().unwrap();
    let kept = kept.resolved.unwrap();
    assert_eq!(
        (&*kept.who, &*kept.why),
        ("the operator", "asked the payment API")
    );
}

on_each_store! {
    a_call_that_acted_and_timed_out_is_in_doubt_and_not_repeated,
    an_error_that_frees_the_key_is_repeated_with_the_same_key_for_the_api,
    an_api_that_is_late_or_fails_or_is_slow_twice_sees_one_key_and_acts_once,
    an_api_that_knows_no_keys_acts_again_under_rerun_and_never_under_fail,
    a_connection_that_is_refused_proves_that_nothing_was_sent,
    an_operator_resolves_a_payment_in_doubt_and_the_retry_is_answered_so,
}
