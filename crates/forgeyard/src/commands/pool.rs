//! `forgeyard pool`: runners that are alike, as the configuration declares them.

use super::{ReadArgs, word};
use crate::output::{self, table_or};
use anyhow::Result;
use clap::Subcommand;
use std::process::ExitCode;

/// What can be asked about pools.
#[derive(Subcommand, Clone)]
pub enum PoolCommand {
    /// List the pools, in order of preference.
    List(ReadArgs),
}

/// Runs a command.
pub async fn run(PoolCommand::List(read): PoolCommand) -> Result<ExitCode> {
    let config = read.farm.client()?.config().await?;
    output::show(read.json, &config.pools, |pools| {
        let rows: Vec<Vec<String>> = pools
            .iter()
            .map(|pool| {
                let flavors: Vec<String> = pool.flavors.iter().map(ToString::to_string).collect();
                vec![
                    pool.name.to_string(),
                    pool.provider.to_string(),
                    word(&pool.isolation),
                    pool.max.to_string(),
                    pool.image.to_string(),
                    flavors.join(", "),
                ]
            })
            .collect();
        table_or("no pool", &["pool", "provider", "isolation", "max", "image", "flavors"], &rows)
    })
}
