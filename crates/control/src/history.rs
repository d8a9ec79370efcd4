//! The history of the configuration: every version that the farm ran with, from the database.
//!
//! A version is written when the farm starts under another configuration than before. None is ever changed or erased; going
//! back to an older one is a new version that says which one it repeats.

use crate::app::App;
use forgeyard_db::Error;
use forgeyard_model::Digest;
use forgeyard_model::approval::ConfigVersion;
use forgeyard_model::commit::Row;

/// Rows of one page of the database.
const PAGE: u32 = 200;

/// Every version, newest first.
pub async fn versions(app: &App) -> Result<Vec<ConfigVersion>, Error> {
    let mut all: Vec<ConfigVersion> = Vec::new();
    loop {
        let before = all.last().map(|row| ConfigVersion::key(row.number));
        let rows = app.store.list("config", before.as_deref(), PAGE).await?;
        let more = rows.len() == PAGE as usize;
        all.extend(rows.into_iter().filter_map(|row| match row {
            Row::Config(row) => Some(row),
            _ => None,
        }));
        if !more {
            return Ok(all);
        }
    }
}

/// One version.
pub async fn version(app: &App, number: u64) -> Result<Option<ConfigVersion>, Error> {
    let row = app.store.row("config", &ConfigVersion::key(number)).await?;
    Ok(row.and_then(|row| match row {
        Row::Config(row) => Some(row),
        _ => None,
    }))
}

/// The newest older version with this digest, unless it is the one that counts already.
pub(crate) async fn repeats(app: &App, digest: Digest) -> Result<Option<u64>, Error> {
    let newest = app.core.read().configs.last_key_value().map(|(number, row)| (*number, row.digest));
    if newest.is_none_or(|(_, known)| known == digest) {
        return Ok(None);
    }
    Ok(versions(app).await?.into_iter().find(|row| row.digest == digest).map(|row| row.number))
}
