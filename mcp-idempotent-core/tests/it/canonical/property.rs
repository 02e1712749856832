//! What holds for every JSON value.

use std::sync::Arc;

use mcp_idempotent_core::CanonicalArguments;
use proptest::prelude::*;
use serde_json::{Map, Value};

use super::{
    canonical_value,
    json::{Json, few_json, json, style},
};

proptest! {
    #[test]
    fn all_spellings_of_a_value_have_one_text(value in json(), mut one in style(), mut other in style()) {
        let (one, other) = (value.spelled(&mut one), value.spelled(&mut other));
        prop_assert_eq!(canonical_value(&one), canonical_value(&other), "{} {}", one, other);
    }

    #[test]
    fn texts_are_equal_exactly_when_the_values_are(
        one in few_json(), other in few_json(), mut style in style(),
    ) {
        let texts_are_equal =
            canonical_value(&one.spelled(&mut style)) == canonical_value(&other.spelled(&mut style));
        prop_assert_eq!(texts_are_equal, one == other);
    }

    #[test]
    fn a_text_is_json_of_the_same_value_and_its_own_text(value in json(), mut style in style()) {
        let text = canonical_value(&value.spelled(&mut style));
        prop_assert_eq!(&read(&serde_json::from_str(&text).unwrap()), &value, "{}", &text);
        prop_assert_eq!(&canonical_value(&text), &text);
    }

    #[test]
    fn members_stand_in_the_order_of_their_utf16_names(
        names in prop::collection::btree_set("[a\u{e9}\u{e000}\u{ffff}\u{10000}\u{10ffff}]{0,3}", 0..8),
    ) {
        let source: Map<String, Value> = names.iter().map(|name| (name.clone(), Value::Null)).collect();
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort_by_key(|name| name.encode_utf16().collect::<Vec<_>>());
        let members: Vec<_> = names.iter().map(|name| format!("\"{name}\":null")).collect();
        let text = CanonicalArguments::new(Some(&source), &[]);
        prop_assert_eq!(text.as_str(), format!("{{{}}}", members.join(",")));
    }

    #[test]
    fn every_number_stands_for_what_the_rule_says(
        source in "-?(0|[1-9][0-9]{0,24})(\\.[0-9]{1,24})?([eE][+-]?[0-9]{1,3})?",
    ) {
        // The rule, on the text as the client sent it: the same whatever serde_json makes of it.
        let exact = source.parse().ok().filter(|integer| {
            (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(integer)
        });
        let value = match exact {
            Some(integer) => Json::Integer(integer),
            None => Json::double(source.parse().unwrap()),
        };
        let parsed = serde_json::from_str::<Value>(&source);
        if value == Json::Double(f64::INFINITY) || value == Json::Double(f64::NEG_INFINITY) {
            // Beyond doubles: all significant digits are kept.
            prop_assert_eq!(parsed.is_ok(), cfg!(feature = "__arbitrary_precision"));
            if parsed.is_ok() {
                let text = canonical_value(&source);
                let (mantissa, _) = text.split_once("e+").expect("an exponent");
                let digits = |text: &str| text.replace(['-', '.'], "").trim_matches('0').to_owned();
                let (source, _) = source.split_once(['e', 'E']).expect("an exponent");
                prop_assert_eq!(digits(mantissa), digits(source));
                prop_assert_eq!(canonical_value(&text), text);
            }
        } else {
            let text = canonical_value(&source);
            prop_assert_eq!(&read(&parsed.unwrap()), &value);
            let read_back = match value {
                Json::Integer(integer) => text == integer.to_string(),
                Json::Double(double) => text.parse() == Ok(double) && text == ecmascript(double),
                _ => false,
            };
            prop_assert!(read_back, "{}", text);
        }
    }

    #[test]
    fn what_is_left_out_does_not_count(
        value in json(), steps in prop::collection::vec(any::<prop::sample::Index>(), 1..6),
    ) {
        let mut whole = json_object(&value);
        let (pointer, found) = point(&whole, &steps);
        let text = CanonicalArguments::new(Some(&whole), &[pointer.as_str().into()]);
        if found {
            leave_out(&mut whole, &pointer);
        }
        let expected = CanonicalArguments::new(Some(&whole), &[]);
        prop_assert_eq!(text.as_str(), expected.as_str());
    }

    #[test]
    fn no_pointer_makes_it_panic(value in json(), pointers in prop::collection::vec("[/~01a\\-v\\PC]{0,6}", 0..4)) {
        let pointers: Vec<Arc<str>> = pointers.into_iter().map(Into::into).collect();
        let text = CanonicalArguments::new(Some(&json_object(&value)), &pointers);
        prop_assert!(serde_json::from_str::<Map<String, Value>>(text.as_str()).is_ok());
    }
}

fn ecmascript(double: f64) -> String {
    ryu_js::Buffer::new().format(double).to_owned()
}

/// What serde_json has read, by the rule for numbers.
fn read(value: &Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Bool(bool) => Json::Bool(*bool),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(integer), _) => Json::Integer(integer.into()),
            (_, Some(integer)) => Json::Integer(integer.into()),
            _ => Json::double(number.as_f64().unwrap()),
        },
        Value::String(string) => Json::String(string.clone()),
        Value::Array(elements) => Json::Array(elements.iter().map(read).collect()),
        Value::Object(members) => Json::Object(
            members
                .iter()
                .map(|(name, value)| (name.clone(), read(value)))
                .collect(),
        ),
    }
}

