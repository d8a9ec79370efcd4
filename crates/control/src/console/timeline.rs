//! Where the time of a pipeline went: one row for each job (waiting, at work), and how long a GPU was leased against
//! the whole. Drawn in percent of the width, so it needs no script and fits every screen.

use super::{Names, routes, tone, words};
use forgeyard_api::people::PipelineView;
use forgeyard_model::Timestamp;
use forgeyard_model::job::Job;
use forgeyard_model::lease::Lease;
use maud::{Markup, html};
use std::time::Duration;

/// A part of the axis, in microseconds from its beginning.
type Part = (i64, i64);

/// How long devices were leased.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasedTime {
    /// From the pipeline's beginning to its end, or to now.
    pub total: Duration,
    /// Time in which at least one device was leased: from the claim to the site's confirmation of the end.
    pub leased: Duration,
    /// The parts, merged, in microseconds from the beginning.
    pub parts: Vec<(i64, i64)>,
}

/// Adds up the leases of a pipeline. Overlaps count once.
pub fn leased_time(view: &PipelineView, now: Timestamp) -> LeasedTime {
    let axis = Axis::of(view, now);
    let mut parts: Vec<Part> = view.leases.iter().map(|lease| axis.lease(lease)).collect();
    parts.sort_unstable();
    let mut merged: Vec<Part> = Vec::new();
    for (from, to) in parts {
        match merged.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => merged.push((from, to)),
        }
    }
    let micros: i64 = merged.iter().map(|(from, to)| to - from).sum();
    LeasedTime {
        total: Duration::from_micros(axis.length().unsigned_abs()),
        leased: Duration::from_micros(micros.unsigned_abs()),
        parts: merged,
    }
}

#[derive(Clone, Copy)]
struct Axis {
    from: Timestamp,
    to: Timestamp,
}

impl Axis {
    fn of(view: &PipelineView, now: Timestamp) -> Self {
        let from = view.pipeline.created_at;
        let last_lease = view.leases.iter().filter_map(|lease| lease.ended_at).max();
        let ended = view.pipeline.ended_at.map(|at| last_lease.map_or(at, |lease| at.max(lease)));
        Self { from, to: ended.unwrap_or(now).max(from) }
    }

    fn length(self) -> i64 {
        self.to.as_micros().saturating_sub(self.from.as_micros()).max(1)
    }

    fn at(self, at: Timestamp) -> i64 {
        at.as_micros().saturating_sub(self.from.as_micros()).clamp(0, self.length())
    }

    fn part(self, from: Timestamp, to: Option<Timestamp>) -> Part {
        let from = self.at(from);
        (from, self.at(to.unwrap_or(self.to)).max(from))
    }

    fn lease(self, lease: &Lease) -> Part {
        self.part(lease.claimed_at, lease.ended_at)
    }

    fn percent(self, micros: i64) -> String {
        format!("{:.2}%", micros as f64 * 100.0 / self.length() as f64)
    }

    fn bar(self, class: &str, part: Part, y: u32, height: u32, title: &str) -> Markup {
        html! {
            rect.(class) x=(self.percent(part.0)) y=(y) width=(self.percent(part.1 - part.0)) height=(height) rx="2" {
                title { (title) }
            }
        }
    }
}

/// The whole card.
pub fn timeline(view: &PipelineView, names: &Names, now: Timestamp) -> Markup {
    let axis = Axis::of(view, now);
    let time = leased_time(view, now);
    let share = time.leased.as_micros() * 100 / time.total.as_micros().max(1);
    let mut devices: Vec<String> =
        view.leases.iter().flat_map(|lease| &lease.devices).map(|device| names.device(*device)).collect();
    devices.sort();
    devices.dedup();
    html! {
        section.card.times {
            h2 { "Time" }
            p.summary {
                @if view.leases.is_empty() {
                    "No GPU was leased in " (words::duration(time.total)) "."
                } @else {
                    "A GPU was leased for " strong { (words::duration(time.leased)) } " of "
                    strong { (words::duration(time.total)) } " (" (share) " %): " (devices.join(", ")) "."
                }
            }
            div.rows {
                @if !time.parts.is_empty() {
                div.row.whole {
                    span.label { "GPU leased" }
                    svg.bar width="100%" height="18" role="img" aria-label={ "GPU leased " (share) " percent of the time" } {
                        (axis.bar("free", (0, axis.length()), 3, 12, "no GPU leased"))
                        @for part in &time.parts {
                            (axis.bar("gpu", *part, 3, 12, &format!(
                                "leased for {}", words::duration(Duration::from_micros((part.1 - part.0).unsigned_abs()))
                            )))
                        }
                    }
                    span.value { (words::duration(time.leased)) }
                }
                }
                @for job in &view.jobs { (row(view, job, axis, now)) }
            }
            p.legend {
                span { svg width="14" height="10" { rect.wait width="14" height="10" rx="2" {} } "waiting" }
                span { svg width="14" height="10" { rect.work width="14" height="10" rx="2" {} } "on a machine" }
                span { svg width="14" height="10" { rect.gpu width="14" height="10" rx="2" {} } "GPU leased" }
            }
        }
    }
}

fn row(view: &PipelineView, job: &Job, axis: Axis, now: Timestamp) -> Markup {
    let attempts: Vec<_> = view.attempts.iter().filter(|attempt| attempt.job == job.id).collect();
    let work: Duration =
        attempts.iter().map(|attempt| attempt.ended_at.unwrap_or(now).since(attempt.placed_at)).sum();
    let word = tone::job(&job.state);
    html! {
        div.row {
            span.label { (word.tone.icon()) a href=(routes::job(job.id)) { (job.key) } span.sr { (word.text) } }
            svg.bar width="100%" height="18" role="img"
                aria-label={ (job.key) " " (word.text) ", " (words::duration(work)) " on machines" } {
                (axis.bar("wait", axis.part(job.created_at, job.ended_at), 7, 4, "from the job's beginning to its end"))
                @for attempt in &attempts {
                    (axis.bar(
                        &format!("work {}", tone::attempt(attempt.state, attempt.outcome).tone.class()),
                        axis.part(attempt.placed_at, attempt.ended_at), 3, 12,
                        &format!("attempt {}", attempt.fence),
                    ))
                    @for lease in view.leases.iter().filter(|lease| lease.attempt == Some(attempt.id)) {
                        (axis.bar("gpu", axis.lease(lease), 12, 5, "GPU leased"))
                    }
                }
            }
            span.value { @if attempts.is_empty() { "–" } @else { (words::duration(work)) } }
        }
    }
}
