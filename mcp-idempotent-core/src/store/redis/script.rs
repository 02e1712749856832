//! The scripts. Each runs on the server as a whole, and all of its keys are in one slot of a cluster.

use std::{
    collections::hash_map::RandomState,
    fmt::Display,
    hash::{BuildHasher as _, Hasher as _},
    sync::LazyLock,
    time::Duration,
};

use redis::{Cmd, RedisResult, Value};

use super::{error::is_unknown_script, link::Connection};
use crate::fingerprint::RecordId;

macro_rules! script {
    ($file:literal) => {
        LazyLock::new(|| Script::new(concat!(include_str!("lua/record.lua"), include_str!($file))))
    };
}

pub(super) struct Script {
    text: &'static str,
    hash: Box<str>,
}

impl Script {
    fn new(text: &'static str) -> Self {
        Self {
            text,
            hash: redis::Script::new(text).get_hash().into(),
        }
    }
}

pub(super) static LOOK_UP: LazyLock<Script> = script!("lua/look_up.lua");
pub(super) static CLAIM: LazyLock<Script> = script!("lua/claim.lua");
pub(super) static TAKE_OVER: LazyLock<Script> = script!("lua/take_over.lua");
pub(super) static RENEW: LazyLock<Script> = script!("lua/renew.lua");
pub(super) static COMPLETE: LazyLock<Script> = script!("lua/complete.lua");
pub(super) static RELEASE: LazyLock<Script> = script!("lua/release.lua");
pub(super) static ABANDON: LazyLock<Script> = script!("lua/abandon.lua");
pub(super) static SWEEP: LazyLock<Script> = script!("lua/sweep.lua");
pub(super) static LIST: LazyLock<Script> = script!("lua/list.lua");
pub(super) static SHOW: LazyLock<Script> = script!("lua/show.lua");
pub(super) static RESOLVE: LazyLock<Script> = script!("lua/resolve.lua");

/// The keys of the records whose ids begin with one byte. The part in braces puts them into one
/// slot of a cluster.
pub(super) struct Keys(String);

impl Keys {
    pub(super) fn of_bucket(prefix: &str, bucket: u8) -> Self {
        Self(format!("{{{prefix}:{bucket:02x}}}"))
    }

    pub(super) fn of_record(prefix: &str, id: RecordId) -> Self {
        Self::of_bucket(prefix, id.as_bytes()[0])
    }

    fn write_to(&self, command: &mut Cmd, record: Option<RecordId>) {
        let tag = &self.0;
        let mut first = format!("{tag}:record:");
        if let Some(id) = record {
            first += &id.to_string();
        }
        command.arg(5).arg(first);
        for name in ["last_token", "due", "open", "completed"] {
            command.arg(format!("{tag}:{name}"));
        }
    }
}

/// One run of a script, to be sent as often as it takes.
pub(super) struct Call {
    script: &'static Script,
    keys: Keys,
    record: Option<RecordId>,
    arguments: Vec<Vec<u8>>,
}

impl Call {
    pub(super) fn on_record(script: &'static Script, prefix: &str, id: RecordId) -> Self {
        Self {
            script,
            keys: Keys::of_record(prefix, id),
            record: Some(id),
            arguments: Vec::new(),
        }
    }

    pub(super) fn on_bucket(script: &'static Script, prefix: &str, bucket: u8) -> Self {
        Self {
            script,
            keys: Keys::of_bucket(prefix, bucket),
            record: None,
            arguments: Vec::new(),
        }
    }

    pub(super) fn arg(self, argument: impl Display) -> Self {
        self.bytes(argument.to_string())
    }

    pub(super) fn bytes(mut self, argument: impl Into<Vec<u8>>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// In microseconds. Anything longer than a hundred years counts as a hundred years, because no
    /// policy checks an operator's durations, and a script's numbers are exact up to 2^53.
    pub(super) fn micros(self, duration: Duration) -> Self {
        const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
        self.arg(duration.min(LONGEST).as_micros())
    }

    /// A mark that no other change has.
    pub(super) fn mark(self) -> Self {
        self.arg(format_args!(
            "{:016x}",
            RandomState::new().build_hasher().finish()
        ))
    }

    pub(super) async fn send(&self, connection: &mut Connection) -> RedisResult<Value> {
        let known = self.command("EVALSHA", &self.script.hash);
        match known.query_async(connection).await {
            // After a restart, or on another node.
            Err(error) if is_unknown_script(&error) => {
                let whole = self.command("EVAL", self.script.text);
                whole.query_async(connection).await
            }
            answer => answer,
        }
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script);
        self.keys.write_to(&mut command, self.record);
        command.arg(&self.arguments);
        command
    }
}
