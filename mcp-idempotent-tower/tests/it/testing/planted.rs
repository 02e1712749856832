//! Each planted flaw is found, and named; the same server without one is not blamed.

use std::time::Duration;

use http::request::Parts;
use mcp_idempotent_tower::testing::{Check, CheckErrorKind, Report, Scene, assert_idempotent};
use serde_json::json;

use super::server::{Flaw, Planted, USER};

/// A check of the planted server, and the server.
async fn planted(flaw: Flaw, directory: &tempfile::TempDir) -> (Planted, Check) {
    let file = directory.path().join("charges.db");
    let server = Planted::open(&file, flaw, Duration::from_millis(10)).await;
    let pool = server.pool.clone();
    let check = Check::new("charge", move || {
        let pool = pool.clone();
        async move {
            let count = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM charge");
            count.fetch_one(&pool).await
        }
    });
    let named = |name: &'static str| {
        move |head: &mut Parts| {
            head.headers.insert(USER, name.parse().unwrap());
        }
    };
    let check = check
        .with_arguments(json!({ "cents": 4200 }))
        .with_failure("an error", json!({ "cents": 4200, "fails": true }))
        .with_callers(named("alice"), named("bob"));
    (server, check)
}

async fn report(flaw: Flaw) -> Report {
    let directory = tempfile::tempdir().unwrap();
    let (server, check) = planted(flaw, &directory).await;
    match check.run(server).await {
        Ok(report) => report,
        Err(error) => {
            assert_eq!(error.kind(), CheckErrorKind::Wrong, "{error}");
            error.report().clone()
        }
    }
}

/// The finding of the scenario whose name begins so.
fn finding<'a>(report: &'a Report, scene: &str) -> &'a str {
    let scene = report
        .scenes()
        .iter()
        .find(|it| it.name().starts_with(scene));
    let scene = scene.unwrap_or_else(|| panic!("not played: {report}"));
    scene
        .finding()
        .unwrap_or_else(|| panic!("no finding: {report}"))
}

fn wrong(report: &Report) -> Vec<&str> {
    let wrong = report.scenes().iter().filter(|it| it.finding().is_some());
    wrong.map(Scene::name).collect()
}

#[tokio::test]
async fn a_server_that_protects_itself_by_hand_is_fine() {
    let report = report(Flaw::None).await;
    assert!(report.is_fine(), "{report}");
    assert_eq!(report.scenes().len(), 19, "{report}");
    let shown = report.to_string();
    assert!(
        shown.contains("8 at the same time on two connections"),
        "{shown}"
    );
    assert!(shown.ends_with("nothing is wrong\n"), "{shown}");
}

#[tokio::test]
async fn an_unprotected_tool_is_found() {
    let report = report(Flaw::Unprotected).await;
    let said = finding(&report, "repeated with its key");
    assert_eq!(
        said,
        "one operation took effect 3 times: a repeated key is not recognised"
    );
    assert!(wrong(&report).len() > 5, "{report}");
}

#[tokio::test]
async fn a_record_that_comes_after_the_effect_is_found() {
    let report = report(Flaw::RecordAfterTheEffect).await;
    let said = finding(&report, "cancelled when the effect was there");
    assert!(
        said.starts_with("one operation took effect 2 times: "),
        "{said}"
    );
    assert!(said.contains("the record comes after the effect"), "{said}");
    let only = ["cancelled ", "connection lost "];
    for scene in wrong(&report) {
        assert!(only.iter().any(|it| scene.starts_with(it)), "{report}");
    }
}

#[tokio::test]
async fn a_look_up_before_the_lock_is_found() {
    let report = report(Flaw::LookUpBeforeTheLock).await;
    let said = finding(&report, "8 at the same time on one connection");
    assert!(
        said.contains("looking for the key and claiming it are two steps"),
        "{said}"
    );
    assert!(
        !wrong(&report).contains(&"repeated with its key"),
        "{report}"
    );
}

#[tokio::test]
async fn a_scope_that_is_ignored_is_found() {
    let report = report(Flaw::ScopeIgnored).await;
    assert_eq!(
        wrong(&report),
        ["another caller with the same key"],
        "{report}"
    );
    let said = finding(&report, "another caller");
    assert!(
        said.contains("was given the first caller's result"),
        "{said}"
    );
}

#[tokio::test]
async fn a_key_that_an_error_gives_back_is_found() {
    let report = report(Flaw::ReleasedOnError).await;
    assert_eq!(wrong(&report), ["an error, then repeated"], "{report}");
    let said = finding(&report, "an error");
    assert!(
        said.contains("acted and failed, and its repeat acted again: 2 effects"),
        "{said}"
    );
}

#[tokio::test]
async fn a_conflict_that_is_not_checked_is_found() {
    let report = report(Flaw::ConflictUnchecked).await;
    let said = finding(&report, "the same key with other arguments");
    assert!(
        said.contains("the first call's result: arguments are not compared"),
        "{said}"
    );
    for scene in wrong(&report) {
        assert!(
            scene.starts_with("the same key with other arguments"),
            "{report}"
        );
    }
}

#[tokio::test]
async fn a_replay_with_another_result_is_found() {
    let report = report(Flaw::AnotherResult).await;
    let said = finding(&report, "repeated with its key");
    assert!(
        said.starts_with("callers of one operation were given different results: "),
        "{said}"
    );
}

#[tokio::test]
async fn a_result_without_an_effect_ends_the_check() {
    let directory = tempfile::tempdir().unwrap();
    let (server, check) = planted(Flaw::NothingDone, &directory).await;
    let error = check.run(server).await.unwrap_err();
    assert_eq!(error.kind(), CheckErrorKind::NotPlayed);
    let said = error.to_string();
    assert!(said.contains("had no effect that is counted"), "{said}");
}

#[tokio::test]
async fn a_tool_that_the_server_does_not_have_ends_the_check() {
    let directory = tempfile::tempdir().unwrap();
    let (server, _) = planted(Flaw::None, &directory).await;
    let check = Check::new("pay", async || 0_u64);
    let error = check.run(server).await.unwrap_err();
    assert_eq!(error.kind(), CheckErrorKind::NotPlayed);
    assert_eq!(error.to_string(), r#"the server lists no tool "pay""#);
}

#[tokio::test]
#[should_panic(expected = "one operation took effect 3 times: a repeated key is not recognised")]
async fn the_assertion_panics_with_the_findings() {
    let directory = tempfile::tempdir().unwrap();
    let (server, check) = planted(Flaw::Unprotected, &directory).await;
    assert_idempotent(server, check).await;
}
