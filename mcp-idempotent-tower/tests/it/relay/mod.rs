//! The relay, between a client and a server that the test plays.

mod bounds;
mod cancelling;
mod endings;
mod ends;
mod http;
mod identity;
mod outcomes;
mod passing;
mod progress;
mod repeating;
