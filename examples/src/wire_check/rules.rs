//! The rules of docs/wire.md that can be seen from outside, in the order of that page.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use serde_json::{Value, json};

use super::{
    connection::{Connection, Target},
    heard::Heard,
    subject::Subject,
};

/// What became of a rule.
#[derive(Debug)]
pub(super) enum Verdict {
    Kept,
    Broken(String),
    /// The server has nothing of the kind.
    NotAsked(&'static str),
}

impl From<Option<String>> for Verdict {
    fn from(why: Option<String>) -> Self {
        why.map_or(Self::Kept, Self::Broken)
    }
}

const KEY: &str = "idempotency-key";
const ALIAS: &str = "io.github.mcp-idempotent/idempotency-key";
const EXTENSION: &str = "io.github.mcp-idempotent/idempotency";
const STATUS: &str = "io.github.mcp-idempotent/status";

struct Checker<'a> {
    connection: Connection,
    subject: &'a Subject,
    /// No run uses the keys of another.
    run: u128,
    report: Vec<(&'static str, Verdict)>,
}

/// # Errors
///
/// The server does not answer, or its results do not tell executions apart.
pub(super) async fn check(
    target: &Target,
    connection: Connection,
    subject: &Subject,
) -> anyhow::Result<Vec<(&'static str, Verdict)>> {
    let run = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let report = Vec::new();
    let mut checker = Checker {
        connection,
        subject,
        run,
        report,
    };
    let first = checker.keyed("first").await?;
    let first = first
        .body()
        .with_context(|| format!("the first call failed: {first:?}"))?
        .clone();
    checker.places(&first).await?;
    checker.keys(&first).await?;
    checker.arguments(&first).await?;
    checker.at_once(target, &first).await?;
    checker.without_a_key().await?;
    checker.advertised().await?;
    checker.status(&first).await?;
    Ok(checker.report)
}

impl Checker<'_> {
    fn key(&self, name: &str) -> String {
        format!("{name} {}", self.run)
    }

    /// Notes what became of a rule.
    fn rule(&mut self, title: &'static str, verdict: impl Into<Verdict>) {
        self.report.push((title, verdict.into()));
    }

    /// A call with this text in its params, before the arguments.
    async fn call(&mut self, members: &str, arguments: &str) -> anyhow::Result<Heard> {
        let params = self.params(members, arguments);
        Ok(Heard::of(
            &self.connection.ask("tools/call", &params).await?,
        ))
    }

