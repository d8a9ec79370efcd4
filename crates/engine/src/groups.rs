//! IOMMU groups: which devices go to a virtual machine together, or not at all. Pure.
//!
//! The unit that is handed to a virtual machine is not the device. Functions of one IOMMU group reach each other past the IOMMU, so
//! a group belongs to one machine at a time (Linux, `driver-api/vfio.rst`), and all functions of one card are reset together. A
//! [`Unit`] is the devices of a site that this ties to each other. Two GPUs behind a switch without access control are one unit: the
//! host offers them as a pair (a flavor with two devices), and never as one.
//!
//! Invariants, each held by a test:
//! - the units of some devices are disjoint, and each device is in one;
//! - devices that share a group or a card are in the same unit;
//! - a choice is made of whole units, and has exactly as many devices as were asked for.
//!
//! This counts where a pool keeps jobs apart by virtual machines. A sandbox shares the kernel with the host, whose driver keeps the
//! devices apart whatever group they are in, so there the device itself is the unit.

use forgeyard_model::device::{DeviceFacts, PciFunction, card};
use std::collections::BTreeMap;

/// Devices that go together, by their places in the list that they came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// Places, ascending. Never empty.
    pub devices: Vec<usize>,
    /// Why it cannot be handed to a virtual machine, if so.
    pub trouble: Option<String>,
}

/// The units of the devices of one site.
pub fn units(devices: &[&DeviceFacts]) -> Vec<Unit> {
    let mut root: Vec<usize> = (0..devices.len()).collect();
    // What ties: a group, a card, or a function that moves with both. The first device that has it stands for it.
    let mut first: BTreeMap<Tie<'_>, usize> = BTreeMap::new();
    for (place, facts) in devices.iter().enumerate() {
        for tie in ties(facts) {
            let other = *first.entry(tie).or_insert(place);
            let (one, two) = (find(&root, place), find(&root, other));
            if let Some(slot) = root.get_mut(one.max(two)) {
                *slot = one.min(two);
            }
        }
    }
    let mut found: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for place in 0..devices.len() {
        found.entry(find(&root, place)).or_default().push(place);
    }
    found
        .into_values()
        .map(|places| {
            let of: Vec<&DeviceFacts> =
                places.iter().filter_map(|place| devices.get(*place).copied()).collect();
            Unit { trouble: trouble(&of), devices: places }
        })
        .collect()
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tie<'a> {
    Group(u32),
    Card(&'a str),
    Function(&'a str),
}

fn ties(facts: &DeviceFacts) -> impl Iterator<Item = Tie<'_>> {
    let own =
        facts.address().into_iter().flat_map(|address| [Tie::Card(card(address)), Tie::Function(address)]);
    // A bridge is above several cards, and its own card is the board.
    let others = facts.moves_with.iter().filter(|function| !function.bridge());
    facts
        .iommu_group
        .map(Tie::Group)
        .into_iter()
        .chain(own)
        .chain(others.map(|other| Tie::Function(&other.address)))
}

fn find(root: &[usize], mut place: usize) -> usize {
    while let Some(parent) = root.get(place).copied().filter(|parent| *parent != place) {
        place = parent;
    }
    place
}

/// Why these devices cannot be handed to a virtual machine.
fn trouble(devices: &[&DeviceFacts]) -> Option<String> {
    let offered =
        |function: &PciFunction| devices.iter().any(|facts| facts.address() == Some(&function.address));
    let same_card = |function: &PciFunction| {
        devices.iter().filter_map(|facts| facts.address()).any(|address| card(address) == function.card())
    };
    devices.iter().find_map(|facts| {
        // What stands in for a GPU is nothing that a bus knows.
        if facts.kind.simulated() {
            return None;
        }
        let Some(group) = facts.iommu_group else {
            return Some(format!(
                "{} has no IOMMU group: the IOMMU is off, in the firmware or on the kernel's command line",
                facts.key
            ));
        };
        let foreign = |function: &&PciFunction| {
            function.used_by_host() && !offered(function) && !same_card(function)
        };
        facts.moves_with.iter().find(foreign).map(|function| {
            format!(
                "{} of IOMMU group {group} cannot go without {} (class 0x{:06x}), which the host uses (driver {})",
                facts.key,
                function.address,
                function.class,
                function.driver.as_deref().unwrap_or("unknown")
            )
        })
    })
}

/// What a unit consists of, for people.
pub fn members(unit: &Unit, devices: &[&DeviceFacts]) -> String {
    let of: Vec<&DeviceFacts> =
        unit.devices.iter().filter_map(|place| devices.get(*place).copied()).collect();
    let mut groups: Vec<u32> = of.iter().filter_map(|facts| facts.iommu_group).collect();
    groups.extend(of.iter().flat_map(|facts| &facts.moves_with).filter_map(|function| function.iommu_group));
    groups.sort_unstable();
    groups.dedup();
    let mut names: Vec<&str> = of.iter().map(|facts| facts.key.as_str()).collect();
    let others = of.iter().flat_map(|facts| &facts.moves_with).filter(|function| !function.bridge());
    for function in others {
        let known = of.iter().any(|facts| facts.address() == Some(&function.address));
        if !known && !names.contains(&function.address.as_str()) {
            names.push(&function.address);
        }
    }
    let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
    match groups.as_slice() {
        [] => names.join(", "),
        [one] => format!("IOMMU group {one}: {}", names.join(", ")),
        many => format!("IOMMU groups {}: {}", many.join(" and "), names.join(", ")),
    }
}

/// Units that together have exactly so many devices, out of units with these sizes: of all choices one whose last unit comes
/// first in the list. Answers places in the list, ascending.
pub fn exactly(sizes: &[usize], wanted: usize) -> Option<Vec<usize>> {
    if wanted > sizes.iter().sum() {
        return None;
    }
    // For each number of devices the unit that reached it first, and with it what was there before.
    let mut reached: Vec<Option<usize>> = vec![None; wanted + 1];
    let mut is = vec![false; wanted + 1];
    *is.first_mut()? = true;
    for (place, size) in sizes.iter().copied().enumerate() {
        for sum in (size.max(1)..=wanted).rev() {
            if !is.get(sum).copied()? && is.get(sum - size).copied()? {
                *is.get_mut(sum)? = true;
                *reached.get_mut(sum)? = Some(place);
            }
        }
        if is.last().copied()? {
            break;
        }
    }
    if !is.last().copied()? {
        return None;
    }
    let (mut chosen, mut sum) = (Vec::new(), wanted);
    while sum > 0 {
        let place = reached.get(sum).copied()??;
        chosen.push(place);
        sum -= sizes.get(place).copied()?;
    }
    chosen.reverse();
    Some(chosen)
}

/// Numbers of devices that can be had, out of units with these sizes.
pub fn sums(sizes: &[usize]) -> Vec<usize> {
    (1..=sizes.iter().sum()).filter(|wanted| exactly(sizes, *wanted).is_some()).collect()
}

#[cfg(test)]
#[path = "groups_tests.rs"]
mod tests;
