//! The stage: makes calls, counts effects, and writes down what came of them.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use tokio::time::sleep;

use super::{
    check::Check,
    door::{Caller, Door},
    report::{Report, Scene},
    session::{Sent, Session},
    told::Told,
};
use crate::wire;

/// What stops a check.
pub(super) type Stop = String;

pub(super) struct Play<'a> {
    pub(super) check: &'a Check,
    pub(super) door: &'a dyn Door,
    /// Makes the keys of this run its own.
    run: String,
    intents: u64,
    /// How long a call takes.
    pub(super) usual: Duration,
    /// The tool's contract in `tools/list`.
    pub(super) contract: Value,
    scenes: Vec<Scene>,
    not_played: Vec<(String, String)>,
    /// All effects at the end of the last scene.
    known: Option<u64>,
}

/// One intended operation. All its calls are the same.
pub(super) struct Intent {
    pub(super) params: Value,
}

/// A scene that is being played.
pub(super) struct Scenery {
    name: String,
    began: Instant,
    calls: usize,
    pub(super) told: Vec<Told>,
    pub(super) note: Option<String>,
    pub(super) effects: u64,
    executions: Option<u64>,
}

/// When a fault comes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Moment {
    AtOnce,
    Halfway,
    AtTheEffect,
}

impl<'a> Play<'a> {
    pub(super) fn new(check: &'a Check, door: &'a dyn Door) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default().as_nanos();
        Self {
            check,
            door,
            run: format!("check-{now:x}-{}", std::process::id()),
            intents: 0,
            usual: Duration::ZERO,
            contract: Value::Null,
            scenes: Vec::new(),
            not_played: Vec::new(),
            known: None,
        }
    }

    pub(super) fn into_report(self) -> Report {
        Report {
            tool: self.check.tool.clone(),
            scenes: self.scenes,
            not_played: self.not_played,
        }
    }

    pub(super) async fn session(&self, caller: Caller) -> Result<Session, Stop> {
        Session::open(self.door, caller, self.check.patience).await
    }

    pub(super) fn intent(&mut self) -> Intent {
        let check = self.check;
        self.intent_with(&check.arguments)
    }

    /// A new intended operation with a key of its own.
    pub(super) fn intent_with(&mut self, arguments: &Map<String, Value>) -> Intent {
        self.intents += 1;
        let unique = format!("{}-{}", self.run, self.intents);
        let mut params = self.params(arguments, &unique);
        match &self.check.key_argument {
            Some(name) => params["arguments"][name] = json!(unique),
            None => params["_meta"] = json!({ wire::KEY: unique }),
        }
        Intent { params }
    }

    /// The same with no key.
    pub(super) fn intent_without_key(&mut self) -> Intent {
        self.intents += 1;
        let unique = format!("{}-{}", self.run, self.intents);
        let params = self.params(&self.check.arguments, &unique);
        Intent { params }
    }

    /// A call with the key of this one that asks for something else.
    pub(super) fn contradiction(&self, intent: &Intent, other: &Map<String, Value>) -> Intent {
        let mut params = intent.params.clone();
        let unique = format!("{}-{}", self.run, self.intents);
        params["arguments"] = self.params(other, &unique)["arguments"].take();
        if let Some(name) = &self.check.key_argument {
            params["arguments"][name] = intent.params["arguments"][name].clone();
        }
        Intent { params }
    }

    fn params(&self, arguments: &Map<String, Value>, unique: &str) -> Value {
        let arguments = filled(&Value::Object(arguments.clone()), unique);
        json!({ "name": self.check.tool, "arguments": arguments })
    }

    /// Begins a scene.
    pub(super) async fn begin(&mut self, name: impl Into<String>) -> Result<Scenery, Stop> {
        let effects = self.effects().await?;
        if let (Some(known), Some(last)) = (self.known, self.scenes.last_mut())
            && effects > known
        {
            last.effects += effects - known;
            let late = format!(
                "{} more effect(s) came after its callers had been answered, unless somebody else caused them",
                effects - known
            );
            last.finding.get_or_insert(late);
        }
        Ok(Scenery {
            name: name.into(),
            began: Instant::now(),
            calls: 0,
            told: Vec::new(),
            note: None,
            effects,
            executions: self.executions().await?,
        })
    }

    /// Ends it. `judge` sees how many effects it had, and what its callers were told.
    pub(super) async fn end(
        &mut self,
        scene: Scenery,
        judge: impl FnOnce(u64, &[Told]) -> Option<String>,
    ) -> Result<(), Stop> {
        let now = self.settled().await?;
        let effects = now.saturating_sub(scene.effects);
        let executions = match (self.executions().await?, scene.executions) {
            (Some(now), Some(before)) => Some(now.saturating_sub(before)),
            _ => None,
        };
        self.known = Some(now);
        self.scenes.push(Scene {
            finding: judge(effects, &scene.told),
            name: scene.name,
            calls: scene.calls,
            executions,
            effects,
            took: scene.began.elapsed(),
            told: scene
                .told
                .iter()
                .map(|told| told.label().to_owned())
                .collect(),
            note: scene.note,
        });
        Ok(())
    }

    pub(super) fn skip(&mut self, name: impl Into<String>, why: impl Into<String>) {
        self.not_played.push((name.into(), why.into()));
    }

    /// Sends a call again and again, as long as it is answered that it should be. The last answer is what
    /// its caller was told in the end.
    pub(super) async fn insist(&self, scene: &mut Scenery, session: &Session, intent: &Intent) {
        self.insist_for(self.check.patience, scene, session, intent)
            .await;
    }

    /// The same, for this long at most.
    pub(super) async fn insist_for(
        &self,
        limit: Duration,
        scene: &mut Scenery,
        session: &Session,
        intent: &Intent,
    ) {
        const REST: Duration = Duration::from_millis(20);
        const LONGEST_REST: Duration = Duration::from_secs(1);
        let began = Instant::now();
        loop {
            let told = scene.send(session, intent).told().await;
            let again = told.repeat_after();
            scene.told.push(told);
            match again {
                Some(rest) if began.elapsed() < limit => {
                    sleep(rest.clamp(REST, LONGEST_REST)).await;
                }
                _ => return,
            }
        }
    }

    /// Waits until the fault is due, or the call is over.
    pub(super) async fn wait_for(
        &self,
        moment: Moment,
        scene: &Scenery,
        sent: &Sent,
    ) -> Result<(), Stop> {
        match moment {
            Moment::AtOnce => {}
            Moment::Halfway => sleep(self.usual / 2).await,
            Moment::AtTheEffect => {
                let began = Instant::now();
                while self.effects().await? == scene.effects
                    && !sent.is_answered()
                    && began.elapsed() < self.check.patience
                {
                    sleep(Duration::from_millis(1)).await;
                }
            }
        }
        Ok(())
    }

    async fn effects(&self) -> Result<u64, Stop> {
        let counted = (self.check.effects)().await;
        counted.map_err(|why| format!("the effects cannot be counted: {why}"))
    }

    async fn executions(&self) -> Result<Option<u64>, Stop> {
        let Some(executions) = &self.check.executions else {
            return Ok(None);
        };
        let counted = executions().await.map(Some);
        counted.map_err(|why| format!("the executions cannot be counted: {why}"))
    }

    /// The effects, once a call that may still run has had its time.
    async fn settled(&self) -> Result<u64, Stop> {
        const SHORTEST: Duration = Duration::from_millis(30);
        const LONGEST: Duration = Duration::from_secs(3);
        let rest = (self.usual * 3 / 2).clamp(SHORTEST, LONGEST);
        let mut before = self.effects().await?;
        loop {
            sleep(rest).await;
            let now = self.effects().await?;
            if now == before {
                return Ok(now);
            }
            before = now;
        }
    }
}

impl Scenery {
    /// Sends a call, and does not wait for its answer.
    pub(super) fn send(&mut self, session: &Session, intent: &Intent) -> Sent {
        self.calls += 1;
        session.call(intent.params.clone())
    }
}

/// The value with the text that is another one for each operation.
fn filled(value: &Value, unique: &str) -> Value {
    match value {
        Value::String(text) => json!(text.replace(Check::UNIQUE, unique)),
        Value::Array(items) => items.iter().map(|item| filled(item, unique)).collect(),
        Value::Object(members) => members
            .iter()
            .map(|(name, member)| (name.clone(), filled(member, unique)))
            .collect(),
        other => other.clone(),
    }
}
