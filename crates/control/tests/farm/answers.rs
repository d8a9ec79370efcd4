//! What the farm answers to people: access and its simulator, status, queue, pools, configurations.

use super::*;
use forgeyard_api::people::{
    AccessAnswer, ApprovalAnswer, ConfigVersionView, Outlook, QueueRow, SiteStatus, Status, TermsView,
};
use forgeyard_api::pools::{PoolMoment, PoolView};
use forgeyard_model::access::{Access, Decision, EventClass, Grant, GrantRepository};
use forgeyard_model::account::WorkClass;
use forgeyard_model::resources::Isolation;
use forgeyard_model::{Digest, Explanation};
use std::collections::BTreeMap;

pub fn access() -> Access {
    let grant = |rule: &str, id, repository: &str, events: &[EventClass]| Grant {
        id: rule.to_owned(),
        repository: GrantRepository { forge: None, id, name: repository.to_owned() },
        resources: ["cpu".to_owned(), "gpu".to_owned()].into(),
        events: events.iter().copied().collect(),
        users: [7_340_033].into(),
        lists: ["maintainers".to_owned()].into(),
        teams: [].into(),
        roles: ["write".to_owned()].into(),
        isolation: None,
        approvers: None,
    };
    Access {
        grants: vec![
            grant(
                "kestrel-main",
                Some(481_516),
                "kestrel-sim/kestrel",
                &[EventClass::Push, EventClass::PullRequest],
            ),
            Grant {
                users: Default::default(),
                lists: [].into(),
                roles: [].into(),
                isolation: Some(Isolation::Vm),
                approvers: None,
                ..grant("tern-forks", Some(234_242), "tern/tern-feedstock", &[EventClass::ForkPullRequest])
            },
            grant("imported-17", None, "old/name", &[EventClass::Push]),
        ],
        lists: BTreeMap::from([("maintainers".to_owned(), [7_340_033, 99_120].into())]),
        logins: BTreeMap::from([(7_340_033.into(), "lena-k".to_owned()), (99_120.into(), "omar".to_owned())]),
        terms_version: 2,
        terms_accepted: BTreeMap::from([(7_340_033.into(), 2), (99_120.into(), 1)]),
        notes: vec!["users.yml line 12: no numeric id for `old-account`".to_owned()],
        ..Access::default()
    }
}

pub fn status(alarm: bool) -> Status {
    Status {
        farm: "north shed".to_owned(),
        version: "0.1.0".to_owned(),
        at: NOW,
        jobs: BTreeMap::from(
            [
                ("held", 3),
                ("queued", 2),
                ("running", 2),
                ("succeeded", 431),
                ("failed", 17),
                ("timed_out", 1),
            ]
            .map(|(k, v)| (k.to_owned(), v)),
        ),
        runners: BTreeMap::from(
            [("busy", 2), ("deleted", 466), ("draining", 1)].map(|(k, v)| (k.to_owned(), v)),
        ),
        devices: devices(),
        sites: sites()
            .into_iter()
            .map(|site| SiteStatus {
                id: site.id,
                name: site.name.to_string(),
                heard_at: site.heard_at,
                draining: site.draining_since.is_some(),
                host: site.host,
            })
            .collect(),
        alarms: if alarm {
            vec![
                Explanation::new("device.quarantined", "one of three devices is quarantined")
                    .with("Tesla V100-PCIE-32GB at shed-1, since 90 minutes")
                    .fix("see Devices"),
            ]
        } else {
            Vec::new()
        },
    }
}

pub fn empty_status() -> Status {
    Status {
        jobs: BTreeMap::new(),
        runners: BTreeMap::new(),
        devices: Vec::new(),
        sites: Vec::new(),
        ..status(false)
    }
}

