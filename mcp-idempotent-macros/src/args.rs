//! The options: `#[idempotent(key = required, retention = "24h")]`.

mod value;

use std::{collections::HashSet, time::Duration};

use proc_macro2::TokenStream;
use syn::{
    Expr, Ident, LitBool, LitInt, LitStr, Path, Token,
    ext::IdentExt as _,
    parse::{ParseStream, Parser as _},
};

pub(crate) use self::value::{Choice, OnDoubt, OnErrorResult, Pointer, Wait};
use self::value::{
    choice, duration, ignored, on_doubt, on_error_result, pointer, string, value, wait, wrong,
};
use crate::diagnostics::{self, Errors};

/// The modes in which an option has an effect.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AppliesIn {
    Both,
    Lease,
    Transaction,
}

use AppliesIn::{Both, Lease, Transaction};

/// Every option, as typed. The policy's options are the ones in core's `PolicyOverride::OPTIONS`; a
/// test compares them.
const OPTIONS: &[(&str, AppliesIn)] = &[
    ("transaction", Both),
    ("key", Both),
    ("key_argument", Both),
    ("ignore", Both),
    ("also_known_as", Both),
    ("retention", Both),
    ("window", Both),
    ("wait", Both),
    ("rotated_keys", Both),
    ("rotated_keys_window", Both),
    ("on_error", Both),
    ("on_error_result", Lease),
    ("on_expired", Both),
    ("tombstone", Both),
    ("lease", Lease),
    ("heartbeat", Lease),
    ("on_doubt", Lease),
    ("verify_timeout", Lease),
    ("in_doubt_retention", Both),
    ("transaction_timeout", Transaction),
    ("max_result_bytes", Both),
    ("run_unprotected_when_store_is_unavailable", Lease),
    ("idempotency", Both),
    ("crate", Both),
];

#[derive(Default)]
pub(crate) struct Args {
    /// The options that are given, in this order.
    pub(crate) given: Vec<(Ident, AppliesIn)>,
    /// The tool writes through a `CallPool`.
    pub(crate) transaction: Option<Ident>,
    pub(crate) key: Option<Choice>,
    pub(crate) key_argument: Option<Pointer>,
    pub(crate) ignored: Vec<Pointer>,
    pub(crate) also_known_as: Option<LitStr>,
    /// Each has the name of a policy field.
    pub(crate) durations: Vec<(Ident, Duration)>,
    pub(crate) wait: Option<Wait>,
    pub(crate) rotated_keys: Option<Choice>,
    pub(crate) on_error: Option<Choice>,
    pub(crate) on_error_result: Option<(Ident, OnErrorResult)>,
    pub(crate) on_expired: Option<Choice>,
    pub(crate) on_doubt: Option<(Ident, OnDoubt)>,
    pub(crate) max_result_bytes: Option<LitInt>,
    pub(crate) run_unprotected: Option<(Ident, LitBool)>,
    pub(crate) idempotency: Option<Expr>,
    pub(crate) crate_path: Option<Path>,
}

impl Args {
    /// A duration, and the name of its option.
    pub(crate) fn duration(&self, name: &str) -> Option<&(Ident, Duration)> {
        self.durations.iter().find(|(option, _)| option == name)
    }

