//! `forgeyard terms`: the terms of service of a farm. They are accepted by version and by numeric id of a person.

use super::{FarmArgs, ReadArgs};
use crate::output;
use anyhow::Result;
use clap::Subcommand;
use forgeyard_api::people::TermsRequest;
use forgeyard_model::approval::Way;
use forgeyard_model::who::ForgeId;
use std::fmt::Write as _;
use std::process::ExitCode;

/// What can be done with terms.
#[derive(Subcommand, Clone)]
pub enum TermsCommand {
    /// Show which version counts, and what you accepted.
    Show(ReadArgs),
    /// Accept a version. Only the one that counts now can be accepted.
    Accept {
        /// The version that was read.
        #[arg(long)]
        version: u32,
        /// For this person, by numeric id, or forge and id like `lab:7`: an admin records what somebody said in writing.
        #[arg(long, value_name = "ID")]
        person: Option<ForgeId>,
        #[command(flatten)]
        farm: FarmArgs,
    },
}

/// Runs a command.
pub async fn run(command: TermsCommand) -> Result<ExitCode> {
    match command {
        TermsCommand::Show(read) => {
            let terms = read.farm.client()?.terms().await?;
            output::show(read.json, &terms, |terms| {
                if terms.version == 0 {
                    return "this farm asks nobody to accept terms of service\n".to_owned();
                }
                let mut text = format!("version {} counts\n", terms.version);
                if let Some(url) = &terms.url {
                    let _ = writeln!(text, "read them at {url}");
                }
                let _ = match (&terms.person, terms.accepted) {
                    (None, _) => writeln!(text, "this token speaks for nobody at a forge"),
                    (Some(person), 0) => writeln!(text, "{} accepted none", person.login),
                    (Some(person), version) => writeln!(text, "{} accepted version {version}", person.login),
                };
                text
            })
        }
        TermsCommand::Accept { version, person, farm } => {
            let forge = person.as_ref().and_then(|person| person.forge.clone());
            let person = person.map(|person| person.id);
            farm.client()?.accept_terms(&TermsRequest { version, person, forge, how: Way::Cli }).await?;
            output::say(&format!("version {version} is accepted"))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
