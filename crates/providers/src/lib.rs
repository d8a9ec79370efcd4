//! Making machines. One trait, [`Provider`], and its backends.
//!
//! Contract of every provider, checked by the conformance suite in `tests/`:
//! - what it makes carries the runner's id as a tag, so that an unknown outcome is settled by [`Provider::list`];
//! - [`Provider::create`] is idempotent by runner id: asking twice makes one machine;
//! - [`Provider::destroy`] is idempotent and answers `Ok` only when nothing of the machine is left: no process, mount,
//!   cgroup, network or file;
//! - a machine outlives the process that made it: after a crash, `list` finds it and it goes on;
//! - a limit that this host cannot enforce is named in [`Provider::facts`], and a request that needs it is refused
//!   before anything is touched.

mod error;
pub mod sandbox;
#[cfg(any(test, feature = "twin"))]
pub mod twin;

pub use error::Error;

use forgeyard_model::RunnerId;
use forgeyard_model::device::DeviceFacts;
use forgeyard_model::name::ProviderName;
use forgeyard_model::resources::{Flavor, Image, Isolation, Limit};
use forgeyard_model::runner::ObservedRunner;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// A machine to make.
#[derive(Debug, Clone)]
pub struct MachineSpec {
    /// The runner; its id is the tag.
    pub runner: RunnerId,
    /// Its shape.
    pub flavor: Flavor,
    /// What it boots.
    pub image: Image,
    /// Devices that it gets.
    pub devices: Vec<DeviceFacts>,
    /// Limits that must hold.
    pub needs: BTreeSet<Limit>,
    /// What its agent needs to begin.
    pub agent: AgentStart,
}

/// What an agent needs to begin. The token never reaches the job's view.
#[derive(Debug, Clone)]
pub struct AgentStart {
    /// Base URL of the farm, as seen from where the agent runs.
    pub farm_url: String,
    /// One-shot token of the attempt.
    pub token: forgeyard_model::Secret,
    /// Further certificate authority to trust, PEM file.
    pub ca_file: Option<PathBuf>,
}

/// What a provider can do on this host.
#[derive(Debug, Clone, Default)]
pub struct ProviderFacts {
    /// Limits that it enforces here.
    pub enforces: BTreeSet<Limit>,
    /// Limits that it cannot, each with the reason.
    pub cannot: Vec<(Limit, String)>,
}

/// Makes machines of one kind.
#[async_trait::async_trait]
pub trait Provider: Send + Sync {
    /// Its name, as pools call it.
    fn name(&self) -> ProviderName;

    /// How well its machines are kept apart. One whose machines are virtual hands devices over to them, and gets whole IOMMU
    /// groups.
    fn isolation(&self) -> Isolation {
        Isolation::SharedKernel
    }

    /// What it can do on this host; probed, not assumed.
    async fn facts(&self) -> Result<ProviderFacts, Error>;

    /// Makes the machine and starts its agent. Idempotent by runner id.
    async fn create(&self, spec: &MachineSpec) -> Result<(), Error>;

    /// All machines with our tag, whoever made them. Restarts the agent of a machine that lives without one.
    async fn list(&self) -> Result<Vec<ObservedRunner>, Error>;

    /// Removes the machine and all traces. Idempotent; `Ok` means that nothing is left.
    async fn destroy(&self, runner: RunnerId) -> Result<(), Error>;
}
