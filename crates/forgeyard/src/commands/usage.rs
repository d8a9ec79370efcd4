//! `forgeyard usage`: what was used, for each repository: this month beside caps and budgets, or in the last days.

use super::ReadArgs;
use crate::output::{self, at, table_or};
use anyhow::Result;
use clap::Args;
use forgeyard_api::usage::MonthUsage;
use forgeyard_model::commit::UsageFact;
use forgeyard_model::rules::Money;
use forgeyard_model::who::ForgeId;
use forgeyard_model::{ForgeName, Timestamp};
use serde::Serialize;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

/// Options of the report.
#[derive(Args, Clone)]
pub struct UsageArgs {
    /// What was used in the last so many days, from the usage facts, instead of this month.
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
    /// The forge; none for what is of no forge, and for facts of before there could be several.
    #[serde(skip_serializing_if = "Option::is_none")]
    forge: Option<ForgeName>,
    name: String,
    runner_minutes: f64,
    gpu_minutes: f64,
    artifact_bytes: u64,
}

/// Prints the report.
pub async fn run(args: UsageArgs) -> Result<ExitCode> {
    let client = args.read.farm.client()?;
    let Some(days) = args.days else {
        return output::show(args.read.json, &client.month_usage().await?, month);
    };
    // The farm's own clock decides, not that of this machine.
    let now = client.status().await?.at;
    let span = Duration::from_secs(u64::from(days) * 86_400);
    let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    let since = Timestamp::from_micros(now.as_micros().saturating_sub(micros));
    let facts = client.usage_since(since).await?;
    let names: BTreeMap<ForgeId, String> = client
        .config()
        .await?
        .repositories
        .into_iter()
        .map(|repository| (ForgeId::at(&repository.forge, repository.id), repository.name))
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
                    ForgeId { forge: used.forge.clone(), id: used.repository }.to_string(),
                    used.name.clone(),
                ]
            })
            .collect();
        table_or("nothing was used", &["runner min", "GPU min", "artifacts", "repository", "name"], &rows)
    })
}

/// This month as tables.
fn month(usage: &MonthUsage) -> String {
    let limit = |cap: Option<u32>| cap.map_or_else(|| "-".to_owned(), |cap| cap.to_string());
    let rows: Vec<Vec<String>> = usage
        .repositories
        .iter()
        .map(|row| {
            let used = &row.used;
            vec![
                used.jobs.to_string(),
                format!("{:.1}", used.runner_micros as f64 / 60e6),
                format!("{:.1}", used.gpu_micros as f64 / 60e6),
                Money(used.money).to_string(),
                format!("{}/{}", row.running, limit(row.cap)),
                row.repository.to_string(),
                row.name.clone(),
            ]
        })
        .collect();
    let head = ["jobs", "runner min", "GPU min", "money", "running/cap", "repository", "name"];
    let mut text = format!("{} (UTC), until {}\n", usage.month, at(usage.turns_at));
    text.push_str(&table_or("nothing was used", &head, &rows));
    if !usage.warm.is_empty() {
        let rows: Vec<Vec<String>> = usage
            .warm
            .iter()
            .map(|row| {
                vec![
                    row.used.jobs.to_string(),
                    format!("{:.1}", row.used.runner_micros as f64 / 60e6),
                    format!("{:.1}", row.used.gpu_micros as f64 / 60e6),
                    Money(row.used.money).to_string(),
                    row.waiting.to_string(),
                    row.pool.to_string(),
                ]
            })
            .collect();
        text.push_str("\nmachines that waited for work, charged to nobody\n");
        let head = ["machines", "runner min", "GPU min", "money", "wait now", "pool"];
        text.push_str(&table_or("", &head, &rows));
    }
    if usage.budgets.is_empty() {
        return text;
    }
    let rows: Vec<Vec<String>> = usage
        .budgets
        .iter()
        .map(|budget| {
            let say = |amount: u64| match budget.unit.as_str() {
                "runner_micros" => format!("{:.1} min", amount as f64 / 60e6),
                "gpu_micros" => format!("{:.1} GPU min", amount as f64 / 60e6),
                _ => Money(amount).to_string(),
            };
            vec![
                budget.name.clone(),
                say(budget.limit),
                say(budget.spent),
                say(budget.at_stake),
                say(budget.left),
                budget.of.clone(),
            ]
        })
        .collect();
    text.push('\n');
    text.push_str(&table_or("", &["budget", "a month", "spent", "held by what runs", "left", "of"], &rows));
    text
}

/// Sums by repository, the largest user of devices first.
fn add(facts: &[UsageFact], names: &BTreeMap<ForgeId, String>) -> Vec<Used> {
    let named = |known: &ForgeId| match known.forge {
        Some(_) => names.get(known),
        None => names.iter().find(|(other, _)| other.id == known.id).map(|(_, name)| name),
    };
    let mut sums: BTreeMap<Option<ForgeId>, (u64, u64, u64)> = BTreeMap::new();
    for fact in facts {
        // What machines used while they waited for work is nobody's, and a line of its own.
        let warm = fact.what.strip_prefix("warm_");
        let whose = if warm.is_some() {
            None
        } else {
            Some(ForgeId { forge: fact.forge.clone(), id: fact.repository })
        };
        let (runner, gpu, bytes) = sums.entry(whose).or_default();
        let sum = match warm.unwrap_or(fact.what.as_str()) {
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
            repository: repository.as_ref().map_or(0, |known| known.id),
            forge: repository.as_ref().and_then(|known| known.forge.clone()),
            name: match (&repository, repository.as_ref().and_then(named)) {
                (None, _) => "machines that waited for work".to_owned(),
                (Some(ForgeId { id: 0, .. }), _) => "recipe folders".to_owned(),
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
        let forge = (repository != 0).then(|| "github".parse().unwrap());
        UsageFact { what, amount, subject, repository, forge, at: Timestamp::default() }
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
            // The repository of this number at another forge is another one.
            UsageFact { forge: Some("lab".parse().unwrap()), ..fact("runner_micros", 15_000_000, 7) },
            fact("warm_gpu_micros", 60_000_000, 0),
        ];
        let used = add(
            &facts,
            &BTreeMap::from([
                (ForgeId::at(&"github".parse().unwrap(), 7), "widgets/widget".to_owned()),
                (ForgeId::at(&"lab".parse().unwrap(), 7), "lab/solver".to_owned()),
            ]),
        );
        let names: Vec<&str> = used.iter().map(|used| used.name.as_str()).collect();
        assert_eq!(
            names,
            ["widgets/widget", "machines that waited for work", "recipe folders", "lab/solver"]
        );
        assert_eq!((used[1].gpu_minutes, used[2].runner_minutes), (1.0, 1.0));
        assert_eq!((used[0].runner_minutes, used[0].gpu_minutes, used[0].artifact_bytes), (0.5, 1.5, 11));
    }
}
