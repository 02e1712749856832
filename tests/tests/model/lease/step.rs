//! What each step does.

use mcp_idempotent_core::testing::model::{
    Answer, Call, IN_DOUBT, LEASE, Operation, Resolution, Seen,
};

use super::{Action, At, Attempt, Fault, Leases, OnDoubt, State, Told};

impl Leases {
    /// `None` if the step cannot be taken.
    pub(super) fn step(&self, state: &mut State, action: Action) -> Option<()> {
        match action {
            Action::Claim(p) => self.ask(state, p),
            Action::LoseClaim(p, arrives) => self.lose_claim(state, p, arrives),
            Action::RecoverClaim(p) => self.recover_claim(state, p)?,
            Action::TakeOver(p) => take_over(state, p)?,
            Action::Act(p) => self.act(state, p)?,
            Action::FailWithoutActing(p) => self.fail_without_acting(state, p)?,
            Action::FailAfterActing(p) => self.fail_after_acting(state, p)?,
            Action::Complete(p) if self.has(Fault::CheckBeforeWrite) => check(state, p)?,
            Action::Complete(p) | Action::Write(p) => self.complete(state, p)?,
            Action::LoseCompletion(p, arrives) => self.lose_completion(state, p, arrives)?,
            Action::FindOut(p) => self.find_out(state, p)?,
            Action::Crash(p) => state.processes[p].at = At::Idle,
            Action::Lapse => {
                state.lapses -= 1;
                state.store.apply(Operation::Pass(LEASE + 1));
            }
            Action::Resolve(resolution) => resolve(state, resolution)?,
        }
        Some(())
    }

    fn ask(&self, state: &mut State, p: usize) {
        state.processes[p].calls -= 1;
        match self.claim(state) {
            Answer::Granted(held) => {
                state.holder = Some(p);
                state.processes[p].at = At::Running(Attempt {
                    held,
                    after_doubt: false,
                    acted: false,
                });
            }
            Answer::Found(_, Seen::Completed(token)) => {
                let result = state.result(token);
                state.tell(p, Told::Replayed(result));
            }
            Answer::Found(_, Seen::InDoubt(token)) => match self.on_doubt {
                OnDoubt::Fail => state.tell(p, Told::Unknown),
                OnDoubt::Rerun => state.processes[p].at = At::TakingOver(token),
            },
            _ => state.tell(p, Told::InProgress),
        }
    }

    fn lose_claim(&self, state: &mut State, p: usize, arrives: bool) {
        state.processes[p].calls -= 1;
        let granted = match arrives.then(|| self.claim(state)) {
            Some(Answer::Granted(held)) => {
                state.holder = Some(p);
                Some(held)
            }
            _ => None,
        };
        state.processes[p].at = At::ClaimLost(granted);
    }

    fn recover_claim(&self, state: &mut State, p: usize) -> Option<()> {
        let At::ClaimLost(granted) = state.processes[p].at else {
            return None;
        };
        if let Some(held) = granted {
            let keeps = held.attempts > 1;
            let in_doubt = Some((Call::This, Seen::InDoubt(held.token)));
            if !keeps && state.store.look_up(false) == in_doubt {
                // Its lease has ended meanwhile, but nothing ran under it: it is free all the same.
                state.store.apply(Operation::Pass(IN_DOUBT + 1));
            }
            self.change(state, p, held.token, |token| {
                Operation::Release(token, keeps)
            });
        }
        state.tell(p, Told::NotExecuted { rightly: true });
        Some(())
    }

    fn act(&self, state: &mut State, p: usize) -> Option<()> {
        let At::Running(attempt) = &mut state.processes[p].at else {
            return None;
        };
        attempt.acted = true;
        let (key, token) = (self.downstream_key(&attempt.held), attempt.held.token);
        state.act(key, token, self.honours_keys);
        Some(())
    }

