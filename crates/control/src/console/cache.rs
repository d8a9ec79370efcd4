//! The build cache: how it was hit over the last day, what each scope holds, whether budgets are met; the entries of a
//! scope, and their removal.

use super::blocks::{self, ButtonKind};
use super::shell::{Shell, Tab, page};
use super::tone::{Tone, Word};
use super::{routes, words};
use forgeyard_api::cache::{
    CacheBudget, CacheBudgetState, CacheEntries, CacheMoment, CacheScope, CacheTraffic, CacheView, CacheWarm,
};
use forgeyard_model::principal::Role;
use forgeyard_model::{Explanation, Timestamp};
use maud::{Markup, html};
use std::time::Duration;

/// Span of the chart, in seconds; one bar is a [`QUARTER`].
const DAY: i64 = 86_400;
const QUARTER: i64 = 900;
/// Height of the chart, in its own units.
const HEIGHT: f64 = 40.0;

/// How the cache looks from here.
#[derive(Debug, Clone, Copy)]
pub enum Look<'a> {
    /// The farm has none.
    None,
    /// It did not answer.
    Silent(&'a Explanation),
    /// What it said.
    Here(&'a CacheView),
}

/// The page of the whole cache.
pub fn cache(shell: &Shell, look: Look<'_>) -> Markup {
    page(
        shell,
        Tab::Cache,
        "Cache",
        &html! {
            header.page-head {
                h1 { "Cache" }
                p.lead { "What builds share. A job reads its own scope and those above it, and writes its own alone, so a fork reads what main wrote and poisons nobody." }
            }
            @match look {
                Look::None => { (none()) }
                Look::Silent(why) => { (blocks::explanation(Tone::Bad, "", why, Some("builds go on without it: every client takes a cache that is away for a miss"))) }
                Look::Here(view) => { (whole(shell, view)) }
            }
        },
    )
}

fn none() -> Markup {
    blocks::empty(
        "This farm runs no build cache",
        "sccache, ccache, Bazel, Nix and GitHub's own cache client could share one.",
        &html! {
            p { "Write this into " code { "forgeyard.toml" } " and start the farm again; builds of the branch main fill the scope, everybody may read it:" }
            (blocks::command("[cache]\ncapacity-gib = 50\n\n[[cache.scopes]]\npath = \"main\"\ntrusted = true\nread = \"public\""))
            p { "A token for a job that fills it:" }
            (blocks::command("forgeyard cache token main"))
        },
    )
}

fn sum(view: &CacheView, of: fn(&CacheTraffic) -> u64) -> u64 {
    view.scopes.iter().flat_map(|scope| &scope.traffic).map(of).fold(0, u64::saturating_add)
}

/// A share in percent with one digit, or a dash for a share of nothing.
fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "–".to_owned(),
        whole => format!("{:.1} %", part as f64 * 100.0 / whole as f64),
    }
}

fn found(traffic: &CacheTraffic) -> u64 {
    traffic.hits.saturating_add(traffic.parent_hits)
}

/// What hits saved: so long the same entries took to make when they were missing.
fn saved(traffic: &[CacheTraffic]) -> Option<Duration> {
    let known: Vec<u64> = traffic.iter().filter_map(|it| it.saved_millis).collect();
    let millis = known.iter().copied().fold(0, u64::saturating_add);
    (!known.is_empty()).then(|| Duration::from_millis(millis))
}

fn whole(shell: &Shell, view: &CacheView) -> Markup {
    let (found, reads) = (sum(view, found), sum(view, CacheTraffic::reads));
    let all: Vec<CacheTraffic> = view.scopes.iter().flat_map(|scope| scope.traffic.clone()).collect();
    let missed: Vec<&CacheScope> = view
        .scopes
        .iter()
        .filter(|scope| scope.budget.as_ref().is_some_and(|budget| budget.state == CacheBudgetState::Missed))
        .collect();
    html! {
        @for scope in missed { (cold(scope)) }
        section.card {
            div.title-row { h2 { "Since its start" } code { (view.address) } }
            (blocks::facts(&[
                ("Reads that hit", html! { (percent(found, reads)) " of " (reads) }),
                ("Work saved", html! { @match saved(&all) { Some(time) => { "about " (words::duration(time)) } None => { "not known yet" } } }),
                ("Money saved", html! { (money(view, saved(&all))) }),
                ("Sent", html! { (words::bytes(sum(view, |it| it.bytes_out))) }),
                ("Stored", html! { (words::bytes(sum(view, |it| it.bytes_in))) " in " (sum(view, |it| it.writes)) " writes" }),
                ("Entries", html! { (view.entries) }),
                ("On disk", html! { (words::bytes(view.disk_bytes)) " of " (words::bytes(view.capacity_bytes)) }),
                ("Oldest was used", html! { @match view.tail_idle_minutes { Some(minutes) => { (words::duration(Duration::from_secs(u64::from(minutes) * 60))) " ago" } None => { "not known" } } }),
                ("Writes denied", html! { (sum(view, |it| it.denied)) }),
            ]))
            p.quiet-text {
                "What was saved is an estimate: hits, times the mean time between a miss and the write of what was missing, for each scope and client"
                @if let Some(price) = view.price_per_cpu_hour { "; money is that time at " (price) " for an hour of a CPU" }
                "."
            }
            (chart(&view.day, shell.now))
        }
        @if view.scopes.is_empty() {
            (blocks::empty("Nothing is cached yet", "Nobody has asked for anything since the cache was started.", &html! {
                p { "Point a client at it. For sccache, in the environment of the job:" }
                (blocks::command(&format!("SCCACHE_WEBDAV_ENDPOINT={}/SCOPE/-/dav SCCACHE_WEBDAV_TOKEN=…", view.address.trim_end_matches('/'))))
                p { "Every client has its page in " code { "docs/cache.md" } "." }
            }))
        } @else {
            (table(view))
        }
        @if !view.warm.is_empty() { (warm(&view.warm, shell.now)) }
    }
}

