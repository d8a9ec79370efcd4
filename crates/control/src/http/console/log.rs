//! The window of a log that a job's page opens with: around the decisive line, otherwise the end.
//!
//! Lines have no index in the store, so the log streams by once, piece after piece; what lies outside the window is
//! counted and let go. The window begins at a line and, while the log grows, ends at one.

use crate::app::App;
use crate::console::log::LogWindow;
use crate::http::error::{self, HttpError};
use forgeyard_model::AttemptId;

/// Lines before the decisive one.
const BEFORE: u64 = 60;
/// Lines after it.
const AFTER: u64 = 140;
/// Lines of the end.
const TAIL: usize = 400;
/// Bytes of a window, about.
const BYTES: usize = 256 << 10;

/// The window around this line, or the end of the log when there is no such line.
pub(super) async fn window(
    app: &App,
    attempt: AttemptId,
    decisive: Option<u64>,
    over: bool,
) -> Result<LogWindow, HttpError> {
    let state = app.store.log_state(attempt).await.map_err(|error| error::database(&error))?;
    let chunks = app.store.log_chunks(attempt).await.map_err(|error| error::database(&error))?;
    for line in [decisive, None] {
        let mut cutter = Cutter::new(line);
        for chunk in &chunks {
            let blob = app.blobs.get(chunk.digest, None).await.map_err(|error| error::blobs(&error))?;
            let bytes = blob.bytes().await.map_err(|error| error::blobs(&error))?;
            if cutter.push(&bytes) {
                break;
            }
        }
        let over = state.complete || over;
        if let Some(window) = cutter.finish(over, state.durable) {
            return Ok(window);
        }
    }
    Ok(LogWindow { complete: state.complete || over, ..LogWindow::default() })
}

/// Cuts a window out of a log that is handed over in pieces.
struct Cutter {
    around: Option<u64>,
    /// Number of the line at the beginning of `kept`.
    first: u64,
    /// Its byte in the log.
    start: u64,
    kept: Vec<u8>,
}

