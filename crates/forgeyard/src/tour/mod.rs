//! `forgeyard tour`: the whole job on real input, on this machine, with every link the real one.
//!
//! Two signed webhooks in GitHub's shape are sent to a farm in this process. The first is a pull request: built and
//! tested, not promotable. The second is the push after its merge: built, tested, promoted, an environment made from
//! the channel, the packaged program run in it. Then every claim is checked, and the exit code says whether all held.

mod example;
mod figures;
mod place;
mod report;
mod repository;

use crate::config::{FileConfig, HostSize};
use crate::farm::{self, Farm, FarmOptions};
use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;
use forgeyard_api::client::{Client, HttpOptions};
use forgeyard_api::people::PipelineView;
use forgeyard_formats::webhook::compose::{ComposedPullRequest, ComposedPush, ComposedRepository, Signed};
use forgeyard_model::access::{Access, EventClass, Grant, GrantRepository};
use forgeyard_model::config::RepositoryConfig;
use forgeyard_model::delivery::DeliveryState;
use forgeyard_model::forge::Person;
use forgeyard_model::resources::Isolation;
use forgeyard_model::{PipelineId, Secret};
use place::Place;
use repository::Repository;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Numeric ids of the tour's repository and person: above 32 bits, as real ones will be.
const REPOSITORY: u64 = 5_000_000_001;
const PERSON: u64 = 5_000_000_002;
/// Longest time that one pipeline of the tour may take.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Longest time that machines may take to go when nothing is at work any more.
const SETTLE: Duration = Duration::from_secs(90);

/// Options of the tour.
#[derive(Args, Clone)]
pub struct TourArgs {
    /// Leave the farm and its console up at the end.
    #[arg(long)]
    keep: bool,
    /// Folder of the tour's farm; a temporary one when absent.
    #[arg(long)]
    data: Option<PathBuf>,
    /// Carry a recipe folder that none of us wrote as well: PyOpenCL, prepared by `examples/pyopencl/prepare.sh`.
    #[arg(long)]
    all: bool,
    /// Folder with a prepared source for `--all`; prepared by the script in `examples/pyopencl` when absent.
    #[arg(long)]
    pyopencl: Option<PathBuf>,
    /// Go on with the tour that a killed one left in `--data`.
    #[arg(long, requires = "data")]
    resume: bool,
    /// Write where the time went into this file, as lines of JSON.
    #[arg(long)]
    figures: Option<PathBuf>,
}

/// Runs the tour.
pub async fn run(args: TourArgs) -> Result<ExitCode> {
    farm::logging("error");
    let started = Instant::now();
    let temporary = match &args.data {
        Some(_) => None,
        None => Some(tempfile::Builder::new().prefix("forgeyard-tour-").tempdir_in("/var/tmp")?),
    };
    let data = match (&args.data, &temporary) {
        (Some(data), _) => farm::folder(data)?,
        (None, Some(folder)) => folder.path().to_owned(),
        (None, None) => bail!("no folder for the tour"),
    };
    let tour = Tour::start(&data, args.resume).await?;
    let mut outcome = tokio::select! {
        outcome = tour.carry(&args, started) => outcome,
        () = farm::wait_for_signal() => Err(anyhow!("stopped by a signal")),
    };
    if outcome.is_err() {
        outcome = match &temporary {
            // Nobody comes back to a temporary folder, so no machine may be left to it.
            Some(_) => tour.wind_down().await.and(outcome),
            None => outcome.with_context(|| {
                format!("the tour is not over; go on with `--data {} --resume`", data.display())
            }),
        };
    }
    if args.keep && outcome.is_ok() {
        println!(
            "The farm stays up: {}/  (token in {}). Ctrl-C ends it.",
            tour.farm.url,
            data.join("admin.token").display()
        );
        farm::wait_for_signal().await;
    }
    tour.farm.stop().await?;
    match outcome {
        Ok(true) => Ok(ExitCode::SUCCESS),
        Ok(false) => {
            if let Some(folder) = temporary {
                println!("The tour's farm is kept for reading: {}", folder.keep().display());
            }
            Ok(ExitCode::FAILURE)
        }
        Err(error) => {
            if let Some(folder) = temporary {
                eprintln!("the tour's farm is kept for reading: {}", folder.keep().display());
            }
            Err(error)
        }
    }
}

struct Tour {
    farm: Farm,
    client: Client,
    http: reqwest::Client,
    secret: Secret,
    repository: Repository,
    sources: PathBuf,
}

