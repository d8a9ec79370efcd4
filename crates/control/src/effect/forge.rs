//! What is asked of a forge: whose work a run is, what became of a job, a configuration for a runner, and to forget one.
//!
//! A call whose outcome is not known is not repeated blindly. For a configuration that means: the forge refuses a name
//! twice, so the next try is told that the name is taken; nobody ever had that configuration, so the registration is
//! deleted and made again. There are never two runners of a name.
//!
//! Budget: a run costs one call (two for a pull request, and for a push to a protected branch), whatever the number of its jobs; a runner costs one call to
//! mint, and one or two to forget: it is read anew first, and a runner that did its job is gone by itself.

use super::{Trouble, gone};
use crate::app::App;
use crate::demand::report;
use crate::forges::Connection;
use crate::sealed::Configuration;
use forgeyard_forges::github::budget::Limit;
use forgeyard_forges::github::scaleset::ScaleSets;
use forgeyard_forges::github::{
    Again, Cause, Deleted, GithubError, Jit, JitRequest, RepositoryPath, Target, WorkflowRun,
};
use forgeyard_model::demand::RunFacts;
use forgeyard_model::effect::{Effect, EffectResult};
use forgeyard_model::forge::Repository;
use forgeyard_model::registration::RegistrationState;
use forgeyard_model::{Explanation, RunnerId};
use std::sync::Arc;
use std::time::Duration;

/// How long is waited for the listener of a scale set that has just been started.
const SET_FOUND: Duration = Duration::from_secs(2);

impl From<Explanation> for Trouble {
    fn from(reason: Explanation) -> Self {
        Trouble::Never(reason)
    }
}

/// A question that was not answered, or a thing that must be done whatever it takes: it is tried again.
pub(super) fn again(error: &GithubError) -> Trouble {
    match error {
        GithubError::Limited { call, limit, until } => {
            Trouble::Limited { reason: limited(limit).with(call.clone()), until: *until }
        }
        _ => Trouble::Again(causes(error)),
    }
}

/// Why a call waits.
fn limited(limit: &Limit) -> Explanation {
    let reason = Explanation::new("forge.limited", limit.to_string());
    match limit {
        Limit::Hourly(_) | Limit::Reserve(_) | Limit::Pace => {
            reason.fix("one more App at the forge adds its limits")
        }
        Limit::Told => reason,
    }
}

/// The same for what is better given up when a person must change something first.
pub(super) fn unless_refused(error: &GithubError) -> Trouble {
    match error.cause() {
        Some(cause) if cause.again() != Again::Later => Trouble::Never(explained(cause, error)),
        _ => again(error),
    }
}

fn explained(cause: &Cause, error: &GithubError) -> Explanation {
    let kind = format!("{cause:?}");
    let kind = kind.split([' ', '{', '(']).next().unwrap_or_default();
    let mut code = "forge.".to_owned();
    for (place, letter) in kind.chars().enumerate() {
        if letter.is_ascii_uppercase() && place > 0 {
            code.push('_');
        }
        code.push(letter.to_ascii_lowercase());
    }
    let explanation = Explanation::new(code, cause.explanation()).with(error.to_string());
    match cause.fix() {
        "" => explanation,
        fix => explanation.fix(fix),
    }
}

/// An error with what caused it.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text = format!("{text}: {source}");
        cause = source.source();
    }
    text
}