    fn fail_without_acting(&self, state: &mut State, p: usize) -> Option<()> {
        let attempt = running(state, p)?;
        let frees = !attempt.after_doubt || self.has(Fault::ReleaseAfterTakeover);
        let keeps = attempt.held.attempts > 1 && !attempt.after_doubt;
        let done = self.change(state, p, attempt.held.token, |token| {
            if frees {
                Operation::Release(token, keeps)
            } else {
                Operation::Abandon(token)
            }
        });
        let told = match (done, attempt.after_doubt) {
            (true, false) => Told::NotExecuted { rightly: true },
            (true, true) => Told::Unknown,
            (false, _) => Told::Fenced,
        };
        state.tell(p, told);
        Some(())
    }

    fn fail_after_acting(&self, state: &mut State, p: usize) -> Option<()> {
        let attempt = running(state, p)?;
        let frees = self.has(Fault::ReleaseOnError);
        self.change(state, p, attempt.held.token, |token| {
            if frees {
                Operation::Release(token, false)
            } else {
                Operation::Abandon(token)
            }
        });
        state.tell(p, Told::Unknown);
        Some(())
    }

    fn complete(&self, state: &mut State, p: usize) -> Option<()> {
        let (At::Running(attempt) | At::Checked(attempt)) = state.processes[p].at else {
            return None;
        };
        if self.change(state, p, attempt.held.token, Operation::Complete) {
            state.executed(p, attempt);
        } else {
            state.tell(p, Told::Fenced);
        }
        Some(())
    }

    fn lose_completion(&self, state: &mut State, p: usize, arrives: bool) -> Option<()> {
        let attempt = running(state, p)?;
        if arrives {
            self.change(state, p, attempt.held.token, Operation::Complete);
        }
        state.processes[p].at = At::CompletionLost(attempt);
        Some(())
    }

    fn find_out(&self, state: &mut State, p: usize) -> Option<()> {
        let At::CompletionLost(attempt) = state.processes[p].at else {
            return None;
        };
        let token = attempt.held.token;
        if self.has(Fault::LostAnswerIsFailure) {
            self.change(state, p, token, |token| Operation::Release(token, false));
            state.tell(p, Told::NotExecuted { rightly: false });
            return Some(());
        }
        match state.store.look_up(false) {
            Some((_, Seen::Completed(by))) if by == token => {
                state.tell(p, Told::FoundCompleted);
                state.executed(p, attempt);
            }
            Some((_, Seen::InProgress)) if state.store.token() == Some(token) => {
                state.processes[p].at = At::Running(attempt);
            }
            _ => state.tell(p, Told::Unknown),
        }
        Some(())
    }
}

fn running(state: &State, p: usize) -> Option<Attempt> {
    match state.processes[p].at {
        At::Running(attempt) => Some(attempt),
        _ => None,
    }
}

fn take_over(state: &mut State, p: usize) -> Option<()> {
    let At::TakingOver(token) = state.processes[p].at else {
        return None;
    };
    let taken = Operation::TakeOver(Call::This, token);
    if let Answer::Granted(held) = state.store.apply(taken) {
        state.holder = Some(p);
        state.processes[p].at = At::Running(Attempt {
            held,
            after_doubt: true,
            acted: false,
        });
    } else {
        // Another process was quicker: ask again.
        state.processes[p].calls += 1;
        state.processes[p].at = At::Idle;
    }
    Some(())
}

fn check(state: &mut State, p: usize) -> Option<()> {
    let attempt = running(state, p)?;
    let mut looked_at = state.store;
    if looked_at.apply(Operation::Renew(attempt.held.token)) == Answer::Done {
        state.processes[p].at = At::Checked(attempt);
    } else {
        state.tell(p, Told::Fenced);
    }
    Some(())
}

fn resolve(state: &mut State, resolution: Resolution) -> Option<()> {
    let token = state.store.token()?;
    // An operator who says that nothing happened has looked.
    if resolution == Resolution::NotCommitted && !state.effects.is_empty() {
        return None;
    }
    state.store.apply(Operation::Resolve(resolution, token));
    state.resolutions -= 1;
    state.holder = None;
    match resolution {
        Resolution::Committed => state.confirmed = true,
        Resolution::NotCommitted => {
            state.denied += 1;
            state.freed += 1;
        }
        Resolution::Release => state.freed += 1,
    }
    Some(())
}
