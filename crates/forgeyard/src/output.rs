//! What people see: errors with what, where and what to do; tables that fit a terminal.

use forgeyard_api::client::ClientError;
use forgeyard_model::{Explanation, Timestamp};
use std::process::ExitCode;

/// Prints an error with its causes and answers the exit code that belongs to it.
pub fn failure(error: &anyhow::Error) -> ExitCode {
    if let Some(ClientError::Refused { error, .. }) = error.downcast_ref::<ClientError>() {
        eprintln!("error: {}", explained(&error.explanation()));
        return ExitCode::from(3);
    }
    eprintln!("error: {error}");
    for cause in error.chain().skip(1) {
        eprintln!("  because: {cause}");
    }
    match error.downcast_ref::<ClientError>() {
        Some(ClientError::Transport { .. }) => {
            eprintln!("  fix: see that the farm runs, and name it with --farm or FORGEYARD_URL");
            ExitCode::from(4)
        }
        _ => ExitCode::FAILURE,
    }
}

/// An explanation as text.
pub fn explained(reason: &Explanation) -> String {
    reason.to_string()
}

/// Rows under headings, each column as wide as its widest cell; the last column takes what is left.
pub fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let columns = headings.len();
    let mut widths: Vec<usize> = headings.iter().map(|heading| heading.chars().count()).collect();
    for row in rows {
        for (column, cell) in row.iter().enumerate().take(columns) {
            widths[column] = widths[column].max(cell.chars().count());
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::new();
        for (column, cell) in cells.enumerate() {
            if column + 1 == columns {
                text.push_str(cell);
            } else {
                text.push_str(&format!("{cell:width$}  ", width = widths[column]));
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

/// A duration for people.
pub fn seconds(from: Timestamp, to: Timestamp) -> String {
    format!("{:.1} s", to.since(from).as_secs_f64())
}