pub fn queue() -> Vec<QueueRow> {
    let row = |id: &str, what: &str, state: &str, seconds: u64, position, reason: Explanation, next: &str| {
        QueueRow {
            id: id.to_owned(),
            what: what.to_owned(),
            repository: "harbour/kestrel".to_owned(),
            repository_id: 481_516,
            state: state.to_owned(),
            approve_head: (state == "held" && reason.code.starts_with("gate.")).then(|| "5f".repeat(20)),
            pipeline: None,
            since: ago(seconds),
            position,
            reason,
            next: next.to_owned(),
            outlook: position.map(|place: u32| Outlook {
                class: WorkClass::Presubmit,
                expected: (place == 1).then(|| ago(0)),
                basis: match place {
                    1 => "by how long the work before it took the last times".to_owned(),
                    _ => "not known yet: nothing runs there whose end would make room".to_owned(),
                },
            }),
        }
    };
    let busy = Explanation::new("queue.device_busy", "all 2 devices of kind nvidia are held")
        .with("NVIDIA RTX 4000 SFF Ada Generation: held by test/fy-app/gpu for 12 min");
    let asked = Explanation::new("demand.unread", "the forge is being asked whose work it is");
    let pause = Explanation::new("image.runner_too_old", "no runner came up for it: the forge no longer accepts the version of the runner program in the image")
        .fix("build the image again with the newest runner program, and let its alias point there");
    let refused = Explanation::new("gate.people", "nobody who takes part may use `gpu` for pull requests")
        .with("grant `kestrel-main`: tomas-dev (55001) is not in `users`")
        .fix("ask an operator to add 55001 to `users` of `kestrel-main`");
    let placed = "it is placed as soon as a machine that suits it is free";
    vec![
        row(
            "dem_01jd0000000000000000000001",
            "cuda-tests (12.8)",
            "wanted",
            240,
            Some(1),
            busy.clone(),
            placed,
        ),
        row("dem_01jd0000000000000000000002", "cuda-tests (12.9)", "wanted", 235, Some(2), busy, placed),
        row(
            "dem_01jd0000000000000000000003",
            "docs",
            "unread",
            3,
            None,
            asked,
            "the gate decides when the forge has answered",
        ),
        row(
            "dem_01jd0000000000000000000004",
            "bench",
            "held",
            4_000,
            None,
            pause,
            "it is tried again at 12:40",
        ),
        row(
            "dem_01jd0000000000000000000006",
            "cuda-tests (13.0)",
            "held",
            1_200,
            None,
            Explanation::new(
                "gate.person_not_allowed",
                "no grant allows everybody who takes part in this pull request",
            )
            .with("grant `tern-forks`: tomas-dev (id 55001) (author of the pull request) is not in `users` (1 ids)")
            .fix("ask an operator to change one grant: for grant `tern-forks`: add id 55001 to `users`; or the commit is approved by somebody who passes grant `tern-forks`"),
            "it waits until somebody approves this head",
        ),
        row(
            "dem_01jd0000000000000000000005",
            "cuda-tests (12.8)",
            "refused",
            9_000,
            None,
            refused,
            "nothing, until the access files or the configuration change",
        ),
    ]
}

/// An answer of the gate as the access page shows it.
pub fn answered(decision: Decision) -> AccessAnswer {
    let may = matches!(decision, Decision::Allow { .. });
    AccessAnswer {
        decision,
        approval: ApprovalAnswer {
            may,
            evidence: vec![if may {
                "grant `kestrel-main`: lena-k (id 7340033) is in `users` and has the role `write`".to_owned()
            } else {
                "grant `kestrel-main`: tomas-dev (id 55001) is not in `users` (1 ids)".to_owned()
            }],
            fix: (!may)
                .then(|| "ask somebody who passes grant `kestrel-main` to look at the commit".to_owned()),
        },
        role: may.then(|| "maintainer, by member rule `kestrel-core`".to_owned()),
    }
}

/// Terms of service that somebody accepted in an older version.
pub fn terms(login: &str) -> TermsView {
    TermsView {
        forge: None,
        version: 2,
        url: Some("https://farm.example/terms".to_owned()),
        person: Some(forgeyard_model::forge::Person { id: 55_001, login: login.to_owned() }),
        accepted: 1,
    }
}

fn pool(name_of: &str, breaker: forgeyard_model::pool::Breaker) -> PoolView {
    use forgeyard_model::pool::{LaunchRate, Terms};
    let history = (0..96u32)
        .map(|quarter| PoolMoment {
            at: ago(86_400 - 880 * u64::from(quarter)),
            busy: if (30..70).contains(&quarter) { 2 + quarter % 5 } else { quarter % 2 },
            warm: if (30..70).contains(&quarter) { 2 } else { 1 },
            waiting: if (40..50).contains(&quarter) { quarter - 38 } else { 0 },
        })
        .collect();
    PoolView {
        name: name(name_of),
        provider: name("sandbox"),
        isolation: Isolation::SharedKernel,
        image: name("host"),
        flavors: vec![name("cpu"), name("gpu-medium")],
        labels: vec!["self-hosted".to_owned(), "linux".to_owned()],
        busy: 3,
        ready: 1,
        coming: 1,
        leaving: 0,
        waiting: 2,
        now: Terms { min: 0, warm: 2, max: 8, entry: None },
        warm_wanted: 2,
        warm_trouble: None,
        stopped_at: Vec::new(),
        next: None,
        schedule: Vec::new(),
        canary: None,
        breaker,
        launches: 97,
        rate: LaunchRate::default(),
        drain: None,
        trouble: None,
        last_error: None,
        history,
    }
}

