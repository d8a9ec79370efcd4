//! `forgeyard pool`: runners that are alike: what each has and should have, and how it is stopped and started.

use super::{FarmArgs, ReadArgs, word};
use crate::output::{self, at, table_or};
use anyhow::Result;
use clap::{Args, Subcommand};
use forgeyard_api::pools::PoolView;
use forgeyard_model::PoolName;
use forgeyard_model::pool::{Breaker, Schedule, Terms};
use std::fmt::Write as _;
use std::process::ExitCode;

/// What can be done with pools.
#[derive(Subcommand, Clone)]
pub enum PoolCommand {
    /// List the pools, in order of preference.
    List(ReadArgs),
    /// Show one pool: machines, schedule, breaker, launches, the last error.
    Show {
        /// The pool.
        pool: PoolName,
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Give no new work to a pool; what runs there goes on.
    Drain(OnePool),
    /// Give work to a pool again.
    Resume(OnePool),
    /// Have a pool start machines again at once, after it stopped because they did not come up.
    Reset(OnePool),
}

/// One pool.
#[derive(Args, Clone)]
pub struct OnePool {
    /// The pool.
    pool: PoolName,
    #[command(flatten)]
    farm: FarmArgs,
}

/// Runs a command.
pub async fn run(command: PoolCommand) -> Result<ExitCode> {
    match command {
        PoolCommand::List(read) => {
            let pools = read.farm.client()?.pools().await?;
            output::show(read.json, &pools, |pools| list(pools))
        }
        PoolCommand::Show { pool, read } => {
            let pool = read.farm.client()?.pool(&pool).await?;
            output::show(read.json, &pool, show)
        }
        PoolCommand::Drain(OnePool { pool, farm }) => {
            farm.client()?.drain_pool(&pool, true).await?;
            done(&format!("{pool} gets no new work; what runs there goes on"))
        }
        PoolCommand::Resume(OnePool { pool, farm }) => {
            farm.client()?.drain_pool(&pool, false).await?;
            done(&format!("{pool} gets work again"))
        }
        PoolCommand::Reset(OnePool { pool, farm }) => {
            farm.client()?.reset_pool(&pool).await?;
            done(&format!("{pool} starts machines again"))
        }
    }
}

fn done(text: &str) -> Result<ExitCode> {
    output::say(text)?;
    Ok(ExitCode::SUCCESS)
}

fn state(pool: &PoolView) -> String {
    match (&pool.drain, &pool.breaker) {
        (Some(_), _) => "draining".to_owned(),
        (None, Breaker::Open { until, .. }) => format!("stopped until {}", at(*until)),
        (None, Breaker::HalfOpen { .. }) => "tries next".to_owned(),
        (None, Breaker::Probing { .. }) => "trying one".to_owned(),
        (None, Breaker::Closed { .. }) => "open".to_owned(),
    }
}

fn list(pools: &[PoolView]) -> String {
    let rows: Vec<Vec<String>> = pools
        .iter()
        .map(|pool| {
            vec![
                pool.name.to_string(),
                pool.provider.to_string(),
                word(&pool.isolation),
                pool.busy.to_string(),
                format!("{}/{}", pool.ready, pool.warm_wanted),
                pool.now.max.to_string(),
                pool.waiting.to_string(),
                state(pool),
            ]
        })
        .collect();
    let headings = ["pool", "provider", "isolation", "busy", "warm", "max", "waiting", "state"];
    table_or("no pool", &headings, &rows)
}

fn numbers(terms: &Terms) -> String {
    format!("at least {}, {} warm, at most {}", terms.min, terms.warm, terms.max)
}

fn entry(entry: &Schedule) -> String {
    let days: Vec<String> = entry.days.iter().map(word).collect();
    let days = if days.len() == 7 { "every day".to_owned() } else { days.join(", ") };
    let numbers = [("at least", entry.min), ("warm", entry.warm), ("at most", entry.max)];
    let numbers: Vec<String> =
        numbers.iter().filter_map(|(what, number)| number.map(|number| format!("{what} {number}"))).collect();
    format!("{days} {} to {} {}: {}", entry.from, entry.to, entry.zone, numbers.join(", "))
}

fn show(pool: &PoolView) -> String {
    let mut text = String::new();
    let mut say = |what: &str, value: String| {
        // Writing to a text cannot fail.
        let _ = writeln!(text, "{what:<12} {value}");
    };
    say("pool", pool.name.to_string());
    say("provider", format!("{}, {} isolation, image {}", pool.provider, word(&pool.isolation), pool.image));
    let flavors: Vec<String> = pool.flavors.iter().map(ToString::to_string).collect();
    say("flavors", flavors.join(", "));
    if !pool.labels.is_empty() {
        say("labels", pool.labels.join(", "));
    }
    if let Some(canary) = &pool.canary {
        say("canary", format!("takes {} of a hundred jobs of {}", canary.percent, canary.of));
    }
    say("state", state(pool));
    say(
        "machines",
        format!(
            "{} busy, {} warm, {} being made to wait, {} leaving; {} jobs wait",
            pool.busy, pool.ready, pool.coming, pool.leaving, pool.waiting
        ),
    );
    let by = pool.now.entry.map_or_else(String::new, |entry| format!(" (schedule entry {})", entry + 1));
    say("now", format!("{}{by}", numbers(&pool.now)));
    match &pool.next {
        Some(change) => say("next", format!("{} from {}", numbers(&change.then), at(change.at))),
        None if pool.schedule.is_empty() => {}
        None => say("next", "no change within nine days".to_owned()),
    }
    for line in &pool.schedule {
        say("schedule", entry(line));
    }
    let rate = pool.rate;
    say("launches", format!("{} now; burst {}, {} a minute", pool.launches, rate.burst, rate.per_minute));
    if let Some(error) = &pool.last_error {
        say("last error", format!("{} at {}: {}", error.runner, at(error.at), error.reason));
    }
    for stopped in &pool.stopped_at {
        let last = stopped.last_error.as_ref().map(|error| format!(": {}", error.reason.message));
        say("stopped at", format!("site {}{}", stopped.site, last.unwrap_or_default()));
    }
    if let Some(trouble) = &pool.warm_trouble {
        say("warm", trouble.to_string());
    }
    if let Some(trouble) = &pool.trouble {
        say("why", trouble.to_string());
    }
    text
}
