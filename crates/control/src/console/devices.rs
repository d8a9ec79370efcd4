//! Devices: what each GPU is, whether it is free, who holds it, and its record of quarantines.

use super::blocks::{self, ButtonKind};
use super::shell::{Names, Shell, Tab, page};
use super::tone::{self, Tone};
use super::{routes, words};
use forgeyard_model::commit::EventRecord;
use forgeyard_model::device::{Device, DeviceState};
use forgeyard_model::lease::{Lease, LeaseState};
use forgeyard_model::principal::Role;
use forgeyard_model::{DeviceId, JobId, LeaseId};
use maud::{Markup, html};
use std::collections::BTreeMap;

/// All devices, with what is known of their leases and their past.
#[derive(Debug, Clone, Default)]
pub struct DevicesView {
    /// The devices.
    pub devices: Vec<Device>,
    /// Live leases, with the job that holds each.
    pub leases: BTreeMap<LeaseId, (Lease, Option<(JobId, String)>)>,
    /// Quarantines and clearances of each device, newest first.
    pub history: BTreeMap<DeviceId, Vec<EventRecord>>,
}

/// Links between devices and sites.
pub fn subtabs(devices: bool) -> Markup {
    html! {
        nav.filters aria-label="Machines" {
            a href=(routes::DEVICES) aria-current=[devices.then_some("true")] { "devices" }
            a href=(routes::SITES) aria-current=[(!devices).then_some("true")] { "sites" }
        }
    }
}

/// The page.
pub fn devices(shell: &Shell, view: &DevicesView, names: &Names) -> Markup {
    page(
        shell,
        Tab::Devices,
        "Devices",
        &html! {
            header.page-head {
                h1 { "Devices" }
                p.lead { "A device is leased only while a test runs on it, and comes back only after its site has reset and verified it." }
            }
            (subtabs(true))
            @if view.devices.is_empty() {
                (blocks::empty("No device yet", "Devices are reported by sites. A site without a GPU can offer the CPU as a simulated one.", &html! {
                    p { "See what this host would offer, and what is missing:" }
                    (blocks::command("forgeyard doctor"))
                    p { "Join another host to this farm:" }
                    (blocks::command(&super::sites::join_command(&shell.public_url)))
                }))
            } @else {
                div.cards { @for device in &view.devices { (card(shell, view, device, names)) } }
            }
        },
    )
}

fn card(shell: &Shell, view: &DevicesView, device: &Device, names: &Names) -> Markup {
    let facts = &device.facts;
    let word = tone::device(&device.state);
    html! {
        section.card.device.(word.tone.class()) {
            div.title-row { h2 { (facts.model) } (word.badge()) }
            p.kind {
                @if facts.kind.simulated() { span.simulated { (facts.kind.label()) } } @else { (facts.kind.label()) }
            }
            (holder(shell, view, device))
            (blocks::facts(&[
                ("Site", html! { a href=(routes::SITES) { (names.site(device.site)) } }),
                ("Driver", html! { (facts.driver) }),
                ("Memory", html! { (words::bytes(facts.memory_mib.saturating_mul(1 << 20))) }),
                ("Compute capability", html! {
                    @if facts.compute_capability == 0 { "not known" }
                    @else { (facts.compute_capability / 10) "." (facts.compute_capability % 10) }
                }),
                ("IOMMU group", html! { @match facts.iommu_group { Some(group) => { (group) } None => { "none" } } }),
                ("NUMA node", html! { @match facts.numa_node { Some(node) => { (node) } None => { "not known" } } }),
                ("Key", html! { code { (facts.key) } }),
                ("Since", words::when(shell.now, device.since)),
            ]))
            (past(shell, view, device))
            div.actions { (buttons(shell, device)) }
        }
    }
}

fn holder(shell: &Shell, view: &DevicesView, device: &Device) -> Markup {
    let lease = match &device.state {
        DeviceState::Quarantined { reason } => {
            return blocks::explanation(
                Tone::Warn,
                "Quarantined",
                reason,
                Some("nothing: an operator must clear it"),
            );
        }
        DeviceState::Ready => return html! {},
        DeviceState::Leased { lease }
        | DeviceState::Resetting { lease }
        | DeviceState::Verifying { lease } => lease,
    };
    html! {
        div.holder {
            @match view.leases.get(lease) {
                Some((row, job)) => {
                    p {
                        "Held by "
                        @match job {
                            Some((id, key)) => { a href=(routes::job(*id)) { (key) } }
                            None => { (words::id(row.attempt.map_or_else(|| row.runner.to_string(), |id| id.to_string()))) }
                        }
                        " for " (words::span(row.claimed_at, row.ended_at, shell.now))
                        " · lease " (tone::lease(row.state).text)
                    }
                    @if matches!(row.state, LeaseState::Held | LeaseState::Releasing | LeaseState::Claimed) && shell.may(Role::Operator) {
                        details {
                            summary { "The host is gone for good" }
                            p.quiet-text { "A lease never ends by time alone. Write it off only when the host will not come back with the job still on it." }
                            (blocks::action(shell, Role::Operator, &routes::lease_write_off(row.id), "Write the lease off", ButtonKind::Danger, &[]))
                        }
                    }
                }
                None => { p { "Held by lease " (words::id(lease)) } }
            }
        }
    }
}

fn past(shell: &Shell, view: &DevicesView, device: &Device) -> Markup {
    let events = view.history.get(&device.id).map(Vec::as_slice).unwrap_or_default();
    html! {
        details.history {
            summary { "Quarantine history" span.count-quiet { (events.len()) } }
            @if events.is_empty() { p.quiet-text { "Never quarantined." } }
            ul.plain {
                @for event in events {
                    li { (words::when(shell.now, event.at)) " " (event.name) " by " (event.by.name)
                        @if let Some(note) = &event.note { ": " (words::visible(note)) } }
                }
            }
        }
    }
}

fn buttons(shell: &Shell, device: &Device) -> Markup {
    match device.state {
        DeviceState::Quarantined { .. } => blocks::action(
            shell,
            Role::Operator,
            &routes::device_clear(device.id),
            "Clear quarantine",
            ButtonKind::Primary,
            &[],
        ),
        DeviceState::Ready
        | DeviceState::Leased { .. }
        | DeviceState::Resetting { .. }
        | DeviceState::Verifying { .. } => blocks::action_with_reason(
            shell,
            Role::Operator,
            &routes::device_quarantine(device.id),
            "Quarantine",
        ),
    }
}
