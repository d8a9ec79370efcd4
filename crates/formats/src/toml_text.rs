//! Reading TOML files that people write: every error says line and column, and an unknown key names the nearest known
//! one.

use serde::de::DeserializeOwned;

/// A TOML file that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}, line {line}, column {column}: {message}")]
pub struct TomlError {
    /// Name of the file, for people.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong, and what was probably meant.
    pub message: String,
}

impl TomlError {
    /// An error at a byte of the text.
    pub fn at(file: &str, text: &str, byte: usize, message: impl Into<String>) -> Self {
        let mut end = byte.min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let before = &text[..end];
        let line_start = before.rfind('\n').map_or(0, |place| place + 1);
        Self {
            file: file.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            message: message.into(),
        }
    }
}

/// Reads a file. `file` is its name in messages.
pub fn read<T: DeserializeOwned>(file: &str, text: &str) -> Result<T, TomlError> {
    toml::from_str(text).map_err(|error| {
        let byte = error.span().map_or(0, |span| span.start);
        TomlError::at(file, text, byte, friendly(error.message()))
    })
}

/// Rewrites the deserialiser's complaint about an unknown key; leaves all others as they are.
fn friendly(message: &str) -> String {
    let Some(rest) = message.strip_prefix("unknown field `") else {
        return message.to_owned();
    };
    // What follows the unknown key is a list of known ones, each in back quotes. The unknown key itself may hold back
    // quotes, so the list is looked for from the end.
    let Some((unknown, known)) = rest.rsplit_once("`, expected ") else {
        return format!("unknown key `{}`", rest.trim_end_matches("`, there are no fields"));
    };
    let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
    let nearest = known
        .iter()
        .map(|key| (strsim::damerau_levenshtein(unknown, key), *key))
        .min()
        .filter(|(distance, key)| *distance <= 1 + key.len() / 3);
    match nearest {
        Some((_, key)) => format!("unknown key `{unknown}`; did you mean `{key}`?"),
        None => format!("unknown key `{unknown}`; known keys: {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        #[serde(default)]
        _colour: u32,
        #[serde(default)]
        #[serde(rename = "size")]
        _size: u32,
    }

    fn message(text: &str) -> String {
        read::<Sample>("f.toml", text).unwrap_err().to_string()
    }

    #[test]
    fn unknown_key_names_place_and_nearest_key() {
        assert_eq!(
            message("# é\n  sise = 1"),
            "f.toml, line 2, column 3: unknown key `sise`; did you mean `size`?"
        );
        assert!(message("zzzzzz = 1").ends_with("unknown key `zzzzzz`; known keys: _colour, size"));
    }

    #[test]
    fn mistyped_value_names_its_place() {
        assert!(
            message("size = 1\n_colour = 'é'").starts_with("f.toml, line 2, column 11: invalid type: string")
        );
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".*", byte: usize) {
            let _ = read::<Sample>("f", &text);
            let _ = TomlError::at("f", &text, byte, "x");
        }

        #[test]
        fn no_key_panics(key in "[a-z`, ]{1,20}") {
            let _ = read::<Sample>("f", &format!("\"{key}\" = 1"));
        }
    }
}