fn ends(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// Byte behind the end of this many lines.
fn behind(bytes: &[u8], lines: u64) -> Option<usize> {
    let skip = usize::try_from(lines.checked_sub(1)?).ok()?;
    bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(skip).map(|(at, _)| at + 1)
}

impl Cutter {
    fn new(around: Option<u64>) -> Self {
        Self { around, first: 1, start: 0, kept: Vec::new() }
    }

    fn drop(&mut self, bytes: usize) {
        let bytes = bytes.min(self.kept.len());
        self.first += ends(self.kept.get(..bytes).unwrap_or_default());
        self.start += bytes as u64;
        self.kept.drain(..bytes);
    }

    /// Takes a piece; `true` when the window is full.
    fn push(&mut self, piece: &[u8]) -> bool {
        self.kept.extend_from_slice(piece);
        let Some(line) = self.around else {
            if self.kept.len() > 2 * BYTES {
                self.keep_end();
            }
            return false;
        };
        let before = line.saturating_sub(BEFORE).max(1).saturating_sub(self.first);
        if before > 0 {
            // A line before the window may be dropped in parts; its end is still counted when it comes.
            let bytes = behind(&self.kept, before).unwrap_or(self.kept.len());
            self.drop(bytes);
        }
        let whole = ends(&self.kept);
        let wanted = (line + 1).saturating_sub(self.first);
        whole >= wanted + AFTER || (whole >= wanted && self.kept.len() > BYTES) || self.kept.len() > 8 * BYTES
    }

    /// Drops what is before the last bytes, from the next line on.
    fn keep_end(&mut self) {
        let surplus = self.kept.len().saturating_sub(BYTES);
        if surplus == 0 {
            return;
        }
        let rest = self.kept.get(surplus..).unwrap_or_default();
        let line = rest.iter().position(|byte| *byte == b'\n').map(|at| surplus + at + 1);
        // One line that is longer than the window is cut inside.
        self.drop(line.filter(|at| *at < self.kept.len()).unwrap_or(surplus));
    }

    /// The window; none when the line was not there.
    fn finish(mut self, over: bool, durable: u64) -> Option<LogWindow> {
        let mut decisive = None;
        match self.around {
            Some(line) => {
                let mut last = behind(&self.kept, (line + 1).saturating_sub(self.first) + AFTER);
                if last.is_none() && self.start + self.kept.len() as u64 != durable {
                    last = self.kept.iter().rposition(|byte| *byte == b'\n').map(|at| at + 1);
                }
                self.kept.truncate(last.unwrap_or(self.kept.len()));
                decisive = Some(line);
            }
            None => {
                self.keep_end();
                let surplus = ends(&self.kept).saturating_sub(TAIL as u64);
                if let Some(bytes) = behind(&self.kept, surplus) {
                    self.drop(bytes);
                }
            }
        }
        // A line that is still being written is left to the next piece.
        let at_end = self.start + self.kept.len() as u64 >= durable;
        if !(over && at_end) {
            let whole = self.kept.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            self.kept.truncate(whole);
        }
        let next = self.start + self.kept.len() as u64;
        let text = String::from_utf8_lossy(&self.kept);
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        if decisive.is_some_and(|line| line < self.first || line >= self.first + lines.len() as u64) {
            return None;
        }
        let complete = over && next >= durable;
        Some(LogWindow { first: self.first, start: self.start, lines, next, decisive, complete, dropped: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::{AFTER, BEFORE, BYTES, Cutter, LogWindow, TAIL};
    use proptest::prelude::*;

    fn cut(log: &[u8], piece: usize, around: Option<u64>, over: bool) -> Option<LogWindow> {
        let mut cutter = Cutter::new(around);
        for piece in log.chunks(piece.max(1)) {
            if cutter.push(piece) {
                break;
            }
        }
        cutter.finish(over, log.len() as u64)
    }

    fn numbered(lines: u64) -> Vec<u8> {
        (1..=lines).map(|line| format!("line {line}\n")).collect::<String>().into_bytes()
    }

    #[test]
    fn the_window_is_around_the_decisive_line_by_its_number() {
        let log = numbered(10_000);
        let window = cut(&log, 100, Some(5000), true).unwrap();
        assert_eq!((window.first, window.lines.len() as u64), (5000 - BEFORE, BEFORE + 1 + AFTER));
        assert_eq!(window.lines[BEFORE as usize], "line 5000");
        assert!(!window.complete);
        assert_eq!(&log[window.start as usize..window.start as usize + 9], b"line 4940");
        assert_eq!(&log[window.next as usize..window.next as usize + 9], b"line 5141");
    }

    #[test]
    fn without_a_decisive_line_the_end_is_shown() {
        let window = cut(&numbered(10_000), 100, None, true).unwrap();
        assert_eq!((window.first, window.lines.len()), (10_001 - TAIL as u64, TAIL));
        assert_eq!(window.lines.last().unwrap(), "line 10000");
        assert!(window.complete);
    }

    #[test]
    fn a_line_that_is_still_being_written_is_left_to_the_next_piece() {
        let window = cut(b"one\ntwo\nthr", 100, None, false).unwrap();
        assert_eq!((window.lines.len(), window.next, window.complete), (2, 8, false));
        let window = cut(b"one\ntwo\nthr", 100, None, true).unwrap();
        assert_eq!((window.lines.len(), window.next, window.complete), (3, 11, true));
    }

    #[test]
    fn a_line_that_is_not_there_has_no_window() {
        assert!(cut(b"one\ntwo\n", 3, Some(3), true).is_none());
        assert!(cut(b"", 3, Some(1), true).is_none());
        assert!(cut(b"one\ntwo", 3, Some(2), true).is_some());
    }

    #[test]
    fn a_line_without_end_does_not_fill_the_memory() {
        let log = vec![b'x'; 5 * BYTES];
        let window = cut(&log, 1000, None, true).unwrap();
        assert!(window.lines.len() == 1 && window.lines[0].len() <= 2 * BYTES);
        assert_eq!(window.next, log.len() as u64);
    }

    proptest! {
        #[test]
        fn whatever_the_pieces_the_window_is_a_run_of_whole_lines(
            lines in prop::collection::vec("[ -~é]{0,9}", 0..400),
            piece in 1usize..50,
            around in prop::option::of(1u64..450),
            cut_end in any::<bool>(),
            over in any::<bool>(),
        ) {
            let mut log: String = lines.iter().map(|line| format!("{line}\n")).collect();
            if cut_end { log.pop(); }
            let all: Vec<&str> = log.lines().collect();
            let Some(window) = cut(log.as_bytes(), piece, around, over) else {
                let known = around.is_some_and(|line| line <= ends(log.as_bytes()));
                prop_assert!(!known);
                return Ok(());
            };
            for (number, line) in (window.first..).zip(&window.lines) {
                prop_assert_eq!(all[number as usize - 1], line);
            }
            prop_assert_eq!(super::ends(&log.as_bytes()[..window.start as usize]) + 1, window.first);
            prop_assert!(window.next as usize <= log.len());
            prop_assert!(!window.complete || window.next as usize == log.len());
        }
    }

    use super::ends;
}
