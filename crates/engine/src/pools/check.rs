//! What a configuration may say of pools. What cannot work is refused when it is read, with the reason.

use super::schedule;
use crate::demand::labels;
use forgeyard_model::Explanation;
use forgeyard_model::config::FarmConfig;
use forgeyard_model::resources::{Isolation, Pool};
use std::collections::BTreeSet;

/// Label by which a job of a forge says that it starts containers of its own.
pub const DOCKER: &str = "docker";

fn wrong(pool: &Pool, text: String, fix: &str) -> Explanation {
    Explanation::new("config.pool", format!("pool `{}` {text}", pool.name)).fix(fix)
}

/// The first thing that is wrong with the pools of a configuration.
pub fn pools(config: &FarmConfig) -> Result<(), Explanation> {
    let mut names = BTreeSet::new();
    for pool in &config.pools {
        if !names.insert(&pool.name) {
            return Err(wrong(pool, "is declared twice".to_owned(), "give each pool a name of its own"));
        }
        numbers(pool)?;
        times(pool)?;
        warm(config, pool)?;
        canary(config, pool)?;
        offer(config, pool)?;
    }
    Ok(())
}

fn numbers(pool: &Pool) -> Result<(), Explanation> {
    if pool.launches.burst == 0 || pool.launches.per_minute == 0 {
        let text = "would never start a machine: `launches` has a burst or a rate of 0".to_owned();
        return Err(wrong(pool, text, "write at least 1; to give a pool no work, `forgeyard pool drain` it"));
    }
    if pool.breaker.failures == 0 {
        let text = "would never start a machine: its breaker opens after 0 failures".to_owned();
        return Err(wrong(pool, text, "write `breaker = { failures = 5 }`, or leave it away"));
    }
    let entries = pool.schedule.iter();
    let scheduled = entries.map(|entry| {
        (entry.min.unwrap_or(pool.min), entry.warm.unwrap_or(pool.warm), entry.max.unwrap_or(pool.max))
    });
    for (min, warm, max) in std::iter::once((pool.min, pool.warm, pool.max)).chain(scheduled) {
        if min > max || warm > max {
            let text = format!("is to have at least {min} machines and {warm} that wait, but {max} at most");
            return Err(wrong(
                pool,
                text,
                "`min` and `warm` are at most `max`, in each entry of the schedule too",
            ));
        }
    }
    if pool.keep.is_some_and(|keep| keep.count > pool.max) {
        return Err(wrong(pool, "keeps more machines than it may have".to_owned(), "lower `keep.count`"));
    }
    Ok(())
}

fn times(pool: &Pool) -> Result<(), Explanation> {
    for entry in &pool.schedule {
        if schedule::zone(&entry.zone).is_none() {
            let text = format!("has a schedule for the time zone `{}`, which is not known", entry.zone);
            return Err(wrong(pool, text, "write an IANA name such as `America/Los_Angeles` or `UTC`"));
        }
        if entry.days.is_empty() || entry.from.minutes() == 24 * 60 || entry.to.minutes() == 0 {
            let text = format!(
                "has a schedule from {} to {} that covers nothing or is unclear",
                entry.from, entry.to
            );
            return Err(wrong(
                pool,
                text,
                "name at least one day; a day begins at `00:00` and ends at `24:00`",
            ));
        }
        if entry.min.is_none() && entry.warm.is_none() && entry.max.is_none() {
            let text = format!("has a schedule from {} to {} that changes nothing", entry.from, entry.to);
            return Err(wrong(pool, text, "give it `min`, `warm` or `max`"));
        }
    }
    Ok(())
}

fn warm(config: &FarmConfig, pool: &Pool) -> Result<(), Explanation> {
    if !pool.ever_warm() && pool.warm_flavor.is_none() {
        return Ok(());
    }
    let Some(flavor) = pool.shape_of_warm() else {
        let text = "has machines that wait for work, and several flavors that they could have".to_owned();
        return Err(wrong(pool, text, "write `warm-flavor`"));
    };
    if config.flavor(flavor).is_none() || !(pool.flavors.contains(flavor) || pool.runners.is_some()) {
        let text = format!("has machines of the flavor `{flavor}` that wait for work, but does not offer it");
        return Err(wrong(pool, text, "`warm-flavor` is one of the `flavors` of the pool"));
    }
    Ok(())
}

fn canary(config: &FarmConfig, pool: &Pool) -> Result<(), Explanation> {
    let Some(canary) = &pool.canary else { return Ok(()) };
    let Some(of) = config.pool(&canary.of).filter(|of| of.name != pool.name) else {
        let text = format!("is the canary of `{}`, which is no other pool", canary.of);
        return Err(wrong(pool, text, "name the pool whose jobs it takes a share of"));
    };
    if canary.percent > 100 {
        return Err(wrong(pool, format!("takes {} of a hundred jobs", canary.percent), "write 0 to 100"));
    }
    let other = |other: &&Pool| {
        other.name != pool.name && other.canary.as_ref().is_some_and(|other| other.of == canary.of)
    };
    if of.canary.is_some() || config.pools.iter().any(|pool| other(&pool)) {
        let text = format!("is the canary of `{}`, which has or is one already", of.name);
        return Err(wrong(pool, text, "one canary for each pool, and none of a canary"));
    }
    if pool.isolation < of.isolation {
        let text = format!("keeps jobs less apart than `{}`, whose jobs it would take", of.name);
        return Err(wrong(pool, text, "give it the same isolation"));
    }
    if !of.flavors.is_subset(&pool.flavors) || (of.runners.is_some() && pool.runners.is_none()) {
        let text = format!("does not offer all that `{}` offers, whose jobs it would take", of.name);
        return Err(wrong(pool, text, "give it the same `flavors`, and `runners` where that pool has them"));
    }
    Ok(())
}

fn offer(config: &FarmConfig, pool: &Pool) -> Result<(), Explanation> {
    let Some(offer) = &pool.runners else { return Ok(()) };
    if config.flavor(&offer.flavor).is_none() {
        let text = format!("offers runners of the flavor `{}`, which is not declared", offer.flavor);
        return Err(wrong(pool, text, "declare it under [[flavors]]"));
    }
    let labels: Vec<String> = offer.labels.iter().cloned().collect();
    if pool.isolation == Isolation::SharedKernel && labels::asked(&labels).contains(DOCKER) {
        let text = format!("offers the label `{DOCKER}`, but no job can start containers in its machines");
        return Err(wrong(pool, text, "take the label away, or use a pool of virtual machines"));
    }
    Ok(())
}
