//! `forgeyard forge doctor`: whether a connection does all that it should, proved by doing it.
//!
//! What is asked of GitHub is in [`forgeyard_forges::github::doctor`]. Beside that, the farm itself is asked at the address
//! that GitHub knows, with a ping that is signed as GitHub would: so a farm that runs with another secret than the file
//! holds, or under another name of the forge, shows before GitHub says so.

use crate::config::FileConfig;
use crate::connect::{At, ForgeConfig, Kind};
use crate::output::{self, Wrong, chain, table_or};
use anyhow::{Context as _, Result};
use clap::Args;
use forgeyard_control::clock::Clock;
use forgeyard_forges::github::doctor::{Finding, Questions, SetQuestion, Verdict, examine};
use forgeyard_forges::github::{RepositoryPath, Target};
use forgeyard_formats::webhook;
use forgeyard_model::{ForgeName, Secret};
use serde::Serialize;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Options of `forge doctor`.
#[derive(Args, Clone)]
pub struct DoctorArgs {
    /// The forge; all of the configuration when absent.
    name: Option<ForgeName>,
    /// Configuration of the farm.
    #[arg(long, env = "FORGEYARD_CONFIG", default_value = "forgeyard.toml", value_name = "FILE")]
    config: PathBuf,
    /// Look at this organisation or repository as well, beside those of the configuration.
    #[arg(long, value_name = "OWNER|OWNER/NAME")]
    at: Vec<String>,
    /// Do not make and delete a runner.
    #[arg(long)]
    no_mint: bool,
    /// Do not ask for a delivery to be sent anew.
    #[arg(long)]
    no_redeliver: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    good: bool,
    forges: Vec<ForgeReport>,
}

#[derive(Serialize)]
struct ForgeReport {
    forge: ForgeName,
    findings: Vec<Finding>,
}

