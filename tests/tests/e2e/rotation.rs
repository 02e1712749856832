//! The previous version of a server and the next one, as processes side by side, while the secret is
//! replaced.

use std::time::Duration;

use futures_util::future::join_all;
use mcp_idempotent_tests::{
    client::Answer,
    database::Database,
    ledger::{Pause, Process, Secrets, charge},
};

use crate::{
    processes::Site,
    world::{on_each_store, until, within_patience},
};

/// Longer than a guard's lease, and shorter than a result is kept.
const LAPSE: Duration = Duration::from_secs(600);

async fn start<D: Database>(site: &Site<D>, secrets: Secrets, pause: Option<Pause>) -> Process {
    let set = |settings: &mut mcp_idempotent_tests::ledger::Settings| {
        settings.secrets = secrets;
        settings.pause = pause;
    };
    site.start_with(secrets.as_str(), set).await
}

/// Sends a call to a process that stops at `pause`, and kills it there.
async fn killed<D: Database>(site: &Site<D>, secrets: Secrets, pause: Pause, name: &str) {
    let victim = start(site, secrets, Some(pause)).await;
    let sent = victim.client.send(charge(name, false)).await.unwrap();
    until(async || site.ledger.paused(name) == 1).await;
    victim.kill().await;
    sent.answer().await.unwrap_err();
    // Nobody waits for the leases that it held.
    site.database.age(LAPSE).await;
}

async fn answer(process: &Process, name: &str) -> Answer {
    within_patience(process.client.call(charge(name, false))).await
}

async fn a_kill_in_either_version_leaves_one_effect_and_one_answer<D: Database>() {
    let site = Site::<D>::new().await;
    let old = start(&site, Secrets::Old, None).await;
    let both = start(&site, Secrets::Both, None).await;
    let mut names = Vec::new();
    for (secrets, pause, runs) in [
        (Secrets::Old, Pause::BeforeCommit, 2),
        (Secrets::Old, Pause::AfterCommit, 1),
        (Secrets::Both, Pause::BeforeCommit, 2),
        (Secrets::Both, Pause::AfterCommit, 1),
    ] {
        let name = format!("{}-{}", secrets.as_str(), pause.as_str());
        killed(&site, secrets, pause, &name).await;
        if (secrets, pause) == (Secrets::Both, Pause::BeforeCommit) {
            // It cannot know that nothing was committed under the other secret.
            let unknown = answer(&old, &name).await;
            assert_eq!(unknown.refusal(), "idempotency_outcome_unknown");
        }
        let first = answer(&both, &name).await;
        for process in [&old, &both] {
            let again = answer(process, &name).await;
            assert!(again.is_replay(), "{name}: {}", again.line);
            assert_eq!(again.unmarked(), first.unmarked(), "{name}");
        }
        assert_eq!(site.ledger.runs(&name), runs, "{name}");
        names.push(name);
    }
    names.sort_unstable();
    assert_eq!(site.database.effects().await, names);
}

const CALLS: usize = 24;

async fn a_kill_among_the_calls_of_both_versions_leaves_one_effect_each<D: Database>() {
    let site = Site::<D>::new().await;
    let mut expected = Vec::new();
    for (round, dies) in [Secrets::Both, Secrets::Old].into_iter().enumerate() {
        let old = start(&site, Secrets::Old, None).await;
        let both = start(&site, Secrets::Both, None).await;
        let names: Vec<_> = (0..CALLS).map(|n| format!("{round}-{n:02}")).collect();
        let mut sent = Vec::new();
        for name in &names {
            for process in [&old, &both] {
                sent.push(process.client.send(charge(name, false)).await.unwrap());
            }
        }
        site.until_runs(&names[CALLS / 4], 1).await;
        let (victim, survivor) = match dies {
            Secrets::Both => (both, old),
            _ => (old, both),
        };
        victim.kill().await;
        // Each is answered, or its process is dead.
        drop(within_patience(join_all(sent.into_iter().map(|sent| sent.answer()))).await);
        site.database.age(LAPSE).await;
        let restarted = start(&site, dies, None).await;
        let (old, both) = match dies {
            Secrets::Both => (survivor, restarted),
            _ => (restarted, survivor),
        };
        for name in &names {
            let first = answer(&both, name).await;
            let other = answer(&old, name).await;
            if dies == Secrets::Both && first.is_failure() {
                // The kill came between a guard and its witness, and nothing has run since.
                assert_eq!(first.refusal(), "idempotency_outcome_unknown");
                assert_eq!(other.refusal(), "idempotency_outcome_unknown");
                continue;
            }
            assert!(other.is_replay(), "{name}: {}", other.line);
            assert_eq!(other.unmarked(), first.unmarked(), "{name}");
            expected.push(name.clone());
        }
    }
    assert!(expected.len() > CALLS, "{expected:?}");
    assert_eq!(site.database.effects().await, expected);
}

on_each_store! {
    a_kill_in_either_version_leaves_one_effect_and_one_answer,
    a_kill_among_the_calls_of_both_versions_leaves_one_effect_each,
}
