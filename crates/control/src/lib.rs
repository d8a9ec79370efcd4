//! The control plane: HTTP, reconcilers, effect executor, auth, console, conda channel.

pub mod console;
