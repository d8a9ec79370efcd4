//! The same at a Forgejo: whose work a run is, what became of a job, a registration for one job, and to forget one.
//!
//! A machine is bound to its job by the handle, which is asked for anew before it registers: a job that does not wait any
//! more gets no runner. Names are not unique there, so what a lost answer left behind is deleted first; nobody ever had it.

use super::forge::{causes, minted_before, sealing, unseal};
use super::{Trouble, gone};
use crate::app::App;
use crate::demand::forgejo::report;
use crate::forges::Connection;
use crate::sealed::Configuration;
use forgeyard_forges::forgejo::{Forgejo, ForgejoError, OneJob, Run};
use forgeyard_forges::github::RepositoryPath;
use forgeyard_model::demand::{Demand, RunFacts};
use forgeyard_model::effect::{Effect, EffectResult};
use forgeyard_model::forge::Repository;
use forgeyard_model::registration::TakenJob;
use forgeyard_model::{DemandId, Explanation, RunnerId};
use std::time::Duration;

/// How long a forge is left alone that asks for it and does not say how long.
const ASKED_TO_WAIT: Duration = Duration::from_secs(60);

fn again(error: &ForgejoError) -> Trouble {
    match error {
        ForgejoError::Refused { status: 429, .. } => Trouble::NotYet {
            reason: Explanation::new("forge.limited", "the forge asks to be left alone").with(causes(error)),
            pause: ASKED_TO_WAIT,
        },
        _ => Trouble::Again(causes(error)),
    }
}

/// For what is better given up when a person must change something first.
fn unless_refused(error: &ForgejoError) -> Trouble {
    match error.fix() {
        Some(fix) => Trouble::Never(Explanation::new("forge.refused", causes(error)).fix(fix)),
        None => again(error),
    }
}

pub(super) async fn run(app: &App, client: &Forgejo, effect: Effect) -> Result<EffectResult, Trouble> {
    match effect {
        Effect::LookUpRun { repository, run, run_attempt, .. } => {
            look_up(client, &repository, run, run_attempt).await
        }
        Effect::ReadJob { demand, repository, job, .. } => {
            let path = Connection::path(&repository)?;
            let jobs = client.jobs(&path, &[]).await.map_err(|error| again(&error))?;
            let found = jobs.iter().find(|one| one.repo_id == repository.id && one.number() == job);
            let head = app
                .core
                .read()
                .demands
                .get(&demand)
                .map(|demand| demand.head_sha.clone())
                .unwrap_or_default();
            Ok(match found.and_then(|one| report(app, &repository, one, head)) {
                Some(job) => EffectResult::Job { job: Box::new(job) },
                None => EffectResult::JobMissing,
            })
        }
        Effect::MintRunner { demand, runner, repository, name, labels, .. } => {
            mint(app, client, demand, runner, &repository, &name, labels).await
        }
        Effect::Deregister { runner, repository, name, forge_runner, .. } => {
            let result = forget(client, &Connection::path(&repository)?, &name, forge_runner).await?;
            if result == EffectResult::Deregistered {
                unseal(app, runner, &name)?;
            }
            Ok(result)
        }
        Effect::RepeatJobs { .. } => {
            let text = "the forge has no call that runs one job again";
            Err(Trouble::Never(Explanation::new("repeat.not_here", text)))
        }
        other => Err(gone(format!("an effect at a Forgejo in {other:?}"))),
    }
}

async fn look_up(
    client: &Forgejo,
    repository: &Repository,
    run: u64,
    run_attempt: u32,
) -> Result<EffectResult, Trouble> {
    let path = Connection::path(repository)?;
    let found = client.run(&path, run).await.map_err(|error| again(&error))?;
    // Names change hands; the run must be of the very repository that was spoken of.
    let of_it = |run: &Run| run.repository.is_some_and(|found| found.id == repository.id);
    let Some(found) = found.filter(of_it) else { return Ok(EffectResult::RunMissing) };
    Ok(EffectResult::Run { facts: Box::new(facts_of(&found, run_attempt)) })
}

