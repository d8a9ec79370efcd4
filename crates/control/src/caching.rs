//! Tokens of the build cache for jobs: who gets which is decided by [`forgeyard_engine::caching`]; here it is asked, signed and
//! taken back.
//!
//! The cache is another service with another key, and this crate does not know the form of its tokens. [`Caching`] is all
//! that it needs of them. Control and cache share the small *authority* and nothing else: what is revoked and which scopes
//! are closed is written there, and the cache goes by it without asking.
//!
//! - **A token is of one attempt.** Its id derives from the attempt, so asking again gives the same one.
//! - **It ends with the attempt**: [`run`] takes back the tokens of attempts that ended. After a restart it looks at all that
//!   could still hold; taking back twice changes nothing. Should control be down, the token ends with the time limit.
//! - **A pull request that is closed** loses its scope before its delivery is settled, so a crash between the two does it
//!   again. What a lost delivery leaves is taken away by the age limit of the scope.

use crate::app::App;
use forgeyard_engine::caching::{Given, Scopes, of_event, of_run};
use forgeyard_engine::farm::Farm;
use forgeyard_model::attempt::{Attempt, AttemptState};
use forgeyard_model::config::FarmConfig;
use forgeyard_model::forge::Repository;
use forgeyard_model::registration::TakenAnswer;
use forgeyard_model::{Explanation, Owner, Secret, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// What a machine may take to be made, beyond the time limit of its job.
const BEFORE: Duration = Duration::from_secs(1800);
/// How often the ends of attempts are looked for, at most.
const EVERY: Duration = Duration::from_millis(300);

/// A token that is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Its id.
    pub id: String,
    /// What it is for.
    pub given: Given,
    /// The scopes of the repository.
    pub scopes: Scopes,
    /// Who, for provenance.
    pub principal: String,
    /// The run, for provenance.
    pub run: String,
    /// When it ends.
    pub expires_at: Timestamp,
}

/// A token that was made.
#[derive(Debug, Clone)]
pub struct Minted {
    /// Where jobs find the cache.
    pub address: String,
    /// The token.
    pub token: Secret,
    /// Public keys of what Nix reads from the scope.
    pub nix_keys: Vec<String>,
}

/// The build cache, as far as the control plane knows it.
pub trait Caching: Send + Sync {
    /// Scopes of a repository.
    fn scopes(&self, repository: &Repository) -> Scopes;
    /// Makes a token, and sees to it that its scope exists and is open.
    fn mint(&self, wanted: &Wanted) -> std::io::Result<Minted>;
    /// Takes tokens back. The time is that at which a token would end by itself.
    fn revoke(&self, tokens: &BTreeMap<String, Timestamp>, now: Timestamp) -> std::io::Result<()>;
    /// A pull request is closed: what it wrote goes.
    fn close(&self, repository: &Repository, number: u64) -> std::io::Result<()>;
}

/// When the token of an attempt ends by itself.
fn end(farm: &Farm, attempt: &Attempt) -> Timestamp {
    let limit = farm.runners.get(&attempt.runner).map_or(24 * 3600, |runner| runner.shape.time_limit_seconds);
    attempt.placed_at.plus(BEFORE + Duration::from_secs(limit))
}

/// Id of the token of an attempt.
fn id(attempt: &Attempt) -> String {
    attempt.id.to_string()
}

/// Why an attempt gets none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Without {
    /// Never.
    Never(Explanation),
    /// Not before it is known whose work the machine does.
    NotYet,
}

/// The token that an attempt gets.
pub fn wanted(
    farm: &Farm,
    config: &FarmConfig,
    caching: &dyn Caching,
    attempt: &Attempt,
) -> Result<Wanted, Without> {
    let never = |text: &str| Without::Never(Explanation::new("cache.none", text));
    let (scopes, given, run) = match attempt.owner {
        Owner::Pipeline(id) => {
            let pipeline = farm.pipelines.get(&id).ok_or_else(|| never("its pipeline is gone"))?;
            let scopes = caching.scopes(&pipeline.event.repository);
            let given = of_event(&pipeline.event, pipeline.lane, &scopes)
                .ok_or_else(|| never("its work is of no repository, so there is no scope for it"))?;
            (scopes, given, id.to_string())
        }
        Owner::Demand(_) => {
            let runner = farm.runners.get(&attempt.runner);
            let registration = runner.and_then(|runner| runner.registration.as_deref());
            let taken = registration.and_then(|registration| registration.taken.as_ref());
            let Some(taken) = taken.filter(|taken| matches!(taken.answer, TakenAnswer::Allowed { .. }))
            else {
                return Err(Without::NotYet);
            };
            let job = &taken.job;
            let repository = config.repository(&job.repository.forge, job.repository.id);
            let (Some(facts), Some(repository)) = (&taken.facts, repository) else {
                return Err(never("nothing is known of the run that it took"));
            };
            let scopes = caching.scopes(&job.repository);
            let given = of_run(facts, repository, &scopes);
            (scopes, given, format!("{}/{}.{}", job.repository.forge, job.run, job.run_attempt))
        }
    };
    Ok(Wanted {
        id: id(attempt),
        given,
        scopes,
        principal: format!("{}.{}", attempt.job, attempt.fence),
        run,
        expires_at: end(farm, attempt),
    })
}

/// Takes back the tokens of attempts that ended, until told to stop.
pub async fn run(app: App, stop: CancellationToken) {
    let Some(caching) = app.caching.clone() else { return };
    let mut done: BTreeSet<String> = BTreeSet::new();
    let mut version = app.core.version();
    loop {
        version.borrow_and_update();
        let now = app.clock.now();
        let ended: BTreeMap<String, Timestamp> = {
            let farm = app.core.read();
            let ended = farm.attempts.values().filter(|attempt| attempt.state == AttemptState::Ended);
            let all: BTreeMap<String, Timestamp> = ended
                .map(|attempt| (id(attempt), end(&farm, attempt)))
                .filter(|(_, end)| *end > now)
                .collect();
            done.retain(|id| all.contains_key(id));
            all.into_iter().filter(|(id, _)| !done.contains(id)).collect()
        };
        if !ended.is_empty() {
            match caching.revoke(&ended, now) {
                Ok(()) => done.extend(ended.into_keys()),
                Err(error) => tracing::warn!(%error, "tokens of the cache could not be taken back yet"),
            }
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = app.clock.sleep(EVERY) => {}
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = version.changed() => {}
            () = app.clock.sleep(Duration::from_secs(5)) => {}
        }
    }
}
