//! The check for authors, on servers in this process: those of both doors, and planted ones.

mod doors;
mod planted;
#[path = "../../../../tests/src/planted/server.rs"]
#[expect(dead_code, unreachable_pub, reason = "shared with the package `tests`")]
mod server;
