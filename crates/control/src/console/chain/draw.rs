//! From a laid-out chain to a picture, and the same chain as a list for narrow screens and for listeners.

use super::graph::{Graph, Node, Stage, Time};
use super::layout::{COLUMN_GAP, Layout, NODE_HEIGHT, NODE_WIDTH, Point};
use crate::console::tone::Tone;
use crate::console::words;
use forgeyard_model::Timestamp;
use maud::{Markup, html};
use std::fmt::Write as _;

/// Characters of a title that fit beside the icon.
const TITLE_CHARS: usize = 16;
/// Characters of the lines below.
const LINE_CHARS: usize = 21;
/// Up to this many columns the picture shrinks to the page; beyond, it scrolls.
const FITTING_COLUMNS: usize = 8;

/// The picture.
pub fn picture(graph: &Graph, layout: &Layout, now: Timestamp) -> Markup {
    let fit = layout.columns <= FITTING_COLUMNS;
    html! {
        div.chain-scroll tabindex="0" role="group" aria-label="Picture of the chain" {
            svg.chain.fit[fit] width=(layout.width) height=(layout.height)
                viewBox={ "0 0 " (layout.width) " " (layout.height) } {
                @for heading in &layout.headings {
                    text.stage x=(heading.x + 2.0) y="16" {
                        (heading.stages.iter().map(|stage| stage.title()).collect::<Vec<_>>().join(", "))
                    }
                }
                @for line in &layout.lines {
                    @let edge = graph.edges[line.edge];
                    g.edge.(edge_class(&graph.nodes[edge.from], &graph.nodes[edge.to])) {
                        path d=(path(&line.points)) {}
                        polygon points=(arrow(&line.points)) {}
                    }
                }
                @for (node, place) in graph.nodes.iter().zip(&layout.places) {
                    @match &node.href {
                        Some(href) => { a href=(href) { (drawn(node, *place, now)) } }
                        None => { (drawn(node, *place, now)) }
                    }
                }
            }
        }
    }
}

/// What a line says: the way was taken, is being taken, or is still ahead.
fn edge_class(from: &Node, to: &Node) -> &'static str {
    match (from.word.tone, to.word.tone) {
        (Tone::Good, Tone::Idle) => "ahead",
        (Tone::Good, Tone::Active) => "now",
        (Tone::Good, _) => "done",
        _ => "ahead",
    }
}

fn drawn(node: &Node, place: Point, now: Timestamp) -> Markup {
    let Point { x, y } = place;
    let time = time_text(node.time, now);
    html! {
        g.node.(node.word.tone.class()).ghost[node.ghost] {
            title { (spoken(node, now)) }
            rect.box x=(x) y=(y) width=(NODE_WIDTH) height=(NODE_HEIGHT) rx="8" {}
            rect.edge-mark x=(x) y=(y + 10.0) width="3" height=(NODE_HEIGHT - 20.0) rx="1.5" {}
            (node.word.tone.icon_at(x + 11.0, y + 9.0))
            text.name x=(x + 33.0) y=(y + 22.0) { (cut(&node.title, TITLE_CHARS)) }
            text.state x=(x + 12.0) y=(y + 43.0) {
                tspan.word { (node.word.text) }
                @if let Some(time) = &time {
                    tspan.dot { " · " }
                    tspan.time data-since=[since(node.time)] { (time) }
                }
            }
            @if !node.detail.is_empty() {
                text.detail x=(x + 12.0) y=(y + 60.0) { (cut(&node.detail, LINE_CHARS)) }
            }
        }
    }
}

fn since(time: Time) -> Option<i64> {
    match time {
        Time::Since(at) => Some(at.as_micros() / 1000),
        Time::None | Time::Took(_) => None,
    }
}

fn time_text(time: Time, now: Timestamp) -> Option<String> {
    match time {
        Time::None => None,
        Time::Took(span) => Some(words::duration(span)),
        Time::Since(at) => Some(words::duration(now.since(at))),
    }
}

/// A node in one sentence.
fn spoken(node: &Node, now: Timestamp) -> String {
    let mut text = format!("{}: {} {}", node.stage.title(), node.title, node.word.text);
    if let Some(time) = time_text(node.time, now) {
        let _ = write!(text, ", {time}");
    }
    if !node.detail.is_empty() {
        let _ = write!(text, ", {}", node.detail);
    }
    text
}

fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut out: String = text.chars().take(most - 1).collect();
    out.push('…');
    out
}

/// Curves between columns, straight through lanes.
fn path(points: &[Point]) -> String {
    let mut out = String::new();
    for (index, point) in points.iter().enumerate() {
        // Points come in pairs: odd ones end a curve (or the way down in a folded column), even ones a straight lane.
        let _ = match (index, index.checked_sub(1).and_then(|before| points.get(before))) {
            (0, _) | (_, None) => write!(out, "M{} {}", point.x, point.y),
            (index, Some(from)) if index % 2 == 1 && from.x != point.x => {
                let bend = COLUMN_GAP / 2.0;
                let (a, b) = (from.x + bend, point.x - bend);
                write!(out, "C{a} {} {b} {} {} {}", from.y, point.y, point.x, point.y)
            }
            _ => write!(out, "L{} {}", point.x, point.y),
        };
    }
    out
}

fn arrow(points: &[Point]) -> String {
    let Some(Point { x, y }) = points.last().copied() else { return String::new() };
    match points {
        [from, _] if from.x == x => format!("{},{} {},{} {},{}", x - 3.5, y - 6.0, x, y, x + 3.5, y - 6.0),
        _ => format!("{},{} {},{} {},{}", x - 6.0, y - 3.5, x, y, x - 6.0, y + 3.5),
    }
}

/// The chain as a list by stages.
pub fn list(graph: &Graph, now: Timestamp) -> Markup {
    html! {
        ol.chain-list {
            @for stage in Stage::ALL {
                @let nodes: Vec<(usize, &Node)> =
                    graph.nodes.iter().enumerate().filter(|(_, node)| node.stage == stage).collect();
                @if !nodes.is_empty() {
                    li {
                        span.stage { (stage.title()) }
                        ul {
                            @for (index, node) in nodes {
                                li.(node.word.tone.class()).ghost[node.ghost] { (listed(graph, index, node, now)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn listed(graph: &Graph, index: usize, node: &Node, now: Timestamp) -> Markup {
    let after: Vec<&str> = graph
        .edges
        .iter()
        .filter(|edge| {
            edge.to == index && graph.nodes[edge.from].stage == Stage::Builds && node.stage == Stage::Builds
        })
        .map(|edge| graph.nodes[edge.from].title.as_str())
        .collect();
    html! {
        (node.word.tone.icon())
        span.name {
            @match &node.href {
                Some(href) => { a href=(href) { (node.title) } }
                None => { (node.title) }
            }
        }
        span.state {
            (node.word.text)
            @if let Some(time) = time_text(node.time, now) {
                " · " span data-since=[since(node.time)] { (time) }
            }
        }
        @if !node.detail.is_empty() || !after.is_empty() {
            span.detail {
                (node.detail)
                @if !after.is_empty() {
                    @if !node.detail.is_empty() { " · " }
                    "after " (after.join(", "))
                }
            }
        }
    }
}
