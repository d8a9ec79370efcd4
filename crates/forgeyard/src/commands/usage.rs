//! `forgeyard usage`: what was used, for each repository.

use super::ReadArgs;
use crate::output::{self, table_or};
use anyhow::Result;
use clap::Args;
use forgeyard_model::Timestamp;
use forgeyard_model::commit::UsageFact;
use serde::Serialize;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

/// Options of the report.
#[derive(Args, Clone)]
pub struct UsageArgs {
    /// Only what was used in the last so many days.
    #[arg(long, value_name = "N")]
    days: Option<u32>,
    #[command(flatten)]
    read: ReadArgs,
}

/// What one repository used.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Used {
    /// Numeric id; 0 = recipe folders that people handed in.
    repository: u64,
    name: String,
    runner_minutes: f64,
    gpu_minutes: f64,
    artifact_bytes: u64,
}

/// Prints the report.
pub async fn run(args: UsageArgs) -> Result<ExitCode> {
    let client = args.read.farm.client()?;
    let since = match args.days {
        None => Timestamp::default(),
        Some(days) => {
            // The farm's own clock decides, not that of this machine.
            let now = client.status().await?.at;
            let span = Duration::from_secs(u64::from(days) * 86_400);
            let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
            Timestamp::from_micros(now.as_micros().saturating_sub(micros))
        }
    };
    let facts = client.usage_since(since).await?;
    let names: BTreeMap<u64, String> = client
        .config()
        .await?
        .repositories
        .into_iter()
        .map(|repository| (repository.id, repository.name))
        .collect();
    let used = add(&facts, &names);
    output::show(args.read.json, &used, |used| {
        let rows: Vec<Vec<String>> = used
            .iter()
            .map(|used| {
                vec![
                    format!("{:.1}", used.runner_minutes),
                    format!("{:.1}", used.gpu_minutes),
                    output::bytes(used.artifact_bytes),
                    used.repository.to_string(),
                    used.name.clone(),
                ]
            })
            .collect();
        table_or("nothing was used", &["runner min", "GPU min", "artifacts", "repository", "name"], &rows)
    })
}

/// Sums by repository, the largest user of devices first.
fn add(facts: &[UsageFact], names: &BTreeMap<u64, String>) -> Vec<Used> {
    let mut sums: BTreeMap<u64, (u64, u64, u64)> = BTreeMap::new();
    for fact in facts {
        let (runner, gpu, bytes) = sums.entry(fact.repository).or_default();
        let sum = match fact.what.as_str() {
            "runner_micros" => runner,
            "gpu_micros" => gpu,
            "artifact_bytes" => bytes,
            _ => continue,
        };
        *sum = sum.saturating_add(fact.amount);
    }
    let minutes = |micros: u64| micros as f64 / 60e6;
    let mut used: Vec<Used> = sums
        .into_iter()
        .map(|(repository, (runner, gpu, bytes))| Used {
            repository,
            name: match (repository, names.get(&repository)) {
                (0, _) => "recipe folders".to_owned(),
                (_, Some(name)) => name.clone(),
                (_, None) => "no longer configured".to_owned(),
            },
            runner_minutes: minutes(runner),
            gpu_minutes: minutes(gpu),
            artifact_bytes: bytes,
        })
        .collect();
    used.sort_by(|a, b| {
        (b.gpu_minutes, b.runner_minutes)
            .partial_cmp(&(a.gpu_minutes, a.runner_minutes))
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fact(what: &str, amount: u64, repository: u64) -> UsageFact {
        let (what, subject) = (what.to_owned(), "att".to_owned());
        UsageFact { what, amount, subject, repository, at: Timestamp::default() }
    }

    #[test]
    fn facts_are_summed_by_repository_and_the_largest_user_of_devices_is_first() {
        let facts = [
            fact("runner_micros", 60_000_000, 0),
            fact("runner_micros", 30_000_000, 7),
            fact("gpu_micros", 90_000_000, 7),
            fact("artifact_bytes", 5, 7),
            fact("artifact_bytes", 6, 7),
            fact("something_new", 1, 7),
        ];
        let used = add(&facts, &BTreeMap::from([(7, "widgets/widget".to_owned())]));
        let names: Vec<&str> = used.iter().map(|used| used.name.as_str()).collect();
        assert_eq!(names, ["widgets/widget", "recipe folders"]);
        assert_eq!((used[0].runner_minutes, used[0].gpu_minutes, used[0].artifact_bytes), (0.5, 1.5, 11));
    }
}
