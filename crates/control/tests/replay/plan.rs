//! The farm that is played: its pools, shapes, caps and grants.

use super::trace::Kind;
use super::world::Settings;
use forgeyard_forges::github::budget::Pace;
use forgeyard_model::access::{EventClass, Grant, GrantRepository};
use forgeyard_model::config::{FarmConfig, RepositoryConfig};
use forgeyard_model::forge::Person;
use forgeyard_model::pool::LaunchRate;
use forgeyard_model::resources::{Flavor, GpuRequest, Isolation, Pool, RunnerOffer, runner_program};
use forgeyard_model::rules::{Caps, QueueRules};
use forgeyard_testkit::build::{self, name};

fn flavor(kind: Kind) -> Flavor {
    Flavor {
        name: name(kind.name()),
        cpu_millis: 1000,
        memory_mib: 4096,
        disk_mib: 4096,
        processes: 1024,
        time_limit_seconds: 3 * 3600,
        gpu: (kind == Kind::Gpu).then_some(GpuRequest {
            count: 1,
            kind: None,
            min_memory_mib: 0,
            min_compute_capability: 0,
        }),
        network: true,
    }
}

/// Machines of a pool at once.
pub fn most(kind: Kind, settings: &Settings) -> u32 {
    let all = match kind {
        Kind::Small => 60,
        Kind::Large => 620,
        Kind::Gpu => 150,
    };
    (all * settings.capacity / 100).max(4)
}

/// Jobs of the organisation at once.
pub fn organisation_cap(settings: &Settings) -> u32 {
    Kind::ALL.map(|kind| most(kind, settings)).iter().sum::<u32>() * 93 / 100
}

/// Jobs of one repository at once.
pub fn repository_cap(settings: &Settings) -> u32 {
    (150 * settings.capacity / 100).max(4)
}

/// The farm's configuration.
pub fn config(settings: &Settings, repositories: &[(u64, String)], people: &[Person]) -> FarmConfig {
    let base = build::config();
    let pool = |kind: Kind| {
        let mut pool = Pool::new(
            name(kind.name()),
            name("sandbox"),
            [name(kind.name())].into(),
            name("host"),
            Isolation::SharedKernel,
            most(kind, settings),
        );
        // Hundreds of jobs come in one second of that afternoon; what is looked at here is not how fast a pool starts.
        pool.launches = LaunchRate { burst: 1000, per_minute: 60_000 };
        pool.runners = Some(RunnerOffer {
            labels: [kind.label()].into(),
            exact: false,
            flavor: name(kind.name()),
            program: runner_program(),
        });
        pool
    };
    let all = Kind::ALL.map(|kind| most(kind, settings)).iter().sum::<u32>();
    let mut config = FarmConfig {
        pools: Kind::ALL.map(pool).to_vec(),
        max_running: all * 95 / 100,
        queue: QueueRules {
            caps: Caps {
                organisation: Some(organisation_cap(settings)),
                repository: Some(repository_cap(settings)),
                ..Caps::default()
            },
            // A job that is run again is another job, of which the trace knows nothing.
            repeat_lost: 0,
            // As a connection with so many Apps has it.
            registrations_per_minute: [(
                name("github"),
                Pace::GITHUB.registrations_per_minute() * settings.apps,
            )]
            .into(),
            ..QueueRules::default()
        },
        repositories: repositories
            .iter()
            .map(|(id, full_name)| RepositoryConfig {
                id: *id,
                name: full_name.clone(),
                ..base.repositories[0].clone()
            })
            .collect(),
        ..base
    };
    config.flavors.retain(|flavor| flavor.name == config.use_flavors.plan);
    config.flavors.extend(Kind::ALL.map(flavor));
    config.use_flavors.gpu_test = config.use_flavors.test.clone();
    config.access.grants = repositories
        .iter()
        .map(|(id, full_name)| Grant {
            id: format!("grant-{id}"),
            repository: GrantRepository { forge: None, id: Some(*id), name: full_name.clone() },
            resources: Kind::ALL.map(|kind| kind.name().to_owned()).into(),
            events: [EventClass::Push, EventClass::Rerun].into(),
            users: people.iter().map(|person| person.id).collect(),
            approvers: Default::default(),
            lists: Default::default(),
            teams: Default::default(),
            roles: Default::default(),
            isolation: Some(Isolation::SharedKernel),
        })
        .collect();
    config
}
