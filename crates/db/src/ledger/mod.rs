//! What is only ever appended: the journal (inputs, enough to replay each decision), the events (the audit trail) and
//! the usage facts. The schema refuses to change or delete them.

pub(crate) mod event;
pub(crate) mod journal;
pub(crate) mod usage;

use crate::Error;
use crate::table::DATA_VERSION;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The JSON that is stored.
fn encode<T: Serialize>(what: &str, value: &T) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|error| Error::invalid(format!("{what} has no JSON: {error}")))
}

/// Reads stored JSON.
fn decode<T: DeserializeOwned>(what: &str, version: i64, data: &str) -> Result<T, Error> {
    if version != DATA_VERSION {
        return Err(Error::corrupt(format!(
            "{what} has data version {version}, this program reads version {DATA_VERSION}"
        )));
    }
    serde_json::from_str(data).map_err(|error| Error::corrupt(format!("{what}: {error}")))
}
