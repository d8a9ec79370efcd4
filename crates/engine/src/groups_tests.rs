//! Tests of the units that go to virtual machines.

use super::*;
use forgeyard_model::resources::DeviceKind;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn gpu(address: &str, group: Option<u32>) -> DeviceFacts {
    DeviceFacts {
        key: format!("pci:{address}"),
        kind: DeviceKind::Nvidia,
        model: "X".to_owned(),
        uuid: None,
        driver: "nvidia 1".to_owned(),
        memory_mib: 1,
        compute_capability: 70,
        iommu_group: group,
        moves_with: Vec::new(),
        numa_node: None,
        nodes: Vec::new(),
    }
}

fn function(address: &str, class: u32, group: u32, driver: Option<&str>) -> PciFunction {
    PciFunction {
        address: address.to_owned(),
        class,
        iommu_group: Some(group),
        driver: driver.map(str::to_owned),
    }
}

/// Devices with the functions of a machine, closed as a site reports them.
fn devices(functions: &[PciFunction]) -> Vec<DeviceFacts> {
    let is_gpu = |function: &&PciFunction| function.class >> 16 == 0x03;
    let of = |gpu_function: &PciFunction| {
        let mut found: BTreeSet<&str> = [gpu_function.address.as_str()].into();
        loop {
            let before = found.len();
            let near = |function: &&PciFunction| {
                functions.iter().filter(|known| found.contains(known.address.as_str())).any(|known| {
                    known.iommu_group == function.iommu_group
                        || (!known.bridge() && known.card() == function.card())
                })
            };
            let more: Vec<&str> =
                functions.iter().filter(near).map(|function| function.address.as_str()).collect();
            found.extend(more);
            if found.len() == before {
                break;
            }
        }
        let others = functions
            .iter()
            .filter(|other| found.contains(other.address.as_str()) && other.address != gpu_function.address);
        let moves_with = others.cloned().collect();
        DeviceFacts { moves_with, ..gpu(&gpu_function.address, gpu_function.iommu_group) }
    };
    functions.iter().filter(is_gpu).map(of).collect()
}

fn sizes(devices: &[DeviceFacts]) -> Vec<usize> {
    units(&devices.iter().collect::<Vec<_>>()).into_iter().map(|unit| unit.devices.len()).collect()
}

/// The server of Open GPU Server: six GPUs in four groups. Whoever counts devices finds six; nova could use four.
#[test]
fn six_gpus_in_four_groups_are_four_units_ogs_iommu() {
    let functions = [
        function("0000:17:00.0", 0x03_0200, 18, Some("nvidia")),
        function("0000:26:01.0", 0x06_0400, 19, Some("pcieport")),
        function("0000:27:00.0", 0x03_0200, 19, Some("nvidia")),
        function("0000:28:00.0", 0x03_0200, 19, Some("nvidia")),
        function("0000:98:00.0", 0x03_0200, 87, Some("nvidia")),
        function("0000:99:00.0", 0x03_0200, 87, Some("nvidia")),
        function("0000:b1:00.0", 0x03_0200, 90, Some("nvidia")),
    ];
    let devices = devices(&functions);
    assert_eq!(sizes(&devices), [1, 2, 2, 1]);
    let of: Vec<&DeviceFacts> = devices.iter().collect();
    let units = units(&of);
    assert!(units.iter().all(|unit| unit.trouble.is_none()), "{units:?}");
    assert_eq!(members(&units[1], &of), "IOMMU group 19: pci:0000:27:00.0, pci:0000:28:00.0");
    assert_eq!(sums(&[1, 2, 2, 1]), [1, 2, 3, 4, 5, 6]);
    assert_eq!(sums(&[2, 2]), [2, 4]);
}

/// Public reports: GPU-Passthrough-Manager 21, lxd 12643. The sound function is in a group of its own, with another card's.
#[test]
fn functions_of_a_card_move_together_across_groups_lxd_12643() {
    let functions = [
        function("0000:01:00.0", 0x03_0000, 1, Some("nvidia")),
        function("0000:01:00.1", 0x04_0300, 9, Some("snd_hda_intel")),
        function("0000:02:00.0", 0x03_0000, 2, Some("nvidia")),
        function("0000:02:00.1", 0x04_0300, 9, Some("snd_hda_intel")),
        function("0000:03:00.0", 0x03_0000, 3, Some("nvidia")),
    ];
    let devices = devices(&functions);
    assert_eq!(sizes(&devices), [2, 1]);
    let of: Vec<&DeviceFacts> = devices.iter().collect();
    let first = &units(&of)[0];
    assert_eq!(first.trouble, None, "the sound of its own card is no device of the host");
    let text = members(first, &of);
    assert_eq!(
        text,
        "IOMMU groups 1 and 2 and 9: pci:0000:01:00.0, pci:0000:02:00.0, 0000:01:00.1, 0000:02:00.1"
    );
}

