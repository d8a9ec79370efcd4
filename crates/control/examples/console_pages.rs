//! Writes every page of the console in its telling states as HTML files with their assets, to look at in a browser.
//!
//! `cargo run -p forgeyard-control --example console_pages -- FOLDER [light|dark]`

#[path = "../tests/farm/mod.rs"]
mod farm;

use forgeyard_api::error::{ApiError, ErrorKind};
use forgeyard_control::console::{
    Shell, Theme, access, artifacts, assets, audit, blocks::Pager, cache, channels, deliveries, devices,
    entry, environments, history, job, log::LogWindow, pipeline, pipelines, pools, queue, sites, status,
    terms,
};
use forgeyard_model::access::{Access, Decision};
use forgeyard_model::principal::Role;
use forgeyard_model::resources::Isolation;
use forgeyard_model::{Explanation, Lane};
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().ok_or("say a folder to write to")?;
    let theme = match args.next().as_deref() {
        Some("light") => Some(Theme::Light),
        Some("dark") => Some(Theme::Dark),
        _ => None,
    };
    let folder = Path::new(&folder);
    std::fs::create_dir_all(folder.join("assets"))?;
    for asset in assets::all() {
        std::fs::write(folder.join(asset.path.trim_start_matches('/')), asset.body)?;
    }
    let shell = Shell { theme, ..farm::shell(Some(Role::Admin)) };
    let stranger = Shell { theme, alarms: 0, ..farm::shell(None) };
    for (name, html) in pages(&shell, &stranger) {
        // Opened as files, pages find their assets beside them, and there is nobody to stream from.
        let html = html.replace("=\"/assets/", "=\"assets/").replace(" data-live=", " data-still=");
        std::fs::write(folder.join(format!("{name}.html")), html)?;
        println!("{name}");
    }
    Ok(())
}

