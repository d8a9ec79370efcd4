//! A JSON value that knows its path, so that every complaint says where.

use forgeyard_model::Explanation;
use serde_json::Value;

/// A value in a webhook body.
pub(super) struct Node<'a> {
    event: &'a str,
    path: String,
    value: &'a Value,
}

impl<'a> Node<'a> {
    pub(super) fn root(event: &'a str, value: &'a Value) -> Self {
        Self { event, path: "$".to_owned(), value }
    }

    /// The explanation for a value that is not what it should be.
    pub(super) fn wrong(&self, expected: &str) -> Explanation {
        let found = match self.value {
            Value::Null => "null".to_owned(),
            Value::Bool(flag) => flag.to_string(),
            Value::Number(number) => number.to_string(),
            Value::String(text) => format!("the text `{}`", super::shown(text)),
            Value::Array(items) => format!("an array of {}", items.len()),
            Value::Object(_) => "an object".to_owned(),
        };
        Explanation::new(
            "webhook.unexpected_value",
            format!("`{}` of `{}` must be {expected}, found {found}", self.path, self.event),
        )
    }

    pub(super) fn object(&self) -> Result<(), Explanation> {
        if self.value.is_object() { Ok(()) } else { Err(self.wrong("an object")) }
    }

    /// A field that may be absent.
    pub(super) fn get(&self, key: &str) -> Option<Node<'a>> {
        self.value.get(key).map(|value| Node {
            event: self.event,
            path: format!("{}.{key}", self.path),
            value,
        })
    }

    /// A field that must be there.
    pub(super) fn field(&self, key: &str) -> Result<Node<'a>, Explanation> {
        self.object()?;
        self.get(key).ok_or_else(|| {
            Explanation::new(
                "webhook.missing_field",
                format!("`{}.{key}` of `{}` is missing", self.path, self.event),
            )
        })
    }

    pub(super) fn is_null(&self) -> bool {
        self.value.is_null()
    }

    pub(super) fn text(&self) -> Result<&'a str, Explanation> {
        self.value.as_str().ok_or_else(|| self.wrong("a text"))
    }

    /// A text that may be absent, `null` or empty; all three mean the same.
    pub(super) fn optional_text(&self, key: &str) -> Result<Option<String>, Explanation> {
        match self.get(key).filter(|node| !node.is_null()) {
            Some(node) => Ok(Some(node.text()?.to_owned()).filter(|text| !text.is_empty())),
            None => Ok(None),
        }
    }

    /// A numeric id that may be absent, `null` or `0`: a job that waits has such a runner, depending on the forge's age.
    pub(super) fn optional_id(&self, key: &str) -> Result<Option<u64>, Explanation> {
        match self.get(key).filter(|node| !node.is_null() && node.value.as_u64() != Some(0)) {
            Some(node) => Ok(Some(node.id()?)),
            None => Ok(None),
        }
    }

    pub(super) fn flag(&self) -> Result<bool, Explanation> {
        self.value.as_bool().ok_or_else(|| self.wrong("true or false"))
    }

    /// A numeric id: 64 bits, never zero.
    pub(super) fn id(&self) -> Result<u64, Explanation> {
        self.value
            .as_u64()
            .filter(|id| *id > 0)
            .ok_or_else(|| self.wrong("a positive whole number below 2^64"))
    }

    /// A commit: 40 or 64 lower-case hexadecimal digits.
    pub(super) fn commit(&self) -> Result<&'a str, Explanation> {
        let text = self.text()?;
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if matches!(text.len(), 40 | 64) && text.bytes().all(digit) {
            Ok(text)
        } else {
            Err(self.wrong("a commit of 40 or 64 lower-case hexadecimal digits"))
        }
    }

    pub(super) fn items(&self) -> Result<impl Iterator<Item = Node<'a>> + use<'a>, Explanation> {
        let items = self.value.as_array().ok_or_else(|| self.wrong("an array"))?;
        let (event, path) = (self.event, self.path.clone());
        Ok(items.iter().enumerate().map(move |(place, value)| Node {
            event,
            path: format!("{path}[{place}]"),
            value,
        }))
    }
}
