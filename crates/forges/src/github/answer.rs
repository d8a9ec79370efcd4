//! Reading answers: JSON with the name of the field in every error, times, and GitHub's many ways to say "none".

use super::cause::Cause;
use super::error::GithubError;
use super::wire::Answer;
use forgeyard_model::Timestamp;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};

impl Answer {
    /// A header as text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Whether the call did what it was to do.
    pub(crate) fn succeeded(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The answer, if it is a success.
    pub(crate) fn success(self) -> Result<Self, GithubError> {
        if self.succeeded() { Ok(self) } else { Err(self.refusal()) }
    }

    /// What the refusal means.
    pub(crate) fn cause(&self) -> Cause {
        Cause::read(self.status, &self.body, self.header("x-accepted-github-permissions"))
    }

    /// The answer as the refusal that it is.
    pub(crate) fn refusal(&self) -> GithubError {
        // The actions service has names of its own beside; its support asks for both.
        let ids: Vec<&str> =
            ["x-github-request-id", "activityid"].iter().filter_map(|name| self.header(name)).collect();
        GithubError::Refused {
            call: self.call.clone(),
            status: self.status,
            cause: self.cause(),
            request: (!ids.is_empty())
                .then(|| ids.join(", ").chars().filter(|letter| !letter.is_control()).take(200).collect()),
        }
    }

    /// Body of a success, as what it is to be.
    pub(crate) fn json<T: DeserializeOwned>(self) -> Result<T, GithubError> {
        let answer = self.success()?;
        read(&answer.call, &answer.body)
    }
}

/// Reads JSON; a byte order mark before it is tolerated, unknown fields are passed over.
pub(crate) fn read<T: DeserializeOwned>(call: &str, body: &[u8]) -> Result<T, GithubError> {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let mut reader = serde_json::Deserializer::from_slice(body);
    serde_path_to_error::deserialize(&mut reader).map_err(|error| GithubError::Answer {
        call: call.to_owned(),
        field: error.path().to_string(),
        reason: error.inner().to_string(),
    })
}

/// Reads a time as GitHub writes it.
pub(crate) fn parse_time(text: &str) -> Result<Timestamp, String> {
    text.parse::<jiff::Timestamp>()
        .map(|time| Timestamp::from_micros(time.as_microsecond()))
        .map_err(|_| format!("`{}` is not a time", text.chars().take(60).collect::<String>()))
}

/// A time that has to be there.
pub(crate) fn time<'de, D: Deserializer<'de>>(reader: D) -> Result<Timestamp, D::Error> {
    parse_time(&String::deserialize(reader)?).map_err(D::Error::custom)
}

/// A time that may be null or missing. The actions service also writes the year 1 for "not yet".
pub(crate) fn optional_time<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<Timestamp>, D::Error> {
    match Option::<String>::deserialize(reader)?.as_deref() {
        None | Some("") => Ok(None),
        Some(text) if text.starts_with("0001-01-01") => Ok(None),
        Some(text) => parse_time(text).map(Some).map_err(D::Error::custom),
    }
}

/// An id for which null, missing and 0 all mean none (runners.md §3.1).
pub(crate) fn optional_id<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<u64>, D::Error> {
    Ok(Option::<u64>::deserialize(reader)?.filter(|id| *id != 0))
}

/// A text for which null, missing and "" all mean none.
pub(crate) fn optional_text<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<String>::deserialize(reader)?.filter(|text| !text.is_empty()))
}

/// A field for which null means the same as missing.
pub(crate) fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    reader: D,
) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(reader)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Sample {
        #[serde(default, deserialize_with = "optional_id")]
        id: Option<u64>,
        #[serde(default, deserialize_with = "optional_text")]
        name: Option<String>,
        #[serde(default, deserialize_with = "optional_time")]
        at: Option<Timestamp>,
    }

    #[test]
    fn none_is_said_in_many_ways() {
        for text in [
            "{}",
            r#"{"id":null,"name":null,"at":null}"#,
            r#"{"id":0,"name":"","at":"","more":1}"#,
            "\u{feff}{\"at\":\"0001-01-01T00:00:00\"}",
        ] {
            let sample: Sample = read("GET /x", text.as_bytes()).unwrap();
            assert_eq!((sample.id, sample.name, sample.at), (None, None, None), "{text}");
        }
        let sample: Sample =
            read("GET /x", br#"{"id":94396871545,"name":"r","at":"2023-11-14T22:13:20Z"}"#).unwrap();
        assert_eq!(sample.id, Some(94_396_871_545));
        assert_eq!(sample.name.as_deref(), Some("r"));
        assert_eq!(sample.at, Some(Timestamp::from_micros(1_700_000_000_000_000)));
    }

    #[test]
    fn an_answer_that_is_not_understood_names_call_and_field() {
        let error = read::<Vec<Sample>>("GET /x", br#"[{"id":1},{"id":"two"}]"#).unwrap_err().to_string();
        assert!(error.contains("GET /x") && error.contains("`[1].id`"), "{error}");
        let error = read::<Sample>("GET /x", br#"{"at":"soon"}"#).unwrap_err().to_string();
        assert!(error.contains("`at`") && error.contains("soon"), "{error}");
    }
}
