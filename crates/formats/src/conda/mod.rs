//! conda packages and channels.
