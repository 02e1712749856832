//! Who reads an answer: in which form it reaches them, and in which words.

use std::sync::Arc;

use mcp_idempotent_core::{Action, KeyKind, Policy, Refusal, Replay, Timestamp};

use super::refusal;
use crate::{
    call::{ToolResult, key::KeyMaker, schema::SchemaHash},
    wire,
};

/// In which form callers get refusals.
///
/// Client code reads JSON-RPC errors. A model often never sees one: some frameworks show it a text of their own
/// instead, or end the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum RefusalForm {
    /// The form that the maker of the call's key can see. Client code, which puts its key into `_meta`, gets a
    /// JSON-RPC error. A model, which puts its key into an argument or sends none, gets a tool result with
    /// `isError`.
    #[default]
    ByKeyMaker,
    /// Always a JSON-RPC error.
    Error,
    /// Always a tool result with `isError`.
    Result,
}

impl RefusalForm {
    /// An answer in this form. Only errors of ours change.
    pub(crate) fn applied(self, maker: KeyMaker, answer: ToolResult) -> ToolResult {
        match answer {
            Err(error) if self.is_result(maker) && refusal::is_ours(&error) => {
                Ok(refusal::into_result(error).into())
            }
            answer => answer,
        }
    }

    const fn is_result(self, maker: KeyMaker) -> bool {
        match self {
            Self::ByKeyMaker => !matches!(maker, KeyMaker::Client),
            Self::Error => false,
            Self::Result => true,
        }
    }
}

/// Who gets an answer.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    pub(crate) form: RefusalForm,
    pub(crate) maker: KeyMaker,
    /// What they know of the tool's results.
    pub(crate) schema: Option<SchemaHash>,
    /// The tool's rules, as far as they are known.
    pub(crate) policy: Option<Arc<Policy>>,
}

impl Reader {
    /// For a call whose tool is not known, or not yet.
    pub(crate) const fn of_any_tool(form: RefusalForm, maker: KeyMaker) -> Self {
        Self {
            form,
            maker,
            schema: None,
            policy: None,
        }
    }

    pub(crate) fn refused(&self, refusal: &Refusal) -> ToolResult {
        self.answered(Err(refusal::worded(refusal, self.sentence(refusal))))
    }

    /// An answer in the form that this reader gets.
    pub(crate) fn answered(&self, answer: ToolResult) -> ToolResult {
        self.form.applied(self.maker, answer)
    }

    /// The sentence of a refusal. It names only what this reader can do.
    fn sentence(&self, refusal: &Refusal) -> String {
        let sentence = refusal.message_for(self.maker.kind()).to_owned();
        if self.maker.kind() == KeyKind::Explicit
            || refusal.action() != Action::UseNewKey
            || !refusal.has_message_without_key()
        {
            return sentence;
        }
        match self.key_argument() {
            Some(name) => format!(
                "{sentence} If you mean it as a new call, send it with a new idempotency key in the argument `{name}`."
            ),
            None => format!(
                "{sentence} If you mean it as a new call, the program that sends it has to give it an idempotency key; a \
                 model cannot. Tell the user."
            ),
        }
    }

    /// Says that the call is in doubt, to a reader who sees the content only.
    pub(crate) fn doubt_notice(&self, refusal: &Refusal) -> Option<String> {
        self.form
            .is_result(self.maker)
            .then(|| self.sentence(refusal))
    }

    /// Says that a result is another call's.
    pub(crate) fn notice(&self, replay: &Replay, at: Timestamp) -> String {
        if !replay.rotated {
            return self.replay_notice(at);
        }
        format!(
            "An equal call under another idempotency key was already executed at {at}; this is its result. This \
             call was not executed. To run it again, send a new key that begins with `{}`.",
            wire::NEW_INTENT
        )
    }

    /// Says that a result is a replay, until when an equal call gets it, and how to ask anew.
    fn replay_notice(&self, at: Timestamp) -> String {
        let anew = match (self.maker, &self.policy) {
            (KeyMaker::Nobody, Some(policy)) => {
                let until = at.after(policy.window);
                let now = self.key_argument().map_or_else(String::new, |name| {
                    format!(", or now with a new idempotency key in the argument `{name}`")
                });
                format!("To run it again, send it after {until}{now}.")
            }
            _ => "To run it again, send a new idempotency key.".to_owned(),
        };
        format!(
            "This call was already executed at {at}; this is its result. It was not executed again. {anew}"
        )
    }

    /// Says that a call was executed although an equal one was made under another key.
    pub(crate) fn rotated_notice(at: Option<Timestamp>) -> String {
        let found = match at {
            Some(at) => format!("was already executed at {at}"),
            None => "is still running, or its outcome is not known".to_owned(),
        };
        format!(
            "An equal call under another idempotency key {found}. This call was executed as well. If it was a \
             retry, the effect may now be there twice: check, and send the same key again on every retry."
        )
    }

    /// The argument that may carry a key.
    fn key_argument(&self) -> Option<&str> {
        let policy = self.policy.as_ref()?;
        policy.key_argument.as_deref().map(refusal::argument_name)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mcp_idempotent_core::{CommitOutcome, ErrorKind};

    use super::*;

    fn expired() -> Refusal {
        Refusal::new(
            ErrorKind::KeyExpired,
            CommitOutcome::Unknown,
            Action::UseNewKey,
            "Send a new key.",
        )
        .with_message_without_key("It was made earlier.")
    }

    fn reader(maker: KeyMaker, argument: Option<&str>) -> Reader {
        let mut policy = Policy::default();
        policy.key_argument = argument.map(Arc::from);
        policy.window = Duration::from_secs(60);
        Reader {
            policy: Some(Arc::new(policy)),
            ..Reader::of_any_tool(RefusalForm::default(), maker)
        }
    }

    #[test]
    fn a_refusal_names_a_key_only_to_readers_who_can_send_one() {
        let told = |maker, argument| reader(maker, argument).sentence(&expired());
        for maker in [KeyMaker::Client, KeyMaker::Model] {
            assert_eq!(told(maker, Some("/key")), "Send a new key.");
        }
        assert!(told(KeyMaker::Nobody, Some("/key")).ends_with("in the argument `key`."));
        assert!(told(KeyMaker::Nobody, Some("/a/b")).ends_with("in the argument `/a/b`."));
        let without = told(KeyMaker::Nobody, None);
        assert!(without.contains("a model cannot"), "{without}");
    }

    #[test]
    fn a_replay_says_until_when_equal_calls_get_it_and_how_to_ask_anew() {
        let at = Timestamp::from_micros(0);
        let told = |maker, argument| reader(maker, argument).replay_notice(at);
        assert!(told(KeyMaker::Model, Some("/key")).ends_with("send a new idempotency key."));
        assert!(told(KeyMaker::Nobody, None).ends_with("send it after 1970-01-01T00:01:00.000Z."));
        assert!(
            told(KeyMaker::Nobody, Some("/key")).ends_with(
                "after 1970-01-01T00:01:00.000Z, or now with a new idempotency key in the argument `key`."
            )
        );
    }
}
