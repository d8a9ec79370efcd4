//! Lines of a log: what is taken off before rules look at them, and which lines only look fatal.

use regex::{Regex, RegexSet};
use std::sync::LazyLock;

/// Most bytes of one line that rules look at, and that are kept as evidence.
const LONGEST: usize = 2000;

/// Escape sequences of terminals: colours, cursor movements, titles and hyperlinks.
static ANSI: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])").ok());

/// What loggers put before a line: time stamps of CI systems, the kernel's clock, `dmesg` levels, markers.
static PREFIX: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(concat!(
        r"^\x{feff}?(?:",
        r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)? ",
        r"|\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\] ",
        r"|\[ *\d+\.\d{3,6}\] ",
        r"|(?:kern|user|daemon|syslog) *:(?:emerg|alert|crit|err|warn|notice|info|debug) *: ",
        r"|##\[(?:error|warning|debug|command)\]",
        r")+"
    ))
    .ok()
});

/// Lines that look fatal and are not. Each has misled somebody.
static HARMLESS: LazyLock<RegexSet> = LazyLock::new(|| {
    RegexSet::new([
        // Start of a cache client that may only read.
        r"storage write check failed",
        // Uploads of reports after the work is over.
        r"Failed to parse and upload json test reports",
        r"Error uploading metric",
        // Probes of configure scripts.
        r"^-- (Could NOT find|Performing Test .* - Failed|Looking for .* - not found)",
        r"^checking .*\.\.\. no$",
        // Network cards that a guest may not read fully, and cables that are plugged in.
        r"mlx5_cmd_out_err.*ACCESS_REG",
        r"Port module event",
        r"SXid \(PCI:[^)]*\): \d+, Non-fatal",
        // A transport that falls back to another.
        r"NCCL INFO .*(failed|Failed)",
        // Expected failures of test frameworks.
        r"\bXFAIL\b|\bxfailed\b|\(expected failure\)|expected failure",
        // TensorRT is optional; a missing NUMA file means one node.
        r"Could not load dynamic library 'libnvinfer",
        r"successful NUMA node read from SysFS had negative value",
        // Another source is asked next.
        r"^warning: ignoring substitute",
        r"^error \(ignored\):",
    ])
    .unwrap_or_else(|_| RegexSet::empty())
});

static RETRYING: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"(?i)\bretrying\b|\bwill retry\b|\btrying again\b").ok());
static LAST_TRY: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"attempt (\d+)(?:/| of )(\d+)").ok());

/// A line as rules see it: without escape sequences, logger prefixes and white space at its end, cut to a bound.
pub fn normalise(line: &str) -> String {
    let mut end = line.len().min(LONGEST * 2);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    let line = &line[..end];
    let plain = match ANSI.as_ref() {
        Some(ansi) if line.contains('\u{1b}') => ansi.replace_all(line, ""),
        _ => line.into(),
    };
    // A progress bar overwrites its line; what stands last is what was seen.
    let plain = plain.trim_end();
    let plain = plain.rsplit('\r').next().unwrap_or(plain);
    let start = PREFIX.as_ref().and_then(|prefix| prefix.find(plain)).map_or(0, |found| found.end());
    let mut end = plain.len().min(start + LONGEST);
    while !plain.is_char_boundary(end) {
        end -= 1;
    }
    plain.get(start..end).unwrap_or_default().to_owned()
}

/// Whether a normalised line only looks fatal.
pub(super) fn harmless(line: &str) -> bool {
    HARMLESS.is_match(line)
}

/// Whether a normalised line announces another try of the same thing, so that it is no failure by itself.
pub(super) fn retrying(line: &str) -> bool {
    let announces = RETRYING.as_ref().is_some_and(|regex| regex.is_match(line));
    announces && !last_try(line)
}

fn last_try(line: &str) -> bool {
    let Some(found) = LAST_TRY.as_ref().and_then(|regex| regex.captures(line)) else { return false };
    let number = |group| found.get(group).and_then(|text| text.as_str().parse::<u64>().ok());
    matches!((number(1), number(2)), (Some(this), Some(all)) if this >= all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn prefixes_and_colours_are_taken_off() {
        let cases = [
            ("2026-07-29T19:59:45.5529348Z \u{1b}[31m  ERROR: x\u{1b}[0m\u{1b}[31m", "  ERROR: x"),
            ("2026-07-30T10:39:20.7140484Z ##[error]Failed", "Failed"),
            ("[Sun Feb 23 16:24:18 2025] NVRM: Xid", "NVRM: Xid"),
            ("[  123.456789] NVRM: Xid", "NVRM: Xid"),
            ("kern  :warn  : 2025-01-21T04:41:44,283302+00:00 NVRM: Xid", "NVRM: Xid"),
            ("50%\r100%\rdone\r\n", "done"),
            ("\u{1b}]8;;http://x\u{7}link\u{1b}]8;;\u{7} end", "link end"),
            ("plain", "plain"),
        ];
        for (line, expected) in cases {
            assert_eq!(normalise(line), expected, "{line:?}");
        }
    }

    #[test]
    fn every_pattern_of_this_file_compiles() {
        assert!(ANSI.is_some() && PREFIX.is_some() && RETRYING.is_some() && LAST_TRY.is_some());
        assert!(!HARMLESS.is_empty());
    }

    #[test]
    fn announced_retry_is_no_failure_unless_it_is_the_last() {
        assert!(retrying("unable to download 'x': HTTP error 502; retrying in 329 ms"));
        assert!(retrying("unable to download 'x': HTTP error 502; retrying in 329 ms (attempt 2/5)"));
        assert!(!retrying("unable to download 'x': HTTP error 502; retrying (attempt 5/5)"));
        assert!(!retrying("unable to download 'x': HTTP error 502"));
    }

    proptest! {
        #[test]
        fn any_line_is_bounded(line in ".{0,6000}") {
            prop_assert!(normalise(&line).len() <= LONGEST);
        }
    }
}