/// Fetches PyOpenCL and what it needs, by package name, with this machine's own client.
fn prepare(sources: &std::path::Path) -> Result<PathBuf> {
    let script = std::path::Path::new("examples/pyopencl/prepare.sh");
    if !script.is_file() {
        bail!(
            "{} is not here; run the tour from the repository, or name a prepared folder with --pyopencl",
            script.display()
        );
    }
    let folder = sources.join("pyopencl");
    let status = std::process::Command::new("bash").arg(script).arg(&folder).status().context("bash")?;
    if !status.success() {
        bail!("{} ended with {status}", script.display());
    }
    Ok(folder)
}

fn composed() -> ComposedRepository {
    ComposedRepository {
        id: REPOSITORY,
        full_name: "forgeyard/fy-bandwidth".to_owned(),
        owner: Person { id: PERSON, login: "forgeyard".to_owned() },
        default_branch: "main".to_owned(),
        fork: false,
    }
}

fn person() -> Person {
    Person { id: PERSON, login: "visitor".to_owned() }
}

impl Tour {
    async fn start(data: &std::path::Path, resume: bool) -> Result<Self> {
        let Place { repository, secret, listen } = Place::open(data, resume)?;
        let mut file = FileConfig { farm: Some("tour".to_owned()), ..FileConfig::default() };
        file.repositories.push(RepositoryConfig {
            forge: "github".parse()?,
            id: REPOSITORY,
            name: "forgeyard/fy-bandwidth".to_owned(),
            source: repository.path.display().to_string(),
            protected: vec!["main".to_owned()],
            channel: "forgeyard".parse()?,
            sites: Default::default(),
        });
        let mut config = file.farm(HostSize::here())?;
        config.access = access();
        let engine = file.engine();
        if !engine.join("bin/python").exists() {
            bail!(
                "the conda build engine is not in {}; run scripts/install-engine.sh, or `make run`, which does it",
                engine.display()
            );
        }
        let farm = farm::start(
            FarmOptions {
                cache_admin: None,
                rules: None,
                data: data.to_owned(),
                listen,
                public_url: None,
                database: "sqlite:".to_owned(),
                tls: None,
                local: None,
                config,
                forges: Default::default(),
                webhook_secret: Some(secret.clone()),
                artifact_limit: 4 << 30,
                cache_tokens: None,
                simulated_beside_real: false,
                whole: true,
            },
            farm::recorder()?,
        )
        .await?;
        let client = Client::new(&farm.url, Some(farm.admin.clone()), &HttpOptions::default())?;
        let http = reqwest::Client::new();
        println!("Farm:    {}/  (console; token in {})", farm.url, data.join("admin.token").display());
        let sources = data.join("tour");
        Ok(Self { farm, client, http, secret, repository, sources })
    }

    async fn carry(&self, args: &TourArgs, started: Instant) -> Result<bool> {
        self.show_device().await?;
        println!("\nWebhook 1: pull_request.synchronize, signed");
        let guid = "tour-pull-request";
        let body = self.pull_request()?;
        let first = self.send(guid, &body).await?;
        let first = self.follow(first).await?;
        println!("\nWebhook 2: push to the protected branch after the merge, signed");
        if self.repository_is_open()? {
            self.repository.merge()?;
        }
        let body = self.push()?;
        let second = self.send("tour-push", &body).await?;
        let second = self.follow(second).await?;
        let mut further = Vec::new();
        if args.all {
            println!("\nA source that none of us wrote: PyOpenCL");
            let folder = match &args.pyopencl {
                Some(folder) => folder.clone(),
                None => prepare(&self.sources)?,
            };
            let id = crate::commands::run::run_folder(
                &self.client,
                &folder,
                &folder.join("forgeyard.toml"),
                "tour",
            )
            .await?;
            further.push(self.follow(id).await?);
        }
        let left = self.settle().await?;
        let view = async |view: PipelineView| self.client.pipeline(view.pipeline.id).await;
        let (first, second) = (view(first).await?, view(second).await?);
        if let Some(file) = &args.figures {
            figures::write(file, &[&first, &second])?;
        }
        let seen = report::Seen { first: &first, second: &second, further: &further, left: &left };
        report::print(&self.client, &self.farm, &seen, started).await
    }

