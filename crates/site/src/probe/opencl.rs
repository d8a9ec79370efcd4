//! The CPU through an OpenCL driver, standing in for a GPU (*simulated*), as `clinfo --json` lists it.
//!
//! The document holds `platforms` and `devices`, two arrays in the same order; each element of `devices` has its
//! devices under `online`. Only devices of type CPU are taken: a GPU is found by its own driver's program.

use forgeyard_model::device::DeviceFacts;
use forgeyard_model::resources::DeviceKind;
use serde::Deserialize;

/// The CPU bit of `CL_DEVICE_TYPE`.
const TYPE_CPU: u64 = 1 << 1;

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    platforms: Vec<Platform>,
    #[serde(default)]
    devices: Vec<OfPlatform>,
}

#[derive(Deserialize)]
struct Platform {
    #[serde(rename = "CL_PLATFORM_NAME", default)]
    name: String,
    #[serde(rename = "CL_PLATFORM_VERSION", default)]
    version: String,
}

#[derive(Deserialize)]
struct OfPlatform {
    #[serde(default)]
    online: Vec<Device>,
}

#[derive(Deserialize)]
struct Device {
    #[serde(rename = "CL_DEVICE_NAME", default)]
    name: String,
    #[serde(rename = "CL_DEVICE_TYPE")]
    kind: Kind,
    #[serde(rename = "CL_DRIVER_VERSION", default)]
    driver: String,
    #[serde(rename = "CL_DEVICE_GLOBAL_MEM_SIZE", default)]
    memory: u64,
    #[serde(rename = "CL_DEVICE_AVAILABLE", default)]
    available: bool,
}

#[derive(Deserialize)]
struct Kind {
    raw: u64,
}

/// Reads the document.
pub fn parse(text: &str) -> Result<Vec<DeviceFacts>, serde_json::Error> {
    let document: Document = serde_json::from_str(text)?;
    let mut found = Vec::new();
    for (at, platform) in document.platforms.iter().enumerate() {
        let devices = document.devices.get(at).map(|of| of.online.as_slice()).unwrap_or_default();
        for (number, device) in devices.iter().enumerate() {
            if device.kind.raw & TYPE_CPU == 0 || !device.available {
                continue;
            }
            found.push(DeviceFacts {
                key: format!("opencl:{at}:{number}"),
                kind: DeviceKind::OpenclCpu,
                model: device.name.clone(),
                uuid: None,
                driver: driver(platform, device),
                memory_mib: device.memory >> 20,
                compute_capability: 0,
                iommu_group: None,
                moves_with: Vec::new(),
                numa_node: None,
                nodes: Vec::new(),
            });
        }
    }
    Ok(found)
}

/// `PoCL 3.1` out of `OpenCL 3.0 PoCL 3.1+debian  Linux, …`; other drivers by the name of their platform.
fn driver(platform: &Platform, device: &Device) -> String {
    let pocl = platform.version.split_once("PoCL ").map(|(_, rest)| {
        rest.chars().take_while(|letter| letter.is_ascii_digit() || *letter == '.').collect::<String>()
    });
    match pocl {
        Some(version) if !version.is_empty() => format!("PoCL {version}"),
        _ => format!("{} {}", platform.name, device.driver).trim().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Cut down by hand from what clinfo 3.0.23 prints with PoCL 3.1, with its doubled keys; the second platform is
    /// made up.
    const SAMPLE: &str = include_str!("../../tests/fixtures/clinfo.json");

    #[test]
    fn reads_the_cpu_of_a_document_and_leaves_gpus_and_unavailable_devices_out() {
        let found = parse(SAMPLE).unwrap();
        let told: Vec<_> =
            found.iter().map(|facts| (facts.key.as_str(), facts.driver.as_str(), facts.memory_mib)).collect();
        assert_eq!(
            told,
            [("opencl:0:0", "PoCL 3.1", 12_250), ("opencl:1:1", "Other CPU Runtime 2024.1", 1024)]
        );
        assert!(found.iter().all(|facts| facts.kind.simulated()));
    }

    #[test]
    fn reads_what_the_installed_clinfo_prints() {
        match super::super::run("clinfo", &["--json"]) {
            Ok(Some(text)) => {
                for facts in parse(&text).unwrap() {
                    assert!(
                        facts.memory_mib > 0 && !facts.model.is_empty() && !facts.driver.is_empty(),
                        "{facts:?}"
                    );
                }
            }
            other => eprintln!("SKIPPED: clinfo is not installed or fails: {other:?}"),
        }
    }

    proptest! {
        #[test]
        fn a_document_cut_or_changed_anywhere_is_read_or_refused(at: prop::sample::Index, to: u8, cut: bool) {
            let mut bytes = SAMPLE.as_bytes().to_vec();
            let at = at.index(bytes.len());
            if cut { bytes.truncate(at) } else { bytes[at] = to }
            let _ = parse(&String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,100}") {
            let _ = parse(&text);
        }
    }
}
