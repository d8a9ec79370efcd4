//! Claims about the queue.

mod backfill;
mod budgets;
mod caps;
mod fair;
mod groups;
mod order;
mod predict;
mod yard;
