//! What the host offers: CPUs, memory, kernel, and the limits that its providers enforce.
//!
//! Invariants: what cannot be read counts as zero; a limit counts as enforced only where every provider that works
//! enforces it.

use forgeyard_model::name::ProviderName;
use forgeyard_model::resources::Limit;
use forgeyard_model::site::HostFacts;
use forgeyard_providers::ProviderFacts;
use std::collections::{BTreeMap, BTreeSet};

/// What the kernel says, without providers.
pub fn machine() -> HostFacts {
    let (host, kernel) = match nix::sys::utsname::uname() {
        Ok(name) => (name.nodename().to_string_lossy().into_owned(), name.release().to_string_lossy().into_owned()),
        Err(_) => (String::new(), String::new()),
    };
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let installed = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_memory_mib(&text)).unwrap_or(0);
    // Inside a container the group's limit counts, where there is one.
    let allowed = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse::<u64>().ok());
    HostFacts {
        host,
        cpu_millis: u32::try_from(cpus).unwrap_or(u32::MAX).saturating_mul(1000),
        memory_mib: allowed.map_or(installed, |bytes| installed.min(bytes >> 20)),
        kernel,
        providers: BTreeSet::new(),
        enforces: BTreeSet::new(),
        cannot: Vec::new(),
    }
}

/// `MemTotal` of `/proc/meminfo`, in MiB.
fn total_memory_mib(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? / 1024)
}

/// Adds what the providers can do.
pub fn with_providers(mut host: HostFacts, facts: &BTreeMap<ProviderName, ProviderFacts>) -> HostFacts {
    let mut all: Option<BTreeSet<Limit>> = None;
    for (name, facts) in facts {
        host.providers.insert(name.clone());
        all = Some(match all {
            None => facts.enforces.clone(),
            Some(before) => before.intersection(&facts.enforces).copied().collect(),
        });
        host.cannot.extend(facts.cannot.iter().map(|(limit, reason)| (*limit, format!("{name}: {reason}"))));
    }
    host.enforces = all.unwrap_or_default();
    host
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_limit_counts_only_where_every_provider_enforces_it() {
        let of = |enforces: &[Limit], cannot: &[Limit]| ProviderFacts {
            enforces: enforces.iter().copied().collect(),
            cannot: cannot.iter().map(|limit| (*limit, "no controller".to_owned())).collect(),
        };
        let facts = BTreeMap::from([
            ("qemu".parse().unwrap(), of(&[Limit::Memory, Limit::Cpu], &[])),
            ("sandbox".parse().unwrap(), of(&[Limit::Memory], &[Limit::Cpu])),
        ]);
        let host = with_providers(machine(), &facts);
        assert_eq!(host.enforces, BTreeSet::from([Limit::Memory]));
        assert_eq!(host.cannot, [(Limit::Cpu, "sandbox: no controller".to_owned())]);
        assert_eq!(host.providers.len(), 2);
    }

    #[test]
    fn this_machine_has_cpus_memory_and_a_kernel() {
        let host = machine();
        assert!(host.cpu_millis >= 1000 && host.memory_mib > 0 && !host.kernel.is_empty(), "{host:?}");
    }

    proptest! {
        #[test]
        fn any_meminfo_is_read_or_refused(text in "(MemTotal:)?[ 0-9kB\\n]{0,40}") {
            let _ = total_memory_mib(&text);
        }
    }
}