/// Does an effect at a forge.
pub(super) async fn run(app: &App, effect: Effect) -> Result<EffectResult, Trouble> {
    let client = match &effect {
        Effect::LookUpRun { repository, .. }
        | Effect::ReadJob { repository, .. }
        | Effect::MintRunner { repository, .. }
        | Effect::RepeatJobs { repository, .. }
        | Effect::Deregister { repository, .. } => app.forges.forgejo(&repository.forge),
        _ => None,
    };
    if let Some(client) = client {
        return super::forgejo::run(app, client, effect).await;
    }
    match effect {
        Effect::LookUpRun { repository, run, .. } => look_up(app, &repository, run).await,
        Effect::ReadJob { repository, installation, job, .. } => {
            let github = app.forges.of(&repository.forge)?.github();
            let path = Connection::path(&repository)?;
            Ok(match github.job(&path, job).await.map_err(|error| again(&error))? {
                Some(job) => {
                    EffectResult::Job { job: Box::new(report::of_rest(&repository, installation, &job)) }
                }
                None => EffectResult::JobMissing,
            })
        }
        Effect::MintRunner { runner, repository, scale_set, name, labels, .. } => {
            let door = Door::of(app, &repository, scale_set)?;
            mint(app, runner, &door, &name, labels).await
        }
        Effect::RepeatJobs { repository, run, run_attempt, .. } => {
            super::repeat::run(app, &repository, run, run_attempt).await
        }
        Effect::Deregister { runner, repository, scale_set, name, forge_runner, .. } => {
            let door = Door::of(app, &repository, scale_set)?;
            let result = door.forget(&name, forge_runner).await?;
            if result == EffectResult::Deregistered {
                unseal(app, runner, &name)?;
            }
            Ok(result)
        }
        other => Err(gone(format!("an effect at a forge in {other:?}"))),
    }
}

async fn look_up(app: &App, repository: &Repository, run: u64) -> Result<EffectResult, Trouble> {
    let github = app.forges.of(&repository.forge)?.github();
    let path = Connection::path(repository)?;
    let Some(found) = github.run(&path, run).await.map_err(|error| again(&error))? else {
        return Ok(EffectResult::RunMissing);
    };
    // Names change hands; the run must be of the very repository that was spoken of.
    if found.repository.id != repository.id {
        return Ok(EffectResult::RunMissing);
    }
    let mut facts = facts_of(&found);
    if !vouched(app, repository, &path, &found).await? {
        // The gate goes by the name of a branch; that of a tag, or of who knows what, is none.
        facts.head_branch = None;
    }
    let head = found.head_repository.as_ref().and_then(|head| Some((head.owner.as_ref()?, head.id)));
    if let (true, Some((owner, head)), Some(branch)) =
        (found.event.starts_with("pull_request"), head, &found.head_branch)
    {
        let pulls = github.pulls_of(&path, &owner.login, branch).await.map_err(|error| again(&error))?;
        // A branch has one open pull request for each base; of old ones the newest counts.
        let of_head = |pull: &&forgeyard_forges::github::Pull| pull.head_repository == Some(head);
        let exact = pulls.iter().filter(of_head).find(|pull| pull.head_sha == found.head_sha);
        if let Some(pull) = exact.or_else(|| pulls.iter().find(of_head)) {
            facts.pull_request = Some(pull.number);
            facts.author = pull.author.clone();
        }
    }
    Ok(EffectResult::Run { facts: Box::new(facts) })
}

/// Whether the name of a run is that of a branch, as far as that counts: where it is the name of a protected branch, and the
/// event is one whose standing depends on it. A timer fires on the default branch alone, so nobody can name it.
async fn vouched(
    app: &App,
    repository: &Repository,
    path: &RepositoryPath,
    run: &WorkflowRun,
) -> Result<bool, Trouble> {
    let config = app.config();
    let protected = config.repository(&repository.forge, repository.id).map(|known| &known.protected);
    let named = run.head_branch.as_ref().filter(|branch| protected.is_some_and(|all| all.contains(branch)));
    let own = run.head_repository.as_ref().is_some_and(|head| head.id == repository.id);
    let (Some(branch), true, "push" | "workflow_dispatch") = (named, own, run.event.as_str()) else {
        return Ok(true);
    };
    let connection = app.forges.of(&repository.forge)?;
    let key = (repository.id, branch.clone(), run.head_sha.clone());
    if connection.was_on_branch(&key) {
        return Ok(true);
    }
    match connection.github().on_branch(path, branch, &run.head_sha).await {
        Ok(true) => {
            connection.learn_on_branch(key);
            Ok(true)
        }
        Ok(false) => {
            tracing::warn!(
                run = run.id,
                branch,
                sha = run.head_sha,
                "a run is named like a protected branch and is not on it"
            );
            Ok(false)
        }
        Err(error) if error.cause().is_some_and(|cause| cause.again() != Again::Later) => {
            tracing::warn!(run = run.id, branch, %error, "nobody vouches that a run is on its branch");
            Ok(false)
        }
        Err(error) => Err(again(&error)),
    }
}

