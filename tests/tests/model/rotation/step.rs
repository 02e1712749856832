//! What each step does.

use mcp_idempotent_core::testing::model::{
    Answer, Call, LEASE, Operation, Resolution, Seen, Token,
};

use super::{Action, At, Attempt, Fault, Left, Number, Rotation, State, Told};

impl Rotation {
    /// `None` if the step cannot be taken.
    pub(super) fn step(&self, state: &mut State, action: Action) -> Option<()> {
        match action {
            Action::Ask(p) => {
                state.processes[p].calls -= 1;
                if self.is_previous(p) {
                    look_under_lock(state, p);
                } else {
                    self.claim_guard(state, p);
                }
            }
            Action::Witness(p) => {
                let At::Guarding(guard) = state.processes[p].at else {
                    return None;
                };
                state.witnessed = guard;
                state.processes[p].at = At::Witnessed(guard);
            }
            Action::Begin(p) => begin(state, p)?,
            Action::Commit(p) => {
                let attempt = running(state, p)?;
                let told = if self.commit(state, attempt) {
                    Told::Executed(attempt.number, attempt.is_previous)
                } else {
                    Told::NotCommitted(attempt.number)
                };
                state.tell(p, told);
                if self.has(Fault::GuardLater) && attempt.guard.is_some() && state.new.is_some() {
                    state.processes[p].at = At::Unguarded(attempt);
                }
            }
            Action::RollBack(p) => {
                let attempt = running(state, p)?;
                state.unlock(attempt);
                release(state, attempt.guard);
                state.tell(p, Told::NotCommitted(attempt.number));
            }
            Action::CompleteGuard(p) => {
                let At::Unguarded(attempt) = state.processes[p].at else {
                    return None;
                };
                complete_guard(state, attempt.guard, attempt.number);
                state.processes[p].at = At::Idle;
            }
            Action::Crash(p, commits) => {
                if let At::Running(attempt) = state.processes[p].at {
                    state.left.push(Left { attempt, commits });
                    state.left.sort_unstable();
                }
                state.processes[p].at = At::Idle;
            }
            Action::End(left) => {
                state.left.retain(|other| *other != left);
                if left.commits {
                    self.commit(state, left.attempt);
                }
                state.unlock(left.attempt);
            }
            Action::Lapse => {
                state.lapses -= 1;
                state.old.apply(Operation::Pass(LEASE + 1));
            }
            Action::Release => {
                state.releases -= 1;
                let token = state.old.token()?;
                state
                    .old
                    .apply(Operation::Resolve(Resolution::Release, token));
            }
        }
        Some(())
    }

    fn claim_guard(&self, state: &mut State, p: usize) {
        if self.has(Fault::NoGuard) {
            state.processes[p].at = At::Guarding(None);
            return;
        }
        if state.old_lock.is_some() {
            state.tell(p, Told::InProgress);
            return;
        }
        if self.has(Fault::LapsedIsFree)
            && let Some((_, Seen::InDoubt(_))) = state.old.look_up(false)
        {
            state.old.apply(Operation::Pass(1000));
        }
        match state.old.apply(Operation::Claim(Call::This)) {
            Answer::Granted(held) => state.processes[p].at = At::Guarding(Some(held.token)),
            Answer::Found(_, Seen::Completed(token)) => match state.result(token) {
                Some(result) => state.tell(p, Told::Replayed(result, false)),
                None => state.tell(p, Told::Unknown),
            },
            // Nothing was committed under a guard, unless the new id says so.
            Answer::Found(_, Seen::InDoubt(token)) if state.witnessed == Some(token) => {
                let taken = state.old.apply(Operation::TakeOver(Call::This, token));
                if let Answer::Granted(held) = taken {
                    state.processes[p].at = At::Guarding(Some(held.token));
                }
            }
            Answer::Found(_, Seen::InDoubt(_)) => state.tell(p, Told::Unknown),
            _ => state.tell(p, Told::InProgress),
        }
    }

    /// The database commits, or rolls back because something is in the way.
    fn commit(&self, state: &mut State, attempt: Attempt) -> bool {
        let done = if attempt.is_previous {
            complete_previous(state, attempt.number)
        } else {
            let is_held = self.has(Fault::GuardUnchecked)
                || self.has(Fault::GuardLater)
                || attempt.guard.is_none()
                || complete_guard(state, attempt.guard, attempt.number);
            if is_held {
                state.new = Some(attempt.number);
            }
            is_held
        };
        if done {
            state.effects.push(attempt.number);
        }
        state.unlock(attempt);
        done
    }
}

/// The previous version: the lock of its only id, and then a look.
fn look_under_lock(state: &mut State, p: usize) {
    if state.old_lock.is_some() {
        state.tell(p, Told::InProgress);
        return;
    }
    match state.old.look_up(false) {
        None => {
            state.begun += 1;
            state.old_lock = Some(state.begun);
            state.processes[p].at = At::Running(Attempt {
                number: state.begun,
                guard: None,
                is_previous: true,
            });
        }
        Some((_, Seen::Completed(token))) => match state.result(token) {
            Some(result) => state.tell(p, Told::Replayed(result, true)),
            None => state.tell(p, Told::Unknown),
        },
        Some((_, Seen::InProgress)) => state.tell(p, Told::InProgress),
        Some(_) => state.tell(p, Told::Unknown),
    }
}

/// The next version, under its guard: the lock of the new id, and then a look.
fn begin(state: &mut State, p: usize) -> Option<()> {
    let At::Witnessed(guard) = state.processes[p].at else {
        return None;
    };
    if state.new_lock.is_some() {
        // What holds the lock may still commit: the guard stays until that is known.
        if let Some(guard) = guard {
            state.old.apply(Operation::Abandon(guard));
        }
        state.tell(p, Told::InProgress);
        return Some(());
    }
    if let Some(result) = state.new {
        complete_guard(state, guard, result);
        state.tell(p, Told::Replayed(result, false));
        return Some(());
    }
    state.begun += 1;
    state.new_lock = Some(state.begun);
    state.processes[p].at = At::Running(Attempt {
        number: state.begun,
        guard,
        is_previous: false,
    });
    Some(())
}

fn running(state: &State, p: usize) -> Option<Attempt> {
    match state.processes[p].at {
        At::Running(attempt) => Some(attempt),
        _ => None,
    }
}

fn release(state: &mut State, guard: Option<Token>) {
    if let Some(guard) = guard {
        state.old.apply(Operation::Release(guard, false));
    }
}

/// Says whether the guard was held.
fn complete_guard(state: &mut State, guard: Option<Token>, number: Number) -> bool {
    let Some(guard) = guard else {
        return false;
    };
    let done = state.old.apply(Operation::Complete(guard)) == Answer::Done;
    if done {
        state.results.push((guard, number));
    }
    done
}

/// The record of the previous version, which is written once.
fn complete_previous(state: &mut State, number: Number) -> bool {
    match state.old.apply(Operation::Claim(Call::This)) {
        Answer::Granted(held) => complete_guard(state, Some(held.token), number),
        _ => false,
    }
}
