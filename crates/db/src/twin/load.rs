//! What a restart loads from the twin.

use super::*;

impl State {
    /// The rows of a restart; the same rule as the SQL of `load`.
    pub(super) fn load(&self, keep: Keep) -> Snapshot {
        let lately = |row: &Row| match row {
            Row::Demand(demand) => rests_at(demand).is_none_or(|at| at >= keep.demands_since),
            _ => aggregate::ended_at(row).is_none_or(|at| at >= keep.since),
        };
        let open = |row: &Row| aggregate::ended_at(row).is_none();
        let owner_of = |attempt: AttemptId| -> Option<String> {
            let (number, _) = aggregate::table("attempt").ok()?;
            match self.table(number)?.get(&attempt.to_string())? {
                Row::Attempt(attempt) => Some(attempt.owner.to_string()),
                _ => None,
            }
        };
        let parent = |row: &Row| -> Option<String> {
            match row {
                Row::Pipeline(row) => Some(row.id.to_string()),
                Row::Demand(row) => Some(row.id.to_string()),
                Row::Job(row) => Some(row.owner.to_string()),
                Row::Attempt(row) => Some(row.owner.to_string()),
                Row::Artifact(row) => Some(row.pipeline.to_string()),
                Row::Environment(row) => Some(row.pipeline.to_string()),
                Row::Runner(row) => row.work.attempt().and_then(owner_of),
                Row::Lease(row) => row.attempt.and_then(owner_of),
                Row::Effect(row) => match &row.effect {
                    Effect::FetchSource { pipeline } | Effect::Promote { pipeline, .. } => {
                        Some(pipeline.to_string())
                    }
                    Effect::ReadPlan { job, .. } | Effect::InspectPackage { job, .. } => {
                        self.of_kind("job").find_map(|row| match row {
                            Row::Job(row) if row.id == *job => Some(row.owner.to_string()),
                            _ => None,
                        })
                    }
                    Effect::MakeEnvironment { environment } => {
                        self.of_kind("environment").find_map(|row| match row {
                            Row::Environment(row) if row.id == *environment => Some(row.pipeline.to_string()),
                            _ => None,
                        })
                    }
                    effect => effect.demand().map(|demand| demand.to_string()),
                },
                _ => None,
            }
        };
        let ended = ["pipeline", "demand"];
        let mut owners: BTreeSet<String> = ended
            .into_iter()
            .flat_map(|kind| self.of_kind(kind))
            .filter(|row| lately(row))
            .map(Row::key)
            .collect();
        for kind in ["job", "attempt", "environment", "runner", "lease", "effect"] {
            owners.extend(self.of_kind(kind).filter(|row| open(row)).filter_map(parent));
        }
        let launches: BTreeSet<JobId> = self
            .of_kind("demand")
            .filter(|row| open(row))
            .filter_map(|row| if let Row::Demand(demand) = row { demand.launch } else { None })
            .collect();
        owners.extend(self.of_kind("job").filter_map(|row| match row {
            Row::Job(job) if launches.contains(&job.id) => job.owner.demand().map(|id| id.to_string()),
            _ => None,
        }));
        let mut newest: BTreeMap<String, String> = BTreeMap::new();
        let mut started: BTreeSet<&str> = BTreeSet::new();
        for row in self.rows.iter().flat_map(BTreeMap::values) {
            match row {
                Row::Environment(row) => {
                    newest.insert(row.name.to_string(), row.id.to_string());
                }
                Row::Pipeline(row) if owners.contains(&row.id.to_string()) => {
                    started.insert(&row.delivery);
                }
                _ => {}
            }
        }
        let newest_config = self
            .of_kind("config")
            .filter_map(|row| match row {
                Row::Config(config) => Some(config.number),
                _ => None,
            })
            .max();
        let wanted = |row: &Row| match row {
            Row::Site(_)
            | Row::Device(_)
            | Row::Channel(_)
            | Row::Token(_)
            | Row::Ledger(_)
            | Row::Pool(_)
            | Row::Approval(_)
            | Row::Acceptance(_) => true,
            Row::Config(config) => newest_config == Some(config.number),
            Row::Delivery(delivery) => lately(row) || started.contains(delivery.guid.as_str()),
            Row::Demand(_) | Row::Pipeline(_) | Row::Job(_) | Row::Attempt(_) | Row::Artifact(_) => {
                parent(row).is_some_and(|key| owners.contains(&key))
            }
            Row::Environment(environment) => {
                lately(row)
                    || parent(row).is_some_and(|key| owners.contains(&key))
                    || newest.get(environment.name.as_str()) == Some(&environment.id.to_string())
            }
            Row::Runner(_) | Row::Lease(_) | Row::Effect(_) => {
                parent(row).map_or_else(|| lately(row), |key| owners.contains(&key))
            }
        };
        let rows = self.rows.iter().flat_map(BTreeMap::values).filter(|row| wanted(row)).cloned().collect();
        let mut past: Vec<_> = self
            .of_kind("demand")
            .filter_map(|row| match row {
                Row::Demand(demand) if !wanted(row) => Some((rests_at(demand)?, demand)),
                _ => None,
            })
            .filter(|(at, _)| *at >= keep.since)
            .map(|(at, demand)| (at, demand.repository.forge.clone(), demand.job))
            .collect();
        past.sort();
        let excess = past.len().saturating_sub(count(keep.numbers));
        let numbers = past.into_iter().skip(excess).map(|(_, forge, job)| (forge, job)).collect();
        Snapshot { rows, numbers, last_seq: self.last.0, last_at: self.last.1, epoch: self.epoch }
    }
}
