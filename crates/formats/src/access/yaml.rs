//! A YAML value that knows its place, and the notes that are taken while reading.

use serde_norway::Value;

/// What could not be carried over.
#[derive(Debug, Default)]
pub(super) struct Notes(pub(super) Vec<String>);

impl Notes {
    pub(super) fn add(&mut self, place: &str, what: impl std::fmt::Display) {
        self.0.push(format!("{place}: {what}"));
    }
}

/// A mapping at a place.
pub(super) struct Mapping<'a> {
    pub(super) place: String,
    value: &'a serde_norway::Mapping,
}

impl<'a> Mapping<'a> {
    pub(super) fn new(place: impl Into<String>, value: &'a Value, notes: &mut Notes) -> Option<Self> {
        let place = place.into();
        match value.as_mapping() {
            Some(value) => Some(Self { place, value }),
            None => {
                notes.add(&place, format!("must be a mapping, found {}; left out", kind(value)));
                None
            }
        }
    }

    pub(super) fn at(&self, key: &str) -> String {
        let joint = if self.place.ends_with(':') { " " } else { "." };
        format!("{}{joint}{key}", self.place)
    }

    /// Whether the key is there, even with nothing behind it.
    pub(super) fn has(&self, key: &str) -> bool {
        self.value.contains_key(key)
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.value.get(key).filter(|value| !value.is_null())
    }

    /// Notes every key that is not among the known ones, with its value.
    pub(super) fn note_unknown(&self, known: &[&str], notes: &mut Notes) {
        for (key, value) in self.value {
            let name = scalar(key).unwrap_or_else(|| kind(key).to_owned());
            if !known.contains(&name.as_str()) {
                notes.add(&self.at(&name), format!("unknown key, not carried over: {}", compact(value)));
            }
        }
    }

    /// A text that may be absent; one that is something else is noted and counts as absent.
    pub(super) fn text(&self, key: &str, notes: &mut Notes) -> Option<String> {
        let value = self.get(key)?;
        let text = scalar(value);
        if text.is_none() {
            notes.add(&self.at(key), format!("must be a text, found {}", kind(value)));
        }
        text
    }

    /// A list of texts: absent, readable, or there and not readable.
    pub(super) fn texts(&self, key: &str, notes: &mut Notes) -> Texts {
        let Some(value) = self.get(key) else { return Texts::Absent };
        let Some(items) = value.as_sequence() else {
            notes.add(&self.at(key), format!("must be a list, found {}", kind(value)));
            return Texts::Unreadable;
        };
        let mut texts = Vec::new();
        for (place, item) in items.iter().enumerate() {
            match scalar(item) {
                Some(text) => texts.push(text),
                None => notes.add(
                    &format!("{}[{place}]", self.at(key)),
                    format!("must be a text, found {}", kind(item)),
                ),
            }
        }
        Texts::Given(texts)
    }

    /// The items of a list of mappings.
    pub(super) fn mappings(&self, key: &str, notes: &mut Notes) -> Vec<Mapping<'a>> {
        let Some(value) = self.get(key) else { return Vec::new() };
        let Some(items) = value.as_sequence() else {
            notes.add(&self.at(key), format!("must be a list, found {}; left out", kind(value)));
            return Vec::new();
        };
        items
            .iter()
            .enumerate()
            .filter_map(|(place, item)| Mapping::new(format!("{}[{place}]", self.at(key)), item, notes))
            .collect()
    }
}

/// A list of texts as it was found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Texts {
    Absent,
    Given(Vec<String>),
    Unreadable,
}

/// The text of a scalar; a number or a flag is its spelling, as people forget quotes.
pub(super) fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Sequence(_) => "a list",
        Value::Mapping(_) => "a mapping",
        Value::Tagged(_) => "a tagged value",
    }
}

/// The same value as JSON; keys that are not scalars have no JSON spelling and become the name of their kind.
pub(super) fn json(value: &Value) -> serde_json::Value {
    match value {
        Value::Null => serde_json::Value::Null,
        Value::Bool(flag) => (*flag).into(),
        Value::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
            (Some(n), _, _) => n.into(),
            (_, Some(n), _) => n.into(),
            (_, _, Some(n)) => n.into(),
            _ => number.to_string().into(),
        },
        Value::String(text) => text.clone().into(),
        Value::Sequence(items) => items.iter().map(json).collect(),
        Value::Mapping(fields) => fields
            .iter()
            .map(|(key, value)| (scalar(key).unwrap_or_else(|| kind(key).to_owned()), json(value)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        Value::Tagged(tagged) => json(&tagged.value),
    }
}

/// One line of JSON, cut, for notes.
pub(super) fn compact(value: &Value) -> String {
    json(value).to_string().chars().take(200).collect()
}
