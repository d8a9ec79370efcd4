//! As much of JSON Schema as the document uses, to hold real answers against it.

use serde_json::Value;

/// Whether a value fits a schema; else where it does not.
pub fn fits(document: &Value, schema: &Value, value: &Value, place: &str) -> Result<(), String> {
    if let Some(target) = schema["$ref"].as_str() {
        let target = document.pointer(&target[1..]).ok_or_else(|| format!("{place}: no {target}"))?;
        return fits(document, target, value, place);
    }
    for part in list(schema, "allOf") {
        fits(document, part, value, place)?;
    }
    let choices = list(schema, "oneOf");
    if !choices.is_empty() {
        let tried: Vec<_> = choices.iter().map(|choice| fits(document, choice, value, place)).collect();
        if tried.iter().all(Result::is_err) {
            let all: Vec<_> = tried.into_iter().filter_map(Result::err).collect();
            return Err(format!("{place}: none of {all:?}"));
        }
    }
    let kinds = match &schema["type"] {
        Value::String(kind) => vec![kind.as_str()],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if !kinds.is_empty() && !kinds.iter().any(|kind| is(kind, value)) {
        return Err(format!("{place}: {value} is not {kinds:?}"));
    }
    let values = list(schema, "enum");
    if !values.is_empty() && !values.contains(value) {
        return Err(format!("{place}: {value} is not one of {values:?}"));
    }
    if let Some(fields) = value.as_object() {
        for name in list(schema, "required").iter().filter_map(Value::as_str) {
            if !fields.contains_key(name) {
                return Err(format!("{place}: `{name}` is missing"));
            }
        }
        for (name, field) in fields {
            let place = format!("{place}.{name}");
            match (&schema["properties"][name], &schema["additionalProperties"]) {
                (Value::Null, Value::Bool(false)) => return Err(format!("{place}: not described")),
                (Value::Null, Value::Null | Value::Bool(true)) => {}
                (Value::Null, other) => fits(document, other, field, &place)?,
                (property, _) => fits(document, property, field, &place)?,
            }
        }
    }
    if let (Some(items), true) = (value.as_array(), schema["items"].is_object()) {
        for (index, item) in items.iter().enumerate() {
            fits(document, &schema["items"], item, &format!("{place}[{index}]"))?;
        }
    }
    Ok(())
}

fn list<'s>(schema: &'s Value, key: &str) -> &'s [Value] {
    schema[key].as_array().map_or(&[], Vec::as_slice)
}

fn is(kind: &str, value: &Value) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("nobody knows the type {other}"),
    }
}
