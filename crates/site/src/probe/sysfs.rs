//! What the kernel says about a PCI device: its group, what else moves with it, its NUMA node, its nodes, and whether it is
//! still on the bus.
//!
//! Invariants: NUMA node `-1` means *not known*, never node 0; a device whose configuration space reads as all ones
//! has fallen off the bus; a device that is not awake after its driver spoke to it will not be; what moves with a device is
//! closed: what moves with that moves with the device as well.

use forgeyard_model::device::{DeviceFacts, PciFunction, card};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Adds what the kernel knows, or says why the device must not be offered. `root` is `/` but for tests.
pub fn complete(root: &Path, mut facts: DeviceFacts) -> Result<DeviceFacts, String> {
    let Some(address) = facts.key.strip_prefix("pci:") else {
        return Ok(facts);
    };
    let device = root.join("sys/bus/pci/devices").join(address);
    let text =
        |name: &str| std::fs::read_to_string(device.join(name)).ok().map(|text| text.trim().to_owned());
    // The files `vendor` and `device` are what the kernel remembers; `config` is what the device answers now.
    if let Ok(config) = std::fs::read(device.join("config"))
        && config.starts_with(&[0xff, 0xff])
    {
        return Err(format!("{}: fell off the bus, its configuration space reads as all ones", facts.key));
    }
    if let Some(power) = text("power_state")
        && !matches!(power.as_str(), "D0" | "unknown")
    {
        return Err(format!("{}: is in power state {power} and does not wake up", facts.key));
    }
    let functions = functions(root);
    facts.iommu_group = functions.get(address).and_then(|function| function.iommu_group);
    facts.moves_with = moves_with(&functions, address);
    facts.numa_node = text("numa_node").and_then(|node| node.parse().ok());
    facts.nodes = nodes(root, address);
    Ok(facts)
}

/// All PCI functions of the machine, by address. Groups are read anew each time: firmware, slots and kernels change them
/// (harvester 10499, incus 3422).
fn functions(root: &Path) -> BTreeMap<String, PciFunction> {
    let entries = std::fs::read_dir(root.join("sys/bus/pci/devices")).into_iter().flatten().flatten();
    let function = |entry: std::fs::DirEntry| {
        let address = entry.file_name().into_string().ok()?;
        let folder = entry.path();
        let last =
            |name: &str| std::fs::read_link(folder.join(name)).ok()?.file_name()?.to_str().map(str::to_owned);
        let class = std::fs::read_to_string(folder.join("class")).ok();
        let class = class.and_then(|text| u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok());
        Some(PciFunction {
            // What has no class is nothing that is known to be harmless.
            class: class.unwrap_or(0),
            iommu_group: last("iommu_group").and_then(|group| group.parse().ok()),
            driver: last("driver"),
            address,
        })
    };
    entries.filter_map(function).map(|function| (function.address.clone(), function)).collect()
}

/// What is handed over with a device: the other functions of its card, the members of their groups, and so on. A bridge is a
/// member of its group, but its card is the board.
fn moves_with(functions: &BTreeMap<String, PciFunction>, address: &str) -> Vec<PciFunction> {
    let mut found: BTreeSet<&str> = BTreeSet::new();
    let mut next: Vec<&PciFunction> = functions.get(address).into_iter().collect();
    while let Some(function) = next.pop() {
        if !found.insert(&function.address) {
            continue;
        }
        let with = |other: &&PciFunction| {
            let group = function.iommu_group.is_some() && function.iommu_group == other.iommu_group;
            group || (!function.bridge() && card(&function.address) == other.card())
        };
        next.extend(functions.values().filter(with));
    }
    found.remove(address);
    found.into_iter().filter_map(|other| functions.get(other).cloned()).collect()
}

