//! Whole servers behind the layer, on a real Postgres.

mod cuts;
mod shop;
mod site;
