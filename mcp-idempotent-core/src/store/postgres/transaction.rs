//! An open transaction.

use std::{
    fmt,
    ops::{Deref, DerefMut},
};

use sqlx::PgConnection;

use super::{Mark, connection::Leased};

/// The transaction that a handler writes through. Dropping it closes the connection, and with it
/// the server rolls back.
pub struct PgTransaction {
    pub(super) connection: Leased,
    pub(super) mark: Mark,
}

impl Deref for PgTransaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.connection
    }
}

impl DerefMut for PgTransaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.connection
    }
}

impl fmt::Debug for PgTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgTransaction").finish_non_exhaustive()
    }
}