    /// Parses all options, and reports the errors of all of them together.
    pub(crate) fn parse(tokens: TokenStream) -> syn::Result<Self> {
        (|input: ParseStream<'_>| {
            let mut args = Self::default();
            let mut errors = Errors::default();
            let mut seen = HashSet::new();
            while !input.is_empty() {
                if let Err(error) = args.option(input, &mut seen) {
                    errors.push(error);
                    skip_to_comma(input)?;
                }
                if !input.is_empty() {
                    input.parse::<Token![,]>()?;
                }
            }
            errors.into_result()?;
            Ok(args)
        })
        .parse2(tokens)
    }

    fn option(&mut self, input: ParseStream<'_>, seen: &mut HashSet<String>) -> syn::Result<()> {
        let name = input.call(Ident::parse_any)?;
        let text = name.to_string();
        let Some((_, applies)) = OPTIONS.iter().find(|(option, _)| *option == text) else {
            let known: Vec<_> = OPTIONS.iter().map(|(option, _)| *option).collect();
            return Err(diagnostics::unknown_option(&name, &known));
        };
        if !seen.insert(text.clone()) {
            return Err(diagnostics::duplicate_option(&name));
        }
        self.given.push((name.clone(), *applies));
        match text.as_str() {
            "transaction" => self.transaction = Some(name.clone()),
            "key" => {
                let variants = [
                    ("derived", "Derived"),
                    ("explicit", "Explicit"),
                    ("required", "Required"),
                ];
                self.key = Some(choice(input, &name, &variants, "write `key = required`")?);
            }
            "on_error" => {
                let variants = [
                    ("record", "Record"),
                    ("release", "Release"),
                    ("commit", "Commit"),
                    ("in_doubt", "InDoubt"),
                ];
                let hint = "with a `&mut` transaction write `record`, `release` or `commit`, without \
                            one `in_doubt` or `release`";
                self.on_error = Some(choice(input, &name, &variants, hint)?);
            }
            "key_argument" => {
                let expected = "the name of an argument or a JSON pointer, in quotes";
                let hint = "write `key_argument = \"idempotency_key\"`";
                let literal = string(input, &name, expected, hint)?;
                self.key_argument = Some(pointer(&name, &literal)?);
            }
            "also_known_as" => {
                let expected = "the earlier name of the tool, in quotes";
                let hint = "write `also_known_as = \"charge_card\"`";
                let literal = string(input, &name, expected, hint)?;
                if literal.value().is_empty() {
                    return Err(wrong(&name, "\"\"", expected, hint));
                }
                self.also_known_as = Some(literal);
            }
            "ignore" => self.ignored = ignored(input, &name)?,
            "retention"
            | "window"
            | "rotated_keys_window"
            | "tombstone"
            | "lease"
            | "heartbeat"
            | "verify_timeout"
            | "in_doubt_retention"
            | "transaction_timeout" => {
                let duration = duration(input, &name)?;
                self.durations.push((name.clone(), duration));
            }
            "rotated_keys" => {
                let variants = [
                    ("allow", "Allow"),
                    ("report", "Report"),
                    ("refuse", "Refuse"),
                    ("join", "Join"),
                ];
                let hint = "write `rotated_keys = refuse`";
                self.rotated_keys = Some(choice(input, &name, &variants, hint)?);
            }
            "on_expired" => {
                let variants = [("new", "New"), ("refuse", "Refuse")];
                let hint = "write `on_expired = refuse`";
                self.on_expired = Some(choice(input, &name, &variants, hint)?);
            }
            "on_error_result" => {
                self.on_error_result = Some((name.clone(), on_error_result(input, &name)?));
            }
            "on_doubt" => self.on_doubt = Some((name.clone(), on_doubt(input, &name)?)),
            "max_result_bytes" => {
                let hint = "write `max_result_bytes = 65_536`";
                let bytes: LitInt = value(input, &name, "a number of bytes, at least 1", hint)?;
                if !matches!(bytes.base10_parse::<usize>(), Ok(1..)) {
                    let found = format!("`{bytes}`");
                    return Err(wrong(&name, &found, "a number of bytes, at least 1", hint));
                }
                self.max_result_bytes = Some(bytes);
            }
            "run_unprotected_when_store_is_unavailable" => {
                let hint = format!("write `{name} = true`");
                let yes = value(input, &name, "`true` or `false`", &hint)?;
                self.run_unprotected = Some((name.clone(), yes));
            }
            "wait" => self.wait = Some(wait(input, &name)?),
            "idempotency" => {
                let hint = "write `idempotency = self.state.idempotency`";
                self.idempotency = Some(value(input, &name, "an expression", hint)?);
            }
            _ => {
                let hint = "write `crate = ::my_name_of_mcp_idempotent_tower`";
                self.crate_path = Some(value(input, &name, "a path", hint)?);
            }
        }
        if input.is_empty() || input.peek(Token![,]) {
            return Ok(());
        }
        Err(input.error(format!(
            "expected `,` after the value of `{name}`\nwrite a comma, or put the value in quotes \
             if it is a duration"
        )))
    }
}

fn skip_to_comma(input: ParseStream<'_>) -> syn::Result<()> {
    while !input.is_empty() && !input.peek(Token![,]) {
        input.parse::<proc_macro2::TokenTree>()?;
    }
    Ok(())
}
