//! `[cache]` of `forgeyard.toml`.

use super::Tls;
use super::check::wrong;
use crate::output::Wrong;
use anyhow::Result;
use forgeyard_cache::store::shrink::Compression;
use forgeyard_model::config::FarmConfig;
use forgeyard_model::rules::Money;
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The build cache.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CacheConfig {
    /// Where to listen.
    pub listen: Option<SocketAddr>,
    /// With TLS: where programs and jobs of this host reach the cache without it. A loopback address; by default the port
    /// after that of `listen`.
    pub local_listen: Option<SocketAddr>,
    /// TLS by files.
    pub tls: Option<Tls>,
    /// Most disk that it takes, in GiB.
    pub capacity_gib: Option<u64>,
    /// Largest entry, in MiB.
    pub largest_mib: Option<u64>,
    /// When a write is acknowledged.
    pub durability: Option<forgeyard_cache::store::log::Durability>,
    /// Threads; one for each core when absent.
    pub threads: Option<usize>,
    /// What becomes of bodies that shrink; `zstd` when absent.
    pub compression: Option<AtRest>,
    /// Level of Zstandard, 1 to 19; 3 when absent.
    pub compression_level: Option<i32>,
    /// Most time that compressing takes, in hundredths of one core; 25 when absent.
    pub compression_cpu_percent: Option<u32>,
    /// Hours for which what was written or read stays as it is, 0 to 2160; 24 when absent.
    pub compression_after_hours: Option<u32>,
    /// S3-compatible storage behind the disk.
    pub tier: Option<forgeyard_cache::tier::Settings>,
    /// Who reads and writes what.
    #[serde(default)]
    pub scopes: Vec<forgeyard_cache::scope::ScopeRule>,
    /// Whether the jobs of this farm get the cache by themselves; they do when nothing is said.
    pub jobs: Option<bool>,
    /// Where the machines of jobs reach it; by `listen` when absent.
    pub address: Option<String>,
    /// Certificate authorities of the operators' own that machines of jobs are told to trust at that address.
    pub ca_file: Option<PathBuf>,
    /// Scopes of repositories whose scopes are not the usual ones.
    #[serde(default)]
    pub repositories: Vec<forgeyard_engine::cache_scopes::Scopes>,
    /// What is fetched before jobs come.
    #[serde(default)]
    pub warm: Vec<forgeyard_cache::warm::List>,
    /// What a CPU costs for an hour; by the prices of the queue when absent.
    pub price_per_cpu_hour: Option<Money>,
    /// Forges whose tokens are exchanged for tokens of the cache.
    #[serde(default)]
    pub issuers: Vec<forgeyard_cache::identity::policy::Issuer>,
}

/// What becomes of bodies that shrink, once they are at rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AtRest {
    /// They are compressed in the background.
    Zstd,
    /// They stay as they are.
    None,
}

impl CacheConfig {
    /// How the cache compresses what is at rest.
    pub fn compression(&self) -> Result<Compression> {
        let usual = Compression::default();
        let level = self.compression_level.unwrap_or(usual.level);
        let percent = self.compression_cpu_percent.unwrap_or(usual.percent);
        if !(1..=19).contains(&level) {
            return Err(
                Wrong::new(format!("`compression-level` of the cache is {level}, not 1 to 19")).into()
            );
        }
        if !(1..=100).contains(&percent) {
            let text = format!("`compression-cpu-percent` of the cache is {percent}, not 1 to 100");
            return Err(Wrong::new(text).fix("for none at all, write compression = \"none\"").into());
        }
        let hours = self.compression_after_hours.unwrap_or(usual.after_minutes / 60);
        if hours > 2160 {
            let text = format!("`compression-after-hours` of the cache is {hours}, more than 2160");
            return Err(Wrong::new(text).fix("for none at all, write compression = \"none\"").into());
        }
        let on = self.compression != Some(AtRest::None);
        Ok(Compression { on, level, percent, after_minutes: hours * 60 })
    }
}

/// Lists of what is fetched beforehand must be such that it can be, for pools that there are.
pub(super) fn warm(cache: &CacheConfig, config: &FarmConfig) -> Result<()> {
    forgeyard_cache::warm::check(&cache.warm)
        .map_err(|error| Wrong::new(error.to_string()).fix("correct [[cache.warm]] in the configuration"))?;
    for list in &cache.warm {
        let known = |name: &String| config.pools.iter().any(|pool| pool.name.as_str() == name);
        if let Some(pool) = list.pools.iter().find(|name| !known(name)) {
            return wrong(format!(
                "[[cache.warm]] `{}` is for the pool `{pool}`, which is not declared under [[pools]]",
                list.name
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::FileConfig;
    use forgeyard_formats::toml_text;

    #[test]
    fn cache_compresses_what_is_at_rest_unless_it_is_told_not_to() {
        let of = |text: &str| {
            let file: FileConfig = toml_text::read("forgeyard.toml", &format!("[cache]\n{text}")).unwrap();
            file.cache.unwrap().compression().map_err(|error| error.to_string())
        };
        let usual = Compression { on: true, level: 3, percent: 25, after_minutes: 24 * 60 };
        assert_eq!(of(""), Ok(usual));
        assert!(!of("compression = \"none\"").unwrap().on);
        let said = of("compression = \"zstd\"\ncompression-level = 9\ncompression-cpu-percent = 5");
        assert_eq!(said, Ok(Compression { level: 9, percent: 5, ..usual }));
        assert_eq!(of("compression-after-hours = 0"), Ok(Compression { after_minutes: 0, ..usual }));
        assert!(of("compression-after-hours = 3000").unwrap_err().contains("2160"));
        assert!(of("compression-level = 20").unwrap_err().contains("1 to 19"));
        assert!(of("compression-cpu-percent = 0").unwrap_err().contains("1 to 100"));
        assert!(
            toml_text::read::<FileConfig>("forgeyard.toml", "[cache]\ncompression = \"gzip\"\n").is_err()
        );
    }
}
