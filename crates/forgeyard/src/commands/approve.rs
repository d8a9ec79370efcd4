//! `forgeyard approve` and `forgeyard refuse`: whether exactly one commit may run. Who may say so is decided by the farm, under
//! its access files.

use super::{FarmArgs, ReadArgs, demand};
use crate::output::{self, at, table_or};
use anyhow::Result;
use clap::Args;
use forgeyard_api::client::Client;
use forgeyard_api::people::JudgeRequest;
use forgeyard_model::approval::{HeadApproval, Way};
use forgeyard_model::{DemandId, PipelineId};
use std::process::ExitCode;

/// What is approved.
#[derive(Args, Clone)]
pub struct JudgeArgs {
    /// A job of a forge (`dem_…`), its address at the forge, or a pipeline (`pipe_…`).
    #[arg(value_name = "DEMAND|URL|PIPELINE")]
    what: String,
    /// The commit that you looked at. The farm refuses when it is not the head. Without it, the head that is held counts.
    #[arg(long, value_name = "SHA", default_value = "", hide_default_value = true)]
    commit: String,
    /// A note for the audit trail and the check run.
    #[arg(long)]
    reason: Option<String>,
    #[command(flatten)]
    farm: FarmArgs,
}

/// What is refused, and why.
#[derive(Args, Clone)]
pub struct RefuseArgs {
    #[command(flatten)]
    what: JudgeArgs,
}

/// Approves.
pub async fn approve(args: JudgeArgs) -> Result<ExitCode> {
    judge(args, true).await
}

/// Refuses.
pub async fn refuse(args: RefuseArgs) -> Result<ExitCode> {
    judge(args.what, false).await
}

enum What {
    Demand(DemandId),
    Pipeline(PipelineId),
}

async fn judge(args: JudgeArgs, approve: bool) -> Result<ExitCode> {
    let client = args.farm.client()?;
    let (what, head) = looked_up(&client, &args.what).await?;
    let head_sha = if args.commit.is_empty() { head } else { args.commit };
    let request = JudgeRequest { head_sha: head_sha.clone(), reason: args.reason, how: Way::Cli };
    match what {
        What::Demand(id) => client.judge_demand(id, approve, &request).await?,
        What::Pipeline(id) => client.judge_pipeline(id, approve, &request).await?,
    }
    let word = if approve { "approved" } else { "refused" };
    output::say(&format!("commit {head_sha} is {word}; another commit needs its own word"))?;
    Ok(ExitCode::SUCCESS)
}

async fn looked_up(client: &Client, what: &str) -> Result<(What, String)> {
    if let Ok(id) = what.parse::<PipelineId>() {
        let view = client.pipeline(id).await?;
        return Ok((What::Pipeline(id), view.pipeline.event.head_sha));
    }
    let id = demand::find(client, what).await?;
    let view = client.demand(id).await?;
    Ok((What::Demand(id), view.demand.head().to_owned()))
}

/// Lists what was said.
pub async fn list(read: ReadArgs) -> Result<ExitCode> {
    let rows = read.farm.client()?.approvals().await?;
    output::show(read.json, &rows, |rows| {
        let rows: Vec<Vec<String>> = rows.iter().map(row).collect();
        table_or("nothing was approved or refused", &["commit", "what", "by", "when", "repository"], &rows)
    })
}

fn row(row: &HeadApproval) -> Vec<String> {
    let short: String = row.head_sha.chars().take(12).collect();
    let (what, by) = match (&row.judged, &row.void) {
        (Some(judged), Some(_)) => ("void".to_owned(), judged.by.shown()),
        (Some(judged), None) if judged.approve => ("approved".to_owned(), judged.by.shown()),
        (Some(judged), None) => ("refused".to_owned(), judged.by.shown()),
        (None, _) => ("nobody who may".to_owned(), String::new()),
    };
    vec![short, what, by, at(row.at), row.repository.name.clone()]
}
