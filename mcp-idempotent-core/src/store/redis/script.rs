//! The scripts. Each runs on the server as a whole, and all of its keys are in one slot of a
//! cluster.

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
pub(super) static UNSETTLED: LazyLock<Script> = script!("lua/unsettled.lua");
pub(super) static SWEEP: LazyLock<Script> = script!("lua/sweep.lua");
pub(super) static LIST: LazyLock<Script> = script!("lua/list.lua");
pub(super) static SHOW: LazyLock<Script> = script!("lua/show.lua");
pub(super) static RESOLVE: LazyLock<Script> = script!("lua/resolve.lua");

/// One run of a script, to be sent as often as it takes.
pub(super) struct Call {
    script: &'static Script,
    keys: Vec<String>,
    arguments: Vec<Vec<u8>>,
}

impl Call {
    /// On all records whose keys begin with this. The part in braces puts all keys of a store into
    /// one slot of a cluster.
    pub(super) fn on_all(script: &'static Script, prefix: &str) -> Self {
        let names = ["last_token", "due", "open", "records"];
        let mut keys: Vec<_> = names
            .iter()
            .map(|name| format!("{{{prefix}}}:{name}"))
            .collect();
        keys.push(format!("{{{prefix}}}:record:"));
        Self {
            script,
            keys,
            arguments: Vec::new(),
        }
    }

    pub(super) fn on_record(script: &'static Script, prefix: &str, id: RecordId) -> Self {
        let mut call = Self::on_all(script, prefix);
        if let Some(base) = call.keys.last_mut() {
            *base += &id.to_string();
        }
        call
    }

    /// Also on another record.
    pub(super) fn with(mut self, prefix: &str, id: RecordId) -> Self {
        self.keys.push(format!("{{{prefix}}}:record:{id}"));
        self
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
        command
            .arg(script)
            .arg(self.keys.len())
            .arg(&self.keys)
            .arg(&self.arguments);
        command
    }
}
