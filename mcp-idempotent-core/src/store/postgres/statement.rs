//! Our statements. Their texts are in `sql/`, one file each, with the parameters in the first
//! lines. Pieces that several of them share are in `sql/part/`.
//!
//! Every call waits while the server runs them, so each is as cheap as possible. Measured in the
//! server's instructions, these cost: each EXECUTE, each parameter, and each column of a result or
//! a target list. A condition costs less than a column.

use std::{fmt::Write as _, sync::Arc, time::Duration};

use sha2::{Digest, Sha256};

use super::{
    literal::{Argument, hex},
    pieces::{ARRIVAL, PARTS, SHORT},
};

macro_rules! text {
    (Control $text:literal) => {
        $text
    };
    ($kind:ident $file:literal) => {
        include_str!(concat!("sql/", $file, ".sql"))
    };
}

macro_rules! steps {
    ($($kind:ident { $($step:ident = $name:literal,)* })*) => {
        /// A step of a batch: one statement.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Step {
            $($($step,)*)*
        }

        /// In the order of [`Step`].
        const SOURCES: &[(Kind, &str, &str)] = &[
            $($((Kind::$kind, $name, text!($kind $name)),)*)*
        ];
    };
}

/// How a step is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// By its prepared name, if names are used.
    Prepared,
    /// In full. It is rare, or not part of a call.
    InFull,
    /// In full. Its text is its name.
    Control,
}

steps! {
    Prepared {
        LockKey = "lock_key",
        LockKeyUnlessSerializable = "lock_key_unless_serializable",
        OpenUnclaimed = "open_unclaimed",
        Seen = "seen",
        Find = "find",
        LookUp = "look_up",
        Expire = "expire",
        Check = "check",
        Finish = "finish",
        FinishKept = "finish_kept",
        Doubt = "doubt",
        Settle = "settle",
        ExpireUnkept = "expire_unkept",
        ClaimLease = "claim_lease",
        TakeOver = "take_over",
        Renew = "renew",
        Complete = "complete",
        CompleteHere = "complete_here",
        Release = "release",
        Keep = "keep",
        Abandon = "abandon",
    }
    InFull {
        DoubtBound = "doubt_bound",
        CompleteBoth = "complete_both",
        CompleteElsewhere = "complete_elsewhere",
        CompleteNowhere = "complete_nowhere",
        CompletedElsewhere = "completed_elsewhere",
        TryRow = "try_row",
        Durably = "durably",
        EndedAs = "ended_as",
        CompletedAs = "completed_as",
        Ending = "ending",
        Completion = "completion",
        TryLock = "try_lock",
        Primary = "primary",
        TransactionStatus = "transaction_status",
        Holder = "holder",
        Rival = "rival",
        LostClaim = "lost_claim",
        GiveBack = "give_back",
        Unsettled = "unsettled",
        SweepEnded = "sweep_ended",
        SweepResults = "sweep_results",
        Blocks = "blocks",
        List = "list",
        ResolveCommitted = "resolve_committed",
        ResolveFree = "resolve_free",
        Existing = "existing",
        Version = "version",
        Columns = "columns",
        Trial = "trial",
    }
    Control {
        Begin = "BEGIN{isolation}",
        BeginReadCommitted = "BEGIN ISOLATION LEVEL READ COMMITTED",
        BeginReadOnly = "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY",
        LockTimeout = "SET LOCAL lock_timeout = {lock_timeout}",
        // If a crash of the server loses a completion, a finished call is in doubt. That is safe,
        // so the completion does not wait for the disk.
        AtLeisure = "SET LOCAL synchronous_commit = off",
        Savepoint = "SAVEPOINT {savepoint}",
        ReleaseSavepoint = "RELEASE {savepoint}",
        RollBackToSavepoint = "ROLLBACK TO {savepoint}",
        Commit = "COMMIT",
        CommitAndChain = "COMMIT AND CHAIN",
        RollBack = "ROLLBACK",
        RollBackAndChain = "ROLLBACK AND CHAIN",
        ResetRole = "RESET ROLE",
        Moment = "SELECT (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) {*} '1e6')::bigint",
        Ask = "SELECT 1",
        Backend = "SELECT pg_catalog.pg_backend_pid()",
        // Locks with two numbers have a space of their own, which only the locks of calls share.
        MigrationLock = "SELECT pg_catalog.pg_advisory_xact_lock(1835233385, 1)",
        Prepare = "PREPARE",
        Script = "script",
    }
}

/// The values that are written into the texts when a store is built.
#[derive(Debug)]
pub(super) struct Values<'a> {
    /// In quotes.
    pub(super) schema: &'a str,
    pub(super) isolation: &'a str,
    pub(super) savepoint: &'a str,
    pub(super) idle_timeout: Duration,
    pub(super) lock_timeout: Duration,
    /// The clock of a completion that shares its transaction with an author's writes.
    pub(super) completion_clock: &'a str,
}

/// A statement with numbered parameters.
#[derive(Debug)]
struct Statement {
    kind: Kind,
    name: &'static str,
    /// Their types.
    parameters: Vec<&'static str>,
    text: Arc<str>,
}

