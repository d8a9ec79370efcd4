//! Verdicts: what the farm makes of the end of an attempt.
//!
//! Exit facts of the supervisor come first, then text. The rules of text are data (`data/signatures.jsonl`): class,
//! regular expression, cause, blame, retry policy and priority of 243 known lines.
//!
//! 1. [`scan`] runs over a log once, as it streams, and keeps the first and the last line of each rule. Lines that
//!    only look fatal are dropped here, where their neighbours are still known.
//! 2. [`judge`] decides: stopped by us, our own fault, another package than asked for, a limit, a signal, missing
//!    outputs, then the rule with the highest priority. A green end is judged too: no tests ran, all were skipped, or
//!    a device was asked for and never touched.
//! 3. [`retry`] says whether and how the job is tried again.
//!
//! Invariants:
//! - a verdict that knows no class says so (`class: None`) and shows the last lines;
//! - a failure of the tests themselves is never tried again;
//! - what only the job's own output says can neither quarantine a device nor pass for the kernel's log, and it
//!   never counts as lack of memory without the supervisor's or the kernel's word;
//! - retries are bounded for every policy.

mod judge;
mod lines;
mod retry;
mod rules;
mod scan;

pub use judge::{Ending, judge};
pub use lines::normalise;
pub use retry::{Backoff, retry};
pub use rules::{Rule, Rules, RulesError};
pub use scan::{Scanner, scan};

#[cfg(test)]
mod corpus_tests;
#[cfg(test)]
mod tests;
