//! Rows that stand alone: sites, devices, deliveries, events.

use super::*;
use forgeyard_control::console::Names;
use forgeyard_control::console::devices::DevicesView;
use forgeyard_model::commit::EventRecord;
use forgeyard_model::delivery::{Delivery, DeliveryState};
use forgeyard_model::device::{Device, DeviceFacts, DeviceState};
use forgeyard_model::principal::{Principal, PrincipalKind};
use forgeyard_model::resources::{DeviceKind, Limit};
use forgeyard_model::site::{HostFacts, Site};
use forgeyard_model::{DeviceId, Explanation, LeaseId, PrincipalId, SiteId};
use std::collections::BTreeMap;

pub fn site_id(key: u64) -> SiteId {
    id(ago(9_000_000), key)
}

pub fn device_id(key: &str) -> DeviceId {
    DeviceId::derive(site_id(1), key)
}

pub fn quarantine() -> Explanation {
    Explanation::new("device.off_the_bus", "the device fell off the bus and did not answer after two resets")
        .with("kernel: NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus.")
        .with("reset 1 and 2: no answer within 30 s")
        .fix("power-cycle the host, then clear the quarantine; if it comes back within a week, reseat the card")
}

pub fn device(key: &str, kind: DeviceKind, model: &str, state: DeviceState) -> Device {
    let real = !kind.simulated();
    Device {
        id: device_id(key),
        site: site_id(1),
        facts: DeviceFacts {
            key: key.to_owned(),
            kind,
            model: model.to_owned(),
            uuid: real.then(|| "GPU-5d1c2b7e-8c1f-4f0e-9a57-0c6a3f2f9d11".to_owned()),
            driver: if real { "nvidia 570.86.15".to_owned() } else { "pocl 6.0".to_owned() },
            memory_mib: if model.contains("V100") {
                32_768
            } else if real {
                20_475
            } else {
                4096
            },
            compute_capability: if model.contains("V100") {
                70
            } else if real {
                89
            } else {
                0
            },
            iommu_group: real.then_some(19),
            moves_with: Vec::new(),
            numa_node: real.then_some(0),
            nodes: Vec::new(),
        },
        state,
        since: ago(74),
        deadline: None,
        generation: 4,
    }
}

/// A free simulated device, a leased real one, a quarantined real one.
pub fn devices() -> Vec<Device> {
    vec![
        device(
            "pci:0000:01:00.0",
            DeviceKind::Nvidia,
            "NVIDIA RTX 4000 SFF Ada Generation",
            DeviceState::Leased { lease: lease_id() },
        ),
        device("opencl:0:0", DeviceKind::OpenclCpu, "pthread-haswell Xeon E5-2680 v4", DeviceState::Ready),
        device(
            "pci:0000:41:00.0",
            DeviceKind::Nvidia,
            "Tesla V100-PCIE-32GB",
            DeviceState::Quarantined { reason: quarantine() },
        ),
    ]
}

pub fn lease_id() -> LeaseId {
    id(ago(100), 71)
}

pub fn names() -> Names {
    Names {
        sites: BTreeMap::from([(site_id(1), "shed-1".to_owned()), (site_id(2), "office".to_owned())]),
        devices: devices().into_iter().map(|device| (device.id, device)).collect(),
    }
}

pub fn devices_view() -> DevicesView {
    let view = chain::running();
    let lease = view.leases.iter().find(|lease| lease.state.live()).unwrap().clone();
    let attempt = view.attempts.iter().find(|attempt| Some(attempt.id) == lease.attempt).unwrap();
    let job = view.jobs.iter().find(|job| job.id == attempt.job).unwrap();
    let subject = device_id("pci:0000:41:00.0").to_string();
    DevicesView {
        devices: devices(),
        leases: BTreeMap::from([(lease.id, (lease, Some((job.id, job.key.clone()))))]),
        history: BTreeMap::from([(
            device_id("pci:0000:41:00.0"),
            vec![
                event(
                    3,
                    ago(5400),
                    farm(),
                    "DeviceQuarantined",
                    &subject,
                    Some("verifying"),
                    "quarantined",
                    Some("fell off the bus: Xid 79"),
                ),
                event(
                    2,
                    ago(864_000),
                    person(),
                    "DeviceCleared",
                    &subject,
                    Some("quarantined"),
                    "ready",
                    Some("reseated"),
                ),
                event(
                    1,
                    ago(868_000),
                    farm(),
                    "DeviceQuarantined",
                    &subject,
                    Some("verifying"),
                    "quarantined",
                    Some("no answer after reset"),
                ),
            ],
        )]),
    }
}

pub fn host() -> HostFacts {
    HostFacts {
        host: "shed-1.example.org".to_owned(),
        cpu_millis: 28_000,
        memory_mib: 64_213,
        kernel: "6.8.0-55-generic".to_owned(),
        providers: [name("sandbox")].into(),
        enforces: [Limit::Memory, Limit::Cpu, Limit::Processes, Limit::Wall, Limit::Network].into(),
        cannot: vec![(
            Limit::Disk,
            "the folder is on a filesystem without project quotas (xfs mounted without `pquota`)".to_owned(),
        )],
    }
}

