//! Claims about the queue.

mod backfill;
mod budgets;
mod caps;
mod fair;
mod order;
mod yard;