/// Public reports: truenas 13976, harvester 10499. A kernel put the boot disk into the group of a GPU.
#[test]
fn group_with_a_disk_of_the_host_is_handed_to_nobody_harvester_10499() {
    let disk = function("0000:05:00.0", 0x01_0802, 4, Some("nvme"));
    let free = PciFunction { driver: Some("vfio-pci".to_owned()), ..disk.clone() };
    let bare = PciFunction { driver: None, ..disk.clone() };
    for (other, handed) in [(disk, false), (free, true), (bare, true)] {
        let devices = devices(&[function("0000:04:00.0", 0x03_0200, 4, Some("nvidia")), other]);
        let unit = units(&[&devices[0]]).remove(0);
        assert_eq!(unit.trouble.is_none(), handed, "{unit:?}");
        if let Some(text) = unit.trouble {
            assert!(text.contains("0000:05:00.0") && text.contains("driver nvme"), "{text}");
        }
    }
}

/// A GPU that does not answer is no device of the site, but the driver has it, and it is in the group.
#[test]
fn gpu_that_the_site_does_not_offer_keeps_its_group_from_virtual_machines() {
    let all = devices(&[
        function("0000:27:00.0", 0x03_0200, 19, Some("nvidia")),
        function("0000:28:00.0", 0x03_0200, 19, Some("nvidia")),
    ]);
    let unit = units(&[&all[0]]).remove(0);
    assert!(unit.trouble.is_some_and(|text| text.contains("0000:28:00.0")));
}

#[test]
fn gpu_without_an_iommu_group_is_not_handed_over_and_a_simulated_one_is_a_unit_of_its_own_harvester_9265() {
    let real = gpu("0000:01:00.0", None);
    let simulated = DeviceFacts {
        key: "opencl:0:0".to_owned(),
        kind: DeviceKind::OpenclCpu,
        ..gpu("0000:00:00.0", None)
    };
    let found = units(&[&real, &simulated]);
    assert_eq!(found.len(), 2);
    assert!(found[0].trouble.as_ref().is_some_and(|text| text.contains("no IOMMU group")));
    assert_eq!(found[1].trouble, None);
}

#[test]
fn whole_units_add_up_to_what_is_asked_for_or_to_nothing() {
    assert_eq!(exactly(&[2, 2, 1], 1), Some(vec![2]));
    assert_eq!(exactly(&[2, 2, 1], 3), Some(vec![0, 2]));
    assert_eq!(exactly(&[2, 2], 3), None);
    assert_eq!(exactly(&[2, 2], 0), Some(Vec::new()));
    assert_eq!(exactly(&[4, 1, 2], 2), Some(vec![2]));
    assert_eq!(exactly(&[], 1), None);
    assert_eq!(exactly(&[1], usize::MAX), None);
}

fn machine() -> impl Strategy<Value = Vec<PciFunction>> {
    let one = (0u8..12, 0u8..3, 0u32..8, prop_oneof![Just(0x03_0200), Just(0x04_0300), Just(0x06_0400)]);
    proptest::collection::btree_map((0u8..12, 0u8..3), one, 0..24).prop_map(|map| {
        map.into_iter()
            .map(|((bus, number), (_, _, group, class))| {
                function(&format!("0000:{bus:02x}:00.{number}"), class, group, None)
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn units_are_disjoint_cover_all_and_never_split_a_group_or_a_card(functions in machine()) {
        let devices = devices(&functions);
        let of: Vec<&DeviceFacts> = devices.iter().collect();
        let units = units(&of);
        let mut unit_of = vec![None; of.len()];
        for (number, unit) in units.iter().enumerate() {
            prop_assert!(!unit.devices.is_empty());
            for place in &unit.devices {
                prop_assert_eq!(unit_of[*place].replace(number), None, "a device is in two units");
            }
        }
        for one in 0..of.len() {
            prop_assert!(unit_of[one].is_some());
            for two in 0..of.len() {
                let group = of[one].iommu_group == of[two].iommu_group;
                let same_card = card(of[one].address().unwrap()) == card(of[two].address().unwrap());
                if group || same_card {
                    prop_assert_eq!(unit_of[one], unit_of[two]);
                }
                // All groups of what moves with them, too.
                let moves = |facts: &DeviceFacts| -> BTreeSet<u32> {
                    let own = facts.moves_with.iter().filter(|function| !function.bridge());
                    own.filter_map(|function| function.iommu_group).chain(facts.iommu_group).collect()
                };
                if unit_of[one] != unit_of[two] {
                    prop_assert!(moves(of[one]).is_disjoint(&moves(of[two])));
                }
            }
        }
    }

    #[test]
    fn a_choice_has_as_many_as_were_asked_for_and_none_is_found_only_where_there_is_none(
        sizes in proptest::collection::vec(1usize..5, 0..8),
        wanted in 0usize..20,
    ) {
        let all = (0..1u32 << sizes.len()).map(|bits| {
            sizes.iter().enumerate().filter(|(place, _)| bits >> place & 1 == 1).map(|(_, size)| size).sum::<usize>()
        });
        let possible = all.into_iter().any(|sum| sum == wanted);
        match exactly(&sizes, wanted) {
            None => prop_assert!(!possible),
            Some(places) => {
                prop_assert!(places.windows(2).all(|pair| pair[0] < pair[1]));
                prop_assert_eq!(places.iter().map(|place| sizes[*place]).sum::<usize>(), wanted);
            }
        }
    }
}
