//! A tool's schemas: adds the key argument to the input schema, and hashes the output schema.

use std::sync::Arc;

use mcp_idempotent_core::{CanonicalArguments, PolicyOverride};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::call::Object;

/// A hash of a tool's output schema, as it is stored with a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SchemaHash([u8; Self::LENGTH]);

impl SchemaHash {
    pub(in crate::call) const LENGTH: usize = 8;

    pub(crate) fn of(schema: &Object) -> Self {
        let canonical = CanonicalArguments::new(Some(schema), &[]);
        let digest = Sha256::digest(canonical.as_str());
        Self(std::array::from_fn(|at| digest[at]))
    }

    pub(in crate::call) const fn as_bytes(&self) -> &[u8; Self::LENGTH] {
        &self.0
    }

    pub(in crate::call) const fn from_bytes(bytes: [u8; Self::LENGTH]) -> Self {
        Self(bytes)
    }
}

/// Whether an object schema names a property.
pub(crate) fn has_property(schema: &Object, name: &str) -> bool {
    schema
        .get("properties")
        .and_then(|properties| properties.get(name))
        .is_some()
}

/// Whether an object schema allows a property, as far as its first level tells.
pub(crate) fn may_have_property(schema: &Object, name: &str) -> bool {
    let says_more = ["$ref", "allOf", "anyOf", "oneOf", "patternProperties"];
    let is_open = schema
        .get("additionalProperties")
        .is_some_and(|others| *others != Value::Bool(false));
    has_property(schema, name) || is_open || says_more.iter().any(|it| schema.contains_key(*it))
}

/// Adds a string property for the key to a schema that has no property of that name.
pub(crate) fn with_key_property(
    mut schema: Arc<Object>,
    name: &str,
    required: bool,
) -> Arc<Object> {
    if has_property(&schema, name) {
        return schema;
    }
    let object = Arc::make_mut(&mut schema);
    let properties = object
        .entry("properties")
        .or_insert_with(|| Value::Object(Object::new()));
    if let Value::Object(properties) = properties {
        properties.insert(name.to_owned(), key_property());
    }
    if required {
        require_key_property(&mut schema, name);
    }
    schema
}

/// Makes the property that [`with_key_property`] added required. The author's own property is not changed.
pub(crate) fn require_key_property(schema: &mut Arc<Object>, name: &str) {
    let property = schema.get("properties").and_then(|all| all.get(name));
    if property != Some(&key_property()) {
        return;
    }
    let names = Arc::make_mut(schema)
        .entry("required")
        .or_insert_with(|| Value::Array(Vec::new()));
    if let Value::Array(names) = names
        && !names.iter().any(|required| required == name)
    {
        names.push(name.into());
    }
}

/// The key argument in a tool's input schema, described for a model.
fn key_property() -> Value {
    json!({
        "type": "string",
        "minLength": 1,
        "maxLength": 255,
        "description": "A unique key for this one intended operation, for example a UUID. Make a \
            new key for each new intent. To retry a call whose result you did not get, send the \
            same key with the same arguments: the operation is not carried out a second time.",
    })
}

/// An argument that a tool's own options name, and that its input schema does not have.
pub(crate) fn unknown_argument<'p>(schema: &Object, policy: &'p PolicyOverride) -> Option<&'p str> {
    let ignored = policy.ignored.iter().flat_map(|pointers| pointers.iter());
    let mut named = ignored.chain(&policy.key_argument).map(AsRef::as_ref);
    named.find(|pointer: &&str| {
        let name = pointer.strip_prefix('/').unwrap_or(pointer);
        let name = name.split('/').next().unwrap_or(name);
        let name = name.replace("~1", "/").replace("~0", "~");
        !may_have_property(schema, &name)
    })
}
