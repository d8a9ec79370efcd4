//! The console: pages for people, rendered on the server.
//!
//! Pure functions from view data to HTML: one function for each page, `fn(&Shell, …) -> Markup`. Nothing here reads a
//! clock, a database or the network; [`Shell::now`] is the only time, and everything that a page shows is given to it.
//!
//! Invariants kept here:
//! - every text of outside origin passes through the template's escaping; nothing is marked as already escaped;
//! - no page holds an inline script, an inline style or a foreign resource, so the strict policy of
//!   [`assets::CONTENT_SECURITY_POLICY`] holds on all of them;
//! - every button that changes something is a POST form with the token of the session ([`Shell::csrf`]);
//! - a state is shown by an icon with a shape of its own and by a word, never by colour alone;
//! - a page without data says what to do next.
//!
//! Live parts carry `data-live` (a stream of server-sent events) and `data-fragment` (where to get the part anew). The
//! script swaps the part when an event comes. Without the script every page still works; it only stands still.
//!
//! What the script asks of the server:
//! - `GET /api/v1/live?pipeline=ID` (or without a pipeline, for the list): events named `change`, `pipeline`, `job`, or
//!   unnamed, when something moved; `end` when nothing will move any more. Their data is not read.
//! - `GET` of a `data-fragment` address: the part alone, as the functions `fragment` and `table` render it; 401 or a
//!   redirect when the session is over.
//! - `GET /api/v1/jobs/ID/log?offset=BYTES[&end=BYTES]`: a `LogPiece` as JSON, cut between characters, never beyond
//!   `end`; `raw=1` gives the whole log as text.

pub mod access;
pub mod artifacts;
pub mod assets;
pub mod audit;
pub mod blocks;
pub mod cache;
pub mod chain;
pub mod channels;
pub mod deliveries;
pub mod devices;
pub mod entry;
pub mod environments;
pub mod history;
pub mod job;
pub mod log;
pub mod pipeline;
pub mod pipelines;
pub mod pools;
pub mod queue;
pub mod routes;
pub mod shell;
pub mod sites;
pub mod status;
pub mod terms;
pub mod timeline;
pub mod tone;
pub mod words;

pub use shell::{Names, Shell, Theme, Viewer};
