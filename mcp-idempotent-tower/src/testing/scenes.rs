//! The scenarios, in the order in which they are played, and when one of them is wrong.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{
    door::Caller,
    play::{Moment, Play, Stop},
    told::{Told, is_same},
};
use crate::wire;

/// How long to ask again for a call that could not be recorded.
const ENOUGH: Duration = Duration::from_secs(2);

/// What happens to a call before it is repeated.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Cancelled,
    GivenUp,
    Disconnected,
    Killed,
}

/// Plays all scenarios.
///
/// # Errors
///
/// Says why it could not go on.
pub(super) async fn play(play: &mut Play<'_>) -> Result<(), Stop> {
    one_call(play).await?;
    a_retry(play).await?;
    a_retry_elsewhere(play).await?;
    without_a_key(play).await?;
    for connections in [1, 2] {
        racers(play, connections).await?;
    }
    a_contradiction(play).await?;
    a_contradiction_at_once(play).await?;
    let mut faults = vec![Fault::Cancelled, Fault::GivenUp, Fault::Disconnected];
    if play.door.can_kill() {
        faults.push(Fault::Killed);
    }
    for fault in faults {
        for moment in [Moment::AtOnce, Moment::Halfway, Moment::AtTheEffect] {
            a_fault(play, fault, moment).await?;
        }
    }
    failures(play).await?;
    another_caller(play).await?;
    store_faults(play).await?;
    // Late effects of the last scene show at the beginning of another one.
    play.begin("").await.map(drop)
}

async fn one_call(play: &mut Play<'_>) -> Result<(), Stop> {
    let session = play.session(Caller::First).await?;
    let tool = play.check.tool.as_str();
    let listed = session.ask("tools/list", json!({})).await?;
    let tools = listed["tools"].as_array().cloned().unwrap_or_default();
    let Some(entry) = tools.into_iter().find(|entry| entry["name"] == *tool) else {
        return Err(format!("the server lists no tool {tool:?}"));
    };
    play.contract = entry["_meta"][wire::CONTRACT].clone();
    let intent = play.intent();
    let mut scene = play.begin("one call").await?;
    let began = std::time::Instant::now();
    play.insist(&mut scene, &session, &intent).await;
    play.usual = began.elapsed();
    let last = scene.told.last().cloned();
    let mut effects = 0;
    play.end(scene, |counted, told| {
        effects = counted;
        once(counted, told, false, "the call was made once")
    })
    .await?;
    let said = last.map(|told| told.said()).unwrap_or_default();
    if effects == 0 {
        let tool = &play.check.tool;
        return Err(format!(
            "one call of {tool:?} without any fault had no effect that is counted; its caller was told {said}"
        ));
    }
    Ok(())
}

async fn a_retry(play: &mut Play<'_>) -> Result<(), Stop> {
    let (session, intent) = (play.session(Caller::First).await?, play.intent());
    let mut scene = play.begin("repeated with its key").await?;
    for _ in 0..3 {
        play.insist(&mut scene, &session, &intent).await;
    }
    let why = "a repeated key is not recognised";
    play.end(scene, |effects, told| once(effects, told, false, why))
        .await
}

async fn a_retry_elsewhere(play: &mut Play<'_>) -> Result<(), Stop> {
    let intent = play.intent();
    let mut scene = play.begin("repeated on a new connection").await?;
    for _ in 0..2 {
        let session = play.session(Caller::First).await?;
        play.insist(&mut scene, &session, &intent).await;
    }
    let why = "a key is not recognised on another connection";
    play.end(scene, |effects, told| once(effects, told, false, why))
        .await
}

async fn without_a_key(play: &mut Play<'_>) -> Result<(), Stop> {
    let (session, intent) = (
        play.session(Caller::First).await?,
        play.intent_without_key(),
    );
    let mut scene = play.begin("repeated without a key").await?;
    for _ in 0..2 {
        let told = scene.send(&session, &intent).told().await;
        scene.told.push(told);
    }
    let says = play.contract["key"].as_str().unwrap_or_default().to_owned();
    let are_calls_of_their_own = scene.told.iter().all(Told::is_first_result);
    if are_calls_of_their_own {
        scene.note = Some("calls without a key are not recognised".to_owned());
    }
    play.end(scene, |effects, told| match &*says {
        // An earlier run may have made the same call.
        "derived" if effects == 0 => same(told),
        "derived" => once(effects, told, false, "an equal call is not recognised"),
        "required" if effects > 0 => Some(format!(
            "the tool requires a key, and {effects} calls without one took effect"
        )),
        _ => None,
    })
    .await
}

