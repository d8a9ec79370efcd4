//! Pools: machines now and over the last day, what the schedule says, why a pool starts none.

use super::blocks::{self, ButtonKind};
use super::devices::{self, Here};
use super::shell::{Shell, Tab, page};
use super::tone::{Tone, Word};
use super::{routes, words};
use forgeyard_api::pools::{PoolMoment, PoolView, StoppedSite};
use forgeyard_model::Timestamp;
use forgeyard_model::pool::{Breaker, Day, Schedule, Terms};
use forgeyard_model::principal::Role;
use forgeyard_model::resources::Isolation;
use maud::{Markup, html};

/// Span of the chart, in seconds.
const DAY: i64 = 86_400;
/// Height of the chart, in its own units; its width is [`DAY`] in quarters of an hour.
const HEIGHT: f64 = 40.0;
const QUARTER: i64 = 900;

/// The page.
pub fn pools(shell: &Shell, rows: &[PoolView]) -> Markup {
    page(
        shell,
        Tab::Devices,
        "Pools",
        &html! {
            header.page-head {
                h1 { "Pools" }
                p.lead { "Machines that are alike. Each pool has its own numbers, its own pace, and stops by itself when its machines do not come up." }
            }
            (devices::subtabs(Here::Pools))
            @if rows.is_empty() {
                (blocks::empty("No pool", "Nothing can run without one.", &html! {
                    p { "Declare one under " code { "[[pools]]" } " in " code { "forgeyard.toml" } "; without any, the farm has one called local." }
                }))
            } @else {
                div.cards.wide { @for row in rows { (card(shell, row)) } }
            }
        },
    )
}

/// Whether a pool works.
pub fn state(pool: &PoolView) -> Word {
    match (&pool.drain, &pool.breaker) {
        (Some(_), _) => Word::new(Tone::Stopped, "draining"),
        (None, Breaker::Open { .. }) => Word::new(Tone::Bad, "stopped by its breaker"),
        (None, Breaker::HalfOpen { .. }) => Word::new(Tone::Warn, "tries one next"),
        (None, Breaker::Probing { .. }) => Word::new(Tone::Warn, "trying one"),
        (None, Breaker::Closed { .. }) => Word::new(Tone::Good, "open"),
    }
}

const fn isolation(isolation: Isolation) -> &'static str {
    match isolation {
        Isolation::SharedKernel => "shared kernel",
        Isolation::Vm => "virtual machine",
    }
}

const fn day(day: Day) -> &'static str {
    match day {
        Day::Mon => "Mon",
        Day::Tue => "Tue",
        Day::Wed => "Wed",
        Day::Thu => "Thu",
        Day::Fri => "Fri",
        Day::Sat => "Sat",
        Day::Sun => "Sun",
    }
}

fn numbers(terms: &Terms) -> String {
    format!("at least {}, {} warm, at most {}", terms.min, terms.warm, terms.max)
}

fn card(shell: &Shell, pool: &PoolView) -> Markup {
    let of = pool.canary.as_ref();
    html! {
        section.card.device.pool {
            div.title-row { h2 { (pool.name) } (state(pool).badge()) }
            (blocks::facts(&[
                ("Busy", html! { (pool.busy) " of " (pool.now.max) }),
                ("Warm", html! { (pool.ready) " of " (pool.warm_wanted) @if pool.coming > 0 { ", " (pool.coming) " coming" } }),
                ("Jobs that wait", html! { (pool.waiting) }),
                ("Being removed", html! { (pool.leaving) }),
                ("Made by", html! { (pool.provider) ", " (isolation(pool.isolation)) }),
                ("Launches left", html! { (pool.launches) ", " (pool.rate.per_minute) " more a minute" }),
            ]))
            @if let Some(canary) = of {
                p { "Takes " (canary.percent) " of a hundred jobs of " strong { (canary.of) } "." }
            }
            @if let Some(why) = &pool.trouble { (blocks::explanation(state(pool).tone, "", why, next(pool))) }
            @if let Some(why) = pool.warm_trouble.as_ref().filter(|_| pool.trouble.is_none()) { (blocks::explanation(Tone::Warn, "", why, Some("it is looked at again every second"))) }
            @for stopped in &pool.stopped_at { (stopped_site(shell, stopped)) }
            (chart(pool, shell.now))
            (schedule(shell, pool))
            @if let Some(error) = &pool.last_error {
                details {
                    summary { "Last machine that did not come up, " (words::when(shell.now, error.at)) }
                    p { (words::id(error.runner)) ": " (words::visible(&error.reason.message)) " " code { (error.reason.code) } }
                    @if !error.reason.evidence.is_empty() {
                        ul.evidence { @for line in &error.reason.evidence { li { (words::visible(line)) } } }
                    }
                }
            }
            div.actions { (buttons(shell, pool)) }
        }
    }
}

/// A site at which a pool starts no machine, while others serve it.
fn stopped_site(shell: &Shell, stopped: &StoppedSite) -> Markup {
    html! {
        p {
            (Tone::Warn.icon()) " Starts no machine at site " strong { (stopped.site) }
            @if let Breaker::Open { until, .. } = &stopped.breaker { " until " (words::stamp(*until)) }
            @if let Breaker::Probing { runner, .. } = &stopped.breaker { " before " (words::id(runner)) " came up" }
            "; other sites go on."
        }
        @if let Some(error) = &stopped.last_error {
            p.quiet-text { (words::when(shell.now, error.at)) ": " (words::visible(&error.reason.message)) " " code { (error.reason.code) } }
        }
    }
}

