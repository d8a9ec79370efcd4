//! Claims about demand.
