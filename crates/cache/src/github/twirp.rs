//! Twirp: one POST for each call, its message in JSON or protobuf, its errors always in JSON.
//!
//! The answer has the coding of the request: the official client speaks JSON, OpenDAL (sccache) protobuf (falcondev#164).

use serde::Serialize;
use serde::de::DeserializeOwned;

/// How a message is coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// JSON of protobuf.
    Json,
    /// Protobuf.
    Protobuf,
}

/// What went wrong, as Twirp names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "their names are those of Twirp")]
pub enum Code {
    BadRoute,
    Malformed,
    InvalidArgument,
    Unauthenticated,
    PermissionDenied,
    NotFound,
    AlreadyExists,
    FailedPrecondition,
    ResourceExhausted,
    Unavailable,
}

impl Code {
    /// The word in the answer.
    pub const fn as_str(self) -> &'static str {
        match self {
            Code::BadRoute => "bad_route",
            Code::Malformed => "malformed",
            Code::InvalidArgument => "invalid_argument",
            Code::Unauthenticated => "unauthenticated",
            Code::PermissionDenied => "permission_denied",
            Code::NotFound => "not_found",
            Code::AlreadyExists => "already_exists",
            Code::FailedPrecondition => "failed_precondition",
            Code::ResourceExhausted => "resource_exhausted",
            Code::Unavailable => "unavailable",
        }
    }

    /// The status of HTTP. The official client tries 5xx again, up to five times, and nothing else.
    pub const fn status(self) -> u16 {
        match self {
            Code::BadRoute | Code::NotFound => 404,
            Code::Malformed | Code::InvalidArgument => 400,
            Code::Unauthenticated => 401,
            Code::PermissionDenied => 403,
            Code::AlreadyExists => 409,
            Code::FailedPrecondition => 412,
            Code::ResourceExhausted => 429,
            Code::Unavailable => 503,
        }
    }
}

/// An error of a call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", code.as_str())]
pub struct TwirpError {
    /// What kind.
    pub code: Code,
    /// For people; a client prints it.
    pub message: String,
}

impl TwirpError {
    /// An error.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// As it is answered.
    pub fn body(&self) -> Vec<u8> {
        let body = serde_json::json!({ "code": self.code.as_str(), "msg": self.message });
        body.to_string().into_bytes()
    }
}

impl Coding {
    /// By the type of the content.
    pub fn of(content_type: &str) -> Option<Self> {
        match content_type.split(';').next().unwrap_or_default().trim() {
            "application/json" => Some(Coding::Json),
            "application/protobuf" | "application/x-protobuf" => Some(Coding::Protobuf),
            _ => None,
        }
    }

    /// The type of the content.
    pub const fn content_type(self) -> &'static str {
        match self {
            Coding::Json => "application/json",
            Coding::Protobuf => "application/protobuf",
        }
    }

    /// Reads a message.
    pub fn read<M: prost::Message + Default + DeserializeOwned>(self, bytes: &[u8]) -> Result<M, TwirpError> {
        match self {
            Coding::Json if bytes.is_empty() => Ok(M::default()),
            Coding::Json => serde_json::from_slice(bytes).map_err(|error| {
                TwirpError::new(Code::Malformed, format!("the message is not the JSON of this call: {error}"))
            }),
            Coding::Protobuf => M::decode(bytes).map_err(|error| {
                TwirpError::new(
                    Code::Malformed,
                    format!("the message is not the protobuf of this call: {error}"),
                )
            }),
        }
    }

    /// Writes a message.
    pub fn write<M: prost::Message + Serialize>(self, message: &M) -> Vec<u8> {
        match self {
            // maps with keys that are no texts cannot be written; these messages have none
            Coding::Json => serde_json::to_vec(message).unwrap_or_default(),
            Coding::Protobuf => message.encode_to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::messages::*;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_refused(bytes: Vec<u8>, text in "\\PC{0,60}") {
            for coding in [Coding::Json, Coding::Protobuf] {
                for bytes in [&bytes[..], text.as_bytes()] {
                    let _ = coding.read::<CreateCacheEntryRequest>(bytes);
                    let _ = coding.read::<FinalizeCacheEntryUploadRequest>(bytes);
                    let _ = coding.read::<GetCacheEntryDownloadUrlRequest>(bytes);
                    let _ = coding.read::<CreateArtifactRequest>(bytes);
                    let _ = coding.read::<FinalizeArtifactRequest>(bytes);
                    let _ = coding.read::<ListArtifactsRequest>(bytes);
                    let _ = coding.read::<ArtifactRequest>(bytes);
                }
            }
        }

        #[test]
        fn message_reads_back_in_both_codings(key: String, version: String, restore_keys: Vec<String>, size_bytes: i64) {
            for coding in [Coding::Json, Coding::Protobuf] {
                let message = GetCacheEntryDownloadUrlRequest { key: key.clone(), version: version.clone(), restore_keys: restore_keys.clone() };
                prop_assert_eq!(coding.read::<GetCacheEntryDownloadUrlRequest>(&coding.write(&message)).unwrap(), message);
                let message = FinalizeCacheEntryUploadRequest { key: key.clone(), version: version.clone(), size_bytes };
                prop_assert_eq!(coding.read::<FinalizeCacheEntryUploadRequest>(&coding.write(&message)).unwrap(), message);
            }
        }
    }
}
