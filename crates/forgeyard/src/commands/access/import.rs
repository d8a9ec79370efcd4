//! `forgeyard access import`: the access, runner and request files of another farm as an access file of this one.

use super::{pair, read, trouble};
use crate::commands::named_text;
use crate::output::{self, Wrong};
use anyhow::{Context as _, Result};
use clap::Args;
use forgeyard_formats::access::{self, CirunFiles, ImportOptions, RequestOptions};
use forgeyard_model::who::ForgeId;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;

/// Files of another farm.
#[derive(Args, Clone)]
pub struct ImportArgs {
    /// The .access.yml.
    #[arg(long, value_name = "FILE", required_unless_present = "requests")]
    access: Option<PathBuf>,
    /// Request files (`action: cirun`), or a folder of them, taken in the order of their names. May be given more than once.
    #[arg(long, value_name = "FILE")]
    requests: Vec<PathBuf>,
    /// With --requests: a list of people who may use what is granted. May be given more than once.
    #[arg(long = "list", value_name = "NAME")]
    lists: Vec<String>,
    /// With --requests: a role at the forge that is needed as well. May be given more than once.
    #[arg(long = "role", value_name = "ROLE")]
    roles: Vec<String>,
    /// The .cirun.global.yml; resources are compared with its runners.
    #[arg(long, value_name = "FILE")]
    runners: Option<PathBuf>,
    /// Users JSON; policies name it by its file name. May be given more than once.
    #[arg(long, value_name = "FILE")]
    users: Vec<PathBuf>,
    /// Owner of the repositories, which those files name without one.
    #[arg(long)]
    owner: Option<String>,
    /// Numeric id of a repository. A grant without it opens nothing. May be given more than once.
    #[arg(long = "repository", value_name = "NAME=ID", value_parser = pair)]
    repositories: Vec<(String, u64)>,
    /// Let `pull_request: true` cover pull requests from forks as well.
    #[arg(long)]
    forks: bool,
    /// Access file to merge into: what is imported replaces grants of the same id, everything else is kept.
    #[arg(long, value_name = "FILE")]
    into: Option<PathBuf>,
    /// Where to write the access file; standard output when it is not given.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print JSON: the access, and the runner definitions as they were read.
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

/// Request files by name; those of a folder in the order of their names, which is how such folders are worked off.
fn request_files(paths: &[PathBuf]) -> Result<Vec<(String, String)>> {
    let mut files = Vec::new();
    for path in paths {
        let mut found = vec![path.clone()];
        if path.is_dir() {
            let entries =
                fs_err::read_dir(path).context(Wrong::new(format!("cannot read {}", path.display())))?;
            found = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
            found.retain(|path| path.extension().is_some_and(|ext| ext == "yml" || ext == "yaml"));
            found.sort();
        }
        for path in found {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            files.push((name, named_text(&path)?));
        }
    }
    Ok(files)
}

/// Reads them, and writes or prints what they say.
pub(super) fn run(args: &ImportArgs) -> Result<ExitCode> {
    let runners = args.runners.as_deref().map(named_text).transpose()?;
    let mut users = BTreeMap::new();
    for path in &args.users {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if users.insert(name.clone(), named_text(path)?).is_some() {
            return Err(Wrong::new(format!("two users files are called {name}"))
                .fix("policies tell them apart by that name only; rename one")
                .into());
        }
    }
    let options = ImportOptions {
        owner: args.owner.clone(),
        repository_ids: args.repositories.iter().cloned().collect(),
        forks: args.forks,
    };
    let mut access = args.into.as_deref().map(read).transpose()?.unwrap_or_default();
    let mut definitions = Vec::new();
    if let Some(path) = &args.access {
        let access_text = named_text(path)?;
        let files = CirunFiles {
            access: &access_text,
            runners: runners.as_deref(),
            users: users.iter().map(|(name, text)| (name.clone(), text.as_str())).collect(),
        };
        let imported = access::import_cirun(&files, &options)
            .with_context(|| Wrong::new(format!("{} cannot be imported", path.display())))?;
        access = access::merge(access, imported.access);
        definitions = imported.runners;
    }
    let texts = request_files(&args.requests)?;
    if !texts.is_empty() {
        let files: Vec<(String, &str)> =
            texts.iter().map(|(name, text)| (name.clone(), text.as_str())).collect();
        let options = RequestOptions {
            owner: args.owner.clone(),
            repository_ids: options.repository_ids.clone(),
            lists: args.lists.iter().cloned().collect(),
            roles: args.roles.iter().cloned().collect(),
            forks: args.forks,
        };
        access = access::apply_requests(access, &files, &options)
            .with_context(|| Wrong::new("the requests cannot be imported"))?;
    }
    if args.json {
        output::say_json(&serde_json::json!({ "access": access, "runners": definitions }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let text = access::export(&access)?;
    match &args.output {
        Some(path) => {
            fs_err::write(path, &text).context(Wrong::new(format!("cannot write {}", path.display())))?
        }
        None => output::say(&text)?,
    }
    for note in &access.notes {
        eprintln!("note: {note}");
    }
    for line in trouble(&access, None) {
        eprintln!("trouble: {line}");
    }
    let people: BTreeSet<&ForgeId> =
        access.grants.iter().flat_map(|grant| &grant.users).chain(access.lists.values().flatten()).collect();
    eprintln!(
        "{} grants for {} people; {} runner definitions were read (--json prints them)",
        access.grants.len(),
        people.len(),
        definitions.len()
    );
    Ok(ExitCode::SUCCESS)
}
