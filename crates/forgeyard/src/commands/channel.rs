//! `forgeyard channel`: published indexes of packages.

use super::ReadArgs;
use crate::output::{self, Wrong, at, table_or};
use anyhow::Result;
use clap::Subcommand;
use forgeyard_model::ChannelName;
use forgeyard_model::channel::Channel;
use std::process::ExitCode;

/// What can be asked about channels.
#[derive(Subcommand, Clone)]
pub enum ChannelCommand {
    /// List the channels.
    List(ReadArgs),
    /// Show the packages of a channel.
    Show {
        /// Name of the channel.
        channel: ChannelName,
        #[command(flatten)]
        read: ReadArgs,
    },
}

/// Runs a command.
pub async fn run(command: ChannelCommand) -> Result<ExitCode> {
    match command {
        ChannelCommand::List(read) => {
            let client = read.farm.client()?;
            let channels = client.channels().await?;
            output::show(read.json, &channels, |channels| {
                let rows: Vec<Vec<String>> = channels
                    .iter()
                    .map(|channel| {
                        vec![
                            channel.name.to_string(),
                            channel.entries.len().to_string(),
                            at(channel.changed_at),
                            url(client.base(), channel),
                        ]
                    })
                    .collect();
                table_or(
                    "no channel has a package yet",
                    &["channel", "packages", "changed", "address"],
                    &rows,
                )
            })
        }
        ChannelCommand::Show { channel, read } => {
            let client = read.farm.client()?;
            let found = client.channels().await?.into_iter().find(|known| known.name == channel);
            let found = found.ok_or_else(|| {
                Wrong::new(format!("the farm has no channel `{channel}`, or nothing is in it yet"))
                    .fix("see `forgeyard channel list`")
            })?;
            output::show(read.json, &found, |channel| {
                let rows: Vec<Vec<String>> = channel
                    .entries
                    .iter()
                    .map(|entry| {
                        vec![
                            entry.artifact.to_string(),
                            at(entry.promoted_at),
                            output::bytes(entry.size),
                            format!("{}/{}", entry.subdir, entry.file_name),
                        ]
                    })
                    .collect();
                let table = table_or("it is empty", &["artifact", "promoted", "size", "package"], &rows);
                format!("{}\ngeneration {}\n\n{table}", url(client.base(), channel), channel.generation)
            })
        }
    }
}

fn url(base: &str, channel: &Channel) -> String {
    format!("{base}/channels/{}", channel.name)
}