pub fn sites() -> Vec<Site> {
    let site =
        |key: u64, text: &str, host: Option<HostFacts>, heard: Option<u64>, draining: Option<u64>| Site {
            id: site_id(key),
            name: name(text),
            token: digest(text),
            public_key: digest(text).hex(),
            host,
            heard_at: heard.map(ago),
            draining_since: draining.map(ago),
            desired_generation: 118,
            joined_at: ago(2_000_000),
            generation: 9,
        };
    vec![
        site(1, "shed-1", Some(host()), Some(2), None),
        site(
            2,
            "office",
            Some(HostFacts { host: "office-pc".to_owned(), cpu_millis: 7500, cannot: Vec::new(), ..host() }),
            Some(3),
            Some(600),
        ),
        site(3, "rack-b", None, None, None),
    ]
}

pub fn principal(text: &str, kind: PrincipalKind) -> Principal {
    Principal { id: PrincipalId::derive(site_id(1), text), name: text.to_owned(), kind }
}

pub fn farm() -> Principal {
    principal("farm", PrincipalKind::Farm)
}

pub fn person() -> Principal {
    principal("mira", PrincipalKind::Token { role: Role::Operator })
}

#[allow(clippy::too_many_arguments, reason = "a row has this many columns")]
pub fn event(
    key: u64,
    at: Timestamp,
    by: Principal,
    what: &str,
    subject: &str,
    from: Option<&str>,
    to: &str,
    note: Option<&str>,
) -> EventRecord {
    EventRecord {
        id: id(at, key),
        at,
        by,
        name: what.to_owned(),
        subject: subject.to_owned(),
        from: from.map(str::to_owned),
        to: to.to_owned(),
        note: note.map(str::to_owned),
    }
}

/// Events of all kinds of principals.
pub fn events() -> Vec<EventRecord> {
    let view = chain::failed();
    let job = view.jobs.last().unwrap().id.to_string();
    let attempt = view.attempts.last().unwrap().id.to_string();
    let by = |text: &str, kind| principal(text, kind);
    vec![
        event(
            9,
            ago(61),
            farm(),
            "JobEnded",
            &job,
            Some("running"),
            "failed",
            Some("numeric.mismatch: 3 of 48 tests"),
        ),
        event(
            8,
            ago(64),
            by("shed-1", PrincipalKind::Site),
            "LeaseReleasing",
            &lease_id().to_string(),
            Some("held"),
            "releasing",
            None,
        ),
        event(
            7,
            ago(65),
            by("agent of attempt 1", PrincipalKind::Agent),
            "AttemptEnded",
            &attempt,
            Some("running"),
            "ended",
            None,
        ),
        event(
            6,
            ago(131),
            by("agent of attempt 1", PrincipalKind::Agent),
            "AttemptStarted",
            &attempt,
            Some("starting"),
            "running",
            Some("step test"),
        ),
        event(5, ago(140), farm(), "JobPlaced", &job, Some("queued"), "placed", None),
        event(
            4,
            ago(300),
            by("lena-k", PrincipalKind::Person { id: 7_340_033, forge: Some(name("github")) }),
            "PipelineStarted",
            &view.pipeline.id.to_string(),
            None,
            "running",
            None,
        ),
        event(
            3,
            ago(5400),
            person(),
            "DeviceQuarantined",
            &device_id("pci:0000:41:00.0").to_string(),
            Some("ready"),
            "quarantined",
            Some("fan noise"),
        ),
    ]
}

pub fn deliveries() -> Vec<Delivery> {
    let row = |guid: &str, event: &str, state, times, at| Delivery {
        guid: guid.to_owned(),
        event: event.to_owned(),
        body: digest(guid),
        state,
        times,
        received_at: at,
        generation: 2,
    };
    vec![
        row(
            "f3a1c8de-20f4-11f1-9d2c-6f0c1d9b7e55",
            "push",
            DeliveryState::Started { pipeline: chain::running().pipeline.id },
            1,
            ago(192),
        ),
        row(
            "d2cc40be-20f3-11f1-8e71-0c1d9b7e5521",
            "pull_request",
            DeliveryState::Started { pipeline: chain::failed().pipeline.id },
            2,
            ago(640),
        ),
        row(
            "bb31f0a6-20f3-11f1-92c4-1d9b7e556f0c",
            "pull_request",
            DeliveryState::Settled {
                reason: Explanation::new(
                    "gate.no_grant",
                    "no grant opens the pool gpu to pull requests of this fork",
                )
                .with("repository 481516 (kestrel-sim/kestrel), event fork-pull-request")
                .with("grant kestrel-main covers push and pull-request only")
                .fix("a maintainer adds fork-pull-request to the grant kestrel-main, with isolation vm"),
            },
            1,
            ago(1900),
        ),
        row(
            "90e2d7f2-20f2-11f1-86ff-9b7e556f0c1d",
            "workflow_job",
            DeliveryState::Settled {
                reason: Explanation::new(
                    "demand.not_launched",
                    "a job of a foreign CI: stored and explained, nothing is launched for it",
                ),
            },
            1,
            ago(4000),
        ),
        row(
            "7c0b11e4-20f2-11f1-b0a8-7e556f0c1d9b",
            "push",
            DeliveryState::Rejected {
                reason: Explanation::new(
                    "delivery.truncated",
                    "the body ends in the middle of a JSON value at byte 8192",
                )
                .fix("ask the forge to redeliver; if it happens again, look for a proxy that cuts bodies"),
            },
            3,
            ago(9000),
        ),
        row("5a9f2c10-20f1-11f1-a4d1-556f0c1d9b7e", "ping", DeliveryState::Stored, 1, ago(1)),
    ]
}
