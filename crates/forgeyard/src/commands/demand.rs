//! `forgeyard demand` and `forgeyard queue`: jobs of forges that want a runner, and everybody who waits.

use super::{ReadArgs, job};
use crate::output::{self, Wrong, at, indented, table_or};
use anyhow::Result;
use clap::{Args, Subcommand};
use forgeyard_api::client::Client;
use forgeyard_api::people::{DemandView, QueueRow};
use forgeyard_model::demand::Demand;
use forgeyard_model::{DemandId, JobId};
use std::fmt::Write as _;
use std::process::ExitCode;

/// What can be asked about jobs of forges.
#[derive(Subcommand, Clone)]
pub enum DemandCommand {
    /// List the newest jobs of forges that want or wanted a runner.
    List {
        /// Only those in this state: unread, waiting, held, refused, wanted, launching, running, ended, withdrawn.
        #[arg(long)]
        state: Option<String>,
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Show one: why it is where it is, who told the farm of it, and what was launched for it.
    Show(OneDemand),
}

/// One job of a forge.
#[derive(Args, Clone)]
pub struct OneDemand {
    /// It, as `dem_…`, or its address at the forge.
    demand: String,
    #[command(flatten)]
    read: ReadArgs,
}

/// What `forgeyard why` is asked about.
#[derive(Args, Clone)]
pub struct WhyArgs {
    /// A job (`job_…`), a job of a forge (`dem_…`), or the address of one at its forge (`https://…/job/NUMBER`).
    #[arg(value_name = "JOB|URL")]
    what: String,
    #[command(flatten)]
    read: ReadArgs,
}

/// Runs a command.
pub async fn run(command: DemandCommand) -> Result<ExitCode> {
    match command {
        DemandCommand::List { state, read } => {
            let mut demands = read.farm.client()?.demands().await?;
            demands.retain(|demand| state.as_ref().is_none_or(|state| demand.state.name() == state));
            output::show(read.json, &demands, |demands| {
                let rows: Vec<Vec<String>> = demands
                    .iter()
                    .map(|demand| {
                        let what = format!("{} {}", demand.repository.name, demand.name);
                        let id = demand.id.to_string();
                        vec![id, demand.state.name().to_owned(), at(demand.since), what]
                    })
                    .collect();
                table_or("no job of a forge wants a runner", &["demand", "state", "since", "what"], &rows)
            })
        }
        DemandCommand::Show(OneDemand { demand, read }) => {
            let client = read.farm.client()?;
            let id = find(&client, &demand).await?;
            output::show(read.json, &client.demand(id).await?, show)
        }
    }
}

/// Everybody who waits.
pub async fn queue(read: ReadArgs) -> Result<ExitCode> {
    let rows = read.farm.client()?.queue().await?;
    output::show(read.json, &rows, |rows: &Vec<QueueRow>| {
        let rows: Vec<Vec<String>> = rows
            .iter()
            .map(|row| {
                let place = row.position.map_or_else(|| "-".to_owned(), |place| place.to_string());
                let what = format!("{} {}: {}", row.repository, row.what, row.reason.message);
                let class = row.outlook.as_ref().map_or("-", |seen| seen.class.name()).to_owned();
                let expected = row.outlook.as_ref().and_then(|seen| seen.expected);
                let expected = expected.map_or_else(|| "-".to_owned(), at);
                vec![place, class, row.id.clone(), row.state.clone(), at(row.since), expected, what]
            })
            .collect();
        table_or(
            "nobody waits",
            &["place", "class", "id", "state", "since", "expected", "what, and why"],
            &rows,
        )
    })
}

/// Says why a job, of this farm or of a forge, is where it is.
pub async fn why(args: WhyArgs) -> Result<ExitCode> {
    if let Ok(id) = args.what.parse::<JobId>() {
        return job::why_of(id, &args.read).await;
    }
    let client = args.read.farm.client()?;
    let id = find(&client, &args.what).await?;
    let view = client.demand(id).await?;
    output::show(args.read.json, &view.why, |why| {
        job::reason_text(&format!("{id} ({})", view.demand.name), &id.to_string(), why)
    })
}

/// The demand that is meant.
pub(super) async fn find(client: &Client, what: &str) -> Result<DemandId> {
    if let Ok(id) = what.parse::<DemandId>() {
        return Ok(id);
    }
    let Some(number) = job_number(what) else {
        return Err(Wrong::new(format!("`{what}` is neither a job nor the address of one"))
            .fix("give `job_…`, `dem_…`, or an address that ends in `/job/NUMBER`")
            .into());
    };
    let known: Vec<Demand> = client.demands_numbered(number).await?;
    known.iter().find(|demand| demand.job == number).map(|demand| demand.id).ok_or_else(|| {
        Wrong::new(format!("the farm knows no job {number} of a forge"))
            .fix("see `forgeyard demand list`; a job whose labels suit no pool is not this farm's, `/deliveries` says so")
            .into()
    })
}

/// The number of a job in its address at the forge: `…/actions/runs/RUN/job/JOB`, and what may follow.
fn job_number(url: &str) -> Option<u64> {
    let (_, rest) = url.split_once("/job/").or_else(|| url.split_once("/jobs/"))?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

fn show(view: &DemandView) -> String {
    let demand = &view.demand;
    let mut text = format!(
        "{} ({}): {}\nrepository: {}\njob {} of run {}, attempt {}\nlabels: {}\n{}\nnext: {}\n",
        demand.id,
        demand.name,
        demand.state.name(),
        demand.repository.name,
        demand.job,
        demand.run,
        demand.run_attempt,
        demand.labels.join(", "),
        indented(&view.why.reason, 0),
        view.why.next,
    );
    for (source, sighting) in &demand.seen {
        let _ = writeln!(
            text,
            "told by {}: first {}, {} times something new",
            source.name(),
            at(sighting.first),
            sighting.news
        );
    }
    let rows: Vec<Vec<String>> = view
        .launches
        .iter()
        .map(|job| vec![job.id.to_string(), job.state.name().to_owned(), at(job.since)])
        .collect();
    text.push_str(&table_or("nothing was launched for it yet", &["launch", "state", "since"], &rows));
    text
}

#[cfg(test)]
mod tests {
    use super::job_number;

    #[test]
    fn job_is_found_in_its_address() {
        assert_eq!(
            job_number("https://github.com/o/r/actions/runs/17/job/94396871545"),
            Some(94_396_871_545)
        );
        assert_eq!(job_number("https://github.com/o/r/actions/runs/17/job/9?pr=4#step:2:1"), Some(9));
        assert_eq!(job_number("https://github.com/o/r/actions/runs/17"), None);
        assert_eq!(job_number("https://github.com/o/r/job/x"), None);
    }
}
