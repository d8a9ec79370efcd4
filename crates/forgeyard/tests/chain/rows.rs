//! What the database of a farm says once the farm is gone. Opening it takes the folder's lock, which proves that.

use forgeyard_model::Timestamp;
use forgeyard_model::artifact::Artifact;
use forgeyard_model::attempt::{Attempt, AttemptState};
use forgeyard_model::channel::Channel;
use forgeyard_model::commit::Row;
use forgeyard_model::device::{Device, DeviceState};
use forgeyard_model::job::{Job, JobState};
use forgeyard_model::lease::{Lease, LeaseState};
use forgeyard_model::pipeline::Pipeline;
use forgeyard_model::runner::{Runner, RunnerState};
use forgeyard_model::verdict::Outcome;
use std::collections::BTreeSet;
use std::path::Path;

/// Rows by their kind.
#[derive(Default)]
pub(crate) struct Rows {
    pub(crate) pipelines: Vec<Pipeline>,
    pub(crate) jobs: Vec<Job>,
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) runners: Vec<Runner>,
    pub(crate) leases: Vec<Lease>,
    pub(crate) devices: Vec<Device>,
    pub(crate) artifacts: Vec<Artifact>,
    pub(crate) channels: Vec<Channel>,
}

impl Rows {
    pub(crate) fn read(data: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let snapshot = runtime.block_on(async {
            let store = forgeyard_db::open("sqlite:", data).await.unwrap();
            let snapshot = store.load(forgeyard_db::Keep::since(Timestamp::from_micros(0))).await.unwrap();
            store.close().await;
            snapshot
        });
        let mut rows = Self::default();
        for row in snapshot.rows {
            match row {
                Row::Pipeline(row) => rows.pipelines.push(row),
                Row::Job(row) => rows.jobs.push(row),
                Row::Attempt(row) => rows.attempts.push(row),
                Row::Runner(row) => rows.runners.push(row),
                Row::Lease(row) => rows.leases.push(row),
                Row::Device(row) => rows.devices.push(row),
                Row::Artifact(row) => rows.artifacts.push(row),
                Row::Channel(row) => rows.channels.push(row),
                _ => {}
            }
        }
        rows
    }

    /// Ids of all machines that were ever meant to be.
    pub(crate) fn machines(&self) -> BTreeSet<String> {
        self.runners.iter().map(|runner| runner.id.to_string()).collect()
    }

    /// Everything that must hold of a farm at rest, whatever was done to it. Answers what does not.
    pub(crate) fn broken(&self) -> Vec<String> {
        let mut broken = Vec::new();
        for pipeline in self.pipelines.iter().filter(|pipeline| !pipeline.state.ended()) {
            broken.push(format!("{} is {}", pipeline.id, pipeline.state.name()));
        }
        for lease in self.leases.iter().filter(|lease| lease.state != LeaseState::Ended) {
            broken.push(format!("{} is {}", lease.id, lease.state.name()));
        }
        for runner in self.runners.iter().filter(|runner| runner.state != RunnerState::Deleted) {
            broken.push(format!("{} is {}", runner.id, runner.state.name()));
        }
        for device in self.devices.iter().filter(|device| device.state != DeviceState::Ready) {
            broken.push(format!("{} is {}", device.id, device.state.name()));
        }
        for attempt in self.attempts.iter().filter(|attempt| attempt.state != AttemptState::Ended) {
            broken.push(format!("{} is {}", attempt.id, attempt.state.name()));
        }
        for job in &self.jobs {
            let mut attempts: Vec<&Attempt> = self.of(job);
            attempts.sort_by_key(|attempt| attempt.fence);
            let fences: Vec<u32> = attempts.iter().map(|attempt| attempt.fence).collect();
            if fences != (1..=job.fence).collect::<Vec<_>>() {
                broken.push(format!("{} has attempts {fences:?} and is at {}", job.key, job.fence));
            }
            let good: Vec<u32> = attempts
                .iter()
                .filter(|attempt| attempt.outcome == Some(Outcome::Succeeded))
                .map(|attempt| attempt.fence)
                .collect();
            let succeeded = job.state == JobState::Ended { outcome: Outcome::Succeeded };
            let expected = if succeeded { vec![job.fence] } else { Vec::new() };
            if good != expected {
                broken.push(format!("{} is {} by attempts {good:?}", job.key, job.state.name()));
            }
        }
        for entry in self.channels.iter().flat_map(|channel| &channel.entries) {
            let artifact = self.artifacts.iter().find(|artifact| artifact.id == entry.artifact);
            let attempt = artifact.and_then(|artifact| {
                self.attempts.iter().find(|attempt| Some(attempt.id) == artifact.attempt)
            });
            let accepted = attempt.is_some_and(|attempt| attempt.outcome == Some(Outcome::Succeeded));
            if !accepted || artifact.is_none_or(|artifact| artifact.digest != entry.digest) {
                broken.push(format!("{} is in a channel and was not accepted", entry.file_name));
            }
        }
        broken
    }

    /// Attempts of a job.
    pub(crate) fn of(&self, job: &Job) -> Vec<&Attempt> {
        self.attempts.iter().filter(|attempt| attempt.job == job.id).collect()
    }
}
