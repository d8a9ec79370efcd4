//! The public status page: what works, how much waits, what is wrong. Shows nothing that a stranger should not know:
//! no keys, no people, no names of repositories.

use super::blocks;
use super::shell::{Shell, Tab, page};
use super::tone::{self, Tone, Word};
use super::{routes, sites, words};
use forgeyard_api::people::Status;
use forgeyard_model::device::DeviceState;
use maud::{Markup, html};

/// The page.
pub fn status(shell: &Shell, status: &Status) -> Markup {
    let (word, sentence) = overall(shell, status);
    page(
        shell,
        Tab::Status,
        "Status",
        &html! {
            section.overall.(word.tone.class()) {
                (word.tone.icon())
                div { h1 { (sentence) } p { (status.farm) " · as of " (words::exact(status.at)) " UTC" } }
            }
            (figures(status))
            @if !status.alarms.is_empty() {
                section.alarms {
                    h2 { "Alarms" }
                    @for alarm in &status.alarms { (blocks::explanation(Tone::Warn, "", alarm, None)) }
                }
            }
            div.cards {
                section.card {
                    h2 { "Sites" }
                    @if status.sites.is_empty() {
                        p.quiet-text { "No host has joined. Start one with " code { "forgeyard up" } " or " code { "forgeyard site run" } "." }
                    }
                    ul.plain.status-list {
                        @for site in &status.sites {
                            li {
                                (sites::voice(site.heard_at, site.draining, shell.now).badge())
                                span.name { (site.name) }
                                span.sub { @match site.heard_at { Some(at) => { "heard " (words::when(shell.now, at)) } None => { "never heard" } } }
                            }
                        }
                    }
                }
                section.card {
                    h2 { "Devices" }
                    @if status.devices.is_empty() {
                        p.quiet-text { "None reported. GPU tests wait until a site offers one; see what a host offers with " code { "forgeyard doctor" } "." }
                    }
                    ul.plain.status-list {
                        @for device in &status.devices {
                            li {
                                (tone::device(&device.state).badge())
                                span.name { (device.facts.model) }
                                span.sub { (device.facts.kind.label()) }
                            }
                        }
                    }
                }
                (counts("Jobs", &status.jobs, "No job is known. The first event brings some."))
                (counts("Machines", &status.runners, "No machine exists. One is made for each attempt and removed after it."))
            }
            p.quiet-text { "The same as JSON: " a href=(routes::STATUS_JSON) { (routes::STATUS_JSON) } }
        },
    )
}

fn overall(shell: &Shell, status: &Status) -> (Word, &'static str) {
    let up = |site: &forgeyard_api::people::SiteStatus| {
        sites::voice(site.heard_at, site.draining, shell.now).tone == Tone::Good
    };
    if status.sites.is_empty() {
        (Word::new(Tone::Waiting, "waiting"), "No host has joined yet")
    } else if !status.sites.iter().any(up) {
        (Word::new(Tone::Bad, "down"), "No host takes work")
    } else if !status.alarms.is_empty() {
        (Word::new(Tone::Warn, "degraded"), "Working, with alarms")
    } else {
        (Word::new(Tone::Good, "up"), "Everything works")
    }
}

fn figures(status: &Status) -> Markup {
    let count = |name: &str| status.jobs.get(name).copied().unwrap_or(0);
    let working = count("placed") + count("starting") + count("running");
    let free = status.devices.iter().filter(|device| device.state == DeviceState::Ready).count();
    html! {
        dl.figures {
            div { dt { "Queued" } dd { (count("queued")) } }
            div { dt { "Held" } dd { (count("held")) } }
            div { dt { "At work" } dd { (working) } }
            div { dt { "Devices free" } dd { (free) span.of { " of " (status.devices.len()) } } }
        }
    }
}

fn counts(title: &str, by_state: &std::collections::BTreeMap<String, u64>, none: &str) -> Markup {
    html! {
        section.card {
            h2 { (title) }
            @if by_state.values().all(|count| *count == 0) { p.quiet-text { (none) } }
            dl.counts {
                @for (state, count) in by_state {
                    @if *count > 0 { div { dt { (state.replace('_', " ")) } dd { (count) } } }
                }
            }
        }
    }
}
