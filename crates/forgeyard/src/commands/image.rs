//! `forgeyard image`: what runners boot.

use super::ReadArgs;
use crate::output::{self, table_or};
use anyhow::Result;
use clap::Subcommand;
use forgeyard_model::resources::ImageRoot;
use std::process::ExitCode;

/// What can be asked about images.
#[derive(Subcommand, Clone)]
pub enum ImageCommand {
    /// List the images, with the pools that boot them.
    List(ReadArgs),
}

/// Runs a command.
pub async fn run(ImageCommand::List(read): ImageCommand) -> Result<ExitCode> {
    let config = read.farm.client()?.config().await?;
    let pools_of = |image: &forgeyard_model::ImageName| {
        let pools = config.pools.iter().filter(|pool| pool.image == *image);
        pools.map(|pool| pool.name.to_string()).collect::<Vec<_>>().join(", ")
    };
    output::show(read.json, &config.images, |images| {
        let rows: Vec<Vec<String>> = images
            .iter()
            .map(|image| {
                let root = match &image.root {
                    ImageRoot::Host { allow } if allow.is_empty() => {
                        "the host's system folders, read-only".to_owned()
                    }
                    ImageRoot::Host { allow } => {
                        format!("the host's system folders, read-only, and {}", allow.join(", "))
                    }
                    ImageRoot::Rootfs { digest } => format!("tree {}", digest.short()),
                };
                vec![image.name.to_string(), pools_of(&image.name), root]
            })
            .collect();
        table_or("no image", &["image", "pools", "root"], &rows)
    })
}
