//! The history of the configuration: every version that the farm ran with, from the database.
//!
//! A version is written when the farm starts under another configuration than before. None is ever changed or erased; going
//! back to an older one is a new version that says which one it repeats.

use crate::app::App;
use forgeyard_db::Error;
use forgeyard_model::Digest;
use forgeyard_model::approval::ConfigVersion;
use forgeyard_model::commit::Row;
use forgeyard_model::config::FarmConfig;

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

/// A configuration as it is kept: without what stands before `@` in the address of a source, which may be a password.
pub(crate) fn kept(config: &FarmConfig) -> Result<String, serde_json::Error> {
    let mut config = config.clone();
    for repository in &mut config.repositories {
        let Some((scheme, rest)) = repository.source.split_once("://") else { continue };
        let (host, path) = rest.split_once('/').map_or((rest, None), |(host, path)| (host, Some(path)));
        if let Some((_, host)) = host.rsplit_once('@') {
            let path = path.map(|path| format!("/{path}")).unwrap_or_default();
            repository.source = format!("{scheme}://…@{host}{path}");
        }
    }
    serde_json::to_string(&config)
}

/// The text of a version in lines, for people. One of an older program is shown as it is kept.
pub fn text(row: &ConfigVersion) -> String {
    let value: Result<serde_json::Value, _> = serde_json::from_str(&row.config);
    value.and_then(|value| serde_json::to_string_pretty(&value)).unwrap_or_else(|_| row.config.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use forgeyard_model::config::RepositoryConfig;

    #[test]
    fn password_in_the_address_of_a_source_is_not_kept() {
        let mut config = small();
        config.repositories[0].source = "https://robot:hunter2@git.example/o/r.git".to_owned();
        let kept = kept(&config).unwrap();
        assert!(!kept.contains("hunter2") && kept.contains("https://…@git.example/o/r.git"), "{kept}");
        config.repositories[0].source = "git@github.com:o/r.git".to_owned();
        assert!(super::kept(&config).unwrap().contains("git@github.com:o/r.git"));
    }

    fn small() -> FarmConfig {
        let name = "x";
        FarmConfig {
            farm: name.to_owned(),
            pools: Vec::new(),
            flavors: Vec::new(),
            images: Vec::new(),
            use_flavors: forgeyard_model::config::Flavors {
                plan: name.parse().unwrap(),
                build: name.parse().unwrap(),
                test: name.parse().unwrap(),
                gpu_test: name.parse().unwrap(),
            },
            repositories: vec![RepositoryConfig {
                forge: name.parse().unwrap(),
                id: 1,
                name: "o/r".to_owned(),
                source: String::new(),
                protected: Vec::new(),
                channel: name.parse().unwrap(),
                sites: Default::default(),
            }],
            access: Default::default(),
            max_running: 1,
            folder_channel: name.parse().unwrap(),
            engine_path: String::new(),
        }
    }
}
