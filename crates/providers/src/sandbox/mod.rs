//! The sandbox provider: machines that are namespaces, control groups and an OCI runtime on this host.
//!
//! Layout of the state folder (root only):
//!
//! ```text
//! images/HEX/tree            unpacked `rootfs` images, shared
//! runners/RUNNER/machine.json, token, bundle.json          written by the provider
//! runners/RUNNER/agent, bundles, work, out, in, tmp         used by the agent, see `forgeyard_model::machine`
//! runners/RUNNER/overlay     changes to a `rootfs` image
//! ```
//!
//! and of the run folder (others may pass through, not list): `RUNNER/root`, the root of the containers, and `runc`, the
//! runtime's own state.
//!
//! Invariants: `machine.json` is written when all else is ready, so a folder with one is a whole machine; a folder without
//! one is a remnant and is reported as failed. The agent is nobody's child and holds a lock while it lives. Nothing of a
//! machine is outside its two folders, its control groups and the mounts below its folders, so looking at those proves
//! that it is gone.
//!
//! What it does not do: a flavor with network shares the network of the host, with everything that listens on loopback;
//! the disk limit is watched, not walled (see the agent); all machines share one kernel.

mod cgroup;
mod image;
mod oci;
mod probe;
mod process;
mod provider;
mod remove;
mod root;
mod seccomp;
mod users;

pub use image::{ImageSource, NoImages};
pub use provider::{SandboxConfig, SandboxProvider};