/// All statements of one store.
#[derive(Debug)]
pub(super) struct Statements {
    /// In the order of [`Step`].
    all: Vec<Statement>,
    /// The start of every prepared name, with a hash of schema, types and texts: two stores on one
    /// connection, or two versions behind one pooler, never run each other's statements.
    prefix: String,
    /// Placeholders and their values.
    fills: Vec<(&'static str, String)>,
}

impl Statements {
    pub(super) fn new(values: &Values<'_>) -> Self {
        let millis = |timeout: Duration| i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        let schema = values.schema;
        let parts = PARTS
            .iter()
            .map(|&(name, part, now)| (name, bare(part).replace("{now}", now)));
        let short = SHORT.iter().map(|&(name, text)| (name, text.to_owned()));
        let own = [("{completion_clock}", values.completion_clock.to_owned())];
        let rest = [
            ("{arrival}", ARRIVAL.to_owned()),
            ("{records}", format!("{schema}.records")),
            ("{tokens}", format!("{schema}.tokens")),
            ("{schema}", schema.to_owned()),
            ("{isolation}", values.isolation.to_owned()),
            ("{savepoint}", values.savepoint.to_owned()),
            ("{idle_timeout}", millis(values.idle_timeout).to_string()),
            // Zero would mean no limit.
            (
                "{lock_timeout}",
                millis(values.lock_timeout).max(1).to_string(),
            ),
        ];
        let mut statements = Self {
            all: Vec::new(),
            prefix: String::new(),
            fills: (own.into_iter().chain(parts).chain(rest))
                .chain(short)
                .collect(),
        };
        for &(kind, name, source) in SOURCES {
            let text = statements.fill(&bare(source));
            statements.all.push(Statement {
                kind,
                name,
                parameters: parameters(source).collect(),
                text: text.into(),
            });
        }
        let mut hash = Sha256::new();
        for text in statements.preparations() {
            hash.update(text);
        }
        statements.prefix = format!("mcp_idempotent_{}", hex(&hash.finalize()[..8]));
        statements
    }

    /// Fills this store's values and pieces into a text.
    pub(super) fn fill(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (placeholder, value) in &self.fills {
            if text.contains(placeholder) {
                text = text.replace(placeholder, value);
            }
        }
        text
    }

    #[cfg(test)]
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.all.iter().map(|statement| &*statement.text)
    }

    fn of(&self, step: Step) -> &Statement {
        &self.all[step as usize]
    }

    /// The text of a statement, with its parameters as numbers.
    pub(super) fn text(&self, step: Step) -> Arc<str> {
        Arc::clone(&self.of(step).text)
    }

    /// Whether a step is called by its name, if names are used.
    pub(super) fn has_name(&self, step: Step) -> bool {
        self.of(step).kind == Kind::Prepared
    }

    /// The statements that prepare them in a session. Those that open a transaction come last, so
    /// that a session which knows them knows all that may follow.
    pub(super) fn preparations(&self) -> impl Iterator<Item = String> {
        let named = |statement: &&Statement| statement.kind == Kind::Prepared;
        self.all.iter().rev().filter(named).map(|statement| {
            let types = match statement.parameters.join(",") {
                none if none.is_empty() => none,
                types => format!("({types})"),
            };
            let (prefix, Statement { name, text, .. }) = (&self.prefix, statement);
            format!("PREPARE {prefix}_{name}{types} AS {text}")
        })
    }

    /// Writes the call of one statement, by its prepared name or in full.
    pub(super) fn push(
        &self,
        sql: &mut String,
        by_name: bool,
        step: Step,
        arguments: &[Argument<'_>],
    ) {
        let statement = self.of(step);
        debug_assert_eq!(statement.parameters.len(), arguments.len(), "{step:?}");
        if by_name {
            for part in ["EXECUTE ", &self.prefix, "_", statement.name] {
                sql.push_str(part);
            }
            let pairs = arguments.iter().zip(&statement.parameters);
            for (index, (argument, &parameter)) in pairs.enumerate() {
                sql.push(if index == 0 { '(' } else { ',' });
                argument.push_for(parameter, sql);
            }
            sql.push_str(if arguments.is_empty() { ";" } else { ");" });
            return;
        }
        if arguments.is_empty() {
            sql.push_str(&statement.text);
        } else {
            let mut text = statement.text.to_string();
            let pairs = arguments.iter().zip(&statement.parameters);
            for (index, (argument, parameter)) in pairs.enumerate().rev() {
                // The inner parentheses are for negative numbers: a sign binds less than a cast.
                let mut value = String::from("((");
                argument.push_to(&mut value);
                let _ = write!(value, ")::{parameter})");
                text = text.replace(&format!("${}", index + 1), &value);
            }
            sql.push_str(&text);
        }
        sql.push(';');
    }
}

/// The types of a file's parameters, from lines like `-- $1 bytea  record id`.
fn parameters(source: &'static str) -> impl Iterator<Item = &'static str> {
    source
        .lines()
        .filter_map(|line| line.strip_prefix("-- $")?.split_whitespace().nth(1))
}

/// A file's text on one line, without its comments.
fn bare(source: &str) -> String {
    source
        .lines()
        .filter(|line| !line.starts_with("--"))
        .map(str::trim)
        .collect::<Vec<_>>()
        .join(" ")
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_filled_and_uses_the_parameters_that_it_names() {
        let statements = Statements::new(&Values {
            schema: "\"s\"",
            isolation: "",
            savepoint: "p",
            idle_timeout: Duration::ZERO,
            lock_timeout: Duration::ZERO,
            completion_clock: "{clock}",
        });
        for Statement {
            kind,
            name,
            parameters,
            text,
        } in &statements.all
        {
            assert!(!text.contains("--"), "{name}: a comment in {text}");
            assert!(
                *name == "list" || !text.contains('{'),
                "{name}: a placeholder in {text}"
            );
            let count = (1..100)
                .take_while(|number| text.contains(&format!("${number}")))
                .count();
            // Statements that sqlx binds do not declare types here.
            if *kind == Kind::Prepared || !parameters.is_empty() {
                assert_eq!(parameters.len(), count, "{name}");
            }
        }
    }
}
