//! Checks that the options and the method agree with each other.

use proc_macro2::Ident;

use crate::{
    args::{AppliesIn, Args, OnDoubt},
    diagnostics::{self, Errors},
    target::Target,
};

/// Checks everything, and reports all that is wrong.
pub(crate) fn check(args: &Args, target: &Target) -> syn::Result<()> {
    let mut errors = Errors::default();
    if let (Some(option), Some(_)) = (&args.transaction, target.connection()) {
        errors.push(diagnostics::transaction_twice(option));
    }
    if let Some(hint) = &target.tool.read_only {
        errors.push(diagnostics::read_only(hint));
    }
    let transaction = is_transaction(args, target);
    match &args.on_error {
        None if !transaction => errors.push(diagnostics::no_on_error(&target.name)),
        Some(on_error) => {
            let is_wrong = match on_error.variant {
                "Record" | "Commit" => !transaction,
                "InDoubt" => transaction,
                _ => false,
            };
            if is_wrong {
                let word = on_error.word.to_string();
                errors.push(diagnostics::on_error_of_other_mode(
                    &on_error.word,
                    &word,
                    transaction,
                ));
            }
        }
        None => {}
    }
    check_retention_of_doubt(args, &mut errors);
    if transaction {
        if let Some(attempt) = target.attempt() {
            errors.push(diagnostics::attempt_in_transaction(attempt));
        }
        for (option, _) in of_mode(args, AppliesIn::Lease) {
            if option == "on_doubt" {
                errors.push(diagnostics::on_doubt_in_transaction(option));
            } else if option != "run_unprotected_when_store_is_unavailable"
                || args
                    .run_unprotected
                    .as_ref()
                    .is_some_and(|(_, yes)| yes.value)
            {
                errors.push(diagnostics::lease_in_transaction(option));
            }
        }
        return errors.into_result();
    }
    check_durations_of_leases(args, &mut errors);
    errors.into_result()
}

/// The options that are given and have an effect in this mode alone.
fn of_mode(args: &Args, mode: AppliesIn) -> impl Iterator<Item = &(Ident, AppliesIn)> {
    args.given
        .iter()
        .filter(move |(_, applies)| *applies == mode)
}

/// Whether the tool is in transaction mode.
pub(crate) fn is_transaction(args: &Args, target: &Target) -> bool {
    args.transaction.is_some() || target.connection().is_some()
}

/// Checks that records in doubt are kept for at least as long as results.
fn check_retention_of_doubt(args: &Args, errors: &mut Errors) {
    if let Some((name, in_doubt)) = args.duration("in_doubt_retention") {
        for longer in ["retention", "window"] {
            if args
                .duration(longer)
                .is_some_and(|(_, kept)| kept > in_doubt)
            {
                errors.push(diagnostics::in_doubt_too_short(name, longer));
            }
        }
    }
}

/// Checks that the durations of lease mode agree with each other and with the other options.
fn check_durations_of_leases(args: &Args, errors: &mut Errors) {
    if let (Some((name, heartbeat)), Some((_, lease))) =
        (args.duration("heartbeat"), args.duration("lease"))
        && *heartbeat > *lease / 2
    {
        errors.push(diagnostics::heartbeat_too_long(name));
    }
    for (option, _) in of_mode(args, AppliesIn::Transaction) {
        errors.push(diagnostics::timeout_without_transaction(option));
    }
    if let Some((name, _)) = args.duration("verify_timeout")
        && !matches!(args.on_doubt, Some((_, OnDoubt::Verify(_))))
    {
        errors.push(diagnostics::timeout_without_verify(name));
    }
}
