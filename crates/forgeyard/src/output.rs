//! What people see: errors with what, where and what to do; tables that fit a terminal; the same as JSON for programs.
//!
//! Exit codes, for every command: 0 done; 1 it did not succeed; 2 the command line, a file that it names or the
//! configuration is wrong; 3 the farm refused; 4 there was no answer from the farm.

use anyhow::Result;
use forgeyard_api::client::ClientError;
use forgeyard_model::{Explanation, Timestamp};
use serde::Serialize;
use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::process::ExitCode;

/// The farm refused.
const REFUSED: u8 = 3;
/// There was no answer.
const NO_ANSWER: u8 = 4;
/// What was asked for cannot be meant.
const WRONG: u8 = 2;
/// Width of a table where there is no terminal.
const WIDTH: usize = 100;
/// Narrowest last column that is worth showing.
const NARROWEST: usize = 12;

/// The command line, a file that it names or the configuration is wrong.
#[derive(Debug)]
pub struct Wrong {
    what: String,
    fix: Option<String>,
}

impl Wrong {
    /// Says what is wrong.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), fix: None }
    }

    /// What to do about it, when that is known.
    pub fn how(&self) -> Option<&str> {
        self.fix.as_deref()
    }

    /// Says what to do about it.
    #[must_use]
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Wrong {}

/// Prints an error with its causes and answers the exit code that belongs to it.
pub fn failure(error: &anyhow::Error) -> ExitCode {
    let broken_pipe = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
    };
    if error.chain().any(broken_pipe) {
        // The reader of our output has seen enough (`| head`): that is no trouble.
        return ExitCode::SUCCESS;
    }
    if let Some(ClientError::Refused { call, error }) = error.downcast_ref::<ClientError>() {
        eprintln!("error: {}", error.explanation());
        eprintln!("  at: {call}");
        return ExitCode::from(REFUSED);
    }
    eprintln!("error: {error}");
    let mut said = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        // Some libraries repeat their cause in their own text.
        if !said.ends_with(&cause) {
            eprintln!("  because: {cause}");
        }
        said = cause;
    }
    if let Some(wrong) = error.downcast_ref::<Wrong>() {
        if let Some(fix) = &wrong.fix {
            eprintln!("  fix: {fix}");
        }
        return ExitCode::from(WRONG);
    }
    match error.downcast_ref::<ClientError>() {
        Some(ClientError::Transport { .. }) => {
            eprintln!("  fix: see that the farm runs, and name it with --farm or FORGEYARD_URL");
            ExitCode::from(NO_ANSWER)
        }
        Some(ClientError::Setup { .. }) => ExitCode::from(WRONG),
        _ => ExitCode::FAILURE,
    }
}

/// An error with its causes, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text = format!("{text}: {source}");
        cause = source.source();
    }
    text
}

/// Writes to standard output and ends the line. Unlike `println!` it does not panic when nobody reads any more.
pub fn say(text: &str) -> Result<()> {
    say_raw(text)?;
    if text.ends_with('\n') { Ok(()) } else { say_raw("\n") }
}

/// Writes a text to standard output as it is.
pub fn say_raw(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Writes a value as JSON to standard output.
pub fn say_json(value: &impl Serialize) -> Result<()> {
    say(&serde_json::to_string_pretty(value)?)
}

/// Writes a value as JSON, or what `text` makes of it.
pub fn show<T: Serialize>(json: bool, value: &T, text: impl FnOnce(&T) -> String) -> Result<ExitCode> {
    if json {
        say_json(value)?;
    } else {
        say(&text(value))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// An explanation as text, every line after the first indented by as much.
pub fn indented(reason: &Explanation, by: usize) -> String {
    reason.to_string().replace('\n', &format!("\n{:by$}", ""))
}

/// Columns that a line may take: of the terminal, of `COLUMNS`, or 100.
pub fn width() -> usize {
    let named = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let of_terminal = || {
        std::io::stdout().is_terminal().then(terminal_size::terminal_size)?.map(|(width, _)| width.0.into())
    };
    named.or_else(of_terminal).unwrap_or(WIDTH).max(40)
}

/// Rows under headings, or one line that says that there are none.
pub fn table_or(none: &str, headings: &[&str], rows: &[Vec<String>]) -> String {
    if rows.is_empty() { format!("{none}\n") } else { table(headings, rows) }
}

/// Rows under headings, each column as wide as its widest cell; the last column is cut to what is left of the line.
/// Ids and digests therefore never stand in the last column.
pub fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    table_within(width(), headings, rows)
}

fn table_within(width: usize, headings: &[&str], rows: &[Vec<String>]) -> String {
    let columns = headings.len();
    let mut widths: Vec<usize> = headings.iter().map(|heading| heading.chars().count()).collect();
    for row in rows {
        for (known, cell) in widths.iter_mut().zip(row) {
            *known = (*known).max(cell.chars().count());
        }
    }
    if let Some((last, before)) = widths.split_last_mut() {
        let taken: usize = before.iter().map(|width| width + 2).sum();
        *last = (*last).min(width.saturating_sub(taken).max(NARROWEST));
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::new();
        for (column, (cell, width)) in cells.zip(&widths).enumerate() {
            if column + 1 == columns {
                text.push_str(&shortened(cell, *width));
            } else {
                text.push_str(&format!("{cell:width$}  "));
            }
        }
        text.trim_end().to_owned() + "\n"
    };
    let mut text = line(&mut headings.iter().copied());
    let rules: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    text.push_str(&line(&mut rules.iter().map(String::as_str)));
    for row in rows {
        text.push_str(&line(&mut row.iter().map(String::as_str)));
    }
    text
}

/// The first line of a text, cut to as many characters.
pub fn shortened(text: &str, width: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() <= width {
        return line.to_owned();
    }
    let mut cut: String = line.chars().take(width.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

/// A duration for people.
pub fn seconds(from: Timestamp, to: Timestamp) -> String {
    format!("{:.1} s", to.since(from).as_secs_f64())
}

/// An instant for people: UTC, to the second.
pub fn at(time: Timestamp) -> String {
    let text = time.to_string();
    // Years beyond 9999 make the text longer; what is cut is only ever the milliseconds.
    text.split_once('.').map_or_else(|| text.clone(), |(seconds, _)| format!("{seconds}Z"))
}

/// A number of bytes for people.
pub fn bytes(count: u64) -> String {
    let mut value = count as f64;
    let mut units = ["B", "KiB", "MiB", "GiB"].into_iter();
    let mut unit = units.next().unwrap_or("B");
    while value >= 1024.0 {
        let Some(next) = units.next() else { break };
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" { format!("{count} B") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_fits_the_line_and_cuts_only_its_last_column() {
        let id = "job_01hcvt6q000000000000000000".to_owned();
        let text = table_within(
            60,
            &["job", "what"],
            &[vec![id.clone(), "x".repeat(200)], vec![id.clone(), "short\nsecond line".to_owned()]],
        );
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
        assert_eq!(text.matches(&id).count(), 2);
        assert!(text.contains("x…") && text.contains("short\n") && !text.contains("second line"), "{text}");
    }

    #[test]
    fn figures_are_for_people() {
        assert_eq!(
            [bytes(0), bytes(1023), bytes(1536), bytes(5 << 40)],
            ["0 B", "1023 B", "1.5 KiB", "5120.0 GiB"]
        );
        assert_eq!(at(Timestamp::from_micros(1_700_000_000_123_456)), "2023-11-14T22:13:20Z");
    }
}