/// Device nodes that a sandbox needs: the GPU's own, by the minor number that the driver gives it, and those that all
/// GPUs share.
fn nodes(root: &Path, address: &str) -> Vec<String> {
    let information = root.join("proc/driver/nvidia/gpus").join(address).join("information");
    let minor = std::fs::read_to_string(information).ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("Device Minor:"))?;
        line.trim().parse::<u32>().ok()
    });
    let own = minor.map(|minor| format!("/dev/nvidia{minor}"));
    let shared = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"].map(str::to_owned);
    let exists = |node: &String| root.join(node.trim_start_matches('/')).exists();
    own.into_iter().chain(shared).filter(exists).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forgeyard_model::resources::DeviceKind;

    fn facts() -> DeviceFacts {
        DeviceFacts {
            key: "pci:0000:9b:00.0".to_owned(),
            kind: DeviceKind::Nvidia,
            model: "X".to_owned(),
            uuid: None,
            driver: "nvidia 1".to_owned(),
            memory_mib: 1,
            compute_capability: 70,
            iommu_group: None,
            moves_with: Vec::new(),
            numa_node: None,
            nodes: Vec::new(),
        }
    }

    /// A made-up tree of the kernel's files.
    fn tree(config: &[u8], power: &str, numa: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("sys/bus/pci/devices/0000:9b:00.0");
        let gpu = root.path().join("proc/driver/nvidia/gpus/0000:9b:00.0");
        for folder in [&device, &gpu, &root.path().join("dev")] {
            std::fs::create_dir_all(folder).unwrap();
        }
        std::fs::write(device.join("config"), config).unwrap();
        std::fs::write(device.join("power_state"), format!("{power}\n")).unwrap();
        std::fs::write(device.join("numa_node"), format!("{numa}\n")).unwrap();
        std::os::unix::fs::symlink("../../../kernel/iommu_groups/41", device.join("iommu_group")).unwrap();
        std::fs::write(gpu.join("information"), "Model: \t\t X\nDevice Minor: \t 3\n").unwrap();
        for node in ["nvidia3", "nvidiactl"] {
            std::fs::write(root.path().join("dev").join(node), "").unwrap();
        }
        root
    }

    #[test]
    fn group_node_and_device_nodes_come_from_the_kernel() {
        let root = tree(&[0xde, 0x10], "D0", "1");
        let facts = complete(root.path(), facts()).unwrap();
        assert_eq!((facts.iommu_group, facts.numa_node), (Some(41), Some(1)));
        assert_eq!(facts.nodes, ["/dev/nvidia3", "/dev/nvidiactl"]);
    }

    #[test]
    fn an_unknown_numa_node_is_not_node_zero() {
        let root = tree(&[0xde, 0x10], "D0", "-1");
        assert_eq!(complete(root.path(), facts()).unwrap().numa_node, None);
    }

    /// A function of a made-up machine.
    fn function(root: &Path, address: &str, class: u32, group: Option<u32>, driver: Option<&str>) {
        let folder = root.join("sys/bus/pci/devices").join(address);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("class"), format!("0x{class:06x}\n")).unwrap();
        let link = |name: &str, target: String| {
            let _ = std::fs::remove_file(folder.join(name));
            std::os::unix::fs::symlink(target, folder.join(name)).unwrap();
        };
        if let Some(group) = group {
            link("iommu_group", format!("../../../kernel/iommu_groups/{group}"));
        }
        if let Some(driver) = driver {
            link("driver", format!("../../../bus/pci/drivers/{driver}"));
        }
    }

    fn moving(root: &Path) -> Vec<String> {
        let facts = complete(root, facts()).unwrap();
        facts.moves_with.into_iter().map(|function| function.address).collect()
    }

    /// Open GPU Server, IOMMU notes: two cards behind a switch without access control are one group, with the bridges above them.
    /// Each brings its sound function along, whatever group that is in (lxd 12643, GPU-Passthrough-Manager 21).
    #[test]
    fn whole_group_and_all_functions_of_its_cards_move_with_a_gpu_ogs_iommu_19() {
        let root = tree(&[0xde, 0x10], "D0", "0");
        let all = [
            ("0000:00:02.0", 0x06_0400, 41, Some("pcieport")),
            // Another root port of the same board, with another card: not touched.
            ("0000:00:02.1", 0x06_0400, 42, Some("pcieport")),
            ("0000:9b:00.0", 0x03_0000, 41, Some("nvidia")),
            ("0000:9b:00.1", 0x04_0300, 50, Some("snd_hda_intel")),
            ("0000:9c:00.0", 0x03_0200, 41, Some("nvidia")),
            ("0000:9d:00.0", 0x03_0000, 42, Some("nvidia")),
            ("0000:9e:00.0", 0x01_0802, 50, Some("nvme")),
        ];
        for (address, class, group, driver) in all {
            function(root.path(), address, class, Some(group), driver);
        }
        let facts = complete(root.path(), facts()).unwrap();
        assert_eq!(facts.iommu_group, Some(41));
        let told: Vec<(&str, bool, bool)> = facts
            .moves_with
            .iter()
            .map(|function| (function.address.as_str(), function.bridge(), function.used_by_host()))
            .collect();
        assert_eq!(
            told,
            [
                ("0000:00:02.0", true, false),
                ("0000:9b:00.1", false, true),
                ("0000:9c:00.0", false, true),
                ("0000:9e:00.0", false, true),
            ]
        );
    }

    /// What a real kernel makes of an emulated machine (`scripts/iommu-guest.sh`): display adapters stand in for GPUs. The two on a
    /// conventional bus are a pair; one brings its sound function along; three stand alone, two of them behind one switch.
    #[test]
    fn groups_of_a_real_kernel_are_read_and_two_on_one_bus_are_a_pair() {
        let root = tempfile::tempdir().unwrap();
        let listed = include_str!("../../tests/fixtures/iommu-guest.txt");
        let mut displays = Vec::new();
        for line in listed.lines().filter(|line| !line.starts_with('#')) {
            let fields: Vec<&str> = line.split(' ').collect();
            let [address, class, group, driver] = fields.as_slice() else { panic!("{line}") };
            let class = u32::from_str_radix(class.trim_start_matches("0x"), 16).unwrap();
            function(
                root.path(),
                address,
                class,
                group.parse().ok(),
                Some(*driver).filter(|name| *name != "-"),
            );
            if class >> 16 == 0x03 {
                displays.push(DeviceFacts { key: format!("pci:{address}"), ..facts() });
            }
        }
        let found: Vec<DeviceFacts> =
            displays.into_iter().map(|facts| complete(root.path(), facts).unwrap()).collect();
        let of: Vec<&DeviceFacts> = found.iter().collect();
        let units = forgeyard_engine::groups::units(&of);
        assert!(units.iter().all(|unit| unit.trouble.is_none()), "{units:?}");
        let told: Vec<String> =
            units.iter().map(|unit| forgeyard_engine::groups::members(unit, &of)).collect();
        assert_eq!(
            told,
            [
                "IOMMU group 6: pci:0000:01:00.0",
                "IOMMU group 8: pci:0000:04:00.0",
                "IOMMU group 9: pci:0000:05:00.0",
                "IOMMU group 10: pci:0000:06:00.0, 0000:06:00.1",
                "IOMMU group 11: pci:0000:08:01.0, pci:0000:08:02.0",
            ]
        );
    }

    /// Public report: kata-containers 13430. A mask for bridges takes an NVSwitch for one.
    #[test]
    fn nvswitch_is_no_bridge_kata_13430() {
        let root = tree(&[0xde, 0x10], "D0", "0");
        function(root.path(), "0000:9b:00.0", 0x03_0200, Some(7), Some("nvidia"));
        function(root.path(), "0000:a0:00.0", 0x06_8000, Some(7), Some("nvidia-nvswitch"));
        let facts = complete(root.path(), facts()).unwrap();
        assert!(!facts.moves_with[0].bridge() && facts.moves_with[0].used_by_host());
    }

    #[test]
    fn without_an_iommu_the_functions_of_one_card_still_move_together_and_no_others() {
        let root = tree(&[0xde, 0x10], "D0", "0");
        std::fs::remove_file(root.path().join("sys/bus/pci/devices/0000:9b:00.0/iommu_group")).unwrap();
        function(root.path(), "0000:9b:00.0", 0x03_0000, None, None);
        function(root.path(), "0000:9b:00.1", 0x04_0300, None, None);
        function(root.path(), "0000:9c:00.0", 0x03_0000, None, None);
        assert_eq!(moving(root.path()), ["0000:9b:00.1"]);
        assert_eq!(complete(root.path(), facts()).unwrap().iommu_group, None);
    }

    /// Public reports: kata-containers 11708 (a GPU stays in D3cold), MxGPU-Virtualization 25 (a function reads 0xff).
    #[test]
    fn a_device_that_fell_off_the_bus_or_sleeps_for_good_is_not_offered() {
        let lost = complete(tree(&[0xff, 0xff], "D0", "0").path(), facts()).unwrap_err();
        assert!(lost.contains("fell off the bus"), "{lost}");
        let asleep = complete(tree(&[0xde, 0x10], "D3cold", "0").path(), facts()).unwrap_err();
        assert!(asleep.contains("D3cold"), "{asleep}");
    }
}
