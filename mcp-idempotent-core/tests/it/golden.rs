//! Frozen vectors: files of lists of objects.

use serde_json::Value;

/// The vectors of one list. An empty list would prove nothing.
pub(crate) fn vectors(file: &str, list: &str) -> Vec<Value> {
    let file: Value = serde_json::from_str(file).unwrap();
    let vectors = file[list].as_array().expect(list).clone();
    assert!(!vectors.is_empty(), "{list}");
    vectors
}

pub(crate) fn text<'a>(vector: &'a Value, name: &str) -> &'a str {
    vector[name].as_str().expect(name)
}
