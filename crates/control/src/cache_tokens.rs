//! Tokens of the build cache for jobs: who gets which is decided by [`forgeyard_engine::cache_scopes`]; here it is asked, signed
//! and taken back.
//!
//! The cache is another service with another key, and this crate does not know the form of its tokens. [`CacheTokens`] is all
//! that it needs of them. Control and cache share the small *authority* and nothing else: whose tokens hold and which scopes
//! are closed is written there, and the cache goes by it without asking.
//!
//! - **A token is of one attempt.** Its id is that of the attempt, so asking again gives the same one.
//! - **It ends with the attempt**, because it holds only while the attempt is in the list of live ones ([`Tokens`]). [`run`]
//!   writes the list when the farm's index of live attempts is another one. It is made from the farm alone, so a restart needs
//!   to remember nothing, and the past costs nothing. Should control be down, the token ends with the time limit.
//! - **It is handed out after it was listed**, and what is listed is read under the same lock as it is written: an attempt
//!   that ended meanwhile gets no token, and an older list never follows a newer one.
//! - **A pull request that is closed** loses its scope before its delivery is settled, so a crash between the two does it
//!   again. What a lost delivery leaves is taken away by the age limit of the scope.

use crate::app::App;
use crate::core::Core;
use forgeyard_engine::cache_scopes::{Given, Scopes, of_event, of_run};
use forgeyard_engine::farm::Farm;
use forgeyard_model::attempt::Attempt;
use forgeyard_model::config::FarmConfig;
use forgeyard_model::forge::Repository;
use forgeyard_model::registration::TakenAnswer;
use forgeyard_model::{AttemptId, Explanation, Owner, Secret, Timestamp};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// What a machine may take to be made, beyond the time limit of its job.
const BEFORE: Duration = Duration::from_secs(1800);
/// How often the list of live attempts is written, at most; but for an attempt that gets its token.
const EVERY: Duration = Duration::from_millis(300);
/// How often it is compared with what is on disk: somebody else may have written there.
const SLOWLY: Duration = Duration::from_secs(5);

/// A token that is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The attempt that it is for, whose id it bears.
    pub attempt: AttemptId,
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
    /// Certificate authorities that the machines of jobs need to trust the address, in PEM.
    pub ca: Option<String>,
}

/// The build cache, as far as the control plane knows it.
pub trait CacheTokens: Send + Sync {
    /// Scopes of a repository.
    fn scopes(&self, repository: &Repository) -> Scopes;
    /// Makes a token, and sees to it that its scope exists and is open.
    fn mint(&self, wanted: &Wanted) -> io::Result<Minted>;
    /// Sees to it that the tokens of these attempts hold, and of no others. In the order of their ids.
    fn list(&self, live: &[AttemptId]) -> io::Result<()>;
    /// A pull request is closed: what it wrote goes.
    fn close(&self, repository: &Repository, number: u64) -> io::Result<()>;
}

/// The tokens of live attempts.
pub struct Tokens {
    cache: Arc<dyn CacheTokens>,
    /// What was listed last.
    listed: Mutex<Option<Vec<AttemptId>>>,
}

impl Tokens {
    /// Those of this cache.
    pub fn new(cache: Arc<dyn CacheTokens>) -> Self {
        Self { cache, listed: Mutex::default() }
    }

    /// The cache.
    pub fn cache(&self) -> &dyn CacheTokens {
        &*self.cache
    }

    /// Makes a token. Nothing when its attempt is not live any more. Blocks.
    pub fn mint(&self, core: &Core, wanted: &Wanted) -> io::Result<Option<Minted>> {
        // The scope before the list: the cache knows the scope of every token that it sees listed.
        let minted = self.cache.mint(wanted)?;
        let live = self.list(core, false)?;
        Ok(live.binary_search(&wanted.attempt).is_ok().then_some(minted))
    }

    /// Lists the attempts that are live now, when that is not what was listed last, or in any case.
    fn list(&self, core: &Core, anyway: bool) -> io::Result<Vec<AttemptId>> {
        let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        let live: Vec<AttemptId> = core.read().index.live_attempts.iter().copied().collect();
        if anyway || listed.as_ref() != Some(&live) {
            // What is on disk after a failure is not known.
            *listed = None;
            self.cache.list(&live)?;
            *listed = Some(live.clone());
        }
        Ok(live)
    }
}

/// When the token of an attempt ends by itself.
fn end(farm: &Farm, attempt: &Attempt) -> Timestamp {
    let limit = farm.runners.get(&attempt.runner).map_or(24 * 3600, |runner| runner.shape.time_limit_seconds);
    attempt.placed_at.plus(BEFORE + Duration::from_secs(limit))
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
    cache: &dyn CacheTokens,
    attempt: &Attempt,
) -> Result<Wanted, Without> {
    let never = |text: &str| Without::Never(Explanation::new("cache.none", text));
    let (scopes, given, run) = match attempt.owner {
        Owner::Pipeline(id) => {
            let pipeline = farm.pipelines.get(&id).ok_or_else(|| never("its pipeline is gone"))?;
            let scopes = cache.scopes(&pipeline.event.repository);
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
            let scopes = cache.scopes(&job.repository);
            let given = of_run(facts, repository, &scopes);
            (scopes, given, format!("{}/{}.{}", job.repository.forge, job.run, job.run_attempt))
        }
    };
    Ok(Wanted {
        attempt: attempt.id,
        given,
        scopes,
        principal: format!("{}.{}", attempt.job, attempt.fence),
        run,
        expires_at: end(farm, attempt),
    })
}

/// Keeps the list of live attempts, until told to stop.
pub async fn run(app: App, stop: CancellationToken) {
    let Some(tokens) = app.cache_tokens.clone() else { return };
    let mut version = app.core.version();
    let mut anyway = true;
    loop {
        version.catch_up();
        let (tokens, core) = (Arc::clone(&tokens), app.core.clone());
        let listed = tokio::task::spawn_blocking(move || tokens.list(&core, anyway)).await;
        let listed = listed.unwrap_or_else(|error| Err(io::Error::other(error)));
        if let Err(error) = &listed {
            tracing::warn!(%error, "the live tokens of the cache could not be listed yet");
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = app.clock.sleep(EVERY) => {}
        }
        anyway = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = version.changed() => listed.is_err(),
            () = app.clock.sleep(SLOWLY) => true,
        };
    }
}