fn facts_of(run: &WorkflowRun) -> RunFacts {
    RunFacts {
        event: run.event.clone(),
        actor: run.actor.clone(),
        triggering_actor: run.triggering_actor.clone(),
        head_repository: run.head_repository.as_ref().map(|head| head.id),
        head_sha: run.head_sha.clone(),
        head_branch: run.head_branch.clone(),
        pull_request: run.pull_requests.first().copied(),
        author: None,
        pusher: None,
        run_attempt: u32::try_from(run.run_attempt).unwrap_or(u32::MAX),
    }
}

/// Where a runner registers.
enum Door {
    /// By REST, at an organisation or repository.
    Rest(Arc<Connection>, Target),
    /// At a scale set.
    Set(ScaleSets, u64),
}

impl Door {
    fn of(app: &App, repository: &Repository, scale_set: Option<u64>) -> Result<Self, Trouble> {
        let connection = app.forges.of(&repository.forge)?;
        match scale_set {
            None => Ok(Self::Rest(Arc::clone(connection), connection.target(repository)?)),
            Some(set) => match connection.set(set) {
                Some(sets) => Ok(Self::Set(sets, set)),
                None => {
                    let text = format!("the listener of scale set {set} has not found it yet");
                    let reason = Explanation::new("forge.scale_set_unknown", text);
                    Err(Trouble::NotYet { reason, pause: SET_FOUND })
                }
            },
        }
    }

    async fn mint(&self, name: &str, labels: Vec<String>) -> Result<Jit, GithubError> {
        match self {
            Self::Rest(connection, target) => {
                let request = JitRequest {
                    name: name.to_owned(),
                    runner_group_id: connection.runner_group(),
                    labels,
                    work_folder: None,
                };
                connection.github().mint_jit(target, &request).await
            }
            Self::Set(sets, set) => sets.mint_jit(*set, name, "_work").await,
        }
    }

    /// Deletes the registration of a name that no machine ever had; whether the name is free now.
    async fn clear(&self, name: &str) -> Result<bool, GithubError> {
        match self {
            Self::Rest(connection, target) => {
                let github = connection.github();
                match github.runner_by_name(target, name).await? {
                    // Somebody is at work under it, so it is not ours.
                    Some(runner) if runner.busy || runner.online => Ok(false),
                    Some(runner) => Ok(github.delete_runner(target, runner.id).await? != Deleted::Busy),
                    None => Ok(true),
                }
            }
            Self::Set(sets, set) => match sets.agent_by_name(name).await? {
                Some(agent) if agent.scale_set.is_some_and(|of| of != *set) => Ok(false),
                Some(agent) => Ok(sets.delete_agent(agent.id).await? != Deleted::Busy),
                None => Ok(true),
            },
        }
    }

