//! The options: `#[idempotent(key = required, retention = "24h")]`.

use std::{collections::HashSet, time::Duration};

use proc_macro2::TokenStream;
use syn::{
    Expr, Ident, LitBool, LitInt, LitStr, Path, Token,
    ext::IdentExt as _,
    parenthesized,
    parse::{Parse, ParseStream, Parser as _},
    punctuated::Punctuated,
};

use crate::diagnostics::{self, Errors};

/// Every option, as typed.
const KNOWN: &[&str] = &[
    "key",
    "key_argument",
    "ignore",
    "retention",
    "window",
    "wait",
    "on_error",
    "on_expired",
    "tombstone",
    "lease",
    "heartbeat",
    "on_doubt",
    "verify_timeout",
    "in_doubt_retention",
    "transaction_timeout",
    "max_result_bytes",
    "run_unprotected_when_store_is_unavailable",
    "idempotency",
    "crate",
];

/// The same as `Policy::LONGEST`: a duration that the server would refuse does not compile.
const LONGEST: Duration = Duration::from_secs(36_525 * 24 * 60 * 60);

#[derive(Default)]
pub(crate) struct Args {
    pub(crate) key: Option<Choice>,
    pub(crate) key_argument: Option<Pointer>,
    pub(crate) ignored: Vec<Pointer>,
    /// Each has the name of a policy field.
    pub(crate) durations: Vec<(Ident, Duration)>,
    pub(crate) wait: Option<Wait>,
    pub(crate) on_error: Option<Choice>,
    pub(crate) on_expired: Option<Choice>,
    pub(crate) on_doubt: Option<(Ident, OnDoubt)>,
    pub(crate) max_result_bytes: Option<LitInt>,
    pub(crate) run_unprotected: Option<(Ident, LitBool)>,
    pub(crate) idempotency: Option<Expr>,
    pub(crate) crate_path: Option<Path>,
}

/// A choice between several words: the word as typed, and the variant it stands for.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) word: Ident,
    pub(crate) variant: &'static str,
}

/// A JSON pointer, and the argument's name if it is a top-level one.
#[derive(Debug)]
pub(crate) struct Pointer {
    pub(crate) pointer: String,
    pub(crate) name: Option<String>,
}

#[derive(Debug)]
pub(crate) enum Wait {
    Reject,
    UpTo(Duration),
}

