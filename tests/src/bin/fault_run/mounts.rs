//! File systems of its own: whether this program may have them, and where nobody else sees them.

use std::{os::unix::process::CommandExt as _, process::Command};

use mcp_idempotent_tests::kit::disk::{Lack, lack_for_file, lack_for_small};

use crate::row::{Need, Row};

/// Set in the program that is already alone with its mounts.
const IS_ALONE: &str = "MCP_IDEMPOTENT_FAULTS_ARE_ALONE";

/// Goes on in a mount namespace of its own, if it may have one. What it mounts there is gone when it and
/// what it has started are gone, however they end.
pub(crate) fn be_alone() {
    if lack_for_small().is_some() || std::env::var_os(IS_ALONE).is_some() {
        return;
    }
    let this = std::env::current_exe().expect("this program");
    let mut alone = Command::new("unshare");
    alone
        .args(["--mount", "--propagation", "private"])
        .arg(this);
    let error = alone
        .args(std::env::args_os().skip(1))
        .env(IS_ALONE, "1")
        .exec();
    panic!("unshare: {error}");
}

/// Why a row cannot be tried on this machine.
pub(crate) fn lack_for(row: &Row) -> Option<Lack> {
    match row.fault.need()? {
        Need::SmallDisk => lack_for_small(),
        Need::DiskInAFile => lack_for_file(),
    }
}

/// In words. A machine of a CI service that could try it has to.
pub(crate) fn reason(lack: &Lack) -> (String, bool) {
    match lack {
        Lack::Right(why) => ((*why).to_owned(), false),
        Lack::Tool(tool) => {
            let is_wrong = std::env::var("CI").is_ok_and(|it| it == "true");
            (format!("{tool} is not installed"), is_wrong)
        }
    }
}
