//! The macro's errors for wrong uses: what it found, what it expected, what to type.

use proc_macro2::Span;
use quote::ToTokens;
use syn::{Error, Ident};

/// Collects errors, so that one build shows all of them.
#[derive(Default)]
pub(crate) struct Errors(Option<Error>);

impl Errors {
    pub(crate) fn push(&mut self, error: Error) {
        match &mut self.0 {
            Some(errors) => errors.combine(error),
            None => self.0 = Some(error),
        }
    }

    pub(crate) fn into_result(self) -> syn::Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}

pub(crate) fn not_a_method() -> Error {
    Error::new(
        Span::call_site(),
        "expected a tool method below `#[idempotent]`, found something else\n\
         write it above `#[tool]` on a method of a `#[tool_router] impl`:\n\n    \
         #[idempotent]\n    #[tool]\n    async fn charge(&self, …) -> …",
    )
}

pub(crate) fn no_tool(name: &Ident) -> Error {
    Error::new(
        Span::call_site(),
        format!(
            "expected `#[tool]` below `#[idempotent]`, found none\n\
             `#[tool]` fixes the definition of a tool when it expands, so `#[idempotent]` has to \
             stand above it; write:\n\n    \
             #[idempotent]\n    #[tool]\n    … fn {name}(&self, …) -> …"
        ),
    )
}

pub(crate) fn no_receiver(at: &impl ToTokens) -> Error {
    Error::new_spanned(
        at,
        "expected a method with `&self`, found a function without a receiver\n\
         `#[idempotent]` reads the records from `self.idempotency`; write `&self` as the first \
         parameter",
    )
}

pub(crate) fn wrong_receiver(at: &impl ToTokens, found: &str) -> Error {
    Error::new_spanned(
        at,
        format!(
            "expected `&self`, found `{found}`\n\
             calls of one server run at the same time; write `&self`, and keep what changes behind \
             a lock or in the database"
        ),
    )
}

pub(crate) fn second_connection(at: &impl ToTokens) -> Error {
    Error::new_spanned(
        at,
        "expected one `&mut` parameter, found a second one\n\
         the `&mut` parameter is the transaction that the record commits with, and a call has one; \
         remove this parameter",
    )
}

pub(crate) fn no_open_transaction(at: &impl ToTokens) -> Error {
    let found = at.to_token_stream().to_string().replace(' ', "");
    Error::new_spanned(
        at,
        format!(
            "expected `&mut PgConnection` or `&mut SqliteConnection`, found `{found}`\n\
             the transaction that the record commits with is lent as a connection; write \
             `tx: &mut PgConnection`. For other statements keep a pool in a field of the server; they \
             are not part of the transaction"
        ),
    )
}

pub(crate) fn transaction_twice(at: &impl ToTokens) -> Error {
    Error::new_spanned(
        at,
        "expected no `transaction` beside the `&mut` transaction, found it\n\
         the parameter says the same; remove `transaction`, or remove the parameter and write through \
         a `CallPool`",
    )
}

pub(crate) fn generic(at: &impl ToTokens) -> Error {
    Error::new_spanned(
        at,
        "expected a method without type parameters, found a generic one\n\
         a tool has one input schema; name the type, or make the server generic: \
         `impl<T> Server<T>`",
    )
}

pub(crate) fn local_tool(at: &impl ToTokens) -> Error {
    Error::new_spanned(
        at,
        "expected a tool whose future is `Send`, found `#[tool(local)]`\n\
         a running call moves to its own task when its caller disconnects; remove `local`",
    )
}

pub(crate) fn read_only(at: &impl ToTokens) -> Error {
    Error::new_spanned(
        at,
        "expected a tool that changes something, found `read_only_hint = true`\n\
         a repeated read is harmless, and a recorded result would be given again when it is out of \
         date; remove `#[idempotent]`, or the hint if the tool does change something",
    )
}

pub(crate) fn no_on_error(name: &Ident) -> Error {
    Error::new(
        Span::call_site(),
        format!(
            "expected a transaction, or `on_error` for an effect outside the database; found neither\n\
             if `{name}` writes to the database of the store, take the transaction and write through \
             it: `tx: &mut PgConnection` (or `&mut SqliteConnection`)\n\
             if it calls services that take a pool, write `#[idempotent(transaction)]`, and make the \
             pool a `CallPool`\n\
             if its effect is elsewhere, only you know what a returned error means:\n  \
             `#[idempotent(on_error = in_doubt)]`: it does not prove that nothing happened; a \
             retry is refused until an operator has looked\n  \
             `#[idempotent(on_error = release)]`: it does prove it, or a repeat is safe; a retry \
             runs again"
        ),
    )
}

pub(crate) fn on_error_of_other_mode(at: &impl ToTokens, found: &str, transaction: bool) -> Error {
    let message = if transaction {
        format!(
            "expected `on_error = record`, `release` or `commit`, found `{found}`\n\
             a tool with a `&mut` transaction is never in doubt after an error: its writes are \
             rolled back; write `on_error = release`, or remove the option"
        )
    } else {
        format!(
            "expected `on_error = in_doubt` or `on_error = release`, found `{found}`\n\
             `{found}` needs a transaction; take one (`tx: &mut …`), or write `on_error = in_doubt`"
        )
    };
    Error::new_spanned(at, message)
}

