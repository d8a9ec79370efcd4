//! Claims about the simulated GitHub, on the pure state.
