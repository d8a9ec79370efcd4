//! Whole IOMMU groups, at the site: what the farm asks for is looked at once more, since groups may be other ones by now.

use super::tests::{World, facts, provider, runner, wanted};
use super::*;
use crate::ledger::LeasePhase;
use forgeyard_model::resources::DeviceKind;
use proptest::prelude::*;

const SANDBOX: u8 = 0;
const QEMU: u8 = 1;

/// GPU `n`, in a group.
fn gpu(n: u8, group: Option<u32>) -> DeviceFacts {
    DeviceFacts {
        key: format!("pci:0000:{n:02x}:00.0"),
        kind: DeviceKind::Nvidia,
        iommu_group: group,
        ..facts(n)
    }
}

/// A machine that is to have these devices.
fn asks(n: u8, of: u8, devices: &[DeviceFacts]) -> DesiredRunner {
    DesiredRunner { devices: devices.to_vec(), ..wanted(n, of, &vec![0; devices.len()]) }
}

/// Public reports: Open GPU Server (IOMMU groups 19 and 87), cirun-agent `gpu.rs`. An allocator that counts devices gives the two
/// halves of a group to two machines.
#[test]
fn half_a_group_is_given_to_no_virtual_machine_ogs_iommu() {
    let here = [gpu(1, Some(19)), gpu(2, Some(19)), gpu(3, Some(20))];
    let plan = |desired: Vec<DesiredRunner>| {
        let mut world = World::new(desired);
        world.devices = here.to_vec();
        world.plan()
    };
    let create = |n| Action::Create { runner: runner(n) };
    assert_eq!(plan(vec![asks(1, QEMU, &here[..2]), asks(2, QEMU, &here[2..])]), [create(1), create(2)]);
    let halves = plan(vec![asks(1, QEMU, &here[..1]), asks(2, QEMU, &here[1..])]);
    for (action, n) in halves.iter().zip([1, 2]) {
        let Action::Refuse { runner: refused, reason } = action else { panic!("{action:?}") };
        assert_eq!((*refused, reason.code.as_str()), (runner(n), "site.half_group"));
        assert!(reason.message.contains("IOMMU group 19"), "{reason:?}");
        assert!(
            reason.message.contains("0000:01:00.0") && reason.message.contains("0000:02:00.0"),
            "{reason:?}"
        );
    }
    assert_eq!(halves.len(), 2);
    // A sandbox takes devices one by one: the host's driver keeps them apart.
    assert_eq!(
        plan(vec![asks(1, SANDBOX, &here[..1]), asks(2, SANDBOX, &here[1..2])]),
        [create(1), create(2)]
    );
}

#[test]
fn gpu_without_a_group_is_given_to_no_virtual_machine() {
    let here = [gpu(1, None)];
    let mut world = World::new(vec![asks(1, QEMU, &here)]);
    world.devices = here.to_vec();
    let plan = world.plan();
    let [Action::Refuse { reason, .. }] = plan.as_slice() else { panic!("{plan:?}") };
    assert!(reason.message.contains("no IOMMU group"), "{reason:?}");
}

proptest! {
    /// Whatever is asked for, in whatever order, and however groups change meanwhile that nobody holds.
    #[test]
    fn no_two_leases_ever_share_a_group_where_one_is_a_virtual_machines(
        groups in proptest::collection::vec(0u32..4, 6),
        rounds in proptest::collection::vec(
            proptest::collection::btree_map(1u8..5, (0u8..2, proptest::collection::btree_set(0u8..6, 0..4)), 0..5),
            1..8,
        ),
    ) {
        let here: Vec<DeviceFacts> = (0..6).map(|n| gpu(n, Some(groups[usize::from(n)]))).collect();
        let mut world = World::new(Vec::new());
        world.devices = here.clone();
        // A lease has the same machine and devices as long as it lasts, and is never another one.
        let mut known = Vec::new();
        for round in rounds {
            world.desired.runners = round
                .into_iter()
                .map(|lease| {
                    let place = known.iter().position(|other| *other == lease).unwrap_or(known.len());
                    if place == known.len() {
                        known.push(lease.clone());
                    }
                    let (_, (of, devices)) = lease;
                    let devices: Vec<_> = devices.iter().map(|n| here[usize::from(*n)].clone()).collect();
                    asks(u8::try_from(place + 1).unwrap(), of, &devices)
                })
                .collect();
            for _ in 0..4 {
                for action in world.plan() {
                    world.apply(&action);
                }
                let held: Vec<_> = world
                    .ledger
                    .leases
                    .values()
                    .filter(|record| !matches!(record.phase, LeasePhase::Released { .. }))
                    .map(|record| {
                        let made = world.ledger.machines.get(&record.runner);
                        let handed = made.is_some_and(|machine| machine.provider == provider(QEMU));
                        let group_of = |key: &String| {
                            here.iter().find(|facts| facts.key == *key).and_then(|facts| facts.iommu_group)
                        };
                        let groups: BTreeSet<_> = record.devices.iter().map(|(_, key)| group_of(key)).collect();
                        (handed, groups, record.devices.len())
                    })
                    .collect();
                for (place, (handed, groups, count)) in held.iter().enumerate() {
                    if *handed {
                        let members = here.iter().filter(|facts| groups.contains(&facts.iommu_group)).count();
                        prop_assert_eq!(*count, members, "a virtual machine has a part of a group");
                        for (other, (_, theirs, _)) in held.iter().enumerate() {
                            prop_assert!(place == other || groups.is_disjoint(theirs), "two machines share a group");
                        }
                    }
                }
            }
        }
    }
}
