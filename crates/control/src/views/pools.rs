//! Pools for reading: the same for API, console and CLI.

use forgeyard_api::pools::{PoolChange, PoolMoment, PoolView, StoppedSite};
use forgeyard_engine::Farm;
use forgeyard_engine::pools::view;
use forgeyard_model::Timestamp;
use forgeyard_model::config::FarmConfig;
use forgeyard_model::pool::Breaker;
use forgeyard_model::resources::Pool;

/// A pool as it is now.
pub fn pool(farm: &Farm, config: &FarmConfig, pool: &Pool, at: Timestamp) -> PoolView {
    let now = view::now(farm, config, pool, at);
    let moments = now.record.samples.iter().map(|sample| PoolMoment {
        at: sample.at,
        busy: sample.busy,
        warm: sample.warm,
        waiting: sample.waiting,
    });
    let shut = now.record.sites.iter().filter(|(_, there)| !matches!(there.breaker, Breaker::Closed { .. }));
    let stopped_at = shut
        .filter_map(|(id, there)| {
            let site = farm.sites.get(id)?.name.clone();
            Some(StoppedSite { site, breaker: there.breaker.clone(), last_error: there.last_error.clone() })
        })
        .collect();
    PoolView {
        name: pool.name.clone(),
        provider: pool.provider.clone(),
        isolation: pool.isolation,
        image: pool.image.clone(),
        flavors: pool.flavors.iter().cloned().collect(),
        labels: pool.runners.iter().flat_map(|offer| offer.labels.iter().cloned()).collect(),
        busy: now.machines.busy,
        ready: now.machines.ready,
        coming: now.machines.coming,
        leaving: now.machines.leaving,
        waiting: now.waiting,
        now: now.terms,
        warm_wanted: now.wanted,
        warm_trouble: now.warm_lacks,
        next: now.next.map(|(at, then)| PoolChange { at, then }),
        schedule: pool.schedule.clone(),
        canary: pool.canary.clone(),
        breaker: now.record.breaker.clone(),
        launches: now.launches,
        rate: pool.launches,
        drain: now.record.drain.clone(),
        trouble: now.trouble,
        stopped_at,
        last_error: now.record.last_error.clone(),
        history: moments.collect(),
    }
}