    fn params(&self, members: &str, arguments: &str) -> String {
        let name = json!(self.subject.tool);
        format!(r#"{{{members}"name":{name},"arguments":{arguments}}}"#)
    }

    async fn with_meta(&mut self, meta: Value) -> anyhow::Result<Heard> {
        self.call(&in_meta(&meta), &self.subject.arguments()).await
    }

    async fn keyed(&mut self, name: &str) -> anyhow::Result<Heard> {
        let key = self.key(name);
        self.with_meta(json!({ KEY: key })).await
    }

    async fn places(&mut self, first: &Value) -> anyhow::Result<()> {
        let (one, two) = (self.key("first"), self.key("second"));
        let heard = self.keyed("first").await?;
        self.rule(
            "a repeated key gets the first result, marked as a replay",
            heard.unless_replay_of(first),
        );
        let heard = self.keyed("second").await?;
        self.rule("another key is another call", heard.unless_new(first));
        let heard = self.with_meta(json!({ ALIAS: one })).await?;
        self.rule(
            "the namespaced name is the same place",
            heard.unless_replay_of(first),
        );
        let heard = self.with_meta(json!({ KEY: one, ALIAS: one })).await?;
        self.rule(
            "the same key in two places is one key",
            heard.unless_replay_of(first),
        );
        let heard = self.with_meta(json!({ KEY: one, ALIAS: two })).await?;
        self.rule(
            "different keys in two places are refused",
            heard.unless_refused("idempotency_key_invalid", "not_committed", "retry_same_key"),
        );
        for (title, name) in [
            (
                "params.idempotencyKey is a key, or refused",
                "idempotencyKey",
            ),
            ("so it is with escapes in its name", r"\u0069dempotencyKey"),
        ] {
            let member = format!(r#""{name}":{},"#, json!(one));
            let heard = self.call(&member, &self.subject.arguments()).await?;
            let is_refused = matches!(heard, Heard::Refused { .. });
            let why = heard.unless_replay_of(first).filter(|_| !is_refused);
            self.rule(title, why);
        }
        let Some(argument) = self.subject.key_argument() else {
            let why = Verdict::NotAsked("the tool has no argument for a key");
            self.rule("a key in the tool's argument is the same key", why);
            return Ok(());
        };
        let arguments = self.subject.arguments_with(argument, json!(one));
        let heard = self.call("", &arguments).await?;
        self.rule(
            "a key in the tool's argument is the same key",
            heard.unless_replay_of(first),
        );
        let arguments = self.subject.arguments_with(argument, Value::Null);
        let heard = self
            .call(&in_meta(&json!({ KEY: one })), &arguments)
            .await?;
        self.rule(
            "null in that argument is no key",
            heard.unless_replay_of(first),
        );
        Ok(())
    }

    async fn keys(&mut self, first: &Value) -> anyhow::Result<()> {
        for (title, key) in [
            ("an empty key is refused", json!("")),
            ("a key of 256 bytes is refused", json!("k".repeat(256))),
            ("a key with a control character is refused", json!("a\nb")),
            ("a key that is a number is refused", json!(7)),
            ("null in _meta is no key, and refused", Value::Null),
        ] {
            let heard = self.with_meta(json!({ KEY: key })).await?;
            self.rule(
                title,
                heard.unless_refused("idempotency_key_invalid", "not_committed", "use_new_key"),
            );
        }
        let longest = format!("{:k<255}", self.key("longest"));
        for (title, key) in [
            ("a key of 255 bytes is accepted", longest),
            (
                "a key with spaces and letters beyond ASCII is accepted",
                self.key("ключ é"),
            ),
            ("a key is not normalised", self.key("ключ e\u{301}")),
            ("upper and lower case differ", self.key("FIRST")),
        ] {
            let heard = self.with_meta(json!({ KEY: key })).await?;
            self.rule(title, heard.unless_new(first));
        }
        Ok(())
    }

    async fn arguments(&mut self, first: &Value) -> anyhow::Result<()> {
        let members = in_meta(&json!({ KEY: self.key("first") }));
        let heard = self
            .call(&members, &self.subject.spelt_differently())
            .await?;
        self.rule(
            "order, white space, escapes and 7.0 for 7 are the same arguments",
            heard.unless_replay_of(first),
        );
        let title = "a key with other arguments is refused";
        let Some(other) = self.subject.other_arguments() else {
            self.rule(title, Verdict::NotAsked("there is no argument to change"));
            return Ok(());
        };
        let heard = self.call(&members, &other).await?;
        self.rule(
            title,
            heard.unless_refused("idempotency_key_conflict", "not_committed", "use_new_key"),
        );
        let heard = self.keyed("first").await?;
        self.rule(
            "a refused call changes nothing",
            heard.unless_replay_of(first),
        );
        Ok(())
    }

    async fn at_once(&mut self, target: &Target, first: &Value) -> anyhow::Result<()> {
        let members = in_meta(&json!({ KEY: self.key("at once") }));
        let params = self.params(&members, &self.subject.arguments());
        let both = [("tools/call", &*params), ("tools/call", &*params)];
        let [one, two] = self
            .connection
            .ask_at_once(both)
            .await?
            .map(|answer| Heard::of(&answer));
        let why = match (one.body(), two.body()) {
            (Some(one), Some(two)) if one == two => None,
            _ => Some(format!("two answers: {one:?}, {two:?}")),
        };
        self.rule("two equal calls at once are one execution", why);
        let title = "a new session with the same JSON-RPC id gets the result too";
        if !target.is_http() {
            self.rule(
                title,
                Verdict::NotAsked("each connection is a server of its own"),
            );
            return Ok(());
        }
        let members = in_meta(&json!({ KEY: self.key("first") }));
        let params = self.params(&members, &self.subject.arguments());
        let mut other = target.connect().await?;
        let heard = Heard::of(&other.ask("tools/call", &params).await?);
        self.rule(title, heard.unless_replay_of(first));
        Ok(())
    }

    async fn without_a_key(&mut self) -> anyhow::Result<()> {
        let titles = [
            "key = derived: an equal call without a key is a replay",
            "key = required: a call without one is refused",
            "key = optional: calls without one are calls of their own",
        ];
        // Earlier runs must not have made this call.
        let arguments = match self.subject.other_arguments() {
            Some(other) if self.subject.says("key") == Some("derived") => {
                other.replacen('!', &format!(" {}", self.run), 1)
            }
            _ => self.subject.arguments(),
        };
        let one = self.call("", &arguments).await?;
        let two = self.call("", &arguments).await?;
        let says = self.subject.says("key").map(str::to_owned);
        let verdict = |of: &str, why: Option<String>| match says.as_deref() {
            Some(says) if says == of => why.into(),
            _ => Verdict::NotAsked("the tool's contract says something else"),
        };
        let body = one.body().cloned().unwrap_or_default();
        let verdicts = [
            verdict("derived", two.unless_replay_of(&body)),
            verdict(
                "required",
                one.unless_refused("idempotency_key_required", "not_committed", "use_new_key"),
            ),
            verdict("optional", two.unless_new(&body)),
        ];
        for (title, verdict) in titles.into_iter().zip(verdicts) {
            self.rule(title, verdict);
        }
        let title = "a tool that only reads is left alone without a key";
        let Some(reader) = self.subject.reader.clone() else {
            self.rule(title, Verdict::NotAsked("there is no such tool"));
            return Ok(());
        };
        let params = format!(r#"{{"name":{},"arguments":{{}}}}"#, json!(reader));
        let mut is_marked = false;
        for _ in 0..2 {
            let answer = self.connection.ask("tools/call", &params).await?;
            is_marked |= matches!(
                Heard::of(&answer),
                Heard::Result {
                    is_replay: true,
                    ..
                }
            );
        }
        self.rule(
            title,
            is_marked.then(|| "its result is a replay".to_owned()),
        );
        Ok(())
    }

    async fn advertised(&mut self) -> anyhow::Result<()> {
        let title = "the capability lists the places for a key";
        let capability = &self.connection.hello["result"]["capabilities"]["extensions"][EXTENSION];
        let verdict = match capability["keys"].as_array() {
            None => Verdict::NotAsked("the server has no such capability"),
            Some(keys) if keys.contains(&json!(format!(r#"_meta["{KEY}"]"#))) => Verdict::Kept,
            Some(keys) => Verdict::Broken(format!("{keys:?}")),
        };
        self.rule(title, verdict);
        let is_one = |member: &str, known: &[&str]| match self.subject.says(member) {
            Some(says) if known.contains(&says) => None,
            says => Some(format!("{member} is {says:?}")),
        };
        let verdict = match self.subject.contract {
            None => Verdict::NotAsked("the tool has no contract"),
            Some(_) => is_one("mode", &["transaction", "lease"]).into(),
        };
        self.rule("the tool's contract says its mode", verdict);
        Ok(())
    }

    async fn status(&mut self, first: &Value) -> anyhow::Result<()> {
        let tool = &self.subject.tool;
        let (seen, unseen) = (self.key("first"), self.key("never sent"));
        let whole: Value = serde_json::from_str(&self.subject.arguments())?;
        let capability = &self.connection.hello["result"]["capabilities"]["extensions"][EXTENSION];
        let has_status = capability["statusMethod"] == STATUS;
        let mut asked = Vec::new();
        for params in [
            json!({ "key": seen, "tool": tool, "arguments": whole }),
            json!({ "key": seen, "tool": tool }),
            json!({ "key": unseen, "tool": tool }),
            json!({ "key": 7, "tool": tool }),
        ] {
            if has_status {
                asked.push(self.connection.ask(STATUS, &params.to_string()).await?);
            }
        }
        let said = |answer: &Value, state: &str, next: &str| {
            let result = &answer["result"];
            (result["state"] != state || result["next"] != next).then(|| answer.to_string())
        };
        let [completed, without, not_seen, malformed] = &*asked else {
            self.rule(
                "the status of a call",
                Verdict::NotAsked("the server does not answer this request"),
            );
            return Ok(());
        };
        // Behind a proxy the server answers that protects other tools.
        if completed["error"]["data"]["action"] == "ask_operator" {
            let why = "the server answers this request, but not for this tool";
            self.rule("the status of a call", Verdict::NotAsked(why));
            return Ok(());
        }
        let result = Heard::of(&completed["result"]);
        let why = said(completed, "completed", "retry_same_key")
            .or_else(|| (result.body() != Some(first)).then(|| completed.to_string()));
        let without = without["result"].get("result").map(ToString::to_string);
        let not_seen = said(not_seen, "not_seen", "retry_same_key");
        let malformed = Heard::of(malformed).unless_refused(
            "status_request_invalid",
            "unknown",
            "retry_same_key",
        );
        self.rule("the status of a completed call has its result", why);
        self.rule("without its arguments it has not", without);
        self.rule("a key that was not seen is no reason for another", not_seen);
        self.rule(
            "a status request that cannot be answered is refused with data",
            malformed,
        );
        Ok(())
    }
}

fn in_meta(meta: &Value) -> String {
    format!(r#""_meta":{meta},"#)
}