fn json_object(value: &Json) -> Map<String, Value> {
    fn built(value: &Json) -> Value {
        match value {
            Json::Null => Value::Null,
            Json::Bool(bool) => (*bool).into(),
            Json::Integer(integer) => u64::try_from(*integer)
                .map(Value::from)
                .or_else(|_| i64::try_from(*integer).map(Value::from))
                .unwrap(),
            Json::Double(double) => (*double).into(),
            Json::String(string) => string.as_str().into(),
            Json::Array(elements) => elements.iter().map(built).collect(),
            Json::Object(members) => members
                .iter()
                .map(|(name, value)| (name.clone(), built(value)))
                .collect(),
        }
    }
    Map::from_iter([("v".to_owned(), built(value))])
}

/// Walks into the value along `steps`: a pointer, and whether it points at something.
fn point(arguments: &Map<String, Value>, steps: &[prop::sample::Index]) -> (String, bool) {
    let (mut pointer, mut value) = ("/v".to_owned(), &arguments["v"]);
    for step in steps {
        let token = match value {
            Value::Array(elements) if !elements.is_empty() => {
                let index = step.index(elements.len());
                value = &elements[index];
                index.to_string()
            }
            Value::Object(members) if !members.is_empty() => {
                let (name, inner) = members.iter().nth(step.index(members.len())).unwrap();
                value = inner;
                name.replace('~', "~0").replace('/', "~1")
            }
            // Sometimes one step too far, else what was reached.
            _ if step.index(4) == 0 => return (pointer + "/0", false),
            _ => break,
        };
        pointer = pointer + "/" + &token;
    }
    (pointer, true)
}

fn leave_out(arguments: &mut Map<String, Value>, pointer: &str) {
    let (parent, token) = pointer.rsplit_once('/').unwrap();
    let token = token.replace("~1", "/").replace("~0", "~");
    let parent = match parent.strip_prefix("/v") {
        Some(rest) => arguments["v"].pointer_mut(rest).unwrap(),
        None => {
            arguments.remove(&token);
            return;
        }
    };
    match parent {
        Value::Array(elements) => elements[token.parse::<usize>().unwrap()] = Value::Null,
        Value::Object(members) => {
            members.remove(&token);
        }
        _ => panic!("{pointer} points into a scalar"),
    }
}