    /// Waits until every machine is gone and every lease has ended. Answers what is still there after [`SETTLE`].
    async fn settle(&self) -> Result<Vec<String>> {
        let deadline = Instant::now() + SETTLE;
        loop {
            let runners = self.client.runners().await?.into_iter().filter(|runner| runner.state.live());
            let leases = self.client.leases().await?.into_iter().filter(|lease| lease.state.live());
            let mut left: Vec<String> = runners.map(|runner| runner.id.to_string()).collect();
            left.extend(leases.map(|lease| lease.id.to_string()));
            if left.is_empty() || Instant::now() > deadline {
                return Ok(left);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Stops all that is at work and waits until its machines are gone.
    async fn wind_down(&self) -> Result<()> {
        for job in self.client.jobs().await?.into_iter().filter(|job| !job.state.ended()) {
            // One that ended meanwhile is no trouble.
            let _ = self.client.cancel(job.id).await;
        }
        let left = self.settle().await?;
        if !left.is_empty() {
            eprintln!("still there: {}", left.join(", "));
        }
        Ok(())
    }

    fn repository_is_open(&self) -> Result<bool> {
        let text = fs_err::read_to_string(self.repository.path.join("refs/heads/main")).unwrap_or_default();
        Ok(text.trim() != self.repository.head)
    }

    async fn show_device(&self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let devices = self.client.devices().await?;
            if let Some(device) = devices.first() {
                println!(
                    "Device:  {} — {} ({})",
                    device.facts.model,
                    device.facts.kind.label(),
                    device.facts.driver
                );
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("the site reports no device; run `forgeyard doctor` to see why");
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    fn pull_request(&self) -> Result<Signed> {
        let composed = ComposedPullRequest {
            action: "synchronize".to_owned(),
            repository: composed(),
            number: 1,
            title: "Say where it is measured".to_owned(),
            base: "main".to_owned(),
            base_sha: self.repository.base.clone(),
            head_repository: composed(),
            head: "faster".to_owned(),
            head_sha: self.repository.head.clone(),
            before: self.repository.base.clone(),
            author: person(),
            sender: person(),
            installation: 1,
            at: "2026-01-01T00:00:00Z".to_owned(),
        };
        Ok(composed.signed(&self.secret)?)
    }

    fn push(&self) -> Result<Signed> {
        let composed = ComposedPush {
            repository: composed(),
            git_ref: "refs/heads/main".to_owned(),
            before: Some(self.repository.base.clone()),
            after: Some(self.repository.head.clone()),
            message: "Say where it is measured".to_owned(),
            sender: person(),
            installation: 1,
            at: "2026-01-01T00:00:00Z".to_owned(),
        };
        Ok(composed.signed(&self.secret)?)
    }

    /// Sends a webhook and waits until it started a pipeline.
    async fn send(&self, guid: &str, signed: &Signed) -> Result<PipelineId> {
        let request = self
            .http
            .post(format!("{}/webhooks/github", self.farm.url))
            .header("content-type", "application/json")
            .header("x-github-event", signed.event)
            .header("x-github-delivery", guid)
            .header("x-hub-signature-256", &signed.signature)
            .body(signed.body.clone());
        let answer = request.send().await?;
        if !answer.status().is_success() {
            bail!("the webhook was refused with {}: {}", answer.status(), answer.text().await?);
        }
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let deliveries = self.client.deliveries().await?;
            match deliveries.into_iter().find(|delivery| delivery.guid == guid).map(|delivery| delivery.state)
            {
                Some(DeliveryState::Started { pipeline }) => return Ok(pipeline),
                Some(DeliveryState::Settled { reason } | DeliveryState::Rejected { reason }) => {
                    bail!("the webhook started nothing: {reason}")
                }
                Some(DeliveryState::Stored) | None if Instant::now() > deadline => {
                    bail!("the webhook was stored and not read in 30 s")
                }
                Some(DeliveryState::Stored) | None => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// Shows a pipeline as it goes on, until it is over.
    async fn follow(&self, id: PipelineId) -> Result<PipelineView> {
        crate::progress::follow(&self.client, id, Some(PATIENCE)).await
    }
}

/// One grant: the visitor may use the local pool for pushes and pull requests of this repository.
fn access() -> Access {
    Access {
        grants: vec![Grant {
            id: "tour".to_owned(),
            repository: GrantRepository {
                forge: None,
                id: Some(REPOSITORY),
                name: "forgeyard/fy-bandwidth".to_owned(),
            },
            resources: ["local".to_owned()].into(),
            events: [EventClass::Push, EventClass::PullRequest].into(),
            users: [PERSON].into(),
            lists: Default::default(),
            teams: Default::default(),
            roles: Default::default(),
            isolation: Some(Isolation::SharedKernel),
            approvers: None,
        }],
        ..Access::default()
    }
}
