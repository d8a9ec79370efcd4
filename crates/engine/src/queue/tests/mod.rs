//! Claims about the queue.

mod caps;
mod yard;
