//! Checks that the options and the method agree with each other.

use crate::{
    args::{Args, OnDoubt},
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
        let of_leases = ["lease", "heartbeat", "verify_timeout"];
        let of_leases = of_leases.map(|name| args.duration(name).map(|(name, _)| name));
        let run_unprotected = args.run_unprotected.as_ref();
        let run_unprotected = run_unprotected.filter(|(_, yes)| yes.value);
        let run_unprotected = run_unprotected.map(|(name, _)| name);
        let on_error_result = args.on_error_result.as_ref().map(|(name, _)| name);
        let others = run_unprotected.into_iter().chain(on_error_result);
        for name in of_leases.into_iter().flatten().chain(others) {
            errors.push(diagnostics::lease_in_transaction(name));
        }
        if let Some((name, _)) = &args.on_doubt {
            errors.push(diagnostics::on_doubt_in_transaction(name));
        }
        return errors.into_result();
    }
    check_durations_of_leases(args, &mut errors);
    errors.into_result()
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
    if let Some((name, _)) = args.duration("transaction_timeout") {
        errors.push(diagnostics::timeout_without_transaction(name));
    }
    if let Some((name, _)) = args.duration("verify_timeout")
        && !matches!(args.on_doubt, Some((_, OnDoubt::Verify(_))))
    {
        errors.push(diagnostics::timeout_without_verify(name));
    }
}