fn facts_of(found: &Run, run_attempt: u32) -> RunFacts {
    let pull = found.pull();
    RunFacts {
        event: found.event.clone(),
        actor: found.trigger_user.clone(),
        // Nobody tells who ran a job again, and then the gate allows nothing.
        triggering_actor: found.trigger_user.clone().filter(|_| run_attempt <= 1),
        head_repository: found.head_repository(),
        head_sha: found.commit_sha.clone(),
        head_branch: found.branch(),
        pull_request: pull.number,
        author: pull.author,
        pusher: None,
        run_attempt,
    }
}

/// The job that a machine is about to be given, and its run, as the forge tells them now. None of a job that does not wait any
/// more, or whose run is not there: the list of jobs says soon what became of it.
pub(crate) async fn about_to_run(
    client: &Forgejo,
    demand: &Demand,
) -> Result<Option<(TakenJob, RunFacts)>, ForgejoError> {
    let repository = &demand.repository;
    let Ok(path) = Connection::path(repository) else { return Ok(None) };
    let jobs = client.jobs(&path, &[]).await?;
    let waits = jobs
        .iter()
        .find(|job| job.repo_id == repository.id && job.number() == demand.job && job.status == "waiting");
    let Some((job, run)) = waits.and_then(|job| Some((job, job.run_id?))) else { return Ok(None) };
    let found = client.run(&path, run).await?;
    let Some(found) = found.filter(|found| found.repository.is_some_and(|of| of.id == repository.id)) else {
        return Ok(None);
    };
    let run_attempt = u32::try_from(job.attempt.unwrap_or(1)).unwrap_or(u32::MAX);
    let taken = TakenJob {
        repository: repository.clone(),
        run,
        run_attempt,
        key: job.name.clone(),
        actor: found.trigger_user.clone(),
    };
    Ok(Some((taken, facts_of(&found, run_attempt))))
}

async fn mint(
    app: &App,
    client: &Forgejo,
    demand: DemandId,
    runner: RunnerId,
    repository: &Repository,
    name: &str,
    labels: Vec<String>,
) -> Result<EffectResult, Trouble> {
    if let Some(minted) = minted_before(app, runner, name)? {
        return Ok(minted);
    }
    let path = Connection::path(repository)?;
    let number = app.core.read().demands.get(&demand).map(|demand| demand.job);
    let jobs = client.jobs(&path, &[]).await.map_err(|error| unless_refused(&error))?;
    let waits = jobs
        .into_iter()
        .find(|job| job.repo_id == repository.id && Some(job.number()) == number && job.status == "waiting");
    let Some(job) = waits else {
        let text = "the job does not wait for a runner any more, so none is registered for it";
        return Err(Trouble::Never(Explanation::new("forge.job_gone", text)));
    };
    for stray in client.runners_named(&path, name).await.map_err(|error| again(&error))? {
        if stray.busy() {
            return Ok(EffectResult::NameTaken);
        }
        client.delete_runner(&path, stray.id).await.map_err(|error| again(&error))?;
    }
    let registered = client.register(&path, name, &labels).await.map_err(|error| unless_refused(&error))?;
    let one = OneJob {
        url: client.web().to_owned(),
        uuid: registered.uuid,
        token: registered.token,
        labels,
        handle: job.handle,
    };
    let Some(secret) = one.encode() else {
        let text = "the forge told a registration or a handle that cannot be handed over";
        return Err(Trouble::Never(Explanation::new("forge.odd_answer", text)));
    };
    let configuration = Configuration { name: name.to_owned(), id: registered.id, secret };
    // Without it the registration is of no use; the next try deletes it.
    app.sealed.put(runner, &configuration).map_err(sealing)?;
    Ok(EffectResult::Minted { runner: registered.id })
}

async fn forget(
    client: &Forgejo,
    path: &RepositoryPath,
    name: &str,
    id: Option<u64>,
) -> Result<EffectResult, Trouble> {
    let ids = match id {
        Some(id) => vec![id],
        None => {
            let found = client.runners_named(path, name).await.map_err(|error| again(&error))?;
            found.into_iter().map(|runner| runner.id).collect()
        }
    };
    for id in ids {
        match client.runner(path, id).await.map_err(|error| again(&error))? {
            Some(runner) if runner.name == name && runner.busy() => return Ok(EffectResult::RunnerBusy),
            Some(runner) if runner.name == name => {
                client.delete_runner(path, id).await.map_err(|error| again(&error))?;
            }
            _ => {}
        }
    }
    Ok(EffectResult::Deregistered)
}
