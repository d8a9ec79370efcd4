//! The messages of GitHub's cache service (v2) and artifact service (v4), as protobuf and as the JSON of protobuf.
//!
//! Numbers and names of the fields are those of the clients' own descriptors (`@actions/cache` 6.3, `@actions/artifact` 6.2).
//! JSON names are taken as they are in the schema, which the clients send, and in camel case; 64-bit numbers as texts or
//! numbers. Fields that are not known here are read over.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Reserves a key.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct CreateCacheEntryRequest {
    /// The key.
    #[prost(string, tag = "2")]
    pub key: String,
    /// What kind of archive it is: most clients hash paths and compression.
    #[prost(string, tag = "3")]
    pub version: String,
}

/// Where to upload.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct CreateCacheEntryResponse {
    /// Reserved.
    #[prost(bool, tag = "1")]
    pub ok: bool,
    /// The URL.
    #[prost(string, tag = "2")]
    pub signed_upload_url: String,
    /// Why not.
    #[prost(string, tag = "3")]
    pub message: String,
}

/// Makes an upload an entry.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct FinalizeCacheEntryUploadRequest {
    /// The key.
    #[prost(string, tag = "2")]
    pub key: String,
    /// Bytes that the client sent.
    #[prost(int64, tag = "3")]
    #[serde(alias = "sizeBytes", with = "int64")]
    pub size_bytes: i64,
    /// As reserved.
    #[prost(string, tag = "4")]
    pub version: String,
}

/// Whether it is one.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct FinalizeCacheEntryUploadResponse {
    /// It is.
    #[prost(bool, tag = "1")]
    pub ok: bool,
    /// Its number.
    #[prost(int64, tag = "2")]
    #[serde(with = "int64")]
    pub entry_id: i64,
    /// Why not.
    #[prost(string, tag = "3")]
    pub message: String,
}

/// Looks for an entry.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct GetCacheEntryDownloadUrlRequest {
    /// The key, or the beginning of one.
    #[prost(string, tag = "2")]
    pub key: String,
    /// Beginnings of keys that will do as well.
    #[prost(string, repeated, tag = "3")]
    #[serde(alias = "restoreKeys")]
    pub restore_keys: Vec<String>,
    /// As reserved.
    #[prost(string, tag = "4")]
    pub version: String,
}

/// What was found.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct GetCacheEntryDownloadUrlResponse {
    /// Something was.
    #[prost(bool, tag = "1")]
    pub ok: bool,
    /// Where.
    #[prost(string, tag = "2")]
    pub signed_download_url: String,
    /// Its whole key.
    #[prost(string, tag = "3")]
    pub matched_key: String,
}

/// Reserves the name of an artifact.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct CreateArtifactRequest {
    /// The run, as the token says.
    #[prost(string, tag = "1")]
    #[serde(alias = "workflowRunBackendId")]
    pub workflow_run_backend_id: String,
    /// The job, as the token says.
    #[prost(string, tag = "2")]
    #[serde(alias = "workflowJobRunBackendId")]
    pub workflow_job_run_backend_id: String,
    /// The name.
    #[prost(string, tag = "3")]
    pub name: String,
    /// When it may go.
    #[prost(message, optional, tag = "4")]
    #[serde(alias = "expiresAt")]
    pub expires_at: Option<Time>,
    /// Of the protocol: 4 to 7 are the same here.
    #[prost(int32, tag = "5")]
    pub version: i32,
    /// Type of the content.
    #[prost(message, optional, tag = "6")]
    #[serde(alias = "mimeType")]
    pub mime_type: Option<String>,
}

/// Where to upload.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct CreateArtifactResponse {
    /// Reserved.
    #[prost(bool, tag = "1")]
    pub ok: bool,
    /// The URL.
    #[prost(string, tag = "2")]
    pub signed_upload_url: String,
}

/// Makes an upload an artifact.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct FinalizeArtifactRequest {
    /// The run, as the token says.
    #[prost(string, tag = "1")]
    #[serde(alias = "workflowRunBackendId")]
    pub workflow_run_backend_id: String,
    /// The job, as the token says.
    #[prost(string, tag = "2")]
    #[serde(alias = "workflowJobRunBackendId")]
    pub workflow_job_run_backend_id: String,
    /// The name.
    #[prost(string, tag = "3")]
    pub name: String,
    /// Bytes that the client sent.
    #[prost(int64, tag = "4")]
    #[serde(with = "int64")]
    pub size: i64,
    /// `sha256:` and hexadecimal digits.
    #[prost(message, optional, tag = "5")]
    pub hash: Option<String>,
}