/// A pool that works by a schedule, its canary that its breaker has stopped, one that is drained and new.
pub fn pools() -> Vec<PoolView> {
    use forgeyard_api::pools::PoolChange;
    use forgeyard_model::pool::{Breaker, Canary, Day, LaunchError, PoolDrain, Schedule, Terms};
    let mut steady = pool("sheds", Breaker::default());
    steady.schedule = vec![Schedule {
        days: Day::ALL.into(),
        from: "22:00".parse().unwrap(),
        to: "06:00".parse().unwrap(),
        zone: "America/Los_Angeles".to_owned(),
        min: Some(1),
        warm: None,
        max: Some(1),
    }];
    steady.next =
        Some(PoolChange { at: after(NOW, 9_000), then: Terms { min: 1, warm: 0, max: 1, entry: Some(0) } });
    steady.warm_trouble = Some(
        Explanation::new(
            "queue.host_full",
            "fewer than 2 machines wait for work: site site-1 has 120000 of 131072 MiB in use; cpu asks for 16384",
        )
        .with("site site-2 is being drained"),
    );
    steady.stopped_at = vec![forgeyard_api::pools::StoppedSite {
        site: name("site-3"),
        breaker: Breaker::Open { until: after(NOW, 240), trips: 2 },
        last_error: Some(LaunchError {
            at: ago(75),
            runner: forgeyard_model::RunnerId::derive(site_id(3), "failed"),
            reason: Explanation::new("provider.failed", "the disk of this host is read-only"),
        }),
    }];
    let mut stopped = pool("sheds-next", Breaker::Open { until: after(NOW, 240), trips: 3 });
    let error = Explanation::new(
        "provider.quota",
        "Quota exceeded for cores: Requested 8, but already used 96 of 96",
    );
    let runner = forgeyard_model::RunnerId::derive(site_id(1), "failed");
    stopped.trouble = Some(
        Explanation::new(
            "queue.breaker_open",
            "pool sheds-next starts no machine for four minutes, because the last ones did not come up",
        )
        .with(error.message.clone())
        .fix("look at the host; `forgeyard pool reset sheds-next` lets it start machines at once"),
    );
    stopped.last_error = Some(LaunchError { at: ago(60), runner, reason: error.with("region 2") });
    stopped.canary = Some(Canary { of: name("sheds"), percent: 10 });
    let mut drained = pool("old", Breaker::default());
    drained.drain = Some(PoolDrain { since: ago(400), by: "vera".to_owned() });
    drained.trouble = Some(
        Explanation::new("queue.pool_draining", "pool old gets no new work")
            .fix("`forgeyard pool resume old`"),
    );
    drained.history.clear();
    vec![steady, stopped, drained]
}

/// Two configurations that the farm ran with, newest first.
pub fn versions(by: &str) -> Vec<ConfigVersionView> {
    let version = |number: u64, seconds: u64, text: &str| ConfigVersionView {
        number,
        digest: Digest::of(text.as_bytes()),
        at: ago(seconds),
        by: by.to_owned(),
        repeats: (number == 3).then_some(1),
        changes: if number == 2 {
            vec!["access.grants `kestrel-main` changed".to_owned(), format!("farm: \"forge\" → \"{by}\"")]
        } else {
            Vec::new()
        },
        text: Some(text.to_owned()),
    };
    let first = "{\n  \"access\": {\n    \"grants\": [\n      {\n        \"id\": \"kestrel-main\",\n        \"users\": [7340033]\n      }\n    ]\n  },\n  \"farm\": \"forge\"\n}";
    let second = first.replace("7340033", "7340033, 99120").replace("\"farm\"", &format!("\"{by}\""));
    vec![version(3, 60, first), version(2, 4_000, &second), version(1, 90_000, first)]
}
