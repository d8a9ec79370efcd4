//! Builders of configuration and events for tests.

use forgeyard_model::access::{Access, EventClass, Grant, GrantRepository};
use forgeyard_model::config::{FarmConfig, Flavors, RepositoryConfig};
use forgeyard_model::forge::{ForgeEvent, Person, Repository, Trigger};
use forgeyard_model::principal::{Principal, PrincipalKind};
use forgeyard_model::resources::{Flavor, GpuRequest, Image, ImageRoot, Isolation, Pool};
use forgeyard_model::{Id, PrincipalId};

/// Numeric id of the repository that [`config`] works for.
pub const REPOSITORY: u64 = 9_000_000_001;
/// Numeric id of the person that [`config`] grants.
pub const PERSON: u64 = 7_000_000_001;

/// A name that is known to be well formed.
#[allow(clippy::expect_used, reason = "literals of tests")]
pub fn name<T: std::str::FromStr>(text: &str) -> T
where
    T::Err: std::fmt::Debug,
{
    text.parse().expect("a well-formed name")
}

fn flavor(text: &str, gpu: bool) -> Flavor {
    Flavor {
        name: name(text),
        cpu_millis: 1000,
        memory_mib: 1024,
        disk_mib: 1024,
        processes: 512,
        time_limit_seconds: 600,
        gpu: gpu.then_some(GpuRequest { count: 1, kind: None, min_memory_mib: 0, min_compute_capability: 0 }),
        network: false,
    }
}

/// A farm with one pool, one repository and one grant that allows everything to one person.
pub fn config() -> FarmConfig {
    let events = [EventClass::Push, EventClass::PullRequest, EventClass::ForkPullRequest];
    FarmConfig {
        farm: "test".to_owned(),
        pools: vec![Pool::new(
            name("local"),
            name("sandbox"),
            [name("cpu"), name("gpu")].into(),
            name("host"),
            Isolation::SharedKernel,
            8,
        )],
        flavors: vec![flavor("cpu", false), flavor("gpu", true)],
        images: vec![Image { name: name("host"), root: ImageRoot::Host { allow: Vec::new() } }],
        use_flavors: Flavors {
            plan: name("cpu"),
            build: name("cpu"),
            test: name("cpu"),
            gpu_test: name("gpu"),
        },
        repositories: vec![RepositoryConfig {
            forge: name("github"),
            id: REPOSITORY,
            name: "octo/demo".to_owned(),
            source: "/nowhere".to_owned(),
            protected: vec!["main".to_owned()],
            channel: name("main"),
            sites: Default::default(),
        }],
        access: Access {
            grants: vec![Grant {
                id: "demo".to_owned(),
                repository: GrantRepository {
                    forge: None,
                    id: Some(REPOSITORY),
                    name: "octo/demo".to_owned(),
                },
                resources: ["local".to_owned()].into(),
                events: events.into(),
                users: [PERSON].into(),
                lists: Default::default(),
                teams: Default::default(),
                roles: Default::default(),
                isolation: Some(Isolation::SharedKernel),
                approvers: None,
            }],
            ..Access::default()
        },
        max_running: 16,
        queue: Default::default(),
        folder_channel: name("folders"),
        engine_path: "/opt/forgeyard/engine".to_owned(),
    }
}

/// The farm itself, as a principal.
pub fn farm_principal() -> Principal {
    Principal { id: PrincipalId::from_bits(1), name: "farm".to_owned(), kind: PrincipalKind::Farm }
}

/// The person that [`config`] grants.
pub fn person() -> Person {
    Person { id: PERSON, login: "octocat".to_owned() }
}

/// A push to the protected branch.
pub fn push(sha: &str) -> ForgeEvent {
    event(sha, Trigger::Push { git_ref: "refs/heads/main".to_owned() })
}

/// A pull request, from a fork or not.
pub fn pull_request(sha: &str, number: u64, fork: bool) -> ForgeEvent {
    let head_repository = if fork { REPOSITORY + 1 } else { REPOSITORY };
    let base_sha = "0".repeat(40);
    event(sha, Trigger::PullRequest { number, base: "main".to_owned(), base_sha, head_repository, fork })
}

fn event(sha: &str, trigger: Trigger) -> ForgeEvent {
    ForgeEvent {
        repository: Repository { forge: name("github"), id: REPOSITORY, name: "octo/demo".to_owned() },
        trigger,
        head_sha: sha.to_owned(),
        sender: person(),
        author: Some(person()),
    }
}
