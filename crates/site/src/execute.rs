//! Doing what the plan says, one action at a time. Each may be cut short at any point and asked for again.
//!
//! Order, which is what makes a crash harmless:
//! - the claim is in the journal before the provider hears of the machine;
//! - "gone" is in the journal only after the provider said that nothing is left;
//! - a lease goes through resetting and verifying, each in the journal, before it is free.

use crate::error::Error;
use crate::host;
use crate::inventory::Devices;
use crate::journal::Journal;
use crate::ledger::{Entry, LeasePhase, LeaseRecord, MachinePhase, MachineRecord};
use crate::plan::Action;
use forgeyard_model::device::DeviceFacts;
use forgeyard_model::name::ProviderName;
use forgeyard_model::resources::Isolation;
use forgeyard_model::runner::ObservedState;
use forgeyard_model::site::{DesiredRunner, HostFacts};
use forgeyard_model::{DeviceId, Explanation, Id as _, LeaseId, RunnerId, Secret, SiteId};
use forgeyard_providers::{AgentStart, MachineSpec, Provider};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a provider may take to say what it can do.
const FACTS_TIMEOUT: Duration = Duration::from_secs(60);

/// Devices as last asked.
#[derive(Debug, Clone, Default)]
pub struct Inventory {
    /// Those that answered when they were last asked with success.
    pub devices: Vec<DeviceFacts>,
    /// Why the last asking failed, if it did.
    pub failure: Option<String>,
}

/// What all actions need.
pub struct Tools {
    /// The site.
    pub site: SiteId,
    /// Its providers.
    pub providers: BTreeMap<ProviderName, Arc<dyn Provider>>,
    /// Its devices.
    pub devices: Arc<dyn Devices>,
    /// Its devices as last asked.
    pub asked: Mutex<Inventory>,
    /// What the host offers, as last asked.
    pub host: Mutex<HostFacts>,
    /// Its journal.
    pub journal: Journal,
    /// Base address of the farm for agents.
    pub agent_url: String,
    /// Further certificate authority for agents.
    pub ca_file: Option<PathBuf>,
    /// How long the making or the removal of one machine may take.
    pub action_timeout: Duration,
    /// Told whenever the journal has grown.
    pub changed: tokio::sync::Notify,
}

/// How an action ended.
#[derive(Debug)]
pub enum Outcome {
    /// It is done.
    Done,
    /// The machine is gone.
    Gone(RunnerId),
    /// The machine is there.
    Made(RunnerId, ProviderName),
    /// The machine is not there.
    NotMade {
        /// Which.
        runner: RunnerId,
        /// Whose.
        provider: ProviderName,
        /// Why.
        reason: Explanation,
        /// Trying again is no use.
        for_good: bool,
    },
    /// The machine may still be there.
    NotRemoved(RunnerId, Explanation),
    /// The lease is not free yet.
    NotEnded(LeaseId, Explanation),
    /// Something was not written down; nothing was touched.
    NotWritten(RunnerId, Explanation),
}

impl Tools {
    /// Does one action. `desired` is the machine's row where the action is about a machine that should be.
    pub async fn execute(&self, action: Action, desired: Option<DesiredRunner>) -> Outcome {
        match action {
            Action::Create { runner } => match desired {
                Some(desired) => self.create(desired).await,
                None => Outcome::NotWritten(runner, internal("the machine is not in the desired set")),
            },
            Action::Adopt { runner } => match desired {
                Some(desired) => {
                    let entries = self.claim(&desired, MachinePhase::Up);
                    self.written(runner, entries).await.unwrap_or(Outcome::Made(runner, desired.provider))
                }
                None => Outcome::NotWritten(runner, internal("the machine is not in the desired set")),
            },
            Action::Refuse { runner, reason } => match desired {
                Some(desired) => {
                    tracing::warn!(%runner, %reason, "refused to make a machine");
                    self.give_up(runner, desired.provider, reason).await
                }
                None => Outcome::NotWritten(runner, internal("the machine is not in the desired set")),
            },
            Action::Destroy { runner, provider } => self.destroy(runner, &provider).await,
            Action::Forget { runner } => {
                self.written(runner, vec![Entry::Gone { runner }]).await.unwrap_or(Outcome::Gone(runner))
            }
            Action::End { lease, runner, devices } => match self.end(lease, runner, devices).await {
                Ok(()) => Outcome::Done,
                Err(error) => Outcome::NotEnded(lease, internal(error.to_string())),
            },
            Action::ForgetLease { lease } => match self.append(vec![Entry::Forgotten { lease }]).await {
                Ok(()) => Outcome::Done,
                Err(error) => Outcome::NotEnded(lease, internal(error.to_string())),
            },
        }
    }