/// What was saved, at the price of a CPU.
fn money(view: &CacheView, saved: Option<Duration>) -> Markup {
    html! {
        @match (view.price_per_cpu_hour, saved) {
            (Some(price), Some(time)) => { "about " (price.for_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)).rounded()) }
            (Some(_), None) => { "not known yet" }
            (None, _) => { "no price is set" }
        }
    }
}

/// What is fetched before jobs come.
fn warm(things: &[CacheWarm], now: Timestamp) -> Markup {
    let standing = |it: &CacheWarm| match (&it.error, it.fetching, it.last_good) {
        (Some(_), ..) => Word::new(Tone::Bad, "failing"),
        (None, Some(_), _) => Word::new(Tone::Waiting, "is fetched"),
        (None, None, Some(_)) => Word::new(Tone::Good, "fresh"),
        (None, None, None) => Word::new(Tone::Waiting, "waits"),
    };
    html! {
        section.card {
            h2 { "Fetched before jobs come" }
            div.table-scroll { table.stack {
                thead { tr {
                    th scope="col" { "State" }
                    th scope="col" { "What" }
                    th scope="col" { "From" }
                    th scope="col" { "Takes" }
                    th scope="col" { "As of" }
                } }
                tbody { @for it in things { tr {
                    td data-label="State" { (standing(it).badge()) }
                    td data-label="What" { (words::visible(&it.kind)) div.sub { code { (words::visible(&it.path)) } } }
                    td data-label="From" { (words::visible(&it.source)) @if let Some(why) = &it.error { div.sub { (words::visible(why)) } } }
                    td.num data-label="Takes" { @match it.fetching { Some(done) if done > 0 => { (words::bytes(done)) " so far" } _ => { (words::bytes(it.bytes)) } } }
                    td data-label="As of" {
                        @match it.last_good { Some(at) => { (words::duration(now.since(at))) " ago" } None => { "never" } }
                        @if let Some(next) = it.next { div.sub { "again in " (words::duration(next.since(now))) } }
                    }
                } } }
            } }
        }
    }
}

fn cold(scope: &CacheScope) -> Markup {
    let Some(budget) = &scope.budget else { return html! {} };
    let code = format!("cache.{}", budget.cause.as_deref().unwrap_or("cold"));
    let why = Explanation::new(code, budget.text.clone());
    blocks::explanation(Tone::Warn, &format!("{} is cold", scope.scope), &why, None)
}

fn standing(budget: &CacheBudget) -> Word {
    match budget.state {
        CacheBudgetState::Met => Word::new(Tone::Good, "met"),
        CacheBudgetState::Missed => Word::new(Tone::Warn, "missed"),
        CacheBudgetState::Undecided => Word::new(Tone::Waiting, "too early to say"),
    }
}

fn table(view: &CacheView) -> Markup {
    html! {
        div.table-scroll { table.stack {
            thead { tr {
                th scope="col" { "Scope" }
                th scope="col" { "Hits" }
                th scope="col" { "Clients" }
                th scope="col" { "Own / above / missed" }
                th scope="col" { "Writes" }
                th scope="col" { "Holds" }
                th scope="col" { "Budget" }
            } }
            tbody { @for scope in &view.scopes { (row(scope)) } }
        } }
    }
}

