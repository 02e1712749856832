//! Frozen texts: `tests/golden/rfc8785.json` holds the RFC's own examples, `canonical.json` ours.
//!
//! **A change of an expected text is a visible decision.** Stored fingerprints are hashes of these
//! texts. Under a changed text every retry of a call whose record was made before is refused as a
//! conflict, and a call with a derived key runs a second time. A change therefore needs a new
//! `CanonicalArguments::VERSION`.

use mcp_idempotent_core::CanonicalArguments;
use serde_json::{Map, Value};

use super::{canonical, canonical_value, canonical_without};
use crate::golden::{text, vectors};

const RFC: &str = include_str!("../../golden/rfc8785.json");
const OURS: &str = include_str!("../../golden/canonical.json");

#[test]
fn the_documents_of_rfc_8785_have_its_texts() {
    for vector in vectors(RFC, "documents") {
        let section = text(&vector, "section");
        assert_eq!(
            canonical(text(&vector, "source")),
            text(&vector, "canonical"),
            "{section}"
        );
    }
}

#[test]
fn the_numbers_of_rfc_8785_have_its_texts() {
    for vector in vectors(RFC, "numbers") {
        let (bits, expected) = (text(&vector, "bits"), text(&vector, "text"));
        let double = f64::from_bits(u64::from_str_radix(bits, 16).unwrap());
        let arguments = Map::from_iter([("v".to_owned(), Value::from(double))]);
        let canonical = CanonicalArguments::new(Some(&arguments), &[]);
        assert_eq!(
            canonical.as_str(),
            format!("{{\"v\":{expected}}}"),
            "{bits}"
        );
    }
}

#[test]
fn documents_keep_their_texts() {
    for vector in vectors(OURS, "documents") {
        let left_out = vector["left_out"].as_array().unwrap();
        let left_out: Vec<_> = left_out
            .iter()
            .map(|pointer| pointer.as_str().unwrap())
            .collect();
        assert_eq!(
            canonical_without(text(&vector, "source"), &left_out),
            text(&vector, "canonical"),
            "{}",
            text(&vector, "what"),
        );
    }
}

#[test]
fn numbers_keep_their_texts() {
    for vector in vectors(OURS, "numbers") {
        let source = text(&vector, "source");
        assert_eq!(canonical_value(source), text(&vector, "text"), "{source}");
    }
}

#[test]
fn numbers_beyond_doubles_keep_their_texts_where_they_can_be_parsed() {
    for vector in vectors(OURS, "beyond_doubles") {
        let source = text(&vector, "source");
        if cfg!(feature = "__arbitrary_precision") {
            assert_eq!(canonical_value(source), text(&vector, "text"), "{source}");
        } else {
            assert!(serde_json::from_str::<Value>(source).is_err(), "{source}");
        }
    }
}
