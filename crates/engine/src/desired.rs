//! What should be so at a site: a pure view of the farm.

use crate::farm::Farm;
use crate::spec;
use forgeyard_model::attempt::Attempt;
use forgeyard_model::lease::LeaseState;
use forgeyard_model::runner::{Runner, RunnerState, RunnerWork};
use forgeyard_model::site::{DesiredRunner, DesiredSet, ReleasingLease};
use forgeyard_model::{Id, SiteId};

/// Whose one-shot token a machine gets.
#[derive(Debug, Clone, Copy)]
pub enum TokenOf<'a> {
    /// That of the attempt that it was made for.
    Attempt(&'a Attempt),
    /// That of the machine itself, which was made before there was an attempt.
    Runner(&'a Runner),
}

/// Epoch and generation of the desired set of a site, without making it: whoever waits for news of one site is woken by news
/// of all.
pub fn version(farm: &Farm, site: SiteId) -> Option<(u64, u64)> {
    Some((farm.epoch, farm.sites.get(&site)?.desired_generation))
}

/// The desired set of a site; `None` when there is no such site. `token` makes the one-shot token of a
/// machine, the same one each time.
pub fn desired(farm: &Farm, site: SiteId, token: impl Fn(TokenOf<'_>) -> String) -> Option<DesiredSet> {
    let row = farm.sites.get(&site)?;
    let ids = farm.index.live_runners.range((site, lowest())..).take_while(|(owner, _)| *owner == site);
    let runners = ids
        .filter_map(|(_, id)| farm.runners.get(id))
        .filter(|runner| runner.state.wanted())
        .filter_map(|runner| {
            let attempt = runner.work.attempt().and_then(|id| farm.attempts.get(&id));
            let (lease, token_of) = match &runner.work {
                RunnerWork::Attempt(_) => (attempt?.lease, TokenOf::Attempt(attempt?)),
                RunnerWork::Handed { .. } => (attempt?.lease, TokenOf::Runner(runner)),
                RunnerWork::Warm { lease, .. } => (*lease, TokenOf::Runner(runner)),
            };
            let job = attempt.and_then(|attempt| farm.jobs.get(&attempt.job));
            // What is made before there is a job can do what any job of ours may need.
            let any = || spec::needs(runner.shape.network);
            let needs = job
                .map_or_else(any, |job| job.spec.as_ref().map(|spec| spec.needs.clone()).unwrap_or_default());
            let devices =
                lease.and_then(|id| farm.leases.get(&id)).into_iter().flat_map(|lease| &lease.devices);
            Some(DesiredRunner {
                runner: runner.id,
                provider: runner.provider.clone(),
                flavor: runner.shape.clone(),
                image: runner.boots.clone(),
                attempt: attempt.map(|attempt| attempt.id),
                devices: devices.filter_map(|id| Some(farm.devices.get(id)?.facts.clone())).collect(),
                lease,
                needs,
                token: token(token_of),
                keep: matches!(runner.state, RunnerState::Kept { .. }),
            })
        })
        .collect();
    let releasing = farm
        .index
        .live_leases
        .range((site, Id::from_bits(0))..)
        .take_while(|(owner, _)| *owner == site)
        .filter_map(|(_, id)| farm.leases.get(id))
        .filter(|lease| lease.state == LeaseState::Releasing)
        .map(|lease| ReleasingLease {
            lease: lease.id,
            runner: lease.runner,
            devices: lease
                .devices
                .iter()
                .filter_map(|id| Some((*id, farm.devices.get(id)?.facts.key.clone())))
                .collect(),
        })
        .collect();
    Some(DesiredSet { epoch: farm.epoch, generation: row.desired_generation, runners, releasing })
}

fn lowest() -> forgeyard_model::RunnerId {
    Id::from_bits(0)
}