    /// Writes down that a machine is not going to be made. One that the provider may have heard of is not struck out
    /// without a removal later.
    pub async fn give_up(&self, runner: RunnerId, provider: ProviderName, reason: Explanation) -> Outcome {
        let touched = self.journal.ledger().machines.contains_key(&runner);
        let phase = if touched { MachinePhase::GaveUp { reason } } else { MachinePhase::Refused { reason } };
        self.machine(runner, provider, phase).await
    }

    async fn machine(&self, runner: RunnerId, provider: ProviderName, phase: MachinePhase) -> Outcome {
        let record = MachineRecord { provider, phase };
        self.written(runner, vec![Entry::Machine { runner, record }]).await.unwrap_or(Outcome::Done)
    }

    async fn append(&self, entries: Vec<Entry>) -> Result<(), Error> {
        self.journal.append(entries).await?;
        self.changed.notify_one();
        Ok(())
    }

    /// Nothing when it was written, else the outcome that says so.
    async fn written(&self, runner: RunnerId, entries: Vec<Entry>) -> Option<Outcome> {
        let error = self.append(entries).await.err()?;
        Some(Outcome::NotWritten(runner, internal(error.to_string())))
    }

    /// The devices as last asked.
    pub fn inventory(&self) -> Inventory {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The entries that claim a machine with its lease. The lease comes first: a crash in between leaves a lease
    /// without a machine, which is ended, and never a machine without its lease.
    fn claim(&self, desired: &DesiredRunner, phase: MachinePhase) -> Vec<Entry> {
        let ledger = self.journal.ledger();
        let mut entries = Vec::new();
        if let Some(lease) = desired.lease
            && !ledger.leases.contains_key(&lease)
        {
            let devices = desired
                .devices
                .iter()
                .map(|device| (DeviceId::derive(self.site, &device.key), device.key.clone()));
            let record =
                LeaseRecord { runner: desired.runner, devices: devices.collect(), phase: LeasePhase::Held };
            entries.push(Entry::Lease { lease, record });
        }
        let record = MachineRecord { provider: desired.provider.clone(), phase };
        if ledger.machines.get(&desired.runner) != Some(&record) {
            entries.push(Entry::Machine { runner: desired.runner, record });
        }
        entries
    }

    async fn create(&self, desired: DesiredRunner) -> Outcome {
        let (runner, provider) = (desired.runner, desired.provider.clone());
        let not_made = |reason: Explanation, for_good: bool| Outcome::NotMade {
            runner,
            provider: provider.clone(),
            reason,
            for_good,
        };
        let Some(maker) = self.providers.get(&desired.provider) else {
            return not_made(
                Explanation::new("site.no_provider", format!("this site has no provider {provider}")),
                true,
            );
        };
        let inventory = self.inventory();
        if let Some(missing) = desired
            .devices
            .iter()
            .find(|device| !inventory.devices.iter().any(|known| known.key == device.key))
        {
            let reason = Explanation::new(
                "site.device_missing",
                format!("device {} does not answer here", missing.key),
            );
            return not_made(inventory.failure.into_iter().fold(reason, Explanation::with), false);
        }
        let entries = self.claim(&desired, MachinePhase::Claimed);
        if let Some(outcome) = self.written(runner, entries).await {
            return outcome;
        }
        let spec = MachineSpec {
            runner,
            flavor: desired.flavor,
            image: desired.image,
            devices: desired.devices,
            needs: desired.needs,
            agent: AgentStart {
                farm_url: self.agent_url.clone(),
                token: Secret::new(desired.token),
                ca_file: self.ca_file.clone(),
            },
        };
        let (reason, for_good) = match tokio::time::timeout(self.action_timeout, maker.create(&spec)).await {
            Ok(Ok(())) => return self.up(runner, provider).await,
            Ok(Err(error)) => {
                use forgeyard_providers::Error as E;
                (error.explanation(), matches!(error, E::CannotEnforce { .. } | E::Image { .. }))
            }
            Err(_) => {
                let message =
                    format!("{provider} did not make the machine in {} s", self.action_timeout.as_secs());
                (Explanation::new("site.create_timeout", message), false)
            }
        };
        // An error does not say that there is no machine; the list does.
        match tokio::time::timeout(self.action_timeout, maker.list()).await {
            Ok(Ok(rows)) => match rows.into_iter().find(|row| row.runner == runner).map(|row| row.state) {
                Some(ObservedState::Running | ObservedState::Exited { .. }) => {
                    tracing::warn!(%runner, %reason, "making the machine failed, and yet it is there");
                    self.up(runner, provider).await
                }
                _ => not_made(reason, for_good),
            },
            // Not known. The claim stays, and the next list decides.
            Ok(Err(error)) => not_made(reason.with(format!("listing failed too: {error}")), false),
            Err(_) => not_made(reason.with("listing did not answer either"), false),
        }
    }

    async fn up(&self, runner: RunnerId, provider: ProviderName) -> Outcome {
        match self.machine(runner, provider.clone(), MachinePhase::Up).await {
            Outcome::Done => Outcome::Made(runner, provider),
            other => other,
        }
    }

    async fn destroy(&self, runner: RunnerId, provider: &ProviderName) -> Outcome {
        let Some(remover) = self.providers.get(provider) else {
            let message = format!("this site has no provider {provider} any more, which made the machine");
            let reason = Explanation::new("site.no_provider", message)
                .fix("give the site this provider again, or write the host off");
            return Outcome::NotRemoved(runner, reason);
        };
        match tokio::time::timeout(self.action_timeout, remover.destroy(runner)).await {
            Ok(Ok(())) => {
                let same = self
                    .journal
                    .ledger()
                    .machines
                    .get(&runner)
                    .is_some_and(|record| record.provider == *provider);
                let entries = if same { vec![Entry::Gone { runner }] } else { Vec::new() };
                self.written(runner, entries).await.unwrap_or(Outcome::Gone(runner))
            }
            Ok(Err(error)) => Outcome::NotRemoved(runner, error.explanation()),
            Err(_) => {
                let message =
                    format!("{provider} did not remove the machine in {} s", self.action_timeout.as_secs());
                Outcome::NotRemoved(runner, Explanation::new("site.destroy_timeout", message))
            }
        }
    }

    /// The machine of the lease is gone; the plan has seen to that.
    async fn end(
        &self,
        lease: LeaseId,
        runner: RunnerId,
        devices: Vec<(DeviceId, String)>,
    ) -> Result<(), Error> {
        let before = self.inventory().devices;
        let known = |key: &str| before.iter().find(|device| device.key == key);
        let phase = self.journal.ledger().leases.get(&lease).map(|record| record.phase.clone());
        let entry =
            |phase| Entry::Lease { lease, record: LeaseRecord { runner, devices: devices.clone(), phase } };
        let mut sick: BTreeMap<DeviceId, String> = BTreeMap::new();
        // A site that was stopped while verifying does not reset again; one stopped while resetting does.
        if phase != Some(LeasePhase::Verifying) {
            if phase != Some(LeasePhase::Resetting) {
                self.append(vec![entry(LeasePhase::Resetting)]).await?;
            }
            for (id, key) in &devices {
                if let Some(device) = known(key)
                    && let Err(error) = self.devices.reset(device).await
                {
                    sick.insert(*id, format!("reset failed: {error}"));
                }
            }
            // A failed reset is not written down before the end, so after one the journal stays at resetting: a crash
            // in between resets again rather than forgetting it.
            if sick.is_empty() {
                self.append(vec![entry(LeasePhase::Verifying)]).await?;
            }
        }
        let asked = self.ask().await;
        for (id, key) in &devices {
            if let Some(seen) = verdict(key, known(key), &asked) {
                sick.entry(*id).or_insert(seen);
            }
        }
        for (device, seen) in &sick {
            tracing::error!(%lease, %device, %seen, "a device did not come back");
        }
        self.append(vec![entry(LeasePhase::Released { sick: sick.into_iter().collect() })]).await
    }

    /// Providers that hand devices over to virtual machines.
    pub fn handing(&self) -> BTreeSet<ProviderName> {
        let handing = self.providers.iter().filter(|(_, provider)| provider.isolation() >= Isolation::Vm);
        handing.map(|(name, _)| name.clone()).collect()
    }

    /// The devices, as last asked.
    pub fn devices_here(&self) -> Vec<DeviceFacts> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).devices.clone()
    }

    /// What the host offers, as last asked.
    pub fn host(&self) -> HostFacts {
        self.host.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks all devices and all providers and remembers the answers. A provider that does not say what it can do is
    /// not offered.
    pub async fn ask_all(&self) {
        // A failure is remembered and logged where it is found.
        let _ = self.ask().await;
        let mut known = BTreeMap::new();
        for (name, provider) in &self.providers {
            match tokio::time::timeout(FACTS_TIMEOUT, provider.facts()).await {
                Ok(Ok(facts)) => {
                    known.insert(name.clone(), facts);
                }
                Ok(Err(error)) => {
                    tracing::warn!(provider = %name, error = %error.explanation(), "the provider does not work");
                }
                Err(_) => tracing::warn!(provider = %name, "the provider does not say what it can do"),
            }
        }
        let host = host::with_providers(host::machine(), &known);
        *self.host.lock().unwrap_or_else(PoisonError::into_inner) = host;
    }

    /// Asks all devices and remembers the answer.
    pub async fn ask(&self) -> Result<(Vec<DeviceFacts>, Vec<String>), String> {
        let answer = self.devices.probe().await.map_err(|error| error.to_string());
        let mut inventory = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        match &answer {
            Ok(probe) => {
                for note in &probe.notes {
                    tracing::warn!(%note, "a device was left out");
                }
                *inventory = Inventory { devices: probe.devices.clone(), failure: None };
            }
            Err(error) => {
                tracing::error!(%error, "the devices could not be asked");
                inventory.failure = Some(error.clone());
            }
        }
        answer.map(|probe| (probe.devices, probe.notes))
    }
}

/// What is wrong with a device after its reset; nothing when it answers and is the same one.
fn verdict(
    key: &str,
    before: Option<&DeviceFacts>,
    asked: &Result<(Vec<DeviceFacts>, Vec<String>), String>,
) -> Option<String> {
    let (devices, notes) = match asked {
        Ok(answer) => answer,
        Err(error) => return Some(error.clone()),
    };
    let Some(now) = devices.iter().find(|device| device.key == key) else {
        let mut seen = "it does not answer any more".to_owned();
        for note in notes {
            seen.push_str("; ");
            seen.push_str(note);
        }
        return Some(seen);
    };
    let before = before?;
    let other = now.kind != before.kind || (before.uuid.is_some() && now.uuid != before.uuid);
    other.then(|| {
        let name =
            |device: &DeviceFacts| format!("{} {}", device.model, device.uuid.as_deref().unwrap_or(""));
        format!(
            "another device answers under its key: {} instead of {}",
            name(now).trim(),
            name(before).trim()
        )
    })
}

fn internal(message: impl Into<String>) -> Explanation {
    Explanation::new("site.failed", message)
}