pub(crate) fn lease_in_transaction(name: &Ident) -> Error {
    Error::new_spanned(
        name,
        format!(
            "expected no `{name}`, found one on a tool with a `&mut` transaction\n\
             its claim lasts as long as the transaction does; remove `{name}`"
        ),
    )
}

pub(crate) fn timeout_without_transaction(name: &Ident) -> Error {
    Error::new_spanned(
        name,
        format!(
            "expected no `{name}`, found one on a tool without a `&mut` transaction\n\
             a handler in lease mode runs for as long as it needs; remove `{name}`"
        ),
    )
}

pub(crate) fn attempt_in_transaction(at: &impl ToTokens) -> Error {
    Error::new_spanned(
        at,
        "expected no `Attempt` beside the `&mut` transaction, found one\n\
         a tool in transaction mode has no lease; remove the `Attempt`, or remove the `&mut` \
         parameter and take the transaction after the outside call, with `Attempt::begin`",
    )
}

pub(crate) fn on_doubt_in_transaction(at: &impl ToTokens) -> Error {
    Error::new_spanned(
        at,
        "expected no `on_doubt`, found one on a tool with a `&mut` transaction\n\
         its effect commits with its record, so there is nothing to run again; remove `on_doubt`, \
         or remove the `&mut` parameter and take the transaction after the outside call, with \
         `Attempt::begin`",
    )
}

pub(crate) fn heartbeat_too_long(at: &impl ToTokens) -> Error {
    Error::new_spanned(
        at,
        "expected a heartbeat of at most half the lease, found a longer one\n\
         a single lost renewal would end the lease; shorten `heartbeat`, or remove it to use \
         the default, a third",
    )
}

pub(crate) fn in_doubt_too_short(at: &impl ToTokens, longer: &str) -> Error {
    Error::new_spanned(
        at,
        format!(
            "expected `in_doubt_retention` to be at least `{longer}`, found it shorter\n\
             a call in doubt would be forgotten before a completed one; lengthen \
             `in_doubt_retention`, or remove it"
        ),
    )
}

pub(crate) fn timeout_without_verify(at: &impl ToTokens) -> Error {
    Error::new_spanned(
        at,
        "expected `on_doubt = verify(…)` beside `verify_timeout`, found none\n\
         without it no function checks a call in doubt; write `on_doubt = verify(Self::find_out)`, or \
         remove `verify_timeout`",
    )
}

/// What other libraries call our options.
const OTHER_WORDS: &[(&str, &str)] = &[
    ("ttl", "`retention` (under a key) or `window` (without one)"),
    (
        "expires",
        "`retention` (under a key) or `window` (without one)",
    ),
    (
        "timeout",
        "`wait` (a duplicate's), `lease` or `verify_timeout`",
    ),
    ("exclude", "`ignore`"),
    ("header", "`key_argument`"),
];

pub(crate) fn unknown_option(found: &Ident, known: &[&str]) -> Error {
    let text = found.to_string();
    let near = || known.iter().find(|known| is_near(&text, known));
    // The longer word was meant: `key_arg` is not `key`.
    let begun = known.iter().find(|known| known.starts_with(&text));
    let hint = match (OTHER_WORDS.iter().find(|(word, _)| *word == text), begun) {
        (Some((_, meant)), _) => format!("write {meant}"),
        (None, Some(meant)) => format!("write `{meant}`"),
        (None, None) => near().map_or("remove it".to_owned(), |near| format!("write `{near}`")),
    };
    Error::new(
        found.span(),
        format!(
            "expected one of the options {}, found `{found}`\n{hint}",
            list(known)
        ),
    )
}

pub(crate) fn duplicate_option(found: &Ident) -> Error {
    Error::new(
        found.span(),
        format!("expected `{found}` once, found it twice\nremove one of them"),
    )
}

pub(crate) fn wrong_value(at: Span, name: &str, found: &str, expected: &str, hint: &str) -> Error {
    Error::new(
        at,
        format!("expected `{name}` to be {expected}, found {found}\n{hint}"),
    )
}

/// `a`, `b` and `c`.
pub(crate) fn list(names: &[&str]) -> String {
    let mut text = String::new();
    for (index, name) in names.iter().enumerate() {
        if index > 0 {
            text.push_str(if index + 1 == names.len() {
                " and "
            } else {
                ", "
            });
        }
        text.push('`');
        text.push_str(name);
        text.push('`');
    }
    text
}

/// Whether one differs from the other by a small slip: case, `-` for `_`, an extra `s`, one wrong
/// letter.
fn is_near(found: &str, known: &str) -> bool {
    let found = found.to_lowercase().replace('-', "_");
    if found == known || known.starts_with(&found) || found.starts_with(known) {
        return true;
    }
    found.len().abs_diff(known.len()) <= 1
        && found
            .chars()
            .zip(known.chars())
            .filter(|(left, right)| left != right)
            .count()
            <= 1
}
