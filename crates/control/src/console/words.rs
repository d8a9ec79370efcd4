//! Times, sizes, ids and foreign text, as people read them.

use forgeyard_model::artifact::ArtifactKind;
use forgeyard_model::forge::{ForgeEvent, Trigger};
use forgeyard_model::{Digest, Lane, Timestamp};
use maud::{Markup, html};
use std::fmt::Display;
use std::time::Duration;

/// A span of time, with at most two units: `0.4 s`, `42 s`, `3 min 12 s`, `1 h 04 min`, `2 d 3 h`.
pub fn duration(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0..=9 => format!("{}.{} s", seconds, span.subsec_millis() / 100),
        10..=59 => format!("{seconds} s"),
        60..=3599 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        3600..=86_399 => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// How long ago: `just now`, `42 s ago`, `3 min ago`, `5 h ago`, `2 d ago`.
pub fn ago(now: Timestamp, then: Timestamp) -> String {
    let seconds = now.since(then).as_secs();
    match seconds {
        0..=4 => "just now".to_owned(),
        5..=59 => format!("{seconds} s ago"),
        60..=3599 => format!("{} min ago", seconds / 60),
        3600..=86_399 => format!("{} h ago", seconds / 3600),
        _ => format!("{} d ago", seconds / 86_400),
    }
}

/// Date and time of day, UTC: `2026-03-04 05:06:07`.
pub fn stamp(at: Timestamp) -> String {
    let text = at.to_string();
    match text.split_once('T') {
        Some((date, time)) => format!("{date} {}", time.get(..8).unwrap_or(time)),
        None => text,
    }
}

/// An instant relative to now; the exact one on hover. The script keeps the text fresh.
pub fn when(now: Timestamp, at: Timestamp) -> Markup {
    html! { time datetime=(at) title={ (stamp(at)) " UTC" } data-ago=(at.as_micros() / 1000) { (ago(now, at)) } }
}

/// An exact instant.
pub fn exact(at: Timestamp) -> Markup {
    html! { time datetime=(at) { (stamp(at)) } }
}

/// A span from one instant to another, or one that still grows.
pub fn span(from: Timestamp, to: Option<Timestamp>, now: Timestamp) -> Markup {
    match to {
        Some(to) => html! { span.num { (duration(to.since(from))) } },
        None => html! {
            span.num data-since=(from.as_micros() / 1000) { (duration(now.since(from))) }
        },
    }
}

/// A size in bytes, in binary units.
pub fn bytes(size: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut whole = size;
    let mut tenth = 0;
    while whole >= 1024 && unit + 1 < UNITS.len() {
        tenth = whole % 1024 * 10 / 1024;
        whole /= 1024;
        unit += 1;
    }
    if unit == 0 || whole >= 100 {
        format!("{whole} {}", UNITS[unit])
    } else {
        format!("{whole}.{tenth} {}", UNITS[unit])
    }
}

/// An id, shortened to its kind and its last eight characters, whole on hover.
pub fn id(id: impl Display) -> Markup {
    let whole = id.to_string();
    html! { code.id title=(whole) { (short_id(&whole)) } }
}

/// Kind and last eight characters of an id.
pub fn short_id(whole: &str) -> String {
    let tail = |text: &str| {
        let skip = text.chars().count().saturating_sub(8);
        text.chars().skip(skip).collect::<String>()
    };
    match whole.split_once('_') {
        Some((kind, body)) if body.chars().count() > 10 => format!("{kind}…{}", tail(body)),
        _ => whole.to_owned(),
    }
}

/// A digest, shortened, with a button that copies the whole.
pub fn digest(digest: &Digest) -> Markup {
    html! {
        span.digest {
            code title=(digest) { (digest.short()) "…" }
            button.copy type="button" data-copy=(digest) aria-label={ "copy digest " (digest.short()) } { "copy" }
        }
    }
}

/// A commit, cut to ten characters.
pub fn commit(sha: &str) -> Markup {
    html! { code title=(sha) { (sha.chars().take(10).collect::<String>()) } }
}

/// How far an event is trusted, with what follows from it.
pub fn lane(lane: Lane) -> Markup {
    let meaning = match lane {
        Lane::ForkPr => "reads shared caches, writes only to its own; never promoted",
        Lane::SameRepoPr => "never promoted",
        Lane::Protected => "may be promoted to a channel",
    };
    html! { span.lane.(lane.as_str()) title=(meaning) { (lane_word(lane)) } }
}

/// Short word for a lane.
pub const fn lane_word(lane: Lane) -> &'static str {
    match lane {
        Lane::ForkPr => "fork PR",
        Lane::SameRepoPr => "same-repo PR",
        Lane::Protected => "protected ref",
    }
}

