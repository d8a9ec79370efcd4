//! NVIDIA GPUs, as `nvidia-smi --query-gpu=… --format=csv,noheader,nounits` lists them.
//!
//! One line a GPU, fields separated by a comma and a space, in the order of [`ARGUMENTS`]. A field that the GPU does
//! not support reads `[N/A]` or `[Not Supported]`; one that cannot be read now reads `[Unknown Error]` or
//! `[GPU is lost]`. Written after the program's documented format; the samples in the tests are made by hand after
//! it, and this parser has **never run on the output of a real GPU** here.

use forgeyard_model::device::DeviceFacts;
use forgeyard_model::resources::DeviceKind;

/// What the program is asked.
pub const ARGUMENTS: [&str; 2] = [
    "--query-gpu=index,uuid,pci.bus_id,name,memory.total,driver_version,compute_cap",
    "--format=csv,noheader,nounits",
];

/// What the program lists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rows {
    /// GPUs with all that is needed to hand them out.
    pub devices: Vec<DeviceFacts>,
    /// Lines that were left out, each with the reason.
    pub notes: Vec<String>,
}

/// Reads the list.
pub fn parse(text: &str) -> Rows {
    let mut rows = Rows::default();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match row(line) {
            Ok(facts) if rows.devices.iter().any(|other| other.key == facts.key) => {
                rows.notes.push(format!("nvidia-smi: {} is listed twice", facts.key));
            }
            Ok(facts) => rows.devices.push(facts),
            Err(reason) => {
                let shown: String = line.chars().take(160).collect();
                rows.notes.push(format!("nvidia-smi: {reason} in `{shown}`"));
            }
        }
    }
    rows
}

fn row(line: &str) -> Result<DeviceFacts, &'static str> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [_, uuid, bus, name, memory, driver, capability] = fields.as_slice() else {
        return Err("not seven fields");
    };
    let known = |field: &str| !field.is_empty() && !field.starts_with('[');
    if !known(name) {
        return Err("the GPU does not answer");
    }
    Ok(DeviceFacts {
        key: format!("pci:{}", pci_address(bus).ok_or("no PCI address")?),
        kind: DeviceKind::Nvidia,
        model: (*name).to_owned(),
        uuid: known(uuid).then(|| (*uuid).to_owned()),
        driver: format!("nvidia {}", if known(driver) { driver } else { "unknown" }),
        memory_mib: memory.parse().map_err(|_| "no memory size")?,
        compute_capability: tenths(capability).unwrap_or(0),
        iommu_group: None,
        moves_with: Vec::new(),
        numa_node: None,
        nodes: Vec::new(),
    })
}

/// `00000000:9B:00.0` as the kernel spells it, `0000:9b:00.0`. Domains above 16 bits keep their further digits.
fn pci_address(text: &str) -> Option<String> {
    let (domain, rest) = text.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (slot, function) = rest.split_once('.')?;
    let hex = |text: &str, digits: usize| {
        let fits = (1..=digits).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        fits.then(|| u32::from_str_radix(text, 16).ok()).flatten()
    };
    let (domain, bus, slot, function) = (hex(domain, 8)?, hex(bus, 2)?, hex(slot, 2)?, hex(function, 1)?);
    (slot < 32 && function < 8).then(|| format!("{domain:04x}:{bus:02x}:{slot:02x}.{function}"))
}

/// `8.9` as 89.
fn tenths(text: &str) -> Option<u32> {
    let (whole, tenth) = text.split_once('.')?;
    let (whole, tenth): (u32, u32) = (whole.parse().ok()?, tenth.parse().ok()?);
    (whole < 1000 && tenth < 10).then_some(whole * 10 + tenth)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_a_list_written_after_the_documented_format() {
        let rows = parse(
            "0, GPU-8a3f0c52-11aa-4c1e-9d0b-5d1f6a7c0001, 00000000:17:00.0, Tesla V100-SXM2-32GB, 32768, 535.183.01, 7.0\n\
             1, GPU-8a3f0c52-11aa-4c1e-9d0b-5d1f6a7c0002, 00010000:C8:04.5, NVIDIA RTX 4000 SFF Ada Generation, 20475, 550.54.15, 8.9\n",
        );
        assert!(rows.notes.is_empty(), "{:?}", rows.notes);
        let told: Vec<_> = rows
            .devices
            .iter()
            .map(|facts| {
                (facts.key.as_str(), facts.model.as_str(), facts.memory_mib, facts.compute_capability)
            })
            .collect();
        assert_eq!(
            told,
            [
                ("pci:0000:17:00.0", "Tesla V100-SXM2-32GB", 32768, 70),
                ("pci:10000:c8:04.5", "NVIDIA RTX 4000 SFF Ada Generation", 20475, 89),
            ]
        );
        assert_eq!(rows.devices[0].driver, "nvidia 535.183.01");
    }

    #[test]
    fn a_gpu_that_does_not_answer_is_left_out_with_its_line_and_the_others_stay() {
        let rows = parse(
            "0, [GPU is lost], 00000000:17:00.0, [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost]\n\
             1, GPU-2, 00000000:65:00.0, NVIDIA A100, 40960, 535.1, [N/A]\n\
             No devices were found\n",
        );
        assert_eq!(rows.devices.len(), 1);
        assert_eq!(rows.devices[0].compute_capability, 0);
        assert_eq!(rows.notes.len(), 2);
        assert!(rows.notes[0].contains("does not answer"), "{:?}", rows.notes);
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic_and_keys_are_unique(text in "([0-9A-Fa-f:., \\[\\]é\\n]|GPU-){0,200}") {
            let rows = parse(&text);
            let keys: std::collections::BTreeSet<_> = rows.devices.iter().map(|facts| &facts.key).collect();
            prop_assert_eq!(keys.len(), rows.devices.len());
        }

        #[test]
        fn what_is_written_is_read_back(domain: u32, bus: u8, slot in 0u8..32, function in 0u8..8, memory: u32, major in 1u32..20, minor in 0u32..10) {
            let line = format!("3, GPU-1, {domain:08X}:{bus:02X}:{slot:02X}.{function}, NVIDIA X, {memory}, 1.2, {major}.{minor}");
            let rows = parse(&line);
            prop_assert_eq!(rows.devices.len(), 1);
            prop_assert_eq!(&rows.devices[0].key, &format!("pci:{domain:04x}:{bus:02x}:{slot:02x}.{function}"));
            prop_assert_eq!(rows.devices[0].memory_mib, u64::from(memory));
            prop_assert_eq!(rows.devices[0].compute_capability, major * 10 + minor);
        }
    }
}
