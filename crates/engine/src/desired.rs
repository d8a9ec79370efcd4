//! What should be so at a site: a pure view of the farm.

use crate::farm::Farm;
use forgeyard_model::SiteId;
use forgeyard_model::attempt::Attempt;
use forgeyard_model::job::Job;
use forgeyard_model::lease::LeaseState;
use forgeyard_model::runner::RunnerState;
use forgeyard_model::site::{DesiredRunner, DesiredSet, ReleasingLease};

/// The desired set of a site; `None` when there is no such site. `token` makes the one-shot token of an attempt.
pub fn desired(farm: &Farm, site: SiteId, token: impl Fn(&Attempt) -> String) -> Option<DesiredSet> {
    let row = farm.sites.get(&site)?;
    let ids = farm.index.live_runners.range((site, lowest())..).take_while(|(owner, _)| *owner == site);
    let runners = ids
        .filter_map(|(_, id)| farm.runners.get(id))
        .filter(|runner| runner.state.wanted())
        .filter_map(|runner| {
            let attempt = farm.attempts.get(&runner.attempt)?;
            let job: &Job = farm.jobs.get(&attempt.job)?;
            let lease = attempt.lease.and_then(|lease| farm.leases.get(&lease));
            let devices = lease.into_iter().flat_map(|lease| &lease.devices);
            Some(DesiredRunner {
                runner: runner.id,
                provider: runner.provider.clone(),
                flavor: runner.shape.clone(),
                image: runner.boots.clone(),
                attempt: attempt.id,
                devices: devices.filter_map(|id| Some(farm.devices.get(id)?.facts.clone())).collect(),
                lease: attempt.lease,
                needs: job.spec.as_ref().map(|spec| spec.needs.clone()).unwrap_or_default(),
                token: token(attempt),
                keep: matches!(runner.state, RunnerState::Kept { .. }),
            })
        })
        .collect();
    let releasing = farm
        .index
        .live_leases
        .iter()
        .filter(|(owner, _)| *owner == site)
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
    forgeyard_model::Id::from_bits(0)
}