/// What an event was, in a few words.
pub fn trigger(event: &ForgeEvent) -> String {
    match &event.trigger {
        Trigger::Push { git_ref } => {
            format!("push to {}", git_ref.strip_prefix("refs/heads/").unwrap_or(git_ref))
        }
        Trigger::PullRequest { number, base, fork, .. } => {
            format!("pull request #{number} to {base}{}", if *fork { " from a fork" } else { "" })
        }
        Trigger::Manual => "handed in by hand".to_owned(),
    }
}

/// What an artifact is.
pub const fn artifact_kind(kind: ArtifactKind) -> &'static str {
    match kind {
        ArtifactKind::Source => "source tree",
        ArtifactKind::Plan => "rendered plan",
        ArtifactKind::CondaPackage => "conda package",
        ArtifactKind::EnvironmentLock => "environment lock",
        ArtifactKind::Report => "report",
    }
}

/// One line of foreign text made fit to look at: terminal codes are dropped, text before a carriage return is
/// overwritten as a terminal would, and control characters that could hide or reorder text are spelled out.
pub fn visible(line: &str) -> String {
    let bare = strip_terminal_codes(line);
    let trimmed = bare.trim_end_matches(['\r', '\n']);
    let last = trimmed.rsplit('\r').next().unwrap_or(trimmed);
    let mut out = String::with_capacity(last.len());
    for c in last.chars() {
        match c {
            '\t' => out.push('\t'),
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{061c}' => {
                out.push_str(&format!("<U+{:04X}>", u32::from(c)));
            }
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Removes escape sequences (ECMA-48): control sequences, operating-system commands, and two-character escapes. A
/// sequence that is cut off at the end is removed as well.
pub fn strip_terminal_codes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let introducer = match c {
            '\u{1b}' => rest.next(),
            '\u{9b}' => Some('['),
            '\u{9d}' => Some(']'),
            _ => {
                out.push(c);
                continue;
            }
        };
        match introducer {
            // Control sequence: parameters, then one final byte from `@` to `~`.
            Some('[') => {
                for c in rest.by_ref() {
                    if ('@'..='~').contains(&c) {
                        break;
                    }
                }
            }
            // A string (title, hyperlink): up to BEL or ESC `\`.
            Some(']' | 'P' | 'X' | '^' | '_') => {
                while let Some(c) = rest.next() {
                    if c == '\u{7}' || c == '\u{9c}' {
                        break;
                    }
                    if c == '\u{1b}' {
                        rest.next_if_eq(&'\\');
                        break;
                    }
                }
            }
            // Intermediate bytes, then one final byte.
            Some(' '..='/') => {
                for c in rest.by_ref() {
                    if !(' '..='/').contains(&c) {
                        break;
                    }
                }
            }
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spans_have_at_most_two_units() {
        let cases = [
            (400, "0.4 s"),
            (9_990, "9.9 s"),
            (42_000, "42 s"),
            (192_000, "3 min 12 s"),
            (3_840_000, "1 h 04 min"),
            (183_600_000, "2 d 3 h"),
        ];
        for (millis, text) in cases {
            assert_eq!(duration(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn sizes_are_in_binary_units() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (4_811_236, "4.5 MiB"),
            (188_416, "184 KiB"),
            (u64::MAX, "16777215 TiB"),
        ];
        for (size, text) in cases {
            assert_eq!(bytes(size), text);
        }
    }

    #[test]
    fn terminal_codes_vanish_and_progress_bars_show_their_last_state() {
        let cases = [
            ("\u{1b}[1m\u{1b}[31mred\u{1b}[0m", "red"),
            ("\u{1b}]0;title\u{7}text", "text"),
            ("\u{1b}]8;;https://example.org\u{1b}\\link\u{1b}]8;;\u{1b}\\", "link"),
            ("\u{1b}(Bplain", "plain"),
            ("10%\r50%\r100%\r\n", "100%"),
            ("cut \u{1b}[3", "cut "),
            ("a\u{202e}b", "a<U+202E>b"),
            ("bell\u{7}", "bell\u{fffd}"),
            ("tab\tstays", "tab\tstays"),
        ];
        for (raw, shown) in cases {
            assert_eq!(visible(raw), shown, "{raw:?}");
        }
    }

    proptest! {
        #[test]
        fn no_line_keeps_a_code_that_moves_or_hides_text(line in any::<String>()) {
            let shown = visible(&line);
            prop_assert!(shown.chars().all(|c| !c.is_control() || c == '\t'), "{shown:?}");
            let reordering = ['\u{202e}', '\u{2066}'];
            prop_assert!(!shown.contains(reordering));
        }

        #[test]
        fn plain_text_is_shown_as_it_is(line in "[ -~äöüß…→]*") {
            prop_assert_eq!(visible(&line), line);
        }

        #[test]
        fn a_query_value_cannot_leave_its_place(text in any::<String>()) {
            let quoted = crate::console::routes::query(&text);
            prop_assert!(quoted.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.~%".contains(&b)));
        }
    }
}
