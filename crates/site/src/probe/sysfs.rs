//! What the kernel says about a PCI device: its group, its NUMA node, its nodes, and whether it is still on the bus.
//!
//! Invariants: NUMA node `-1` means *not known*, never node 0; a device whose configuration space reads as all ones
//! has fallen off the bus; a device that is not awake after its driver spoke to it will not be.

use forgeyard_model::device::DeviceFacts;
use std::path::Path;

/// Adds what the kernel knows, or says why the device must not be offered. `root` is `/` but for tests.
pub fn complete(root: &Path, mut facts: DeviceFacts) -> Result<DeviceFacts, String> {
    let Some(address) = facts.key.strip_prefix("pci:") else {
        return Ok(facts);
    };
    let device = root.join("sys/bus/pci/devices").join(address);
    let text = |name: &str| std::fs::read_to_string(device.join(name)).ok().map(|text| text.trim().to_owned());
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
    facts.iommu_group = std::fs::read_link(device.join("iommu_group"))
        .ok()
        .and_then(|target| target.file_name()?.to_str()?.parse().ok());
    facts.numa_node = text("numa_node").and_then(|node| node.parse().ok());
    facts.nodes = nodes(root, address);
    Ok(facts)
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

    /// Public reports: kata-containers 11708 (a GPU stays in D3cold), MxGPU-Virtualization 25 (a function reads 0xff).
    #[test]
    fn a_device_that_fell_off_the_bus_or_sleeps_for_good_is_not_offered() {
        let lost = complete(tree(&[0xff, 0xff], "D0", "0").path(), facts()).unwrap_err();
        assert!(lost.contains("fell off the bus"), "{lost}");
        let asleep = complete(tree(&[0xde, 0x10], "D3cold", "0").path(), facts()).unwrap_err();
        assert!(asleep.contains("D3cold"), "{asleep}");
    }
}
