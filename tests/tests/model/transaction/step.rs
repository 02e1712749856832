//! What each step does.

use super::{Action, At, Fault, Number, Sent, State, Told, Transactions};

impl Transactions {
    /// `None` if the step cannot be taken.
    pub(super) fn step(&self, state: &mut State, action: Action) -> Option<()> {
        match action {
            Action::Begin(p) => self.begin(state, p),
            Action::Look(p) => look(state, p),
            Action::Run(p) => {
                let At::Running(number) = state.processes[p].at else {
                    return None;
                };
                state.ran_in_vain |= state.record.is_some();
                state.processes[p].at = At::Ran(number);
            }
            Action::RollBack(p) => {
                let (At::Running(number) | At::Ran(number)) = state.processes[p].at else {
                    return None;
                };
                state.unlock(number);
                state.tell(p, Told::NotCommitted(number));
            }
            Action::Commit(p, sent) => self.send_commit(state, p, sent)?,
            Action::Record(p) => {
                let At::Unrecorded(number) = state.processes[p].at else {
                    return None;
                };
                state.record = Some(number);
                state.tell(p, Told::Executed(number));
            }
            Action::Recover(p) => self.recover(state, p)?,
            Action::GiveUp(p) => state.tell(p, Told::Unknown),
            Action::Crash(p) => {
                if let At::Begun(number) | At::Running(number) | At::Ran(number) =
                    state.processes[p].at
                {
                    state.leave(number, false);
                }
                state.processes[p].at = At::Idle;
            }
            Action::End(left) => {
                state.left.retain(|other| *other != left);
                if left.commits {
                    self.commit(state, left.number);
                }
                state.unlock(left.number);
            }
        }
        Some(())
    }

    fn begin(&self, state: &mut State, p: usize) {
        let looked = state.processes[p].at;
        if looked == At::Idle {
            state.processes[p].calls -= 1;
        }
        if state.lock.is_some() && !self.has(Fault::NoLock) {
            state.tell(p, Told::InProgress);
            return;
        }
        let number = state.begin(p);
        if !self.has(Fault::NoLock) {
            state.lock = Some(number);
        }
        if let At::Looked(found) = looked {
            replay_or_run(state, p, number, found);
        }
    }

    fn send_commit(&self, state: &mut State, p: usize, sent: Sent) -> Option<()> {
        let At::Ran(number) = state.processes[p].at else {
            return None;
        };
        state.processes[p].at = At::Lost(number);
        match sent {
            Sent::Confirmed if self.commit(state, number) => {
                if self.has(Fault::RecordAfterCommit) {
                    state.processes[p].at = At::Unrecorded(number);
                } else {
                    state.tell(p, Told::Executed(number));
                }
            }
            Sent::Confirmed => {
                let record = state.record?;
                state.tell(p, Told::Replayed(record));
            }
            Sent::DoneAndUnheard => {
                self.commit(state, number);
            }
            Sent::Delayed => state.leave(number, true),
            Sent::Lost => state.leave(number, false),
            Sent::DelayedWithError => {
                state.leave(number, true);
                if self.has(Fault::BelieveAnyError) {
                    state.tell(p, Told::NotCommitted(number));
                }
            }
        }
        Some(())
    }

    fn recover(&self, state: &mut State, p: usize) -> Option<()> {
        let locked = state.lock.is_some() && !self.has(Fault::NoLock);
        match state.processes[p].at {
            At::Lost(number) if self.has(Fault::RecoverBeforeLock) => {
                state.processes[p].at = At::LookedAfterLoss(number, state.record);
            }
            At::Lost(number) if self.has(Fault::RecoverWithoutLock) || !locked => {
                state.tell_what_was_found(p, number, state.record);
            }
            At::LookedAfterLoss(number, found) if !locked => {
                state.tell_what_was_found(p, number, found);
            }
            _ => return None,
        }
        Some(())
    }
}

fn look(state: &mut State, p: usize) {
    if let At::Begun(number) = state.processes[p].at {
        replay_or_run(state, p, number, state.record);
    } else {
        state.processes[p].calls -= 1;
        state.processes[p].at = At::Looked(state.record);
    }
}

fn replay_or_run(state: &mut State, p: usize, number: Number, found: Option<Number>) {
    match found {
        Some(record) => {
            state.unlock(number);
            state.tell(p, Told::Replayed(record));
        }
        None => state.processes[p].at = At::Running(number),
    }
}
