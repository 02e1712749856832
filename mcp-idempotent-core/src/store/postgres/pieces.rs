//! Pieces of our statements that several of them share, and abbreviations in their texts.

macro_rules! part {
    ($file:literal) => {
        include_str!(concat!("sql/part/", $file, ".sql"))
    };
}

/// Pieces of statements. `{now}` is the time with which a piece compares. A piece may contain pieces
/// that come later in this list.
pub(super) const PARTS: &[(&str, &str, &str)] = &[
    ("{set_up}", part!("set_up"), ""),
    ("{try_locks}", part!("try_locks"), ""),
    ("{status}", part!("status"), ""),
    ("{record}", part!("record"), ""),
    ("{is_being_changed}", part!("is_being_changed"), ""),
    ("{held}", part!("held"), ""),
    ("{resolvable}", part!("resolvable"), ""),
    ("{resolved}", part!("resolved"), ""),
    ("{clock}", part!("clock"), ""),
    ("{durable_clock}", part!("durable_clock"), ""),
    ("{durable}", part!("durable"), ""),
    ("{drawn}", part!("drawn"), ""),
    ("{token}", part!("token"), ""),
    ("{is_past_on_arrival}", part!("is_past"), ARRIVAL),
    ("{is_past_by_now}", part!("is_past"), NOW),
    ("{is_in_doubt_by_now}", part!("is_in_doubt"), NOW),
    ("{is_in_doubt_by_clock}", part!("is_in_doubt"), "clock.now"),
    ("{in_doubt_until}", part!("in_doubt_until"), ""),
];

/// Abbreviations in the texts. Nothing in them may be looked up by the session's search path, where
/// anybody's operator with the right types would win. That includes what Postgres looks up by itself:
/// the `=` in `IN` and in `CASE x WHEN`, for instance. All such operators have the same precedence, so
/// the texts use parentheses. Their operands have exactly the operator's types, so that no cast is looked for either.
pub(super) const SHORT: &[(&str, &str)] = &[
    (
        "{microseconds}",
        "::double precision {*} interval '1 microsecond'",
    ),
    ("{tool}", "pg_catalog.split_part(labels, E'\\n', 1)"),
    ("{application}", "pg_catalog.split_part(labels, E'\\n', 2)"),
    ("{scope}", "pg_catalog.split_part(labels, E'\\n', 3)"),
    ("{key_prefix}", "pg_catalog.split_part(labels, E'\\n', 4)"),
    ("{created_at}", "coalesce(created_at, completed_at)"),
    ("{=}", "OPERATOR(pg_catalog.=)"),
    ("{<>}", "OPERATOR(pg_catalog.<>)"),
    ("{<}", "OPERATOR(pg_catalog.<)"),
    ("{<=}", "OPERATOR(pg_catalog.<=)"),
    ("{>}", "OPERATOR(pg_catalog.>)"),
    ("{+}", "OPERATOR(pg_catalog.+)"),
    ("{-}", "OPERATOR(pg_catalog.-)"),
    ("{*}", "OPERATOR(pg_catalog.*)"),
    ("{/}", "OPERATOR(pg_catalog./)"),
    ("{|}", "OPERATOR(pg_catalog.|)"),
    ("{&}", "OPERATOR(pg_catalog.&)"),
    ("{<<}", "OPERATOR(pg_catalog.<<)"),
];

/// When the message reached the server. It is one reading for the whole statement, even at the end of a
/// long transaction.
pub(super) const ARRIVAL: &str = "pg_catalog.statement_timestamp()";
const NOW: &str = "pg_catalog.clock_timestamp()";
