//! Holds calls against GitHub's published OpenAPI description (3.0.3), and bodies of webhooks against its schemas.
//!
//! The description is read from the file that `FORGEYARD_GITHUB_OPENAPI` names (`scripts/github-openapi.sh` fetches
//! it). Its schemas are turned into JSON Schema draft 4, from which OpenAPI 3.0 is derived: `nullable` becomes a type,
//! references to components become definitions, and only those that a schema reaches are taken along.

use forgeyard_forges::twin::Call;
use jsonschema::{Draft, Validator};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

const VARIABLE: &str = "FORGEYARD_GITHUB_OPENAPI";

/// The description.
pub(crate) struct Description {
    root: Value,
    compiled: BTreeMap<String, Validator>,
}

impl Description {
    /// Reads it; none, with a line that says so, when the variable is not set.
    pub(crate) fn load() -> Option<Self> {
        let Some(path) = std::env::var_os(VARIABLE) else {
            println!("SKIPPED: {VARIABLE} is not set");
            return None;
        };
        let text = std::fs::read(&path).unwrap_or_else(|error| panic!("cannot read {path:?}: {error}"));
        let root =
            serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{path:?} is no JSON: {error}"));
        Some(Self { root, compiled: BTreeMap::new() })
    }

    /// The operation of a call: the path of the description and its object. Literal parts win over parameters.
    fn operation(&self, method: &str, path: &str) -> Option<(String, Value)> {
        let asked: Vec<&str> = path.split('/').collect();
        let paths = self.root.get("paths")?.as_object()?;
        let fits = |template: &str| {
            let parts: Vec<&str> = template.split('/').collect();
            let same = parts.len() == asked.len()
                && parts.iter().zip(&asked).all(|(part, one)| part.starts_with('{') || part == one);
            same.then(|| parts.iter().filter(|part| part.starts_with('{')).count())
        };
        // `contents/{path}` takes a path with slashes; only its first part is compared here.
        let mut found: Vec<(usize, &String)> =
            paths.keys().filter_map(|template| Some((fits(template)?, template))).collect();
        found.sort();
        let template = found.first()?.1;
        let operation = paths.get(template)?.get(method.to_lowercase())?.clone();
        Some((template.clone(), operation))
    }

    /// What is wrong with a call to REST: its request (unless it was refused as wrong) and its answer.
    pub(crate) fn faults_of(&mut self, call: &Call, path: &str) -> Vec<String> {
        let name = format!("{} {path} → {}", call.request.method, call.reply.status);
        let Some((template, operation)) = self.operation(&call.request.method, path) else {
            return vec![format!("{name}: the description has no such call")];
        };
        let mut faults = Vec::new();
        if call.reply.status != 422 && call.reply.status != 400 {
            faults.extend(self.faults_of_request(call, &template, &operation));
        }
        faults.extend(self.faults_of_reply(call, &template, &operation));
        faults.into_iter().map(|fault| format!("{name}: {fault}")).collect()
    }