/// Looks at everything. Exit code 1 when something is bad.
pub async fn run(args: DoctorArgs) -> Result<ExitCode> {
    let file = FileConfig::read(Some(&args.config))?;
    let chosen: Vec<&ForgeConfig> = file
        .forges
        .iter()
        .filter(|forge| args.name.as_ref().is_none_or(|name| *name == forge.name))
        .collect();
    if chosen.is_empty() {
        let what = args.name.as_ref().map_or_else(|| "forge".to_owned(), |name| format!("forge `{name}`"));
        return Err(Wrong::new(format!("{} has no {what}", args.config.display()))
            .fix("connect one with `forgeyard forge connect github --config FILE`")
            .into());
    }
    let mut report = Report { good: true, forges: Vec::new() };
    for forge in chosen {
        let findings = look(&args, &file, forge).await?;
        report.good &= findings.iter().all(|finding| finding.verdict != Verdict::Bad);
        report.forges.push(ForgeReport { forge: forge.name.clone(), findings });
    }
    output::show(args.json, &report, text)?;
    Ok(if report.good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A Forgejo: whether its list of jobs can be read, repository by repository.
async fn look_at_forgejo(file: &FileConfig, forge: &ForgeConfig) -> Result<Vec<Finding>> {
    let client = forge.forgejo()?;
    let mut findings = Vec::new();
    let finding = |of: &str, verdict, detail, fix: Option<&str>| Finding {
        check: "forgejo.jobs".to_owned(),
        of: of.to_owned(),
        verdict,
        detail,
        fix: fix.map(str::to_owned),
    };
    for repository in file.repositories.iter().filter(|repository| repository.forge == forge.name) {
        let path = RepositoryPath::parse(&repository.name).with_context(|| {
            Wrong::new(format!("the repository `{}` of the configuration", repository.name))
        })?;
        findings.push(match client.jobs(&path, &[]).await {
            Ok(jobs) => {
                finding(&repository.name, Verdict::Good, format!("{} jobs wait or run", jobs.len()), None)
            }
            Err(error) => finding(&repository.name, Verdict::Bad, chain(&error), error.fix()),
        });
    }
    if findings.is_empty() {
        let fix = "declare one under [[repositories]]";
        findings.push(finding(
            "the farm",
            Verdict::Bad,
            "no repository of this forge is configured".to_owned(),
            Some(fix),
        ));
    }
    Ok(findings)
}

async fn look(args: &DoctorArgs, file: &FileConfig, forge: &ForgeConfig) -> Result<Vec<Finding>> {
    if forge.kind == Kind::Forgejo {
        return look_at_forgejo(file, forge).await;
    }
    let connection = forge.connection(&Clock::system())?;
    let secret = match forge.webhook_secrets()?.into_iter().next() {
        None if forge.name.as_str() == "github" => file.webhook_secret()?,
        own => own,
    };
    let address = file
        .public_url
        .as_deref()
        .map(|url| format!("{}/webhooks/{}", url.trim_end_matches('/'), forge.name));
    let hook = secret.zip(address);
    let questions = questions(args, file, forge, hook.as_ref().map(|(_, url)| url.clone()))?;
    let mut tell = progress(forge.name.as_str());
    let mut findings = examine(&connection.github, &questions, &mut tell).await;
    if let Some((secret, url)) = hook {
        let finding = farm(forge, &secret, &url).await;
        tell(&finding);
        findings.push(finding);
    } else if file.public_url.is_some() {
        let finding = Finding {
            check: "farm.webhook".to_owned(),
            of: forge.name.to_string(),
            verdict: Verdict::Unknown,
            detail: "no webhook secret is configured, so webhooks are refused and the farm asks for its work"
                .to_owned(),
            fix: Some("name its file with `webhook-secret-file` under [[forges.apps]]".to_owned()),
        };
        tell(&finding);
        findings.push(finding);
    }
    Ok(findings)
}

/// What the configuration expects.
fn questions(
    args: &DoctorArgs,
    file: &FileConfig,
    forge: &ForgeConfig,
    hook: Option<String>,
) -> Result<Questions> {
    let read = |text: &str| -> Result<Target> {
        Target::parse(text).with_context(|| Wrong::new("--at").fix("give an organisation, or `owner/name`"))
    };
    let own = file.repositories.iter().filter(|repository| repository.forge == forge.name);
    let repositories: Vec<RepositoryPath> = own
        .map(|repository| {
            RepositoryPath::parse(&repository.name).with_context(|| {
                Wrong::new(format!("the repository `{}` of the configuration", repository.name))
            })
        })
        .collect::<Result<_>>()?;
    let mut targets: Vec<Target> = args.at.iter().map(|text| read(text)).collect::<Result<_>>()?;
    targets.extend(repositories.iter().map(|path| match forge.register_at {
        At::Repository => Target::Repository(path.clone()),
        At::Organisation => Target::Organisation(path.owner().clone()),
    }));
    let scale_sets: Vec<SetQuestion> = forge
        .scale_sets
        .iter()
        .map(|set| {
            let group = set.group.clone().unwrap_or_else(|| "Default".to_owned());
            Ok(SetQuestion { at: read(&set.at)?, name: set.name.clone(), group })
        })
        .collect::<Result<_>>()?;
    targets.extend(scale_sets.iter().map(|set| set.at.clone()));
    targets.sort();
    targets.dedup();
    Ok(Questions {
        targets,
        repositories,
        hook,
        runner_group: forge.runner_group.unwrap_or(1),
        scale_sets,
        mark: format!("{:08x}", rand::random::<u32>()),
        mint: !args.no_mint,
        redeliver: !args.no_redeliver,
        pause: Duration::from_secs(1),
    })
}

/// Sends the farm a ping as GitHub would. A farm stores it and reads that there is nothing to do.
async fn farm(forge: &ForgeConfig, secret: &Secret, url: &str) -> Finding {
    let (verdict, detail, fix) = match ping(forge, secret, url).await {
        Ok(202) => (Verdict::Good, format!("{url} took a ping that was signed with our secret"), None),
        Ok(401) => (
            Verdict::Bad,
            format!("{url} refused our signature: the farm was started with another secret"),
            Some("start the farm anew with this configuration"),
        ),
        Ok(404) => (
            Verdict::Bad,
            format!("{url} answered 404: no farm is there, or it has no forge of this name"),
            Some("compare `public-url`, and start the farm anew with this configuration"),
        ),
        Ok(status) => (Verdict::Bad, format!("{url} answered {status}"), Some("see the farm's log")),
        // A farm may well be reachable from the internet and not from where the doctor sits.
        Err(error) => (
            Verdict::Unknown,
            format!("{url} cannot be reached from here: {error}"),
            Some("see that the farm runs; what GitHub reaches is told by `webhook.reach`"),
        ),
    };
    Finding {
        check: "farm.webhook".to_owned(),
        of: forge.name.to_string(),
        verdict,
        detail,
        fix: fix.map(str::to_owned),
    }
}

async fn ping(forge: &ForgeConfig, secret: &Secret, url: &str) -> Result<u16, String> {
    let body = br#"{"zen":"forgeyard forge doctor"}"#;
    let signature = webhook::sign(secret, body).map_err(|error| error.to_string())?;
    let mut builder = reqwest::Client::builder()
        .timeout(Duration::from_secs(20))
        .redirect(reqwest::redirect::Policy::none());
    if let Some(path) = &forge.ca_file {
        let pem = std::fs::read(path).map_err(|error| error.to_string())?;
        let found = reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| error.to_string())?;
        builder = builder.tls_certs_merge(found);
    }
    let client = builder.build().map_err(|error| error.to_string())?;
    let request = client
        .post(url)
        .header("x-github-event", "ping")
        .header("x-github-delivery", format!("doctor-{:016x}", rand::random::<u64>()))
        .header("x-hub-signature-256", signature)
        .header("content-type", "application/json")
        .body(body.to_vec());
    request.send().await.map(|answer| answer.status().as_u16()).map_err(|error| chain(&error.without_url()))
}

/// Says each finding as it comes, to people who watch.
fn progress(forge: &str) -> impl FnMut(&Finding) + Send + use<> {
    let (forge, watched) = (forge.to_owned(), std::io::stderr().is_terminal());
    move |finding| {
        if watched {
            eprintln!("  {forge}: {} {} {}", word(finding.verdict), finding.check, finding.of);
        }
    }
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Good => "ok  ",
        Verdict::Bad => "MISS",
        Verdict::Unknown => "?   ",
    }
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    for ForgeReport { forge, findings } in &report.forges {
        text.push_str(&format!("forge {forge}\n\n"));
        let rows: Vec<Vec<String>> = findings
            .iter()
            .map(|one| {
                vec![word(one.verdict).to_owned(), one.check.clone(), one.of.clone(), one.detail.clone()]
            })
            .collect();
        text.push_str(&table_or("nothing was looked at", &["", "check", "of", "what was seen"], &rows));
        // What is cut in the table stands here in full.
        for one in findings.iter().filter(|one| one.verdict != Verdict::Good) {
            text.push_str(&format!("\n{} {} of {}: {}\n", word(one.verdict), one.check, one.of, one.detail));
            if let Some(fix) = &one.fix {
                text.push_str(&format!("     fix: {fix}\n"));
            }
        }
        let bad = findings.iter().filter(|one| one.verdict == Verdict::Bad).count();
        let unknown = findings.iter().filter(|one| one.verdict == Verdict::Unknown).count();
        text.push_str(&format!(
            "\n{} good, {bad} bad, {unknown} cannot be told\n",
            findings.len() - bad - unknown
        ));
    }
    text
}