fn pages(shell: &Shell, stranger: &Shell) -> Vec<(&'static str, String)> {
    let names = farm::names();
    let (running, failed, done) = (farm::running(), farm::failed(), farm::succeeded());
    let rows = vec![
        farm::planning().pipeline,
        running.pipeline.clone(),
        failed.pipeline.clone(),
        farm::pipeline(8, 2600, Lane::ForkPr, forgeyard_model::pipeline::PipelineState::Succeeded),
        done.pipeline.clone(),
        farm::pipeline(
            9,
            91_000,
            Lane::Protected,
            forgeyard_model::pipeline::PipelineState::Canceled {
                reason: Explanation::new("pipeline.replaced", "a newer head replaced it"),
            },
        ),
    ];
    let pager = Pager { newer: None, older: Some("?before=x".to_owned()) };
    let job_page = |view: &forgeyard_api::people::PipelineView, key: &str, log: &LogWindow| {
        let view = farm::job_view(view, key);
        job::job(shell, &view, &farm::why(&view), log, &names)
    };
    let package = done.artifacts.last().cloned();
    let channel = farm::channel();
    let question = access::Question {
        repository: "481516".into(),
        person: "55001".into(),
        event: "fork-pull-request".into(),
        resource: "gpu".into(),
    };
    let deny = Decision::Deny {
        reason: Explanation::new(
            "gate.no_grant",
            "no grant opens gpu to pull requests from forks of kestrel-sim/kestrel",
        )
        .with(
            "grant kestrel-main: repository matches, event fork-pull-request is not among push, pull-request",
        )
        .with("grant tern-forks: other repository")
        .fix("a maintainer adds fork-pull-request to kestrel-main, with isolation vm"),
    };
    let allow = Decision::Allow {
        by: vec!["kestrel-main".into()],
        lane: Lane::Protected,
        isolation: Isolation::SharedKernel,
        evidence: vec![
            "repository 481516 matches kestrel-main".into(),
            "person 7340033 is listed".into(),
            "terms version 2 accepted".into(),
        ],
    };
    let error = ApiError::new(
        ErrorKind::Conflict,
        "job.not_ended",
        "the job is running; only an ended job can be run again",
    )
    .hint("cancel it first, or wait for its end");
    let mut pages = vec![
        ("pipelines", pipelines::pipelines(shell, &rows, pipelines::Filter::All, &pager)),
        ("pipelines-empty", pipelines::pipelines(shell, &[], pipelines::Filter::All, &Pager::default())),
        ("pipeline-planning", pipeline::pipeline(shell, &farm::planning(), &names)),
        ("pipeline-running", pipeline::pipeline(shell, &running, &names)),
        ("pipeline-failed", pipeline::pipeline(shell, &failed, &names)),
        ("pipeline-succeeded", pipeline::pipeline(shell, &done, &names)),
        ("job-failed", job_page(&failed, "test/fy-solve/gpu", &farm::log(true))),
        ("job-running", job_page(&running, "test/fy-core/gpu", &farm::log(false))),
        (
            "job-queued",
            job_page(&running, "build/fy-mesh", &LogWindow { complete: true, ..LogWindow::default() }),
        ),
        ("devices", devices::devices(shell, &farm::devices_view(), &names)),
        ("devices-empty", devices::devices(shell, &devices::DevicesView::default(), &names)),
        ("sites", sites::sites(shell, &farm::sites())),
        ("artifacts", artifacts::artifacts(shell, &done.artifacts, &pager)),
        ("channels", channels::channels(shell, std::slice::from_ref(&channel))),
        ("channel", channels::channel(shell, &channel)),
        ("environments", environments::environments(shell, done.environment.as_slice())),
        ("access", access::access(shell, &farm::access(), &question, Some(&farm::answered(deny)), None)),
        (
            "access-allowed",
            access::access(shell, &farm::access(), &question, Some(&farm::answered(allow)), None),
        ),
        ("access-empty", access::access(shell, &Access::default(), &access::Question::default(), None, None)),
        ("terms", terms::terms(shell, &farm::terms("tomas-dev"))),
        ("config", {
            let versions = farm::versions("mira");
            let compared = history::Compared { old: &versions[2], new: &versions[1] };
            history::history(shell, &versions, Some(compared))
        }),
        ("queue", queue::queue(shell, &farm::queue())),
        ("queue-empty", queue::queue(shell, &[])),
        ("pools", pools::pools(shell, &farm::pools())),
        ("cache", cache::cache(shell, cache::Look::Here(&farm::caches::cache()))),
        ("cache-empty", cache::cache(shell, cache::Look::None)),
        (
            "cache-scope",
            cache::scope(shell, &farm::caches::cache().scopes[0], "0c9", Some(&farm::caches::entries())),
        ),
        ("deliveries", deliveries::deliveries(shell, &farm::deliveries(), &pager)),
        ("audit", audit::audit(shell, &farm::events(), "", &pager)),
        ("status", status::status(stranger, &farm::status(true))),
        ("status-empty", status::status(stranger, &farm::empty_status())),
        ("login", entry::login(stranger, "/pipelines", &["github".to_owned()], None)),
        ("error", entry::error(shell, &error)),
        ("not-found", entry::not_found(shell, "/pipelines/pipe_01")),
    ];
    if let Some(environment) = &done.environment {
        pages.push(("environment", environments::environment(shell, environment)));
    }
    if let Some(package) = &package {
        let job = done.jobs.iter().find(|job| Some(job.id) == package.job);
        let tests: Vec<_> =
            done.jobs.iter().filter(|job| job.key.starts_with("test/fy-app")).cloned().collect();
        let promoted: Vec<_> = channel
            .entries
            .iter()
            .filter(|entry| entry.artifact == package.id)
            .map(|entry| (channel.name.clone(), entry.clone()))
            .collect();
        pages.push((
            "artifact",
            artifacts::artifact(
                shell,
                &artifacts::ArtifactView {
                    artifact: package,
                    pipeline: &done.pipeline,
                    job,
                    attempt: done.attempts.iter().find(|attempt| Some(attempt.id) == package.attempt),
                    tests: &tests,
                    promoted: &promoted,
                },
                &names,
            ),
        ));
    }
    pages.into_iter().map(|(name, html)| (name, html.into_string())).collect()
}
