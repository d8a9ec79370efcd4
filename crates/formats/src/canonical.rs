//! Canonical JSON: keys sorted by their UTF-8 bytes at every depth, no white space. Equal values give equal bytes,
//! whatever order the map type of the build keeps.
//!
//! Our documents hold no fractions, so the spelling of numbers is settled by the integers that serde writes.

use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// The canonical bytes of a value.
///
/// # Errors
/// When the value cannot be written as JSON (a map whose keys are no texts).
pub fn to_bytes(value: &impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&sorted(&serde_json::to_value(value)?))
}

/// The same value with sorted keys at every depth.
pub fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let ordered: BTreeMap<&String, &Value> = map.iter().collect();
            Value::Object(ordered.into_iter().map(|(key, value)| (key.clone(), sorted(value))).collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(sorted).collect()),
        other => other.clone(),
    }
}
