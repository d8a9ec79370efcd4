//! Doing what was decided: local effects, from the outbox, at least once.
//!
//! Each effect is idempotent by its id. It comes back as an input, in the same way as everything else: done, refused
//! for good, or troubled and to be tried again after a pause that the engine chooses.

mod inspect;
mod plan;
mod promote;
mod source;

use crate::app::App;
use crate::core::farm;
use forgeyard_model::effect::{Effect, EffectResult};
use forgeyard_model::forge::Repository;
use forgeyard_model::input::Input;
use forgeyard_model::{EffectId, Explanation};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Effects at once.
const AT_ONCE: usize = 4;

/// Why an effect did not come out.
pub(crate) enum Trouble {
    /// Trying again may help.
    Again(String),
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
    let mut at_work: BTreeSet<EffectId> = BTreeSet::new();
    let mut tasks: JoinSet<EffectId> = JoinSet::new();
    let mut version = app.core.version();
    loop {
        version.borrow_and_update();
        for (id, effect) in due(&app, &at_work, AT_ONCE.saturating_sub(at_work.len())) {
            at_work.insert(id);
            let app = app.clone();
            tasks.spawn(async move {
                settle(&app, id, effect).await;
                id
            });
        }
        tokio::select! {
            () = stop.cancelled() => return,
            Some(done) = tasks.join_next() => match done {
                Ok(id) => { at_work.remove(&id); }
                Err(error) => {
                    // A panic in one effect must not stop the others; its own turn comes again.
                    tracing::error!(%error, "an effect ended badly");
                    at_work.clear();
                    tasks.abort_all();
                }
            },
            _ = version.changed() => {}
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
    }
}

fn due(app: &App, at_work: &BTreeSet<EffectId>, room: usize) -> Vec<(EffectId, Effect)> {
    let now = app.clock.now();
    let farm = app.core.read();
    let pending = farm.index.outbox.iter().filter_map(|id| farm.effects.get(id));
    pending
        .filter(|effect| effect.not_before <= now && !at_work.contains(&effect.id))
        // Environments are made by their own service, which fetches the work itself.
        .filter(|effect| !matches!(effect.effect, Effect::MakeEnvironment { .. }))
        .take(room)
        .map(|effect| (effect.id, effect.effect.clone()))
        .collect()
}

async fn settle(app: &App, id: EffectId, effect: Effect) {
    let outcome = match effect {
        Effect::FetchSource { pipeline } => source::fetch(app, pipeline).await,
        Effect::ReadPlan { artifact, .. } => plan::read(app, artifact).await,
        Effect::InspectPackage { artifact, .. } => inspect::inspect(app, artifact).await,
        Effect::Promote { pipeline, channel } => promote::promote(app, pipeline, &channel).await,
        Effect::MakeEnvironment { .. } => return,
        Effect::LookUpRun { repository, .. }
        | Effect::ReadJob { repository, .. }
        | Effect::MintRunner { repository, .. }
        | Effect::Deregister { repository, .. } => Err(not_connected(&repository)),
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
    };
    if let Err(error) = app.core.give(input, farm()).await {
        // It stays in the outbox; without the pause a farm whose database is away would spin.
        tracing::warn!(effect = %id, %error, "the result of an effect was not taken");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// What can be said of a forge to which this control plane has no connection.
fn not_connected(repository: &Repository) -> Trouble {
    let text =
        format!("no connection to this forge is configured: {} of {}", repository.name, repository.forge);
    Trouble::Never(
        Explanation::new("forge.not_connected", text)
            .fix("connect the forge, so that its jobs can get runners"),
    )
}

fn gone(what: impl std::fmt::Display) -> Trouble {
    Trouble::Never(Explanation::new("effect.gone", format!("{what} is no longer known")))
}