    /// Asks the forge to forget a runner, unless it is busy: that is read anew, since lists lag.
    async fn forget(&self, name: &str, id: Option<u64>) -> Result<EffectResult, Trouble> {
        let deleted = match self {
            Self::Rest(connection, target) => {
                let github = connection.github();
                let id = match id {
                    Some(id) => Some(id),
                    None => {
                        let found = github.runner_by_name(target, name).await;
                        found.map_err(|error| again(&error))?.map(|runner| runner.id)
                    }
                };
                let Some(id) = id else { return Ok(EffectResult::Deregistered) };
                match github.runner(target, id).await.map_err(|error| again(&error))? {
                    Some(runner) if runner.name == name && runner.busy => {
                        return Ok(EffectResult::RunnerBusy);
                    }
                    Some(runner) if runner.name == name => github.delete_runner(target, id).await,
                    _ => return Ok(EffectResult::Deregistered),
                }
            }
            Self::Set(sets, _) => {
                let id = match id {
                    Some(id) => Some(id),
                    None => {
                        sets.agent_by_name(name).await.map_err(|error| again(&error))?.map(|agent| agent.id)
                    }
                };
                let Some(id) = id else { return Ok(EffectResult::Deregistered) };
                // The actions service says itself, and only then, that a job still runs.
                sets.delete_agent(id).await
            }
        };
        match deleted.map_err(|error| again(&error))? {
            Deleted::Gone | Deleted::WasGone => Ok(EffectResult::Deregistered),
            Deleted::Busy => Ok(EffectResult::RunnerBusy),
        }
    }
}

async fn mint(
    app: &App,
    runner: RunnerId,
    door: &Door,
    name: &str,
    labels: Vec<String>,
) -> Result<EffectResult, Trouble> {
    if let Some(minted) = minted_before(app, runner, name)? {
        return Ok(minted);
    }
    let mut cleared = false;
    loop {
        match door.mint(name, labels.clone()).await.map_err(|error| unless_refused(&error))? {
            Jit::Minted { runner: registered, config } => {
                let configuration =
                    Configuration { name: name.to_owned(), id: registered.id, secret: config };
                // Without it the registration is of no use; the next try deletes it.
                app.sealed.put(runner, &configuration).map_err(sealing)?;
                return Ok(EffectResult::Minted { runner: registered.id });
            }
            Jit::NameTaken if cleared => return Ok(EffectResult::NameTaken),
            Jit::NameTaken => {
                if !door.clear(name).await.map_err(|error| again(&error))? {
                    return Ok(EffectResult::NameTaken);
                }
                cleared = true;
            }
        }
    }
}

/// How trouble with a sealed configuration is told.
pub(super) fn sealing(error: std::io::Error) -> Trouble {
    Trouble::Again(format!("the sealed configuration: {error}"))
}

/// What is looked at before anything is registered at a forge, whichever it is: the configuration that is there already,
/// after a crash between sealing and saying so, and whether the machine still waits for one.
pub(super) fn minted_before(
    app: &App,
    runner: RunnerId,
    name: &str,
) -> Result<Option<EffectResult>, Trouble> {
    if let Some(kept) = app.sealed.read(runner, name).map_err(sealing)? {
        return Ok(Some(EffectResult::Minted { runner: kept.id }));
    }
    if !wanted(app, runner, name) {
        return Err(Trouble::Again(format!("nobody waits for the configuration of `{name}` any more")));
    }
    Ok(None)
}

/// Whether the machine still waits for the configuration of this name.
fn wanted(app: &App, runner: RunnerId, name: &str) -> bool {
    let farm = app.core.read();
    let Some(runner) = farm.runners.get(&runner) else { return false };
    let asked = runner.registration.as_deref().is_some_and(|registration| {
        registration.name == name && registration.state == RegistrationState::Asked
    });
    asked
        && runner
            .work
            .attempt()
            .and_then(|id| farm.attempts.get(&id))
            .is_some_and(|attempt| attempt.state.live())
}

/// Removes the configuration of a runner that is forgotten, unless the machine has one of another name by now.
pub(super) fn unseal(app: &App, runner: RunnerId, name: &str) -> Result<(), Trouble> {
    match app.sealed.read(runner, name).map_err(sealing)? {
        Some(_) => app.sealed.remove(runner).map_err(sealing),
        None => Ok(()),
    }
}