/// Which artifact that was: of a finalization, and of a removal.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct ArtifactResponse {
    /// It is.
    #[prost(bool, tag = "1")]
    pub ok: bool,
    /// Its number.
    #[prost(int64, tag = "2")]
    #[serde(with = "int64")]
    pub artifact_id: i64,
}

/// Asks for the artifacts of a run.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct ListArtifactsRequest {
    /// The run, as the token says.
    #[prost(string, tag = "1")]
    #[serde(alias = "workflowRunBackendId")]
    pub workflow_run_backend_id: String,
    /// The job, as the token says.
    #[prost(string, tag = "2")]
    #[serde(alias = "workflowJobRunBackendId")]
    pub workflow_job_run_backend_id: String,
    /// Only of this name.
    #[prost(message, optional, tag = "3")]
    #[serde(alias = "nameFilter")]
    pub name_filter: Option<String>,
    /// Only of this number.
    #[prost(message, optional, tag = "4")]
    #[serde(alias = "idFilter", with = "int64_option")]
    pub id_filter: Option<i64>,
}

/// The artifacts of a run.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct ListArtifactsResponse {
    /// All that are finalized.
    #[prost(message, repeated, tag = "1")]
    pub artifacts: Vec<ListedArtifact>,
}

/// One artifact.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct ListedArtifact {
    /// Its run.
    #[prost(string, tag = "1")]
    #[serde(alias = "workflowRunBackendId")]
    pub workflow_run_backend_id: String,
    /// Its job.
    #[prost(string, tag = "2")]
    #[serde(alias = "workflowJobRunBackendId")]
    pub workflow_job_run_backend_id: String,
    /// Its number.
    #[prost(int64, tag = "3")]
    #[serde(alias = "databaseId", with = "int64")]
    pub database_id: i64,
    /// Its name.
    #[prost(string, tag = "4")]
    pub name: String,
    /// Its bytes.
    #[prost(int64, tag = "5")]
    #[serde(with = "int64")]
    pub size: i64,
    /// When it was finalized.
    #[prost(message, optional, tag = "6")]
    #[serde(alias = "createdAt")]
    pub created_at: Option<Time>,
    /// `sha256:` and hexadecimal digits.
    #[prost(message, optional, tag = "7")]
    pub digest: Option<String>,
}

/// Names an artifact: to read it, and to remove it.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct ArtifactRequest {
    /// The run, as the token says.
    #[prost(string, tag = "1")]
    #[serde(alias = "workflowRunBackendId")]
    pub workflow_run_backend_id: String,
    /// The job that made it.
    #[prost(string, tag = "2")]
    #[serde(alias = "workflowJobRunBackendId")]
    pub workflow_job_run_backend_id: String,
    /// The name.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// Where to download.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct GetSignedArtifactUrlResponse {
    /// The URL.
    #[prost(string, tag = "1")]
    pub signed_url: String,
}

/// An instant, as `google.protobuf.Timestamp`; in JSON as RFC 3339.
#[derive(Clone, Copy, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Time {
    /// Seconds since the epoch.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// And so much more.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// A time that is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the time is not RFC 3339 in UTC")]
pub struct NoTime;

impl TryFrom<String> for Time {
    type Error = NoTime;
    fn try_from(text: String) -> Result<Self, NoTime> {
        read_time(&text).ok_or(NoTime)
    }
}

impl From<Time> for String {
    fn from(time: Time) -> String {
        let micros = time.seconds.saturating_mul(1_000_000).saturating_add(i64::from(time.nanos) / 1000);
        forgeyard_model::Timestamp::from_micros(micros).to_string()
    }
}

