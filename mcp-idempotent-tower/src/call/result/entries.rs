//! Whether a call's handler was entered, as we saw it ourselves: what handlers and services say does not
//! count.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

/// How often the handler was entered during one run, not counting entries proved to have done nothing.
/// All clones of a [`ToolCall`](crate::ToolCall) share it, because a retry layer passes clones down.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entries(Arc<Run>);

#[derive(Debug, Default)]
struct Run {
    entered: AtomicUsize,
    /// The call that is run: a layer may run one call several times.
    of: Option<Entries>,
}

/// The handler was not entered and the key is being freed, so it must not be entered any more.
const CLOSED: usize = usize::MAX;

impl Entries {
    /// A run of the call that `of` observes.
    pub(crate) fn new_run(of: Option<Self>) -> Self {
        let entered = AtomicUsize::new(0);
        Self(Arc::new(Run { entered, of }))
    }

    /// Must be called right before the handler is. On `false` the handler must not be called.
    pub(crate) fn enter(&self) -> bool {
        let next = |entered: usize| (entered != CLOSED).then(|| entered + 1);
        let is_open = self.0.entered.fetch_update(SeqCst, SeqCst, next).is_ok();
        is_open && self.0.of.as_ref().is_none_or(Self::enter)
    }

    /// Takes an entry back: the handler has proved that it did nothing.
    pub(crate) fn did_nothing(&self) {
        self.0.entered.fetch_sub(1, SeqCst);
        if let Some(of) = &self.0.of {
            of.did_nothing();
        }
    }

    fn is_untouched(&self) -> bool {
        matches!(self.0.entered.load(SeqCst), 0 | CLOSED)
    }

    /// Whether the handler was not entered. If so, it cannot be entered any more.
    pub(crate) fn close(&self) -> bool {
        let closed = self.0.entered.compare_exchange(0, CLOSED, SeqCst, SeqCst);
        matches!(closed, Ok(_) | Err(CLOSED))
    }
}

/// What a service may conclude about a call that it passed down.
#[derive(Debug)]
pub(crate) struct Evidence {
    pub(crate) seen: Option<Entries>,
    /// Whether the stack ends in a handler whose entries are counted.
    pub(crate) ends_in_handler: bool,
}

impl Evidence {
    /// Whether the author's code has done nothing so far.
    pub(crate) fn shows_nothing(&self) -> bool {
        self.ends_in_handler && self.seen.as_ref().is_some_and(Entries::is_untouched)
    }

    /// Whether the author's code has done nothing and never will. For the layer that runs the call.
    pub(crate) fn proves_nothing_ran(&self) -> bool {
        self.ends_in_handler && self.seen.as_ref().is_some_and(Entries::close)
    }

    /// Whether the handler was entered besides the run that did nothing.
    pub(crate) fn has_seen_more(&self) -> bool {
        self.seen.as_ref().is_some_and(|seen| !seen.close())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_was_given_up_is_not_entered_any_more() {
        let call = Entries::default();
        let first = Entries::new_run(Some(call.clone()));
        assert!(first.clone().close());
        assert!(!first.enter());
        let second = Entries::new_run(Some(call.clone()));
        assert!(second.enter());
        assert!(!second.close());
        assert!(!call.close());
        assert!(first.close());
    }

    #[test]
    fn a_call_that_was_given_up_is_entered_in_no_run() {
        let call = Entries::default();
        assert!(call.close());
        assert!(!Entries::new_run(Some(call)).enter());
    }

    #[test]
    fn a_handler_that_did_nothing_proves_it_for_itself_alone() {
        let call = Entries::default();
        let run = Entries::new_run(Some(call.clone()));
        assert!(run.enter());
        run.did_nothing();
        assert!(run.enter());
        assert!(run.enter());
        run.did_nothing();
        assert!(!run.close());
        run.did_nothing();
        assert!(run.close());
        assert!(call.close());
    }
}