async fn racers(play: &mut Play<'_>, connections: usize) -> Result<(), Stop> {
    let intent = play.intent();
    let mut sessions = Vec::new();
    for _ in 0..connections {
        sessions.push(play.session(Caller::First).await?);
    }
    let racers = play.check.racers;
    let on = if connections == 1 {
        "one connection"
    } else {
        "two connections"
    };
    let mut scene = play
        .begin(format!("{racers} at the same time on {on}"))
        .await?;
    let sent: Vec<_> = (0..racers)
        .map(|racer| scene.send(&sessions[racer % connections], &intent))
        .collect();
    scene.told = join_all(sent.into_iter().map(super::session::Sent::told)).await;
    play.insist(&mut scene, &sessions[0], &intent).await;
    let why = "calls at the same time do not find each other: looking for the key and claiming it are two steps";
    play.end(scene, |effects, told| once(effects, told, false, why))
        .await
}

async fn a_contradiction(play: &mut Play<'_>) -> Result<(), Stop> {
    let name = "the same key with other arguments";
    let Some(other) = play.check.others() else {
        play.skip(name, "the arguments hold nothing to change: give others");
        return Ok(());
    };
    let (session, intent) = (play.session(Caller::First).await?, play.intent());
    let other = play.contradiction(&intent, &other);
    let mut scene = play.begin(name).await?;
    play.insist(&mut scene, &session, &intent).await;
    let told = scene.send(&session, &other).told().await;
    scene.told.push(told);
    play.end(scene, |effects, told| {
        let [.., first, second] = told else {
            return None;
        };
        if effects > 1 {
            return Some("a used key ran another call: arguments are not compared".to_owned());
        }
        let body = second.body()?;
        let whose = match first.body() {
            Some(first) if is_same(first, body) => "the first call's result",
            _ => "a result",
        };
        Some(format!(
            "a used key with other arguments was answered with {whose}: arguments are not compared"
        ))
    })
    .await
}

async fn a_contradiction_at_once(play: &mut Play<'_>) -> Result<(), Stop> {
    let name = "the same key with other arguments, at the same time";
    let Some(other) = play.check.others() else {
        return Ok(());
    };
    let (session, intent) = (play.session(Caller::First).await?, play.intent());
    let other = play.contradiction(&intent, &other);
    let mut scene = play.begin(name).await?;
    let sent = [scene.send(&session, &intent), scene.send(&session, &other)];
    scene.told = join_all(sent.map(super::session::Sent::told)).await;
    play.end(scene, |effects, told| {
        if effects > 1 {
            return Some("one key ran two different calls at the same time".to_owned());
        }
        if told.iter().all(|told| told.body().is_some()) {
            let why = "two different calls with one key were both answered with a result";
            return Some(why.to_owned());
        }
        unanswered(told)
    })
    .await
}

async fn a_fault(play: &mut Play<'_>, fault: Fault, moment: Moment) -> Result<(), Stop> {
    let intent = play.intent();
    let mut session = play.session(Caller::First).await?;
    let what = match fault {
        Fault::Cancelled => "cancelled",
        Fault::GivenUp => "given up",
        Fault::Disconnected => "connection lost",
        Fault::Killed => "server killed",
    };
    let when = match moment {
        Moment::AtOnce => "at once",
        Moment::Halfway => "halfway",
        Moment::AtTheEffect => "when the effect was there",
    };
    let mut scene = play.begin(format!("{what} {when}, then repeated")).await?;
    let sent = scene.send(&session, &intent);
    play.wait_for(moment, &scene, &sent).await?;
    if sent.is_answered() {
        scene.note = Some("answered before that".to_owned());
    }
    let mut left = None;
    match fault {
        Fault::Cancelled => session.cancel(&sent).await,
        Fault::GivenUp => left = Some(sent),
        Fault::Disconnected => {
            drop((sent, session));
            session = play.session(Caller::First).await?;
        }
        Fault::Killed => {
            drop(sent);
            session.kill().await;
            session = play.session(Caller::First).await?;
        }
    }
    play.insist(&mut scene, &session, &intent).await;
    if let Some(left) = left {
        let told = left.told().await;
        scene.told.insert(0, told);
    }
    let may_be_in_doubt = play.contract["mode"] != "transaction";
    let why = "the call that was left without an answer had acted, and its repeat was not recognised: the record comes after the effect, or an interrupted call gives its key back";
    play.end(scene, |effects, told| {
        once(effects, told, may_be_in_doubt, why)
    })
    .await
}