fn row(scope: &CacheScope) -> Markup {
    let sum = |of: fn(&CacheTraffic) -> u64| scope.traffic.iter().map(of).fold(0, u64::saturating_add);
    let (found, reads, denied) = (sum(found), sum(CacheTraffic::reads), sum(|it| it.denied));
    let clients: Vec<&str> = scope.traffic.iter().map(|it| it.client.as_str()).collect();
    html! { tr {
        td data-label="Scope" { a href=(routes::cache_scope(&scope.scope, "")) { (words::visible(&scope.scope)) } }
        td data-label="Hits" { (meter(found, reads)) }
        td data-label="Clients" { (words::visible(&clients.join(", "))) }
        td.num data-label="Reads" { (sum(|it| it.hits)) " / " (sum(|it| it.parent_hits)) " / " (sum(|it| it.misses)) }
        td.num data-label="Writes" { (sum(|it| it.writes)) @if denied > 0 { div.sub { (denied) " denied" } } }
        td.num data-label="Holds" { (words::bytes(scope.bytes)) div.sub { (scope.entries) " entries" } }
        td data-label="Budget" { @match &scope.budget { Some(budget) => { (standing(budget).badge()) } None => { span.quiet-text { "none" } } } }
    } }
}

/// A share as a bar with its number.
fn meter(part: u64, whole: u64) -> Markup {
    let said = percent(part, whole);
    let wide = if whole == 0 { 0.0 } else { part as f64 * 60.0 / whole as f64 };
    html! {
        span.share {
            svg width="60" height="8" viewBox="0 0 60 8" aria-hidden="true" {
                rect.track width="60" height="8" rx="4" {}
                @if wide > 0.0 { rect.part width=(format!("{wide:.1}")) height="8" rx="4" {} }
            }
            span.num { (said) }
        }
    }
}

/// The last day: what hit and what was missed, in quarters of an hour.
fn chart(day: &[CacheMoment], now: Timestamp) -> Markup {
    let shown: Vec<&CacheMoment> =
        day.iter().filter(|moment| now.since(moment.at).as_secs() < DAY.unsigned_abs()).collect();
    if shown.is_empty() {
        return html! { p.quiet-text { "The chart of the last day begins with the first read." } };
    }
    let reads = |moment: &CacheMoment| moment.hits.saturating_add(moment.misses);
    let top = shown.iter().map(|moment| reads(moment)).max().unwrap_or(0).max(1);
    let height = |count: u64| count as f64 * HEIGHT / top as f64;
    let bar = |class: &str, moment: &CacheMoment, from: u64, count: u64| {
        let ago = now.as_micros().saturating_sub(moment.at.as_micros()) / 1_000_000;
        let x = (DAY - ago).max(0) as f64 / QUARTER as f64;
        html! {
            @if count > 0 {
                rect.(class) x=(format!("{x:.2}")) y=(format!("{:.2}", HEIGHT - height(from.saturating_add(count)))) width="0.9" height=(format!("{:.2}", height(count))) {}
            }
        }
    };
    let all =
        |of: fn(&CacheMoment) -> u64| shown.iter().map(|moment| of(moment)).fold(0, u64::saturating_add);
    let said = format!("The last day: {} reads hit, {} missed", all(|it| it.hits), all(|it| it.misses));
    html! {
        figure.day {
            div.plot {
                span.top { (top) }
                svg viewBox="0 0 96 40" preserveAspectRatio="none" width="100%" height="96" role="img" aria-label=(said) {
                    @for quarter in 1..4 { line.grid x1=(quarter * 24) x2=(quarter * 24) y1="0" y2="40" {} }
                    @for moment in &shown {
                        (bar("busy", moment, 0, moment.hits))
                        (bar("missed", moment, moment.hits, moment.misses))
                    }
                    line.base x1="0" x2="96" y1="40" y2="40" {}
                }
                div.hours { span { "24 h ago" } span { "18 h" } span { "12 h" } span { "6 h" } span { "now" } }
            }
            figcaption.legend {
                span { svg width="14" height="10" { rect.busy width="14" height="10" rx="2" {} } "hit" }
                span { svg width="14" height="10" { rect.missed width="14" height="10" rx="2" {} } "missed" }
            }
        }
    }
}

/// The page of one scope. Entries are shown to those who may remove them.
pub fn scope(shell: &Shell, scope: &CacheScope, prefix: &str, entries: Option<&CacheEntries>) -> Markup {
    page(
        shell,
        Tab::Cache,
        &scope.scope,
        &html! {
            (blocks::crumbs(&[("Cache", routes::CACHE)]))
            header.page-head {
                h1 { (words::visible(&scope.scope)) }
                @if let Some(budget) = scope.budget.as_ref().filter(|it| it.state != CacheBudgetState::Missed) {
                    p.lead { (standing(budget).badge()) " " (words::visible(&budget.text)) }
                }
            }
            @if scope.budget.as_ref().is_some_and(|it| it.state == CacheBudgetState::Missed) { (cold(scope)) }
            section.card {
                h2 { "Clients" }
                @if scope.traffic.is_empty() { p.quiet-text { "Nobody came since the cache was started." } }
                @else { (clients(&scope.traffic)) }
            }
            section.card {
                div.title-row { h2 { "Entries" } span.quiet-text { (scope.entries) ", " (words::bytes(scope.bytes)) } }
                @match entries {
                    None => { p.quiet-text { "Keys and their writers are shown to operators." } }
                    Some(entries) => { (listed(shell, scope, prefix, entries)) }
                }
            }
        },
    )
}

