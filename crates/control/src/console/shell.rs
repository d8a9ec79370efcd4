//! The frame around every page: head, top bar, navigation, principal, theme switch, footer.

use super::{assets, routes};
use forgeyard_model::device::Device;
use forgeyard_model::principal::Role;
use forgeyard_model::{DeviceId, SiteId, Timestamp};
use maud::{DOCTYPE, Markup, html};
use std::collections::{BTreeMap, BTreeSet};

/// Who looks at the page.
#[derive(Debug, Clone)]
pub struct Viewer {
    /// Name for people.
    pub name: String,
    /// What they may do, in the whole farm or in the repository that the page is about.
    pub role: Role,
    /// Repositories in which they may say whether a head may run, by numeric id.
    pub judges: BTreeSet<u64>,
}

/// A theme that is fixed by the server, stronger than the preference of the browser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Theme {
    /// Light.
    Light,
    /// Dark.
    Dark,
}

/// What every page needs to know.
#[derive(Debug, Clone)]
pub struct Shell {
    /// Name of the farm.
    pub farm: String,
    /// Version of the program.
    pub version: String,
    /// Address of the farm as others reach it, without a slash at the end.
    pub public_url: String,
    /// Forges that may send webhooks to it, for the addresses that are shown.
    pub hooks: Vec<String>,
    /// Time of this page.
    pub now: Timestamp,
    /// Who is signed in.
    pub viewer: Option<Viewer>,
    /// Token that every form of this session must carry.
    pub csrf: String,
    /// Alarms that an operator should look at.
    pub alarms: usize,
    /// A fixed theme; absent = as the browser prefers.
    pub theme: Option<Theme>,
}

impl Shell {
    /// Addresses that a forge sends webhooks to, one for each forge.
    pub fn hook_addresses(&self) -> Vec<String> {
        self.hooks.iter().map(|forge| format!("{}/webhooks/{forge}", self.public_url)).collect()
    }

    /// Whether the viewer has at least this role.
    pub fn may(&self, role: Role) -> bool {
        self.viewer.as_ref().is_some_and(|viewer| viewer.role >= role)
    }
}

impl Shell {
    /// Whether the viewer may say whether a head of this repository may run.
    pub fn may_judge(&self, repository: u64) -> bool {
        self.viewer.as_ref().is_some_and(|viewer| viewer.judges.contains(&repository))
    }
}

/// Names for ids that rows carry, as far as the caller looked them up. What is missing is shown by its id.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// Sites.
    pub sites: BTreeMap<SiteId, String>,
    /// Devices.
    pub devices: BTreeMap<DeviceId, Device>,
}

impl Names {
    /// Name of a site, or its id.
    pub fn site(&self, id: SiteId) -> String {
        self.sites.get(&id).cloned().unwrap_or_else(|| super::words::short_id(&id.to_string()))
    }

    /// Model and kind of a device, or its id. A simulated device says so.
    pub fn device(&self, id: DeviceId) -> String {
        match self.devices.get(&id) {
            Some(device) if device.facts.kind.simulated() => {
                format!("{} (simulated GPU)", device.facts.model)
            }
            Some(device) => device.facts.model.clone(),
            None => super::words::short_id(&id.to_string()),
        }
    }
}

/// Entries of the navigation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tab {
    /// Pipelines and jobs.
    Pipelines,
    /// Who waits.
    Queue,
    /// Devices and sites.
    Devices,
    /// Artifacts.
    Artifacts,
    /// The build cache.
    Cache,
    /// Channels.
    Channels,
    /// Environments.
    Environments,
    /// Access.
    Access,
    /// Deliveries.
    Deliveries,
    /// Audit.
    Audit,
    /// Status.
    Status,
    /// A page outside the navigation.
    None,
}

const TABS: [(Tab, &str, &str); 11] = [
    (Tab::Pipelines, routes::PIPELINES, "Pipelines"),
    (Tab::Queue, routes::QUEUE, "Queue"),
    (Tab::Devices, routes::DEVICES, "Devices"),
    (Tab::Artifacts, routes::ARTIFACTS, "Artifacts"),
    (Tab::Cache, routes::CACHE, "Cache"),
    (Tab::Channels, routes::CHANNELS, "Channels"),
    (Tab::Environments, routes::ENVIRONMENTS, "Environments"),
    (Tab::Access, routes::ACCESS, "Access"),
    (Tab::Deliveries, routes::DELIVERIES, "Deliveries"),
    (Tab::Audit, routes::AUDIT, "Audit"),
    (Tab::Status, routes::STATUS, "Status"),
];

/// A whole page: `title` for the browser tab, `body` for what is inside.
pub fn page(shell: &Shell, tab: Tab, title: &str, body: &Markup) -> Markup {
    let theme = shell.theme.map(|theme| match theme {
        Theme::Light => "light",
        Theme::Dark => "dark",
    });
    html! {
        (DOCTYPE)
        html lang="en" data-theme=[theme] data-now=(shell.now.as_micros() / 1000) {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="referrer" content="same-origin";
                title { (title) " · " (shell.farm) " · Forgeyard" }
                link rel="icon" type="image/svg+xml" href=(assets::ICON.path);
                link rel="stylesheet" href=(assets::STYLE.path);
                script src=(assets::THEME.path) {}
                script src=(assets::SCRIPT.path) defer {}
            }
            body {
                a.skip href="#main" { "Skip to content" }
                (top(shell, tab))
                main #main tabindex="-1" { (body) }
                (foot(shell))
            }
        }
    }
}

fn top(shell: &Shell, tab: Tab) -> Markup {
    html! {
        header.top {
            div.bar {
                a.brand href=(routes::PIPELINES) {
                    (mark())
                    span.product { "Forgeyard" }
                    span.farm { (shell.farm) }
                }
                @if shell.viewer.is_some() {
                    button.menu type="button" aria-expanded="false" aria-controls="nav" { "Menu" }
                }
                div.session {
                    button.theme type="button" hidden title="Switch between light, dark and the system's theme" {
                        span.theme-icon aria-hidden="true" {}
                        span.theme-name { "Theme" }
                    }
                    @match &shell.viewer {
                        Some(viewer) => {
                            span.who title={ "signed in as " (viewer.name) " with the role " (viewer.role) } {
                                span.who-name { (viewer.name) } span.role { (viewer.role) }
                            }
                            form method="post" action=(routes::LOGOUT) {
                                (super::blocks::csrf(shell))
                                button.quiet type="submit" { "Sign out" }
                            }
                        }
                        None => { a.button.quiet href=(routes::LOGIN) { "Sign in" } }
                    }
                }
            }
            @if shell.viewer.is_some() {
                nav #nav aria-label="Main" {
                    ul {
                        @for (this, href, name) in TABS {
                            li {
                                a href=(href) aria-current=[(this == tab).then_some("page")] {
                                    (name)
                                    @if this == Tab::Status && shell.alarms > 0 {
                                        span.count title="alarms" { (shell.alarms) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn foot(shell: &Shell) -> Markup {
    html! {
        footer {
            span { "Forgeyard " (shell.version) }
            span { "All times UTC · page of " (super::words::stamp(shell.now)) }
            a href=(routes::STATUS) { "Status" }
        }
    }
}

/// The mark of the product: an anvil.
fn mark() -> Markup {
    html! {
        svg.mark width="26" height="26" viewBox="0 0 26 26" aria-hidden="true" {
            path d="M2 7h5.5V5H24v4.2c-3.9.3-6.2 2-6.6 4.8h-.9v2.6l3 2.4v2H7v-2l3-2.4V14C5.6 13.6 2.7 11.2 2 7z" {}
        }
    }
}
