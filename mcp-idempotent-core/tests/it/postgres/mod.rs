//! `PostgresStore`, on the database that `DATABASE_URL` names. Every test has a schema of its own.

mod abandoned;
mod attempts;
mod cancellation;
mod claims;
mod completing;
#[cfg(feature = "testing")]
mod conformance;
pub(crate) mod database;
mod elsewhere;
mod endings;
mod failover;
mod faults;
mod hostile;
mod interference;
#[path = "../../../../tests/src/kit/mod.rs"]
pub(crate) mod kit;
mod lease_faults;
mod lease_times;
mod leases;
mod look_up;
mod lost_commit;
mod migration;
mod own;
mod pooler;
mod pooling;
mod proxy;
mod resolving;
mod round_trips;
mod session_end;
mod sessions;
mod silence;
mod sweeping;
mod verify;
mod written;
