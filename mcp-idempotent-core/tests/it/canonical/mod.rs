//! Canonical arguments: what is equal, what is not.
//!
//! These tests are also run with `__arbitrary_precision` and `__preserve_order`, each alone and
//! both together: the texts have to be the same.

mod golden;
mod json;
mod property;

use std::{mem, sync::Arc, thread};

use mcp_idempotent_core::CanonicalArguments;
use serde_json::{Map, Value, json};

/// The canonical text of arguments in JSON, without what the pointers point at.
pub(crate) fn canonical_without(source: &str, left_out: &[&str]) -> String {
    let arguments: Map<String, Value> = serde_json::from_str(source).expect(source);
    let left_out: Vec<Arc<str>> = left_out.iter().map(|pointer| (*pointer).into()).collect();
    let canonical = CanonicalArguments::new(Some(&arguments), &left_out);
    canonical.as_str().to_owned()
}

fn canonical(source: &str) -> String {
    canonical_without(source, &[])
}

/// The canonical text of one value.
fn canonical_value(source: &str) -> String {
    let text = canonical(&format!(r#"{{"v":{source}}}"#));
    text[r#"{"v":"#.len()..text.len() - 1].to_owned()
}

#[test]
fn spellings_of_one_value_are_equal() {
    for spellings in [
        &["1", "1.0", "1e0", "1E+0", "10e-1", "0.1e1", "1.000"] as &[_],
        &[
            "0",
            "-0",
            "0.0",
            "-0.0",
            "0e5",
            "-0E-5",
            "0e400",
            "0e99999999999",
        ],
        &["0", "1e-400", "-1e-400", "1e-99999999999"],
        &[
            "0.1",
            "1e-1",
            "0.10",
            "0.1000000000000000055511151231257827",
        ],
        &[
            "9007199254740992",
            "9007199254740992.0",
            "9007199254740993.0",
            "9.007199254740992e15",
        ],
        &["100000000000000000", "1e17", "1E17", "100000000000000000.0"],
        &["-100000000000000000", "-1e17"],
        &[
            "9223372036854775808",
            "9223372036854775808.0",
            "9.223372036854775808e18",
        ],
        &[
            "-9223372036854775808",
            "-9223372036854775808.0",
            "-9.223372036854775809e18",
        ],
        &[
            "18446744073709551616",
            "18446744073709551617",
            "1.8446744073709551616e19",
        ],
        &["100000000000000000000", "1e20", "100000000000000000001"],
        &[r#""/""#, r#""\/""#, r#""\u002f""#, r#""\u002F""#],
        &[
            r#""\b\t\n\f\r\"\\""#,
            r#""\u0008\u0009\u000a\u000c\u000d\u0022\u005c""#,
        ],
        &[r#""😀""#, r#""\ud83d\ude00""#, r#""\uD83D\uDE00""#],
        &["\"\u{7f}\"", r#""\u007f""#],
        &["[1,2]", "[ 1 ,\t2\r\n]"],
        &[
            r#"{"a":1,"b":2}"#,
            r#"{ "b" : 2, "a" : 1 }"#,
            r#"{"b":0,"a":1,"b":2}"#,
        ],
    ] {
        for spelling in spellings {
            assert_eq!(
                canonical_value(spelling),
                canonical_value(spellings[0]),
                "{spelling}"
            );
        }
    }
}

#[test]
fn different_values_are_different() {
    let values = [
        "null",
        "false",
        "true",
        "0",
        "1",
        "-1",
        r#""""#,
        r#""0""#,
        r#""null""#,
        "[]",
        "{}",
        "[null]",
        "[[]]",
        "[1,2]",
        "[2,1]",
        "[1]",
        r#"{"a":null}"#,
        r#"{"a":1}"#,
        r#"{"A":1}"#,
        r#"{"a":[1]}"#,
        r#"{"a":1,"b":null}"#,
        r#"{"b":1}"#,
        // NFC and NFD.
        "\"\u{e9}\"",
        "\"e\u{301}\"",
        "{\"\u{e9}\":0}",
        "{\"e\u{301}\":0}",
        r#""\u0000""#,
        r#"" ""#,
        r#""\\u0000""#,
        r#""a\",\"b""#,
        r#"["a","b"]"#,
        r#"["a,b"]"#,
        // Neighbours of which a double can hold one.
        "9007199254740992",
        "9007199254740993",
        "9007199254740994",
        "9007199254740995",
        "-9007199254740992",
        "-9007199254740993",
        // 2^63, its neighbours, and the digits that ECMAScript prints for the double 2^63.
        "9223372036854775807",
        "9223372036854775808",
        "9223372036854775809",
        "9223372036854776000",
        "-9223372036854775807",
        "-9223372036854775808",
        // 2^64 - 1, 2^64, and the next doubles on either side.
        "18446744073709551614",
        "18446744073709551615",
        "18446744073709551616",
        "18446744073709549568",
        "18446744073709555712",
        "99999999999999980000",
        "1e20",
        "1e21",
        "1e-7",
        "0.1",
        "0.10000000000000002",
        "5e-324",
        "1e-323",
        "1.7976931348623157e308",
        "1.7976931348623155e308",
    ];
    for (index, value) in values.iter().enumerate() {
        for other in &values[..index] {
            assert_ne!(
                canonical_value(value),
                canonical_value(other),
                "{value} and {other}"
            );
        }
    }
}

#[test]
fn absent_arguments_are_an_empty_object() {
    let empty = CanonicalArguments::new(Some(&Map::new()), &[]);
    assert_eq!(CanonicalArguments::new(None, &[]), empty);
    assert_eq!(CanonicalArguments::new(None, &["/a".into()]), empty);
    assert_eq!(empty.as_str(), "{}");
}

#[test]
fn a_left_out_member_is_as_if_it_had_not_been_sent() {
    for (source, left_out, expected) in [
        (r#"{"a":1,"k":"x"}"#, &["/k"] as &[_], r#"{"a":1}"#),
        (r#"{"k":"x"}"#, &["/k"], "{}"),
        (r#"{"a":1}"#, &["/k"], r#"{"a":1}"#),
        (r#"{"a":{"k":1,"l":2}}"#, &["/a/k"], r#"{"a":{"l":2}}"#),
        (r#"{"a":{"k":1}}"#, &["/a/k"], r#"{"a":{}}"#),
        (r#"{"a":{"k":1},"b":2}"#, &["/a/k", "/a"], r#"{"b":2}"#),
        (r#"{"a":1,"b":2,"c":3}"#, &["/a", "/c"], r#"{"b":2}"#),
        (r#"{"k":1,"a":{"k":1}}"#, &["/k"], r#"{"a":{"k":1}}"#),
        (r#"{"":1,"a":2}"#, &["/"], r#"{"a":2}"#),
        (
            r#"{"x/y":1,"x~y":2,"x~1y":3}"#,
            &["/x~1y"],
            r#"{"x~1y":3,"x~y":2}"#,
        ),
        (
            r#"{"x/y":1,"x~y":2,"x~1y":3}"#,
            &["/x~0y", "/x~01y"],
            r#"{"x/y":1}"#,
        ),
        (r#"{"a":1}"#, &["", "/b"], "{}"),
        (
            r#"{"a":1,"/a":2}"#,
            &["a", "/a/0", "/b/c", "~", "/~", "/~2"],
            r#"{"/a":2,"a":1}"#,
        ),
    ] {
        assert_eq!(
            canonical_without(source, left_out),
            expected,
            "{source} {left_out:?}"
        );
    }
}

#[test]
fn a_left_out_element_keeps_its_place_as_null() {
    for (source, left_out, expected) in [
        (r#"{"a":[1,2,3]}"#, &["/a/1"] as &[_], r#"{"a":[1,null,3]}"#),
        (r#"{"a":[[1]]}"#, &["/a/0"], r#"{"a":[null]}"#),
        (r#"{"a":[]}"#, &["/a/0"], r#"{"a":[]}"#),
        (
            r#"{"a":[1]}"#,
            &["/a/1", "/a/-", "/a/00", "/a/+0", "/a/x"],
            r#"{"a":[1]}"#,
        ),
        (
            r#"{"a":[{"k":1},{"k":2}]}"#,
            &["/a/1/k"],
            r#"{"a":[{"k":1},{}]}"#,
        ),
        (r#"{"a":{"0":1}}"#, &["/a/0"], r#"{"a":{}}"#),
    ] {
        assert_eq!(
            canonical_without(source, left_out),
            expected,
            "{source} {left_out:?}"
        );
    }
}

#[test]
fn debug_does_not_show_the_arguments() {
    let arguments = json!({"password": "hunter2"});
    let canonical = CanonicalArguments::new(arguments.as_object(), &[]);
    assert_eq!(format!("{canonical:?}"), "CanonicalArguments(22 bytes)");
}

#[test]
fn values_deeper_than_any_stack_are_taken() {
    const DEPTH: usize = 100_000;
    let small_stack = thread::Builder::new().stack_size(256 * 1024);
    let test = move || {
        let mut value = Value::Null;
        for _ in 0..DEPTH {
            let object = Map::from_iter([("a".to_owned(), value)]);
            value = Value::Array(vec![Value::Object(object)]);
        }
        let mut arguments = Map::from_iter([("v".to_owned(), value)]);

        let deep = "[{\"a\":".repeat(DEPTH) + "null" + &"}]".repeat(DEPTH);
        let canonical = CanonicalArguments::new(Some(&arguments), &[]);
        assert!(canonical.as_str() == format!("{{\"v\":{deep}}}"));

        let innermost = format!("/v{}", "/0/a".repeat(DEPTH));
        let canonical = CanonicalArguments::new(Some(&arguments), &[innermost.into()]);
        assert!(canonical.as_str() == format!("{{\"v\":{}}}", deep.replace("\"a\":null", "")));

        // A value drops what it holds by recursion, so it is taken apart from the outside in.
        let mut value = mem::take(&mut arguments["v"]);
        while let Some(inner) = value.pointer_mut("/0/a").map(mem::take) {
            value = inner;
        }
    };
    small_stack.spawn(test).unwrap().join().unwrap();
}
