//! Sites: what each host offers, which limits it enforces, which it cannot and why.

use super::blocks::{self, ButtonKind};
use super::shell::{Shell, Tab, page};
use super::tone::{Tone, Word};
use super::{devices, routes, words};
use forgeyard_model::Timestamp;
use forgeyard_model::principal::Role;
use forgeyard_model::resources::Limit;
use forgeyard_model::site::{HostFacts, Site};
use maud::{Markup, html};

/// A site that has said nothing for this long is shown as silent.
const SILENT_AFTER_SECONDS: u64 = 60;

/// What a limit is about.
pub const fn limit(limit: Limit) -> &'static str {
    match limit {
        Limit::Memory => "memory",
        Limit::Cpu => "CPU",
        Limit::Processes => "processes",
        Limit::Wall => "wall clock",
        Limit::Disk => "disk",
        Limit::Network => "network off",
    }
}

/// Whether a site speaks.
pub fn voice(heard_at: Option<Timestamp>, draining: bool, now: Timestamp) -> Word {
    match heard_at {
        None => Word::new(Tone::Waiting, "never heard"),
        Some(at) if now.since(at).as_secs() > SILENT_AFTER_SECONDS => Word::new(Tone::Warn, "silent"),
        Some(_) if draining => Word::new(Tone::Stopped, "draining"),
        Some(_) => Word::new(Tone::Good, "up"),
    }
}

/// The page.
pub fn sites(shell: &Shell, rows: &[Site]) -> Markup {
    page(
        shell,
        Tab::Devices,
        "Sites",
        &html! {
            header.page-head {
                h1 { "Sites" }
                p.lead { "Hosts that make machines. A site dials out; it needs no open port." }
            }
            (devices::subtabs(devices::Here::Sites))
            @if rows.is_empty() {
                (blocks::empty("No site yet", "Nothing can run until a host has joined.", &html! {
                    p { "A farm on one machine brings its own site:" }
                    (blocks::command("forgeyard up"))
                    p { "Or join this host to this farm; the token is made by an admin:" }
                    (blocks::command(&join_command(&shell.public_url)))
                }))
            } @else {
                div.cards.wide { @for row in rows { (card(shell, row)) } }
            }
        },
    )
}

/// How a host joins this farm. The token lies in the data folder of the farm, for its admin.
pub fn join_command(public_url: &str) -> String {
    format!("forgeyard site run --farm {public_url} --name NAME --join-token-file join.token")
}

fn card(shell: &Shell, row: &Site) -> Markup {
    let word = voice(row.heard_at, row.draining_since.is_some(), shell.now);
    let (label, drain, kind) = if row.draining_since.is_some() {
        ("Resume", "false", ButtonKind::Primary)
    } else {
        ("Drain", "true", ButtonKind::Quiet)
    };
    html! {
        section.card.device {
            div.title-row { h2 { (row.name) } (word.badge()) }
            (blocks::facts(&[
                ("Last report", html! { @match row.heard_at { Some(at) => { (words::when(shell.now, at)) } None => { "none" } } }),
                ("Joined", words::when(shell.now, row.joined_at)),
                ("Key", html! { code title=(row.public_key) { (row.public_key.chars().take(16).collect::<String>()) "…" } }),
                ("Site", words::id(row.id)),
            ]))
            @match &row.host {
                Some(host) => { (facts(host)) }
                None => { p.quiet-text { "The host has not reported what it offers. Is " code { "forgeyard site run" } " running there? Its log says why not." } }
            }
            div.actions {
                (blocks::action(shell, Role::Operator, &routes::site_drain(row.id), label, kind, &[("drain", drain)]))
            }
        }
    }
}

/// What a host offers and enforces.
pub fn facts(host: &HostFacts) -> Markup {
    html! {
        (blocks::facts(&[
            ("Host", html! { (host.host) }),
            ("CPUs", html! { (host.cpu_millis / 1000) @if !host.cpu_millis.is_multiple_of(1000) { "." (host.cpu_millis % 1000 / 100) } }),
            ("Memory", html! { (words::bytes(host.memory_mib.saturating_mul(1 << 20))) }),
            ("Kernel", html! { (host.kernel) }),
            ("Providers", html! {
                @if host.providers.is_empty() { "none works here" }
                (host.providers.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", "))
            }),
        ]))
        h3 { "Limits" }
        ul.limits {
            @for this in &host.enforces { li { (Word::new(Tone::Good, limit(*this)).badge()) } }
        }
        @if host.enforces.is_empty() { p.quiet-text { "None can be enforced here: jobs that need one are refused." } }
        @if !host.cannot.is_empty() {
            ul.plain.cannot {
                @for (this, why) in &host.cannot {
                    li { (Word::new(Tone::Warn, limit(*this)).badge()) " cannot be enforced: " (words::visible(why)) }
                }
            }
        }
    }
}