    fn faults_of_request(&mut self, call: &Call, template: &str, operation: &Value) -> Vec<String> {
        let mut faults = Vec::new();
        let mut known = BTreeSet::new();
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let parameter = self.resolved(parameter);
            if parameter["in"] != "query" {
                continue;
            }
            let name = parameter["name"].as_str().unwrap_or_default();
            known.insert(name.to_owned());
            match call.request.query.get(name) {
                None if parameter["required"] == true => {
                    faults.push(format!("`{name}` is missing in the query"))
                }
                Some(value) => {
                    // A query is text: a number is tried where the schema wants one.
                    let value = match parameter["schema"]["type"].as_str() {
                        Some("integer") => value.parse::<i64>().map_or(json!(value), |number| json!(number)),
                        Some("boolean") => value.parse::<bool>().map_or(json!(value), |flag| json!(flag)),
                        _ => json!(value),
                    };
                    let key = format!("{} {template} ?{name}", call.request.method);
                    let schema = parameter["schema"].clone();
                    faults.extend(
                        self.check(&key, &schema, &value).into_iter().map(|f| format!("query {name}: {f}")),
                    );
                }
                None => {}
            }
        }
        for name in call.request.query.keys().filter(|name| !known.contains(*name)) {
            faults.push(format!("the query parameter `{name}` is not described"));
        }
        let schema = operation["requestBody"]["content"]["application/json"]["schema"].clone();
        if schema.is_null() {
            return faults;
        }
        let body: Value = serde_json::from_slice(&call.request.body).unwrap_or_else(|_| json!({}));
        let key = format!("{} {template} request", call.request.method);
        faults.extend(self.check(&key, &schema, &body).into_iter().map(|fault| format!("request {fault}")));
        faults
    }

    fn faults_of_reply(&mut self, call: &Call, template: &str, operation: &Value) -> Vec<String> {
        let status = call.reply.status;
        let described = operation["responses"].get(status.to_string()).cloned();
        let described = described.map(|response| self.resolved(&response));
        let schema = match &described {
            Some(response) => response["content"]["application/json"]["schema"].clone(),
            // Who may not call, and who calls too often, is told so everywhere; and reports name more refusals.
            None if status == 422 => json!({ "$ref": "#/components/schemas/validation-error" }),
            None if matches!(status, 400 | 401 | 403 | 404 | 409 | 429 | 500..) => {
                json!({ "$ref": "#/components/schemas/basic-error" })
            }
            None => return vec![format!("the status {status} is not described")],
        };
        if schema.is_null() {
            let empty = call.reply.body.is_empty() || call.reply.value() == json!({});
            return if empty { Vec::new() } else { vec!["a body where none is described".to_owned()] };
        }
        let key = format!("{} {template} {status}", call.request.method);
        let value = call.reply.value();
        let mut faults = self.check(&key, &schema, &value);
        faults.extend(self.invented(&schema, &value, ""));
        faults
    }

    /// What is wrong with the body of a webhook.
    pub(crate) fn faults_of_webhook(
        &mut self,
        event: &str,
        action: Option<&str>,
        body: &Value,
    ) -> Vec<String> {
        let mut name = format!("webhook-{}", event.replace('_', "-"));
        if let Some(action) = action {
            name = format!("{name}-{}", action.replace('_', "-"));
        }
        let schema = json!({ "$ref": format!("#/components/schemas/{name}") });
        let mut faults = self.check(&name, &schema, body);
        faults.extend(self.invented(&schema, body, ""));
        faults.into_iter().map(|fault| format!("{event}.{}: {fault}", action.unwrap_or_default())).collect()
    }

    fn check(&mut self, key: &str, schema: &Value, value: &Value) -> Vec<String> {
        if !self.compiled.contains_key(key) {
            let compiled = self.compile(schema);
            self.compiled.insert(key.to_owned(), compiled);
        }
        let validator = &self.compiled[key];
        let shown = |error: jsonschema::ValidationError<'_>| {
            let text: String = error.to_string().chars().take(300).collect();
            format!("at `{}`: {text}", error.instance_path())
        };
        validator.iter_errors(value).map(shown).collect()
    }

    fn compile(&self, schema: &Value) -> Validator {
        let mut wanted = BTreeSet::new();
        let mut converted = convert(schema, &mut wanted);
        let mut definitions = Map::new();
        while let Some(name) = wanted.iter().find(|name| !definitions.contains_key(*name)).cloned() {
            let component = &self.root["components"]["schemas"][&name];
            assert!(!component.is_null(), "the description has no component {name}");
            definitions.insert(name, convert(component, &mut wanted));
        }
        // In draft 4, whatever stands beside a reference is ignored: the definitions must not.
        if converted.get("$ref").is_some() {
            converted = json!({ "allOf": [converted] });
        }
        converted["definitions"] = Value::Object(definitions);
        let options = jsonschema::options().with_draft(Draft::Draft4).should_validate_formats(true);
        options.build(&converted).unwrap_or_else(|error| panic!("a schema does not compile: {error}"))
    }

    fn resolved(&self, value: &Value) -> Value {
        match value.get("$ref").and_then(Value::as_str) {
            Some(name) => {
                let pointer = name.trim_start_matches('#');
                self.root.pointer(pointer).cloned().unwrap_or(Value::Null)
            }
            None => value.clone(),
        }
    }

    /// Names of fields that the schema does not know: nothing may be made up. Where a schema is a choice, or says
    /// that more may come, nothing is said.
    fn invented(&self, schema: &Value, value: &Value, at: &str) -> Vec<String> {
        let schema = self.resolved(schema);
        match value {
            Value::Array(items) => {
                let of = |(place, item): (usize, &Value)| {
                    self.invented(&schema["items"], item, &format!("{at}/{place}"))
                };
                items.iter().enumerate().flat_map(of).collect()
            }
            Value::Object(fields) => {
                let Some(known) = schema["properties"].as_object() else { return Vec::new() };
                let mut faults = Vec::new();
                for (name, value) in fields {
                    match known.get(name) {
                        Some(schema) => faults.extend(self.invented(schema, value, &format!("{at}/{name}"))),
                        None if schema.get("allOf").is_some() => {}
                        None if schema.get("additionalProperties").is_some_and(|more| more != false) => {}
                        None => faults.push(format!("at `{at}`: the field `{name}` is not described")),
                    }
                }
                faults
            }
            _ => Vec::new(),
        }
    }
}

