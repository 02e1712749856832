//! `PostgresStore`, on the database that `DATABASE_URL` names. Every test has a schema of its own.

mod conformance;
mod database;
