//! Whole servers behind the layer, on a real Postgres.

mod cuts;
mod revisions;
mod rounds;
mod shop;
mod site;
mod transaction;
