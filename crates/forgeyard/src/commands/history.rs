//! `forgeyard config`: the configurations that the farm ran with. The files of the operator are the truth and the farm never
//! writes them, so going back means: take the older text and put it where the files come from. That is a new
//! version, which says which one it repeats; nothing is ever erased.

use super::ReadArgs;
use super::access::configured;
use crate::output::{self, Wrong, at, table_or};
use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use forgeyard_api::client::Client;
use forgeyard_api::people::ConfigVersionView;
use forgeyard_formats::access;
use forgeyard_formats::diff::{self, Line};
use forgeyard_model::access::Access;
use forgeyard_model::config::FarmConfig;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// What can be done with the history.
#[derive(Subcommand, Clone)]
pub enum ConfigCommand {
    /// List every configuration that the farm ran with: since when, by whom, its digest.
    History(ReadArgs),
    /// Read the files of the configuration again; what they say counts from the next decision.
    Reload(ReadArgs),
    /// Show which version counts, and whether the files say something that cannot count.
    Status(ReadArgs),
    /// Show what changed between two versions: as text, and whom it opened or closed what to.
    Diff {
        /// The older version.
        old: u64,
        /// The newer one; the newest when it is not given.
        new: Option<u64>,
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Print the access file of an older version, to be put where the access file comes from.
    Revert(RevertArgs),
}

/// What is gone back to.
#[derive(Args, Clone)]
pub struct RevertArgs {
    /// The version.
    number: u64,
    /// Where to write the access file; standard output when it is not given. A file that is there is kept beside it as
    /// `FILE.before`.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    read: ReadArgs,
}

/// Runs a command.
pub async fn run(command: ConfigCommand) -> Result<ExitCode> {
    match command {
        ConfigCommand::History(read) => {
            let rows = read.farm.client()?.config_history().await?;
            output::show(read.json, &rows, |rows| {
                let rows: Vec<Vec<String>> = rows
                    .iter()
                    .map(|row| {
                        let repeats =
                            row.repeats.map(|older| format!(" (the same as {older})")).unwrap_or_default();
                        vec![
                            format!("{}{repeats}", row.number),
                            at(row.at),
                            row.by.clone(),
                            row.digest.short(),
                            row.changes.join("; "),
                        ]
                    })
                    .collect();
                table_or("the farm has not run yet", &["version", "since", "by", "digest", "what"], &rows)
            })
        }
        ConfigCommand::Reload(read) => {
            let done = read.farm.client()?.reload_config().await?;
            output::show(read.json, &done, |done| {
                let mut text = match done.changed {
                    true => format!("version {} counts now\n", done.version),
                    false => format!("the files say what counts already: version {}\n", done.version),
                };
                done.changes.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
                text + &at_a_start(&done.restart)
            })
        }
        ConfigCommand::Status(read) => {
            let view = read.farm.client()?.rules().await?;
            let good = view.problem.is_none();
            output::show(read.json, &view, |view| {
                let mut text = format!("version {} counts ({})\n", view.version, view.digest.short());
                if !view.reads_files {
                    text.push_str("the farm was started without files; there is nothing to read again\n");
                }
                if let Some(problem) = &view.problem {
                    text.push_str(&format!("{problem}\n"));
                }
                text + &at_a_start(&view.restart)
            })?;
            Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        ConfigCommand::Diff { old, new, read } => {
            let client = read.farm.client()?;
            let new = match new {
                Some(new) => new,
                None => client.config_history().await?.first().map_or(old, |row| row.number),
            };
            let (old, new) = (client.config_version(old).await?, client.config_version(new).await?);
            difference(&old, &new, read.json)
        }
        ConfigCommand::Revert(args) => revert(args).await,
    }
}

/// Names what waits for a start.
fn at_a_start(keys: &[String]) -> String {
    match keys {
        [] => String::new(),
        keys => format!("changed, and counts from the next start of the farm: {}\n", keys.join(", ")),
    }
}

#[derive(Serialize)]
struct Difference {
    from: u64,
    to: u64,
    text: String,
    access: Vec<super::access::Change>,
}

fn difference(old: &ConfigVersionView, new: &ConfigVersionView, json: bool) -> Result<ExitCode> {
    let text = |view: &ConfigVersionView| view.text.clone().unwrap_or_default();
    let (before, after) = (text(old), text(new));
    let lines = diff::lines(&before, &after);
    let mut shown = String::new();
    for line in diff::hunks(&lines, 3) {
        let _ = match line {
            None => writeln!(shown, "…"),
            Some(Line::Same(text)) => writeln!(shown, "  {text}"),
            Some(Line::Removed(text)) => writeln!(shown, "- {text}"),
            Some(Line::Added(text)) => writeln!(shown, "+ {text}"),
        };
    }
    // A version of an older program may have another shape; its text is compared all the same.
    let farm = |text: &str| serde_json::from_str::<FarmConfig>(text).ok();
    let access = match (farm(&before), farm(&after)) {
        (Some(old), Some(new)) => super::access::changes_of(&old, &new),
        _ => Vec::new(),
    };
    let same = lines.iter().all(|line| matches!(line, Line::Same(_)));
    let found = Difference { from: old.number, to: new.number, text: shown, access };
    output::show(json, &found, |found| {
        let mut text = found.text.clone();
        for change in &found.access {
            let _ = writeln!(text, "{change}");
        }
        if same {
            text.push_str("nothing that is kept differs\n");
        }
        text
    })?;
    Ok(if same { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The access rules of a version.
async fn access_of(client: &Client, number: u64) -> Result<Access> {
    let version = client.config_version(number).await?;
    let wrong = || {
        Wrong::new(format!("version {number} was written by another version of this program"))
            .fix(format!("see its text: `forgeyard config diff {number} --json`"))
    };
    let value: serde_json::Value =
        serde_json::from_str(version.text.as_deref().unwrap_or_default()).with_context(wrong)?;
    let access = value.get("access").cloned().unwrap_or_default();
    serde_json::from_value(access).with_context(wrong)
}

async fn revert(args: RevertArgs) -> Result<ExitCode> {
    let client = args.read.farm.client()?;
    let access = access_of(&client, args.number).await?;
    // What cannot be read back would be no way back.
    let text = access::export(&access)?;
    let _ = configured(access::read("the older version", &text)?)?;
    match &args.output {
        None => output::say(&text)?,
        Some(path) => {
            if path.exists() {
                let kept = PathBuf::from(format!("{}.before", path.display()));
                fs_err::rename(path, &kept).context(Wrong::new(format!("cannot keep {}", path.display())))?;
                eprintln!("what was there is kept as {}", kept.display());
            }
            fs_err::write(path, &text).context(Wrong::new(format!("cannot write {}", path.display())))?;
            eprintln!(
                "{} holds the access rules of version {}; they count a few seconds after they lie where the farm reads them, as a new version",
                path.display(),
                args.number
            );
        }
    }
    eprintln!(
        "pools, flavors and the rest stand in forgeyard.toml: `forgeyard config diff {}` shows what else changed",
        args.number
    );
    Ok(ExitCode::SUCCESS)
}