/// What happens to a call in doubt.
pub(crate) enum OnDoubt {
    Fail,
    Rerun,
    /// The function that verifies a call in doubt.
    Verify(Box<Path>),
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
        if !KNOWN.contains(&text.as_str()) {
            return Err(diagnostics::unknown_option(&name, KNOWN));
        }
        if !seen.insert(text.clone()) {
            return Err(diagnostics::duplicate_option(&name));
        }
        match text.as_str() {
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
            "ignore" => self.ignored = ignored(input, &name)?,
            "retention"
            | "window"
            | "tombstone"
            | "lease"
            | "heartbeat"
            | "verify_timeout"
            | "in_doubt_retention"
            | "transaction_timeout" => {
                let duration = duration(input, &name)?;
                self.durations.push((name.clone(), duration));
            }
            "on_expired" => {
                let variants = [("new", "New"), ("refuse", "Refuse")];
                let hint = "write `on_expired = refuse`";
                self.on_expired = Some(choice(input, &name, &variants, hint)?);
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

/// Parses `= value`. A missing or malformed value is reported on the option's name.
fn value<T: Parse>(
    input: ParseStream<'_>,
    name: &Ident,
    expected: &str,
    hint: &str,
) -> syn::Result<T> {
    if input.parse::<Option<Token![=]>>()?.is_none() || input.is_empty() {
        return Err(wrong(name, "no value", expected, hint));
    }
    let found = input.to_string();
    input
        .parse()
        .map_err(|_| wrong(name, &format!("`{}`", first(&found)), expected, hint))
}

fn wrong(name: &Ident, found: &str, expected: &str, hint: &str) -> syn::Error {
    diagnostics::wrong_value(name.span(), &name.to_string(), found, expected, hint)
}

/// The part of the remaining input that belongs to this option.
fn first(found: &str) -> &str {
    found.split(',').next().unwrap_or(found).trim()
}

fn choice(
    input: ParseStream<'_>,
    name: &Ident,
    variants: &[(&str, &'static str)],
    hint: &str,
) -> syn::Result<Choice> {
    let words: Vec<&str> = variants.iter().map(|(word, _)| *word).collect();
    let expected = format!("one of {}", diagnostics::list(&words));
    let found = first(&input.to_string())
        .trim_start_matches(['=', ' ', '"'])
        .trim_end_matches('"')
        .to_owned();
    let hint = match words.iter().find(|word| **word == found) {
        Some(meant) => format!("write `{name} = {meant}`"),
        None => hint.to_owned(),
    };
    let word: Ident = value(input, name, &expected, &hint)?;
    match variants.iter().find(|(known, _)| word == known) {
        Some((_, variant)) => Ok(Choice { word, variant }),
        None => Err(wrong(name, &format!("`{word}`"), &expected, &hint)),
    }
}

fn string(input: ParseStream<'_>, name: &Ident, expected: &str, hint: &str) -> syn::Result<LitStr> {
    value(input, name, expected, hint)
}

fn duration(input: ParseStream<'_>, name: &Ident) -> syn::Result<Duration> {
    let expected = "a duration in quotes";
    let hint = format!("write `{name} = \"10m\"`; units are `ms`, `s`, `m`, `h` and `days`");
    let literal = string(input, name, expected, &hint)?;
    parse_duration(name, &literal, &hint)
}

fn parse_duration(name: &Ident, literal: &LitStr, hint: &str) -> syn::Result<Duration> {
    let found = format!("{:?}", literal.value());
    let duration = humantime::parse_duration(&literal.value())
        .map_err(|error| wrong(name, &format!("{found} ({error})"), "a duration", hint))?;
    if duration.is_zero() {
        return Err(wrong(name, &found, "longer than zero", hint));
    }
    if duration > LONGEST {
        return Err(wrong(name, &found, "at most a hundred years", hint));
    }
    Ok(duration)
}

fn wait(input: ParseStream<'_>, name: &Ident) -> syn::Result<Wait> {
    let expected = "a duration in quotes or `reject`";
    let hint = "write `wait = \"30s\"` to wait for the first call's result, or `wait = reject` to \
                answer at once";
    if input.peek(Token![=]) && input.peek2(Ident) {
        let word: Ident = value(input, name, expected, hint)?;
        if word == "reject" {
            return Ok(Wait::Reject);
        }
        return Err(wrong(name, &format!("`{word}`"), expected, hint));
    }
    let literal = string(input, name, expected, hint)?;
    parse_duration(name, &literal, hint).map(Wait::UpTo)
}

fn on_doubt(input: ParseStream<'_>, name: &Ident) -> syn::Result<OnDoubt> {
    let expected = "`fail`, `rerun` or `verify(…)`";
    let hint = "write `on_doubt = fail` (an operator looks), `on_doubt = rerun` (a repeat is safe) \
                or `on_doubt = verify(Self::find_out)`";
    let word: Ident = value(input, name, expected, hint)?;
    match word.to_string().as_str() {
        "fail" => Ok(OnDoubt::Fail),
        "rerun" => Ok(OnDoubt::Rerun),
        "verify" if input.peek(syn::token::Paren) => {
            let function;
            parenthesized!(function in input);
            let found = function.to_string();
            function
                .parse()
                .ok()
                .filter(|_| function.is_empty())
                .map(|path| OnDoubt::Verify(Box::new(path)))
                .ok_or_else(|| wrong(name, &format!("`verify({found})`"), expected, hint))
        }
        _ => Err(wrong(name, &format!("`{word}`"), expected, hint)),
    }
}

fn ignored(input: ParseStream<'_>, name: &Ident) -> syn::Result<Vec<Pointer>> {
    let expected = "a list of arguments in parentheses";
    let hint = "write `ignore(\"trace_id\", \"/meta/sent_at\")`";
    if !input.peek(syn::token::Paren) {
        return Err(wrong(name, "no list", expected, hint));
    }
    let list;
    parenthesized!(list in input);
    let found = list.to_string();
    let literals = Punctuated::<LitStr, Token![,]>::parse_terminated(&list)
        .map_err(|_| wrong(name, &format!("`({found})`"), expected, hint))?;
    if literals.is_empty() {
        return Err(wrong(name, "an empty list", expected, hint));
    }
    literals
        .iter()
        .map(|literal| pointer(name, literal))
        .collect()
}

/// A plain name means a top-level argument.
fn pointer(name: &Ident, literal: &LitStr) -> syn::Result<Pointer> {
    let text = literal.value();
    let bad = |found: &str, hint: &str| {
        Err(diagnostics::wrong_value(
            literal.span(),
            &name.to_string(),
            found,
            "an argument's name or a JSON pointer (RFC 6901)",
            hint,
        ))
    };
    if text.is_empty() || text == "/" {
        return bad(&format!("{text:?}"), "write the name of the argument");
    }
    let Some(rest) = text.strip_prefix('/') else {
        let escaped = text.replace('~', "~0").replace('/', "~1");
        return Ok(Pointer {
            pointer: format!("/{escaped}"),
            name: Some(text),
        });
    };
    if rest
        .split('~')
        .skip(1)
        .any(|after| !after.starts_with(['0', '1']))
    {
        let hint = "in a pointer `~` is written `~0`, and `/` within a name `~1`";
        return bad(&format!("{text:?}"), hint);
    }
    let name = (!rest.contains('/')).then(|| rest.replace("~1", "/").replace("~0", "~"));
    Ok(Pointer {
        pointer: text,
        name,
    })
}