fn clients(traffic: &[CacheTraffic]) -> Markup {
    html! {
        div.table-scroll { table.stack {
            thead { tr {
                th scope="col" { "Client" }
                th scope="col" { "Hits" }
                th scope="col" { "Own" }
                th scope="col" { "Above" }
                th scope="col" { "Missed" }
                th scope="col" { "Writes" }
                th scope="col" { "Refused" }
                th scope="col" { "Sent" }
                th scope="col" { "Made in" }
            } }
            tbody { @for it in traffic { tr {
                td data-label="Client" { (words::visible(&it.client)) }
                td data-label="Hits" { (meter(found(it), it.reads())) }
                td.num data-label="Own" { (it.hits) }
                td.num data-label="Above" { (it.parent_hits) }
                td.num data-label="Missed" { (it.misses) }
                td.num data-label="Writes" { (it.writes) }
                td data-label="Refused" { (refused(it)) }
                td.num data-label="Sent" { (words::bytes(it.bytes_out)) }
                td.num data-label="Made in" { @match it.made_millis.checked_div(it.made) { Some(mean) => { (words::duration(Duration::from_millis(mean))) div.sub { "mean of " (it.made) } } None => { "–" } } }
            } } }
        } }
    }
}

fn refused(traffic: &CacheTraffic) -> Markup {
    let reasons = [
        (traffic.denied, "denied"),
        (traffic.mismatches, "other content"),
        (traffic.malformed, "malformed"),
        (traffic.failures, "failed"),
    ];
    html! {
        @if reasons.iter().all(|(count, _)| *count == 0) { "none" }
        @for (count, reason) in reasons.iter().filter(|(count, _)| *count > 0) { div { (count) " " (reason) } }
    }
}

fn listed(shell: &Shell, scope: &CacheScope, prefix: &str, entries: &CacheEntries) -> Markup {
    html! {
        form.ask method="get" action=(routes::CACHE_SCOPE) role="search" {
            input type="hidden" name="scope" value=(scope.scope);
            label { "Keys that begin with" input type="search" name="prefix" value=(prefix); }
            button.primary type="submit" { "Show" }
            @if !prefix.is_empty() { a.button.quiet href=(routes::cache_scope(&scope.scope, "")) { "Show all" } }
        }
        @if entries.entries.is_empty() {
            p.quiet-text { @if prefix.is_empty() { "It holds nothing." } @else { "No key begins so." } }
        } @else {
            div.table-scroll { table.stack {
                thead { tr {
                    th scope="col" { "Key" }
                    th scope="col" { "Size" }
                    th scope="col" { "Stored" }
                    th scope="col" { "By" }
                    th scope="col" { "Everything of this writer" }
                } }
                tbody { @for entry in &entries.entries { tr {
                    td data-label="Key" { code.guid { (words::visible(&entry.key)) } div.sub { (entry.kind) } }
                    td.num data-label="Size" { (words::bytes(entry.size)) }
                    td data-label="Stored" { (words::when(shell.now, entry.stored_at)) }
                    td data-label="By" { (words::visible(&entry.principal)) @if let Some(run) = &entry.run { div.sub { "run " (words::visible(run)) } } div.sub { (words::visible(&entry.client)) } }
                    td data-label="Everything of this writer" {
                        (blocks::action(shell, Role::Operator, routes::CACHE_REMOVE, "Remove", ButtonKind::Danger, &[("writer", entry.run.as_deref().unwrap_or(&entry.principal)), ("back", &scope.scope)]))
                    }
                } } }
            } }
            @if entries.of > entries.entries.len() as u64 {
                p.quiet-text { "The first " (entries.entries.len()) " of " (entries.of) "; a longer beginning shows others." }
            }
            div.actions {
                (blocks::action(shell, Role::Operator, routes::CACHE_REMOVE, &remove_label(prefix, entries.of), ButtonKind::Danger, &[("scope", &scope.scope), ("prefix", prefix), ("back", &scope.scope)]))
            }
        }
    }
}

fn remove_label(prefix: &str, of: u64) -> String {
    match prefix {
        "" => format!("Remove all {of} entries of this scope"),
        _ => format!("Remove these {of} entries"),
    }
}