/// A schema of OpenAPI 3.0 as JSON Schema draft 4; names of components that it needs are added to `wanted`.
fn convert(schema: &Value, wanted: &mut BTreeSet<String>) -> Value {
    let Some(fields) = schema.as_object() else { return schema.clone() };
    if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
        let name = reference.trim_start_matches("#/components/schemas/");
        wanted.insert(name.to_owned());
        return json!({ "$ref": format!("#/definitions/{name}") });
    }
    let mut out = Map::new();
    for (name, value) in fields {
        let value = match (name.as_str(), value) {
            ("properties" | "patternProperties", Value::Object(inner)) => {
                inner.iter().map(|(name, schema)| (name.clone(), convert(schema, wanted))).collect()
            }
            ("allOf" | "anyOf" | "oneOf", Value::Array(inner)) => {
                Value::Array(inner.iter().map(|schema| convert(schema, wanted)).collect())
            }
            ("items" | "additionalProperties" | "not", inner) => convert(inner, wanted),
            ("type" | "enum" | "required" | "format" | "pattern", value) => value.clone(),
            ("minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf", value)
            | ("minLength" | "maxLength" | "minItems" | "maxItems" | "uniqueItems", value)
            | ("minProperties" | "maxProperties", value) => value.clone(),
            // Examples, descriptions, discriminators and extensions say nothing about validity.
            _ => continue,
        };
        out.insert(name.clone(), value);
    }
    if fields.get("nullable") != Some(&Value::Bool(true)) {
        return Value::Object(out);
    }
    match out.get_mut("type") {
        Some(kind) => {
            *kind = json!([kind.clone(), "null"]);
            if let Some(Value::Array(values)) = out.get_mut("enum") {
                values.push(Value::Null);
            }
            // A choice beside a type must let null through as well.
            if ["allOf", "anyOf", "oneOf"].iter().any(|name| out.contains_key(*name)) {
                return json!({ "anyOf": [Value::Object(out), { "type": "null" }] });
            }
            Value::Object(out)
        }
        None => json!({ "anyOf": [Value::Object(out), { "type": "null" }] }),
    }
}

#[test]
fn nullable_lets_null_through_and_nothing_else() {
    let root = json!({ "components": { "schemas": { "who": { "type": "object", "required": ["id"] } } } });
    let mut description = Description { root, compiled: BTreeMap::new() };
    let schema = json!({ "type": "object", "properties": {
        "text": { "type": "string", "nullable": true, "enum": ["a"] },
        "who": { "nullable": true, "allOf": [{ "$ref": "#/components/schemas/who" }] },
        "plain": { "type": "integer" },
    } });
    let good = json!({ "text": null, "who": null, "plain": 1 });
    assert_eq!(description.check("one", &schema, &good), Vec::<String>::new());
    let bad = json!({ "text": "b", "who": {}, "plain": null });
    assert_eq!(description.check("one", &schema, &bad).len(), 3);
    let more = json!({ "made_up": 1 });
    assert_eq!(description.invented(&schema, &more, ""), ["at ``: the field `made_up` is not described"]);
}