fn next(pool: &PoolView) -> Option<&'static str> {
    match (&pool.drain, &pool.breaker) {
        (None, Breaker::Open { .. }) => Some("after the pause one machine is tried"),
        (None, Breaker::Probing { .. }) => Some("others follow when the machine comes up"),
        _ => None,
    }
}

fn buttons(shell: &Shell, pool: &PoolView) -> Markup {
    let (label, drain, kind) = if pool.drain.is_some() {
        ("Resume", "false", ButtonKind::Primary)
    } else {
        ("Drain", "true", ButtonKind::Quiet)
    };
    html! {
        (blocks::action(shell, Role::Operator, &routes::pool_drain(&pool.name), label, kind, &[("drain", drain)]))
        @if !matches!(pool.breaker, Breaker::Closed { .. }) {
            (blocks::action(shell, Role::Operator, &routes::pool_reset(&pool.name), "Start machines again", ButtonKind::Primary, &[]))
        }
    }
}

fn schedule(shell: &Shell, pool: &PoolView) -> Markup {
    html! {
        p.now {
            strong { "Now " } (numbers(&pool.now)) "."
            @if let Some(change) = &pool.next {
                " " strong { "From " (words::stamp(change.at)) } " (in " (words::duration(change.at.since(shell.now))) ") " (numbers(&change.then)) "."
            }
        }
        @if !pool.schedule.is_empty() {
            details {
                summary { "Schedule" span.count-quiet { (pool.schedule.len()) } }
                ul.plain {
                    @for (place, entry) in pool.schedule.iter().enumerate() {
                        li {
                            (line(entry))
                            @if pool.now.entry.is_some_and(|now| now as usize == place) { " " strong { "in force" } }
                        }
                    }
                }
            }
        }
    }
}

fn line(entry: &Schedule) -> Markup {
    let days: Vec<&str> = entry.days.iter().map(|it| day(*it)).collect();
    let days = if days.len() == Day::ALL.len() { "every day".to_owned() } else { days.join(", ") };
    html! {
        (days) ", " (entry.from) " to " (entry.to) " " (words::visible(&entry.zone)) ":"
        @if let Some(min) = entry.min { " at least " (min) }
        @if let Some(warm) = entry.warm { " warm " (warm) }
        @if let Some(max) = entry.max { " at most " (max) }
    }
}

/// The last day: machines as bars, jobs that waited as a line above them.
fn chart(pool: &PoolView, now: Timestamp) -> Markup {
    let shown: Vec<&PoolMoment> =
        pool.history.iter().filter(|moment| now.since(moment.at).as_secs() < DAY.unsigned_abs()).collect();
    if shown.len() < 2 {
        return html! { p.quiet-text { "The chart of the last day begins after half an hour." } };
    }
    let most = |of: fn(&PoolMoment) -> u32| shown.iter().map(|moment| of(moment)).max().unwrap_or(0);
    let top = most(|it| it.busy.saturating_add(it.warm)).max(most(|it| it.waiting)).max(1);
    let height = |count: u32| f64::from(count) * HEIGHT / f64::from(top);
    let place = |moment: &PoolMoment| {
        let ago = now.as_micros().saturating_sub(moment.at.as_micros()) / 1_000_000;
        (DAY - ago).max(0) as f64 / QUARTER as f64
    };
    let bar = |class: &str, moment: &PoolMoment, from: u32, count: u32| {
        let (x, y) = (place(moment), HEIGHT - height(from.saturating_add(count)));
        html! {
            @if count > 0 {
                rect.(class) x=(format!("{x:.2}")) y=(format!("{y:.2}")) width="0.9" height=(format!("{:.2}", height(count))) {}
            }
        }
    };
    let points: Vec<String> = shown
        .iter()
        .map(|moment| format!("{:.2},{:.2}", place(moment) + 0.45, HEIGHT - height(moment.waiting)))
        .collect();
    let said = format!(
        "The last day of pool {}: at most {} machines busy, {} warm, {} jobs waiting at once",
        pool.name,
        most(|it| it.busy),
        most(|it| it.warm),
        most(|it| it.waiting)
    );
    html! {
        figure.day {
            div.plot {
                span.top { (top) }
                svg viewBox="0 0 96 40" preserveAspectRatio="none" width="100%" height="96" role="img" aria-label=(said) {
                    @for quarter in 1..4 {
                        line.grid x1=(quarter * 24) x2=(quarter * 24) y1="0" y2="40" {}
                    }
                    @for moment in &shown {
                        (bar("busy", moment, 0, moment.busy))
                        (bar("warm", moment, moment.busy, moment.warm))
                    }
                    polyline.waiting points=(points.join(" ")) {}
                    line.base x1="0" x2="96" y1="40" y2="40" {}
                }
                div.hours { span { "24 h ago" } span { "18 h" } span { "12 h" } span { "6 h" } span { "now" } }
            }
            figcaption.legend {
                span { svg width="14" height="10" { rect.busy width="14" height="10" rx="2" {} } "busy" }
                span { svg width="14" height="10" { rect.warm width="14" height="10" rx="2" {} } "warm" }
                span { svg width="14" height="10" { line.waiting x1="0" x2="14" y1="5" y2="5" {} } "jobs waiting" }
            }
        }
    }
}
