//! A *simulated* provider: machines are rows in memory and nothing runs. For tests of those who use providers.
//!
//! It keeps the contract of [`Provider`] and adds faults on request: a call that fails before or after it has acted, a
//! machine whose supervisor is gone, one that cannot be removed.

use crate::{Error, MachineSpec, Provider, ProviderFacts};
use forgeyard_model::name::ProviderName;
use forgeyard_model::resources::Limit;
use forgeyard_model::runner::{ObservedRunner, ObservedState};
use forgeyard_model::{Explanation, RunnerId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A fault of the next call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The next `create` fails and makes nothing.
    CreateFails,
    /// The next `create` makes the machine and then fails, as when the answer is lost.
    CreateAnswerLost,
    /// The next `destroy` leaves something behind.
    DestroyLeaves,
    /// The next `list` fails.
    ListFails,
}

#[derive(Debug, Default)]
struct Rows {
    machines: BTreeMap<RunnerId, ObservedRunner>,
    made: BTreeMap<RunnerId, MachineSpec>,
    faults: VecDeque<Fault>,
}

/// The *simulated* provider.
#[derive(Debug)]
pub struct TwinProvider {
    name: ProviderName,
    facts: ProviderFacts,
    rows: Mutex<Rows>,
}

impl TwinProvider {
    /// A provider that enforces all limits except those in `cannot`.
    pub fn new(name: ProviderName, cannot: &[Limit]) -> Self {
        let all = [Limit::Memory, Limit::Cpu, Limit::Processes, Limit::Wall, Limit::Disk, Limit::Network];
        let facts = ProviderFacts {
            enforces: all.into_iter().filter(|limit| !cannot.contains(limit)).collect(),
            cannot: cannot.iter().map(|limit| (*limit, "simulated".to_owned())).collect(),
        };
        Self { name, facts, rows: Mutex::default() }
    }

    /// Plans a fault. Faults come in the order of planning, each at the first call that it fits.
    pub fn plan(&self, fault: Fault) {
        self.rows().faults.push_back(fault);
    }

    /// Lets a machine's supervisor end.
    pub fn exit(&self, runner: RunnerId, reason: Explanation) {
        if let Some(machine) = self.rows().machines.get_mut(&runner) {
            machine.state = ObservedState::Exited { reason };
        }
    }

    /// What a machine was made from, for a test that plays its agent.
    pub fn spec(&self, runner: RunnerId) -> Option<MachineSpec> {
        self.rows().made.get(&runner).cloned()
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rows {
    fn fault(&mut self, fits: &[Fault]) -> Option<Fault> {
        let at = self.faults.iter().position(|fault| fits.contains(fault))?;
        self.faults.remove(at)
    }
}

fn planned(action: &'static str, runner: &str) -> Error {
    Error::Failed { action, object: runner.to_owned(), source: std::io::Error::other("simulated fault") }
}

#[async_trait::async_trait]
impl Provider for TwinProvider {
    fn name(&self) -> ProviderName {
        self.name.clone()
    }

    async fn facts(&self) -> Result<ProviderFacts, Error> {
        Ok(self.facts.clone())
    }

    async fn create(&self, spec: &MachineSpec) -> Result<(), Error> {
        for limit in &spec.needs {
            let void = *limit == Limit::Network && spec.flavor.network;
            if void || !self.facts.enforces.contains(limit) {
                return Err(Error::CannotEnforce { limit: *limit, reason: "simulated".to_owned() });
            }
        }
        let mut rows = self.rows();
        let fault = rows.fault(&[Fault::CreateFails, Fault::CreateAnswerLost]);
        if fault == Some(Fault::CreateFails) {
            return Err(planned("make", &spec.runner.to_string()));
        }
        let mut enforced = self.facts.enforces.clone();
        if spec.flavor.network {
            enforced.remove(&Limit::Network);
        }
        let runner = spec.runner;
        rows.machines.entry(runner).or_insert(ObservedRunner {
            runner,
            state: ObservedState::Running,
            enforced,
        });
        rows.made.entry(runner).or_insert_with(|| spec.clone());
        match fault {
            Some(_) => Err(planned("make", &runner.to_string())),
            None => Ok(()),
        }
    }

    async fn list(&self) -> Result<Vec<ObservedRunner>, Error> {
        let mut rows = self.rows();
        if rows.fault(&[Fault::ListFails]).is_some() {
            return Err(planned("list", "machines"));
        }
        Ok(rows.machines.values().cloned().collect())
    }

    async fn destroy(&self, runner: RunnerId) -> Result<(), Error> {
        let mut rows = self.rows();
        if rows.machines.contains_key(&runner) && rows.fault(&[Fault::DestroyLeaves]).is_some() {
            return Err(Error::Left { runner: runner.to_string(), left: "a simulated mount".to_owned() });
        }
        rows.machines.remove(&runner);
        rows.made.remove(&runner);
        Ok(())
    }
}
