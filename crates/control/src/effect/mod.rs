//! Doing what was decided: local effects, from the outbox, at least once.
//!
//! Each effect is idempotent by its id. It comes back as an input, in the same way as everything else: done, refused
//! for good, troubled and to be tried again after a pause that the engine chooses, or deferred by a limit of a forge, which is
//! no failure.

mod forge;
pub(crate) mod forgejo;
mod inspect;
mod plan;
mod promote;
mod repeat;
mod source;

pub(crate) use forge::causes;

use crate::app::App;
use crate::core::farm;
use forgeyard_model::attempt::AttemptState;
use forgeyard_model::effect::{Effect, EffectResult};
use forgeyard_model::input::Input;
use forgeyard_model::{EffectId, Explanation, Timestamp};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Effects of this machine at once.
const AT_ONCE: usize = 4;
/// Effects at forges at once: they wait for answers, and one forge that is slow must not hold up another.
const FORGES_AT_ONCE: usize = 32;

/// Why an effect did not come out.
pub(crate) enum Trouble {
    /// Trying again may help.
    Again(String),
    /// A limit of a forge, or our own pace below it: not before that time. Nothing failed.
    Limited {
        /// Which limit.
        reason: Explanation,
        /// When it may be tried.
        until: Timestamp,
    },
    /// The same for so long from now.
    NotYet {
        /// What is waited for.
        reason: Explanation,
        /// How long.
        pause: Duration,
    },
    /// It never will.
    Never(Explanation),
}

impl From<forgeyard_blobs::Error> for Trouble {
    fn from(error: forgeyard_blobs::Error) -> Self {
        Trouble::Again(error.to_string())
    }
}

/// Does effects until told to stop.
pub async fn run(app: App, stop: CancellationToken) {
    let mut at_work: BTreeMap<EffectId, bool> = BTreeMap::new();
    let mut tasks: JoinSet<EffectId> = JoinSet::new();
    let mut version = app.core.version();
    loop {
        version.catch_up();
        for (id, effect) in due(&app, &at_work) {
            at_work.insert(id, effect.demand().is_some());
            let app = app.clone();
            tasks.spawn(async move {
                settle(&app, id, effect).await;
                id
            });
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            Some(done) = tasks.join_next() => match done {
                Ok(id) => {
                    at_work.remove(&id);
                }
                Err(error) => {
                    // A panic in one effect must not stop the others; its own turn comes again.
                    tracing::error!(%error, "an effect ended badly");
                    at_work.clear();
                    tasks.abort_all();
                }
            },
            _ = version.changed() => {}
            () = app.clock.sleep(Duration::from_secs(1)) => {}
        }
    }
}

fn due(app: &App, at_work: &BTreeMap<EffectId, bool>) -> Vec<(EffectId, Effect)> {
    let now = app.clock.now();
    let forges = at_work.values().filter(|forge| **forge).count();
    let mut room = [AT_ONCE.saturating_sub(at_work.len() - forges), FORGES_AT_ONCE.saturating_sub(forges)];
    let farm = app.core.read();
    let pending = farm.index.outbox.iter().filter_map(|id| farm.effects.get(id));
    pending
        .filter(|effect| effect.not_before <= now && !at_work.contains_key(&effect.id))
        // Environments are made by their own service, which fetches the work itself.
        .filter(|effect| !matches!(effect.effect, Effect::MakeEnvironment { .. }))
        .filter(|effect| {
            let room = &mut room[usize::from(effect.effect.demand().is_some())];
            let fits = *room > 0;
            *room = room.saturating_sub(1);
            fits
        })
        .map(|effect| (effect.id, effect.effect.clone()))
        .collect()
}

/// Does one effect.
async fn settle(app: &App, id: EffectId, effect: Effect) {
    let outcome = match effect {
        Effect::FetchSource { pipeline } => source::fetch(app, pipeline).await,
        Effect::ReadPlan { artifact, .. } => plan::read(app, artifact).await,
        Effect::InspectPackage { artifact, .. } => inspect::inspect(app, artifact).await,
        Effect::Promote { pipeline, channel } => promote::promote(app, pipeline, &channel).await,
        Effect::MakeEnvironment { .. } => return,
        effect => forge::run(app, effect).await,
    };
    let deferred = |until, reason: Explanation| {
        tracing::info!(effect = %id, %until, reason = %reason, "a limit of a forge holds an effect");
        Input::EffectDeferred { effect: id, until, reason }
    };
    let input = match outcome {
        Ok(result) => Input::EffectSettled { effect: id, result: Box::new(result) },
        Err(Trouble::Never(reason)) => {
            tracing::warn!(effect = %id, code = %reason.code, "{}", reason.message);
            Input::EffectSettled { effect: id, result: Box::new(EffectResult::Refused { reason }) }
        }
        Err(Trouble::Again(trouble)) => {
            tracing::warn!(effect = %id, %trouble, "an effect did not come out");
            Input::EffectTroubled { effect: id, trouble }
        }
        Err(Trouble::Limited { reason, until }) => deferred(until, reason),
        Err(Trouble::NotYet { reason, pause }) => deferred(app.clock.now().plus(pause), reason),
    };
    if let Err(error) = app.core.give(input, farm()).await {
        // It stays in the outbox; without the pause a farm whose database is away would spin.
        tracing::warn!(effect = %id, %error, "the result of an effect was not taken");
        app.clock.sleep(Duration::from_secs(1)).await;
    }
}

/// Removes sealed configurations that nobody waits for: those of machines that are gone, or that use theirs already.
pub(crate) fn sweep_sealed(app: &App) {
    let farm = app.core.read();
    let swept = app.sealed.sweep(|id| {
        let Some(runner) = farm.runners.get(&id) else { return false };
        let attempt = runner.work.attempt().and_then(|id| farm.attempts.get(&id));
        attempt.is_some_and(|attempt| matches!(attempt.state, AttemptState::Placed | AttemptState::Starting))
    });
    if let Err(error) = swept {
        tracing::warn!(%error, "sealed configurations could not be swept");
    }
}

fn gone(what: impl std::fmt::Display) -> Trouble {
    Trouble::Never(Explanation::new("effect.gone", format!("{what} is no longer known")))
}
