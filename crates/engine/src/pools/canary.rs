//! Which pools may serve a job, in which order.
//!
//! Those that the job names, or all that offer its flavor, in the operator's order. Where one of them has a canary, the
//! canary takes its place for a share of the jobs. Which jobs these are is decided by repository and name alone, so a job
//! that runs every night is always among them or never, and more percent only ever adds jobs. A canary that starts no
//! machines, or is drained, takes nobody's place.

use super::{drained, launch};
use crate::farm::Farm;
use forgeyard_model::config::FarmConfig;
use forgeyard_model::job::{Job, JobSpec};
use forgeyard_model::resources::{Flavor, Pool};
use forgeyard_model::{Owner, PoolName, Timestamp};
use sha2::{Digest as _, Sha256};

/// Where a job stands among a hundred times a hundred; the same for each of its runs.
fn place(farm: &Farm, job: &Job) -> u16 {
    let name = match job.owner {
        Owner::Pipeline(_) => &job.key,
        Owner::Demand(id) => farm.demands.get(&id).map_or(&job.key, |demand| &demand.name),
    };
    of(farm.repository_of(job.owner).map_or(0, |repository| repository.id), name)
}

fn of(repository: u64, name: &str) -> u16 {
    let mut hash = Sha256::new();
    hash.update(repository.to_be_bytes());
    hash.update(name.as_bytes());
    let sum = hash.finalize();
    (u32::from_be_bytes([sum[0], sum[1], sum[2], sum[3]]) % 10_000) as u16
}

/// Pools that serve a job before canaries are looked at, each with the flavor that it would give.
fn named<'a>(config: &'a FarmConfig, flavor: &'a Flavor, spec: &JobSpec) -> Vec<(&'a Pool, &'a Flavor)> {
    if spec.pools.is_empty() {
        let offer = |pool: &&Pool| pool.flavors.contains(&flavor.name);
        return config.pools.iter().filter(offer).map(|pool| (pool, flavor)).collect();
    }
    let named = spec.pools.iter().filter_map(|name| config.pool(name));
    named.filter_map(|pool| Some((pool, config.flavor(&pool.runners.as_ref()?.flavor)?))).collect()
}

/// Whether any pool is the canary of another.
pub(crate) fn any(config: &FarmConfig) -> bool {
    config.pools.iter().any(|pool| pool.canary.is_some())
}

/// Pools that may serve a job now, each with the flavor that it would give.
pub(crate) fn candidates<'a>(
    farm: &Farm,
    config: &'a FarmConfig,
    job: &Job,
    flavor: &'a Flavor,
    spec: &JobSpec,
    now: Timestamp,
) -> Vec<(&'a Pool, &'a Flavor)> {
    let named = named(config, flavor, spec);
    if !any(config) {
        return named;
    }
    let listed = |name: &PoolName| named.iter().any(|(pool, _)| pool.name == *name);
    let mut found = Vec::new();
    for (pool, flavor) in &named {
        // By itself a canary serves nobody whom the pool serves that it is watched for.
        if pool.canary.as_ref().is_some_and(|canary| listed(&canary.of)) {
            continue;
        }
        let canary = config.pools.iter().find_map(|other| {
            let canary = other.canary.as_ref().filter(|canary| canary.of == pool.name)?;
            (place(farm, job) < u16::from(canary.percent) * 100).then_some(other)
        });
        let works = |pool: &&Pool| drained(farm, pool).is_none() && launch::stopped(farm, pool, now).is_ok();
        let instead = canary.filter(works).and_then(|other| {
            let flavor = match (&other.runners, spec.pools.is_empty()) {
                (Some(offer), false) => config.flavor(&offer.flavor)?,
                _ => *flavor,
            };
            Some((other, flavor))
        });
        found.push(instead.unwrap_or((*pool, *flavor)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn more_percent_only_adds_jobs(repository: u64, name in "[a-z ()0-9.]{1,30}", less in 0u16..100, more in 0u16..=100) {
            let place = of(repository, &name);
            prop_assert!(place < 10_000);
            prop_assert!(less > more || place >= less * 100 || place < more * 100);
        }
    }

    #[test]
    fn about_a_tenth_of_many_jobs_is_a_tenth() {
        let chosen = (0..10_000).filter(|number| of(7, &format!("job {number}")) < 1000).count();
        assert!((900..1100).contains(&chosen), "{chosen}");
    }
}
