//! Times are the database's: whatever the application's clock says, and the session's zone.

mod processes;
mod wire;
mod zones;

use super::Site;

/// In seconds.
const DAY: i64 = 24 * 60 * 60;