async fn failures(play: &mut Play<'_>) -> Result<(), Stop> {
    let check = play.check;
    for (what, arguments) in &check.failures {
        let (session, intent) = (
            play.session(Caller::First).await?,
            play.intent_with(arguments),
        );
        let mut scene = play.begin(format!("{what}, then repeated")).await?;
        for _ in 0..2 {
            let told = scene.send(&session, &intent).told().await;
            scene.told.push(told);
        }
        if scene.told[0].body().is_some() {
            scene.note = Some("the first call did not fail".to_owned());
        }
        play.end(scene, |effects, _| {
            (effects > 1).then(|| {
                format!("the tool acted and failed, and its repeat acted again: {effects} effects. The error gave the key back")
            })
        })
        .await?;
    }
    Ok(())
}

async fn another_caller(play: &mut Play<'_>) -> Result<(), Stop> {
    let name = "another caller with the same key";
    if !play.door.has_another_caller() {
        play.skip(name, "only one caller is known");
        return Ok(());
    }
    let intent = play.intent();
    let first = play.session(Caller::First).await?;
    let other = play.session(Caller::Other).await?;
    let mut scene = play.begin(name).await?;
    play.insist(&mut scene, &first, &intent).await;
    play.insist(&mut scene, &other, &intent).await;
    play.end(scene, |effects, told| match told {
        [.., first, second] => match (first.body(), second.body()) {
            (Some(first), Some(second)) if effects < 2 && is_same(first, second) => Some(
                "another caller was given the first caller's result: keys are not kept apart by caller".to_owned(),
            ),
            (_, None) => Some(format!(
                "another caller's call does not run, because the first caller has used its key: it was told {}",
                second.said()
            )),
            _ if effects != 2 => Some(format!("two callers' calls had {effects} effects")),
            _ => None,
        },
        _ => None,
    })
    .await
}

async fn store_faults(play: &mut Play<'_>) -> Result<(), Stop> {
    let Some(faults) = play.check.faults.clone() else {
        play.skip("failures of the store", "no store was given that can fail");
        return Ok(());
    };
    let (session, intent) = (play.session(Caller::First).await?, play.intent());
    let mut scene = play.begin("the store is away, then repeated").await?;
    faults.be_away();
    let told = scene.send(&session, &intent).told().await;
    scene.told.push(told);
    faults.mend();
    play.insist(&mut scene, &session, &intent).await;
    let why = "the first call ran although nothing could be recorded";
    play.end(scene, |effects, told| once(effects, told, false, why))
        .await?;

    let intent = play.intent();
    let mut scene = play
        .begin("the store fails at the end of the call, then repeated")
        .await?;
    faults.fail_ends();
    // A server may try to record it for as long as its caller waits.
    let sent = scene.send(&session, &intent);
    let _ = sent.is_answered_within(ENOUGH).await;
    faults.mend();
    // In lease mode it counts as in progress until its lease ends.
    play.insist_for(ENOUGH, &mut scene, &session, &intent).await;
    let told = sent.told().await;
    scene.told.insert(0, told);
    let why = "a call that could not be recorded was run again";
    play.end(scene, |effects, told| once(effects, told, true, why))
        .await
}

/// Why this is not one operation that took effect once, if it is not.
fn once(effects: u64, told: &[Told], may_be_in_doubt: bool, why: &str) -> Option<String> {
    if effects > 1 {
        return Some(format!("one operation took effect {effects} times: {why}"));
    }
    if let Some(wrong) = same(told).or_else(|| unanswered(told)) {
        return Some(wrong);
    }
    let is_success = told.iter().any(|told| told.body().is_some());
    if is_success && effects == 0 {
        return Some("a caller was given a result, and there is no effect".to_owned());
    }
    let last = told.last()?;
    if last.body().is_some() || (may_be_in_doubt && last.is_doubt()) {
        return None;
    }
    Some(format!("in the end the caller was told {}", last.said()))
}

/// Nobody here has left, so everybody waits for an answer.
fn unanswered(told: &[Told]) -> Option<String> {
    told.iter().find_map(|told| match told {
        Told::Nothing(why) => Some(format!("a caller got no answer: {why}")),
        _ => None,
    })
}

/// Why the results are not all the same, if they are not.
fn same(told: &[Told]) -> Option<String> {
    let mut bodies = told.iter().filter_map(Told::body);
    let first: &Value = bodies.next()?;
    let other = bodies.find(|body| !is_same(first, body))?;
    Some(format!(
        "callers of one operation were given different results: {first} and {other}"
    ))
}
