//! A test that our SQL leaves nothing to the session's search path.

use std::{iter::Peekable, str::Chars, time::Duration};

use super::{
    operator,
    schema::MIGRATIONS,
    statement::{Statements, Values},
};

const OPERATOR_CHARACTERS: &str = "+-*/<>=~!@#%^&|`?";

/// Words that Postgres reads by its grammar, before a parenthesis.
const KEYWORDS: &str = "AND ANY ARRAY AS BY COALESCE CONFLICT ELSE EXISTS FILTER FROM KEY NOT OPERATOR \
    OR RETURNING SELECT SET THEN VALUES WHEN WHERE";

/// Words that hide an operator, which Postgres then looks up by its bare name.
const HIDING: &str = "BETWEEN DISTINCT ILIKE IN LIKE NATURAL NULLIF OVERLAPS SIMILAR USING";

/// Names of types that the grammar does not know.
const TYPES: &str = "BOOL BYTEA FLOAT4 FLOAT8 INT2 INT4 INT8 JSON JSONB REGCLASS TEXT TID \
    TIMESTAMPTZ UUID";

fn is_among(words: &str, word: &str) -> bool {
    words.split(' ').any(|one| one == word)
}

/// Cuts SQL into words, numbers, operators and single characters. A literal or quoted name is `'`.
fn tokens(sql: &str) -> Vec<String> {
    fn while_(characters: &mut Peekable<Chars<'_>>, is: impl Fn(char) -> bool) -> String {
        std::iter::from_fn(|| characters.next_if(|&character| is(character))).collect()
    }
    let mut found = Vec::new();
    let mut characters = sql.chars().peekable();
    while let Some(&character) = characters.peek() {
        found.push(match character {
            '\'' | '"' => {
                characters.next();
                while_(&mut characters, |inside| inside != character);
                characters.next();
                "'".to_owned()
            }
            _ if OPERATOR_CHARACTERS.contains(character) => {
                while_(&mut characters, |next| OPERATOR_CHARACTERS.contains(next))
            }
            _ if character.is_alphanumeric() || "_$".contains(character) => {
                let word = while_(&mut characters, |next| {
                    next.is_alphanumeric() || "_$".contains(next)
                });
                word.to_uppercase()
            }
            ':' => while_(&mut characters, |next| next == ':'),
            _ => {
                characters.next();
                if character.is_whitespace() {
                    continue;
                }
                character.to_string()
            }
        });
    }
    found
}

/// What is left to the search path.
fn unqualified(sql: &str) -> Vec<String> {
    let tokens = tokens(sql);
    let at = |place: usize| tokens.get(place).map_or("", String::as_str);
    let mut found = Vec::new();
    // Whether an `=` assigns: in the list of an UPDATE's SET, outside parentheses.
    let (mut depth, mut assigns_at) = (0_u32, None);
    for place in 0..tokens.len() {
        let before = |count: usize| place.checked_sub(count).map_or("", at);
        let (token, next) = (at(place), at(place + 1));
        let is_qualified = before(1) == "." && (before(2) == "PG_CATALOG" || before(2) == "'");
        let is_fine = match token {
            "(" => {
                depth += 1;
                true
            }
            ")" => {
                depth = depth.saturating_sub(1);
                true
            }
            "SET" => {
                assigns_at = Some(if next == "(" { depth + 1 } else { depth });
                true
            }
            "FROM" | "WHERE" | "RETURNING" | ";" if assigns_at == Some(depth) => {
                assigns_at = None;
                true
            }
            "=" if assigns_at == Some(depth) => {
                matches!(before(2), "SET" | "," | "(" | "LOCAL")
            }
            "*" if before(1) == "(" && next == ")" => before(2) == "COUNT",
            // The sign of a literal.
            "-" if before(1) == "(" || before(1) == "," => {
                next.parse::<u64>().is_ok() && at(place + 2) != "::"
            }
            "CASE" => next == "WHEN",
            _ if is_among(HIDING, token) => false,
            _ if is_among(TYPES, token) => is_qualified,
            _ if OPERATOR_CHARACTERS.contains(&token[..1]) => {
                is_qualified && before(3) == "(" && before(4) == "OPERATOR"
            }
            _ if next == "(" && token.starts_with(char::is_alphabetic) => {
                // After an alias come the columns of a table.
                is_qualified || is_among(KEYWORDS, token) || matches!(before(1), "AS" | "PREPARE")
            }
            _ if matches!(before(1), "FROM" | "JOIN" | "INTO") => {
                matches!(token, "(" | "'" | "PG_CATALOG" | "ASKED" | "DONE" | "HELD")
            }
            _ => true,
        };
        if !is_fine {
            let context = tokens[place.saturating_sub(5)..(place + 4).min(tokens.len())].join(" ");
            found.push(format!("{token}: {context}"));
        }
    }
    found
}

#[test]
fn our_sql_leaves_nothing_to_the_search_path() {
    let statements = Statements::new(&Values {
        schema: "\"s\"",
        isolation: "",
        savepoint: "p",
        idle_timeout: Duration::ZERO,
        lock_timeout: Duration::ZERO,
        completion_clock: "{durable_clock}",
    });
    let fill = |text: &str| statements.fill(text);
    let texts = statements
        .texts()
        .map(str::to_owned)
        .chain(statements.preparations())
        .chain(
            MIGRATIONS
                .iter()
                .map(|(_, sql)| fill(&without_comments(sql))),
        )
        .chain(operator::texts().map(fill));
    let mut count = 0;
    for text in texts {
        count += 1;
        assert_eq!(unqualified(&text), Vec::<String>::new(), "{text}");
    }
    assert!(count > 60, "{count} texts");
}

fn without_comments(sql: &str) -> String {
    let lines = sql
        .lines()
        .filter(|line| !line.trim_start().starts_with("--"));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn what_is_left_to_the_search_path_is_found() {
    for sql in [
        "SELECT a = b",
        "UPDATE \"s\".t SET a = b + 1",
        "UPDATE \"s\".t SET a = (b = 1)",
        "UPDATE \"s\".t SET a = 1 WHERE b = 1",
        "SELECT a IN (1, 2)",
        "SELECT a BETWEEN 1 AND 2",
        "SELECT CASE a WHEN 1 THEN 2 END",
        "SELECT a = ANY (ARRAY(SELECT 1))",
        "SELECT -1::bigint",
        "SELECT (-1::bigint)",
        "SELECT - a",
        "SELECT now()",
        "SELECT count(*)",
        "SELECT a::float8",
        "SELECT a IS DISTINCT FROM b",
        "SELECT a FROM pg_locks",
        "SELECT a FROM pg_catalog.pg_locks l JOIN pg_database d ON true",
        "SELECT a OPERATOR(public.=) b",
        "CREATE TABLE \"s\".t (a bytea)",
        "PREPARE p(text) AS SELECT 1",
    ] {
        assert!(!unqualified(sql).is_empty(), "{sql}");
    }
}