/// `2026-11-30T01:02:03.456Z`, with or without a fraction.
fn read_time(text: &str) -> Option<Time> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let number = |text: &str, digits: usize| -> Option<i64> {
        (text.len() == digits && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok())?
    };
    let mut parts = date.splitn(3, '-');
    let (year, month, day) =
        (number(parts.next()?, 4)?, number(parts.next()?, 2)?, number(parts.next()?, 2)?);
    let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let mut parts = clock.splitn(3, ':');
    let (hour, minute, second) =
        (number(parts.next()?, 2)?, number(parts.next()?, 2)?, number(parts.next()?, 2)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let nanos = number(&format!("{fraction:0<9}"), 9)?;
    // days from 1970-01-01, with years that begin in March
    let year = if month <= 2 { year - 1 } else { year };
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = year.div_euclid(400) * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    Some(Time { seconds: days * 86_400 + hour * 3600 + minute * 60 + second, nanos: nanos as i32 })
}

/// 64-bit numbers in JSON: written as texts, read as either.
mod int64 {
    use super::{Deserialize, Deserializer, Serializer};
    use serde::de::Error as _;

    #[derive(Deserialize)]
    #[serde(untagged)]
    pub(super) enum Either {
        Number(i64),
        Text(String),
    }

    impl Either {
        pub(super) fn value<E: serde::de::Error>(self) -> Result<i64, E> {
            match self {
                Either::Number(number) => Ok(number),
                Either::Text(text) => text.parse().map_err(|_| E::custom("not a 64-bit number")),
            }
        }
    }

    pub(super) fn serialize<S: Serializer>(value: &i64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
        Either::deserialize(from).map_err(|_| D::Error::custom("not a 64-bit number"))?.value()
    }
}

/// The same for numbers that may be absent.
mod int64_option {
    use super::int64::Either;
    use super::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &Option<i64>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => to.collect_str(value),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
        Option::<Either>::deserialize(from)?.map(Either::value).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;

    #[test]
    fn json_of_the_official_client_is_read() {
        let json = br#"{"workflow_run_backend_id":"r","workflow_job_run_backend_id":"j","name":"n","mime_type":"application/zip","version":7,"expires_at":"2026-12-01T00:00:00.500Z","new":[1]}"#;
        let read: CreateArtifactRequest = serde_json::from_slice(json).unwrap();
        assert_eq!(read.mime_type.as_deref(), Some("application/zip"));
        assert_eq!(read.expires_at, Some(Time { seconds: 1_796_083_200, nanos: 500_000_000 }));
        let json = br#"{"key":"k","sizeBytes":"9007199254740993","version":"v"}"#;
        let read: FinalizeCacheEntryUploadRequest = serde_json::from_slice(json).unwrap();
        assert_eq!(read.size_bytes, 9_007_199_254_740_993);
        let read: ListArtifactsRequest = serde_json::from_slice(br#"{"id_filter":"7"}"#).unwrap();
        assert_eq!(read.id_filter, Some(7));
    }

    /// Bytes as another encoder writes them: field 2 "k", field 3 "r" twice, field 4 "v", and an unknown field 9.
    #[test]
    fn protobuf_is_read_by_the_numbers_of_the_fields() {
        let bytes = [0x12, 1, b'k', 0x1a, 1, b'r', 0x1a, 1, b's', 0x22, 1, b'v', 0x48, 5];
        let read = GetCacheEntryDownloadUrlRequest::decode(&bytes[..]).unwrap();
        assert_eq!((read.key.as_str(), read.version.as_str()), ("k", "v"));
        assert_eq!(read.restore_keys, ["r", "s"]);
        // a wrapped text is a message with field 1
        let bytes = [0x32, 3, 0x0a, 1, b'm'];
        assert_eq!(CreateArtifactRequest::decode(&bytes[..]).unwrap().mime_type.as_deref(), Some("m"));
    }

    #[test]
    fn times_are_written_and_read_as_rfc_3339() {
        for (text, seconds) in [("1970-01-01T00:00:00Z", 0), ("2000-02-29T23:59:59Z", 951_868_799)] {
            assert_eq!(Time::try_from(text.to_owned()), Ok(Time { seconds, nanos: 0 }));
        }
        for wrong in
            ["", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00", "2026-01-01T00:00:00.Zé", "é-1-1T1:1:1Z"]
        {
            assert!(Time::try_from(wrong.to_owned()).is_err(), "{wrong}");
        }
    }
}
