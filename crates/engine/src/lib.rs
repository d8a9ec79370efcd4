//! The decisions of a farm: `(state, input, context) → (state, what to write)`.
//!
//! Pure: no async, clock, randomness, files or network. [`decide::decide`] is the one door: it takes an input, changes
//! the [`farm::Farm`] through a [`tx::Tx`], and answers either a commit to store or a refusal that changed nothing.
//! The same input under the same context gives the same commit, bit for bit, which is what makes the past replayable.

mod advice;
pub mod agents;
pub mod approvals;
pub mod cache_scopes;
pub mod completion;
pub mod ctx;
pub mod decide;
pub mod deliveries;
pub mod demand;
pub mod desired;
pub mod ending;
pub mod farm;
pub mod gate;
pub mod groups;
pub mod lifecycle;
pub mod occupied;
pub mod outbox;
pub mod people;
pub mod placement;
pub mod plan;
pub mod pools;
pub mod queue;
pub mod release;
mod same_place;
pub mod sites;
pub mod spec;
pub mod test_jobs;
pub mod test_placement;
pub mod time;
pub mod tx;
pub mod verdict;
pub mod why;

pub use ctx::Ctx;
pub use farm::Farm;
