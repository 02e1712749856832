//! Whole servers behind the layer, on a real Postgres.

mod cuts;
mod identity;
mod revisions;
mod rounds;
mod shop;
mod site;
mod tasks;
mod transaction;
mod waiters;
