//! The log of a job: a window of lines around the decisive one, with numbers that can be linked to.
//!
//! The server gives the window; the script fetches more in both directions from `/api/v1/jobs/ID/log` and keeps a
//! bounded number of lines. `first` and `start` name the window's first line by number and by byte, `next` is the byte
//! behind its last line.

use super::words;
use maud::{Markup, html};

/// A window of a log.
#[derive(Debug, Clone, Default)]
pub struct LogWindow {
    /// Number of the first line, from 1.
    pub first: u64,
    /// Byte of the log at which the first line begins.
    pub start: u64,
    /// The lines, without their ends.
    pub lines: Vec<String>,
    /// Byte behind the last line.
    pub next: u64,
    /// Number of the decisive line; the view opens there.
    pub decisive: Option<u64>,
    /// The log will not grow beyond `next`.
    pub complete: bool,
    /// Bytes that were dropped because of the cap.
    pub dropped: u64,
}

/// Whether a log grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Growth {
    /// The job has not begun.
    Before,
    /// The job is on a machine.
    Now,
    /// The job is over.
    Over,
}

/// The viewer. `source` is the address of the pieces.
pub fn viewer(window: &LogWindow, source: &str, growth: Growth) -> Markup {
    let running = growth == Growth::Now;
    let absent = window.lines.is_empty() && !running;
    html! {
        section.card.log-card #log {
            div.log-head {
                h2 { "Log" }
                @if !absent { div.log-tools {
                    @if let Some(line) = window.decisive {
                        a.button.quiet href={ "#L" (line) } { "Decisive line " (line) }
                    }
                    @if running { span.following data-follow-state="" { "following" } }
                    label.check hidden data-needs-script="" {
                        input type="checkbox" data-wrap="" checked; "wrap lines"
                    }
                    a.button.quiet href={ (source) "?offset=0&raw=1" } download { "Download" }
                } }
            }
            @if absent && growth == Growth::Before {
                p.quiet-text { "None yet: it begins with the first step. The reason above says what the job waits for." }
            } @else if absent {
                p.quiet-text { "This job wrote no log: no step of it ran. The reason above says why." }
            } @else {
                div.log tabindex="0" role="log" aria-label="Log of the job" aria-live="off"
                    data-source=(source) data-start=(window.start) data-next=(window.next) data-first=(window.first)
                    data-complete[window.complete] data-running[running] data-decisive=[window.decisive] {
                    @if window.start > 0 {
                        button.earlier type="button" hidden data-earlier="" { "Show earlier lines" }
                    }
                    @for (number, text) in (window.first..).zip(&window.lines) {
                        (line(number, text, window.decisive == Some(number)))
                    }
                    @if window.lines.is_empty() { p.log-empty { "Nothing yet. Lines appear here as they are written." } }
                }
            }
            @if window.dropped > 0 {
                p.quiet-text { (words::bytes(window.dropped)) " of this log were dropped, because it grew beyond the cap." }
            }
        }
    }
}

/// One line with its number.
pub fn line(number: u64, text: &str, decisive: bool) -> Markup {
    html! {
        div.ll.decisive[decisive] id={ "L" (number) } {
            a.ln href={ "#L" (number) } data-n=(number) aria-label={ "line " (number) } {}
            span.lt { (words::visible(text)) }
        }
    }
}
