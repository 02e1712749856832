//! The values of options.

use std::time::Duration;

use syn::{
    Ident, LitStr, Path, Token, parenthesized,
    parse::{Parse, ParseStream},
    punctuated::Punctuated,
};

use crate::diagnostics;

/// The same as `Policy::LONGEST`: a duration that the server would refuse does not compile.
const LONGEST: Duration = Duration::from_secs(36_525 * 24 * 60 * 60);

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

/// What a result with `isError` means.
pub(crate) enum OnErrorResult {
    /// A variant of the policy's rule.
    Always(&'static str),
    /// The function that says it.
    Classify(Box<Path>),
}

/// What happens to a call in doubt.
pub(crate) enum OnDoubt {
    Fail,
    Rerun,
    /// The function that verifies a call in doubt.
    Verify(Box<Path>),
}

/// Parses `= value`. A missing or malformed value is reported on the option's name.
pub(super) fn value<T: Parse>(
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

pub(super) fn wrong(name: &Ident, found: &str, expected: &str, hint: &str) -> syn::Error {
    diagnostics::wrong_value(name.span(), &name.to_string(), found, expected, hint)
}

/// The part of the remaining input that belongs to this option.
fn first(found: &str) -> &str {
    found.split(',').next().unwrap_or(found).trim()
}

pub(super) fn choice(
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

pub(super) fn string(
    input: ParseStream<'_>,
    name: &Ident,
    expected: &str,
    hint: &str,
) -> syn::Result<LitStr> {
    value(input, name, expected, hint)
}

pub(super) fn duration(input: ParseStream<'_>, name: &Ident) -> syn::Result<Duration> {
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

pub(super) fn wait(input: ParseStream<'_>, name: &Ident) -> syn::Result<Wait> {
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

pub(super) fn on_doubt(input: ParseStream<'_>, name: &Ident) -> syn::Result<OnDoubt> {
    let expected = "`fail`, `rerun` or `verify(…)`";
    let hint = "write `on_doubt = fail` (an operator looks), `on_doubt = rerun` (a repeat is safe) \
                or `on_doubt = verify(Self::find_out)`";
    let word: Ident = value(input, name, expected, hint)?;
    match word.to_string().as_str() {
        "fail" => Ok(OnDoubt::Fail),
        "rerun" => Ok(OnDoubt::Rerun),
        "verify" if input.peek(syn::token::Paren) => {
            function(input, name, "verify", expected, hint).map(OnDoubt::Verify)
        }
        _ => Err(wrong(name, &format!("`{word}`"), expected, hint)),
    }
}

pub(super) fn on_error_result(input: ParseStream<'_>, name: &Ident) -> syn::Result<OnErrorResult> {
    let expected = "`record`, `release`, `in_doubt` or `classify(…)`";
    let hint = "write `on_error_result = record` (it is an answer), `on_error_result = release` (it \
                proves that nothing happened), `on_error_result = in_doubt` or \
                `on_error_result = classify(Self::meaning)`";
    let word: Ident = value(input, name, expected, hint)?;
    match word.to_string().as_str() {
        "record" => Ok(OnErrorResult::Always("Record")),
        "release" => Ok(OnErrorResult::Always("Release")),
        "in_doubt" => Ok(OnErrorResult::Always("InDoubt")),
        "classify" if input.peek(syn::token::Paren) => {
            function(input, name, "classify", expected, hint).map(OnErrorResult::Classify)
        }
        _ => Err(wrong(name, &format!("`{word}`"), expected, hint)),
    }
}

/// Parses `(path::to::function)`.
fn function(
    input: ParseStream<'_>,
    name: &Ident,
    word: &str,
    expected: &str,
    hint: &str,
) -> syn::Result<Box<Path>> {
    let function;
    parenthesized!(function in input);
    let found = function.to_string();
    function
        .parse()
        .ok()
        .filter(|_| function.is_empty())
        .map(Box::new)
        .ok_or_else(|| wrong(name, &format!("`{word}({found})`"), expected, hint))
}

pub(super) fn ignored(input: ParseStream<'_>, name: &Ident) -> syn::Result<Vec<Pointer>> {
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
pub(super) fn pointer(name: &Ident, literal: &LitStr) -> syn::Result<Pointer> {
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
