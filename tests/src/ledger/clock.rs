use std::{
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::json;
use tokio::process::Command;

use crate::client::{Client, call};

/// The library that moves a process's clock of the day (libfaketime).
const LIBRARY: &str = "MCP_IDEMPOTENT_TEST_FAKETIME";

/// What the clock of the day shows to a process, as against this one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the clocks that tests set")]
pub enum Clock {
    #[default]
    Right,
    AnHourAhead,
    AnHourBehind,
}

impl Clock {
    /// In seconds.
    pub const fn offset(self) -> i64 {
        match self {
            Self::Right => 0,
            Self::AnHourAhead => 3600,
            Self::AnHourBehind => -3600,
        }
    }

    /// # Panics
    ///
    /// There is no library that could do it: the test fails, it is not left out.
    pub(super) fn set_for(self, command: &mut Command) {
        if self == Self::Right {
            return;
        }
        let library = std::env::var(LIBRARY).unwrap_or_default();
        assert!(
            Path::new(&library).is_file(),
            "this test starts processes whose clock is wrong: run it with tests/run, or install libfaketime (Debian, Ubuntu: 'apt-get install faketime') and set {LIBRARY} to libfaketimeMT.so.1, which is not at {library:?}"
        );
        let preload = if cfg!(target_os = "macos") {
            "DYLD_INSERT_LIBRARIES"
        } else {
            "LD_PRELOAD"
        };
        command
            .env(preload, library)
            .env("FAKETIME", format!("{:+}", self.offset()))
            // What sleeps and waits go by stays what it is.
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }

    /// What this process's clock of the day shows, in microseconds.
    pub(crate) fn now_here() -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        now.as_micros().to_string()
    }

    /// Without this a library that does nothing would let every test pass.
    pub(super) async fn assert_shown_by(self, client: &Client) {
        if self == Self::Right {
            return;
        }
        let before: i64 = Self::now_here().parse().unwrap();
        let there: i64 = client
            .call(call("clock", json!({})))
            .await
            .text()
            .parse()
            .unwrap();
        let after: i64 = Self::now_here().parse().unwrap();
        let offset = self.offset() * 1_000_000;
        // A millisecond for the library's own rounding.
        assert!(
            (before - 1_000..=after + 1_000).contains(&(there - offset)),
            "{self:?}: here {before}..{after}, there {there}"
        );
    }

    /// The library names what it shares after the process, and a process that is killed would leave
    /// it there for ever. What is in use already needs no name.
    pub(super) fn clean_up(self, process: u32) {
        if self == Self::Right {
            return;
        }
        for name in ["faketime_shm", "sem.faketime_sem"] {
            // It is there on Linux only.
            drop(std::fs::remove_file(format!("/dev/shm/{name}_{process}")));
        }
    }
}
