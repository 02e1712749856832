//! The protocol as a model that is searched through: every order of every step of a few processes,
//! with whatever can be lost between them. The promises are those of `docs/guarantees.md`. Each
//! fault that is planted in the protocol breaks one of them, so the search would notice.

mod lease;
mod transaction;
