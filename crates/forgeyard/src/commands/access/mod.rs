//! `forgeyard access`: who may use what. `check`, `diff`, `simulate` and `import` only read files; `explain` asks the farm, or decides here
//! from a file, with the same gate.

mod diff;
mod import;
mod simulate;

use super::{FarmArgs, named_text};
use crate::config::{FileConfig, HostSize};
use crate::output::{self, Wrong, indented, table_or};
use anyhow::Result;
use clap::{Args, Subcommand};
use forgeyard_api::people::{AccessAnswer, AccessQuestion};
use forgeyard_control::http::people::answer;
use forgeyard_formats::access::{self, NOBODY};
use forgeyard_model::ForgeName;
use forgeyard_model::access::{Access, Decision, EventClass, GrantRepository};
use forgeyard_model::config::{FarmConfig, RepositoryConfig};
use forgeyard_model::who::ForgeId;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What can be done with access.
#[derive(Subcommand, Clone)]
pub enum AccessCommand {
    /// Read an access file and say what opens nothing, without a farm.
    Check {
        /// The access file.
        file: PathBuf,
        /// Configuration of the farm; its pools and repositories are then compared as well.
        #[arg(long, env = "FORGEYARD_CONFIG", value_name = "FILE")]
        config: Option<PathBuf>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Ask what the gate would decide, and by which rule. Exit code 1 when it would refuse.
    Explain(ExplainArgs),
    /// Say what a change of an access file opens and closes, and for whom. Exit code 1 when something changes.
    Diff {
        /// The access file as it is.
        old: PathBuf,
        /// The access file as it would be.
        new: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Ask what the gate would have said to recorded webhooks.
    Simulate(SimulateArgs),
    /// Turn .access.yml, .cirun.global.yml, users JSON and request files into an access file, without a farm.
    Import(import::ImportArgs),
}

/// A question to the gate.
#[derive(Args, Clone)]
pub struct ExplainArgs {
    /// The repository: its numeric id at the forge, or its name when the farm knows it.
    #[arg(long, value_name = "ID")]
    repository: String,
    /// The person: the numeric id at the forge; with --file the login is enough where the file knows it.
    #[arg(long, value_name = "ID")]
    person: String,
    /// The event: push, pull-request, fork-pull-request, schedule, dispatch or rerun.
    #[arg(long, value_parser = event_class)]
    event: EventClass,
    /// Pool or resource.
    #[arg(long)]
    resource: String,
    /// Decide here, from this access file, without a farm. Every repository of its grants counts as configured.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    farm: FarmArgs,
}

/// Events that were recorded.
#[derive(Args, Clone)]
pub struct SimulateArgs {
    /// The access file.
    file: PathBuf,
    /// Bodies of webhooks, a file each.
    #[arg(required = true)]
    bodies: Vec<PathBuf>,
    /// The event that they are of, as the forge names it; told by the names of the files (`push.1.json`) when absent.
    #[arg(long)]
    event: Option<String>,
    /// Pool or resource; all that the access file opens when absent. May be given more than once.
    #[arg(long = "resource")]
    resources: Vec<String>,
    /// Configuration of the farm, for its repositories and their protected branches. Without it every repository of a
    /// grant counts as configured, with `main` protected.
    #[arg(long, env = "FORGEYARD_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs a command.
pub async fn run(command: AccessCommand) -> Result<ExitCode> {
    match command {
        AccessCommand::Check { file, config, json } => check(&file, config.as_deref(), json),
        AccessCommand::Explain(args) => explain(args).await,
        AccessCommand::Diff { old, new, json } => difference(&old, &new, json),
        AccessCommand::Simulate(args) => simulated(&args),
        AccessCommand::Import(args) => import::run(&args),
    }
}

fn event_class(text: &str) -> Result<EventClass, String> {
    serde_json::from_value(serde_json::Value::String(text.to_owned())).map_err(|_| {
        format!(
            "`{text}` is not an event: push, pull-request, fork-pull-request, schedule, dispatch or rerun"
        )
    })
}

fn pair(text: &str) -> Result<(String, u64), String> {
    let read = text.rsplit_once('=').and_then(|(name, id)| Some((name.to_owned(), id.parse().ok()?)));
    read.filter(|(name, _)| !name.is_empty())
        .ok_or_else(|| format!("`{text}` is not NAME=ID, for example widgets/widget=12345"))
}

fn read(path: &Path) -> Result<Access> {
    let text = named_text(path)?;
    access::read(&path.display().to_string(), &text)
        .map_err(|error| Wrong::new(error.to_string()).fix("correct the file, then check it again").into())
}

fn check(file: &Path, config: Option<&Path>, json: bool) -> Result<ExitCode> {
    let access = read(file)?;
    let config = config.map(|path| FileConfig::read(Some(path))?.farm(HostSize::here())).transpose()?;
    let trouble = trouble(&access, config.as_ref());
    if json {
        output::say_json(&serde_json::json!({ "access": access, "trouble": trouble }))?;
    } else {
        let rows: Vec<Vec<String>> = access
            .grants
            .iter()
            .map(|grant| {
                let id = grant.repository.id.map_or_else(|| "none".to_owned(), |id| id.to_string());
                let events: Vec<String> = grant.events.iter().map(super::word).collect();
                let resources: Vec<&str> = grant.resources.iter().map(String::as_str).collect();
                let what = format!("{} on {}", resources.join(", "), events.join(", "));
                vec![grant.id.clone(), grant.repository.name.clone(), id, what]
            })
            .collect();
        let mut text = table_or(
            "it has no grant: nobody is allowed anything",
            &["grant", "repository", "id", "opens"],
            &rows,
        );
        for note in &access.notes {
            let _ = writeln!(text, "note: {note}");
        }
        for line in &trouble {
            let _ = writeln!(text, "trouble: {line}");
        }
        let _ = writeln!(text, "{} grants, {} that need work", access.grants.len(), trouble.len());
        output::say(&text)?;
    }
    Ok(if trouble.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What is well formed and still opens nothing, or not what was meant.
fn trouble(access: &Access, config: Option<&FarmConfig>) -> Vec<String> {
    let mut trouble = Vec::new();
    for grant in &access.grants {
        let mut say = |what: String| trouble.push(format!("grant `{}` {what}", grant.id));
        let name = &grant.repository.name;
        match (grant.repository.id, config) {
            (None, _) => say(format!("allows nothing: write the numeric id of {name}")),
            (Some(id), Some(config))
                if !config
                    .repositories
                    .iter()
                    .any(|known| grant.repository.is(access.home(), &known.forge, known.id)) =>
            {
                say(format!("is for repository {id} ({name}), which the farm does not work for"));
            }
            (Some(_), _) => {}
        }
        if grant.resources.is_empty() {
            say("opens no resource".to_owned());
        }
        if grant.events.is_empty() {
            say("covers no event".to_owned());
        }
        for (kind, names, known) in
            [("list", &grant.lists, &access.lists), ("team", &grant.teams, &access.teams)]
        {
            for name in names.iter().filter(|name| *name != NOBODY) {
                match known.get(name) {
                    None => say(format!("names the {kind} `{name}`, which is not declared")),
                    Some(members) if members.is_empty() => {
                        say(format!("names the {kind} `{name}`, which has no member"));
                    }
                    Some(_) => {}
                }
            }
        }
        if grant.lists.contains(NOBODY)
            && grant.users.is_empty()
            && grant.lists.len() + grant.teams.len() == 1
        {
            say("is open to nobody: none of the people that it was written for was found".to_owned());
        }
        if let Some(config) = config {
            for resource in &grant.resources {
                if !config.pools.iter().any(|pool| pool.name.to_string() == *resource) {
                    say(format!("opens `{resource}`, which is no pool of the farm"));
                }
            }
        }
    }
    for rule in &access.members {
        let mut say = |what: &str| trouble.push(format!("member rule `{}` {what}", rule.id));
        if !rule.whole_farm && rule.repositories.is_empty() && rule.organisations.is_empty() {
            say("counts nowhere: write `repositories`, `organisations` or `whole-farm = true`");
        }
        if rule.users.is_empty() && rule.lists.is_empty() && rule.teams.is_empty() {
            say("names nobody");
        }
        for (kind, names, known) in
            [("list", &rule.lists, &access.lists), ("team", &rule.teams, &access.teams)]
        {
            for name in names.iter().filter(|name| !known.contains_key(*name)) {
                say(&format!("names the {kind} `{name}`, which is not declared"));
            }
        }
        if let Some(config) = config {
            let here = |id: &&ForgeId| {
                let is = |known: &RepositoryConfig| id.is(access.home(), known.forge.as_str(), known.id);
                !config.repositories.iter().any(is)
            };
            for id in rule.repositories.iter().filter(here) {
                say(&format!("is for repository {id}, which the farm does not work for"));
            }
        }
    }
    trouble
}

fn difference(old: &Path, new: &Path, json: bool) -> Result<ExitCode> {
    let lines = diff::changes(&configured(read(old)?)?, &configured(read(new)?)?);
    if json {
        output::say_json(&lines)?;
    } else {
        let rows: Vec<Vec<String>> = lines
            .iter()
            .map(|line| {
                let event = super::word(&line.event);
                let what = line.change.to_string();
                vec![line.repository.clone(), line.resource.clone(), event, line.people.join(", "), what]
            })
            .collect();
        let head = ["repository", "resource", "event", "for", "change"];
        output::say(&table_or("nothing changes for anybody", &head, &rows))?;
    }
    Ok(if lines.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What opens and closes from one configuration to another, for whom.
pub(super) use diff::Line as Change;

/// The same for two configurations.
pub(super) fn changes_of(old: &FarmConfig, new: &FarmConfig) -> Vec<Change> {
    diff::changes(old, new)
}

fn simulated(args: &SimulateArgs) -> Result<ExitCode> {
    let access = read(&args.file)?;
    let named: BTreeSet<String> =
        access.grants.iter().flat_map(|grant| grant.resources.iter().cloned()).collect();
    let resources: Vec<String> =
        if args.resources.is_empty() { named.into_iter().collect() } else { args.resources.clone() };
    let config = match &args.config {
        Some(path) => {
            let mut config = FileConfig::read(Some(path))?.farm(HostSize::here())?;
            config.access = access;
            config
        }
        None => configured(access)?,
    };
    let mut lines = Vec::new();
    for body in &args.bodies {
        lines.extend(simulate::ask(&config, args.event.as_deref(), body, &resources)?);
    }
    if args.json {
        output::say_json(&lines)?;
    } else {
        let rows: Vec<Vec<String>> = lines
            .iter()
            .map(|line| {
                // The last part of the path tells files apart well enough, and leaves room for the reason.
                let file = Path::new(&line.file).file_name().unwrap_or(line.file.as_ref());
                let file = file.to_string_lossy().into_owned();
                vec![file, line.resource.clone(), line.answer.to_owned(), line.why.clone()]
            })
            .collect();
        output::say(&table_or("there was nothing to ask", &["body", "resource", "answer", "why"], &rows))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A repository by its number.
fn meant(text: &str) -> Result<ForgeId> {
    text.parse().map_err(|_| {
        Wrong::new(format!("the repository `{text}` is not known by name"))
            .fix(
                "give its numeric id at the forge, with the forge where that is not the home forge: 7, lab:7",
            )
            .into()
    })
}

async fn explain(args: ExplainArgs) -> Result<ExitCode> {
    let number = |text: &str, what: &str| -> Result<u64> {
        text.parse().map_err(|_| {
            Wrong::new(format!("{what} `{text}` is not known by name"))
                .fix("give its numeric id at the forge")
                .into()
        })
    };
    let answered = if let Some(file) = &args.file {
        let access = read(file)?;
        let named = access.grants.iter().find(|grant| grant.repository.name == args.repository);
        let written = named.and_then(|grant| {
            Some(ForgeId { forge: grant.repository.forge.clone(), id: grant.repository.id? })
        });
        let repository = match written {
            Some(id) => id,
            None => meant(&args.repository)?,
        };
        let login = access.logins.iter().find(|(_, login)| login.eq_ignore_ascii_case(&args.person));
        let person = match login {
            Some((known, _)) => known.id,
            None => number(&args.person, "the person")?,
        };
        let question = question(&args, repository, person);
        answer(&configured(access)?, &question)
    } else {
        let client = args.farm.client()?;
        let repository = match args.repository.parse() {
            Ok(id) => id,
            Err(_) => {
                let known = client.config().await?.repositories;
                let found = known.iter().find(|known| known.name == args.repository);
                found.map_or_else(
                    || meant(&args.repository),
                    |found| Ok(ForgeId::at(&found.forge, found.id)),
                )?
            }
        };
        let question = question(&args, repository, number(&args.person, "the person")?);
        client.explain_access(&question).await?
    };
    output::show(args.json, &answered, explained)?;
    Ok(match answered.decision {
        Decision::Allow { .. } => ExitCode::SUCCESS,
        Decision::Deny { .. } => ExitCode::FAILURE,
    })
}

fn question(args: &ExplainArgs, repository: ForgeId, person: u64) -> AccessQuestion {
    AccessQuestion { repository, person, event: args.event, resource: args.resource.clone() }
}

/// A farm that works for every repository of the grants.
pub(super) fn configured(access: Access) -> Result<FarmConfig> {
    let mut config = FileConfig::default().farm(HostSize::here())?;
    let home = access.home();
    let named: BTreeMap<(&str, u64), &GrantRepository> = access
        .grants
        .iter()
        .filter_map(|grant| {
            let forge = grant.repository.forge.as_ref().map_or(home, ForgeName::as_str);
            Some(((forge, grant.repository.id?), &grant.repository))
        })
        .collect();
    for ((_, id), repository) in named {
        let name = &repository.name;
        config.repositories.push(RepositoryConfig {
            forge: match access.forge_of(repository.forge.as_ref()) {
                Some(forge) => forge,
                None => "github".parse()?,
            },
            id,
            name: name.clone(),
            source: String::new(),
            protected: vec!["main".to_owned()],
            channel: config.folder_channel.clone(),
            sites: Default::default(),
        });
    }
    config.access = access;
    Ok(config)
}

/// All that the gate says of a question: as the console's access page shows it.
fn explained(answered: &AccessAnswer) -> String {
    let mut text = decided(&answered.decision);
    let word = if answered.approval.may { "may" } else { "may not" };
    let _ = writeln!(text, "{word} approve commits of others");
    for line in &answered.approval.evidence {
        let _ = writeln!(text, "  - {line}");
    }
    if let Some(fix) = &answered.approval.fix {
        let _ = writeln!(text, "  fix: {fix}");
    }
    let _ = writeln!(text, "role in this farm: {}", answered.role.as_deref().unwrap_or("none"));
    text
}

fn decided(decision: &Decision) -> String {
    match decision {
        Decision::Allow { by, lane, isolation, evidence } => {
            let mut text = format!(
                "allowed by {}; lane {lane}, isolation {} or better\n",
                by.join(", "),
                super::word(isolation)
            );
            for line in evidence {
                let _ = writeln!(text, "  - {line}");
            }
            text
        }
        Decision::Deny { reason } => format!("refused: {}\n", indented(reason, 0)),
    }
}
