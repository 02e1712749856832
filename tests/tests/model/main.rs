//! The protocol as a model that is searched through: every order of every step of a few processes,
//! with whatever can be lost between them. The promises are those of `docs/guarantees.md`. Each
//! fault that is planted in the protocol breaks one of them, so the search would notice.

mod lease;
mod rotation;
mod transaction;

/// A process, and where its call stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Process<At> {
    /// How many more calls it is asked for.
    calls: u8,
    at: At,
}

/// Processes that are asked for so many calls each.
fn processes<At: Copy>(calls: &[u8], at: At) -> Vec<Process<At>> {
    let process = |calls: &u8| Process { calls: *calls, at };
    calls.iter().map(process).collect()
}

/// The state after `step`, if that is possible in `last`.
fn next<State: Clone>(last: &State, step: impl FnOnce(&mut State) -> Option<()>) -> Option<State> {
    let mut next = last.clone();
    step(&mut next)?;
    Some(next)
}
