//! `#[idempotent]`, through real clients and servers.

mod beside;
mod call_pool;
#[cfg(feature = "metrics")]
mod counted;
mod definition;
mod doubt;
mod extractors;
mod fidelity;
mod generic;
mod keys;
#[cfg(feature = "sqlite")]
mod noticed;
mod outcomes;
mod policy;
mod refusals;
mod returns;
mod rounds;
#[cfg(feature = "sqlite")]
mod strays;
mod transaction;
mod ui;
