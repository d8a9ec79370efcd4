//! `forgeyard audit`: who changed what, when.

use super::ReadArgs;
use crate::output::{self, at, table_or};
use anyhow::Result;
use clap::Args;
use forgeyard_model::EventId;
use forgeyard_model::commit::EventRecord;
use forgeyard_model::principal::{Principal, PrincipalKind};
use std::process::ExitCode;

/// Options of the audit trail.
#[derive(Args, Clone)]
pub struct AuditArgs {
    /// Only what happened to this: `job_…`, `rnr_…`, `dev_…`, a delivery, a channel.
    #[arg(long)]
    subject: Option<String>,
    /// Only what happened before this event: the next page.
    #[arg(long, value_name = "EVENT")]
    before: Option<EventId>,
    #[command(flatten)]
    read: ReadArgs,
}

/// Prints the trail, newest first.
pub async fn run(args: AuditArgs) -> Result<ExitCode> {
    let client = args.read.farm.client()?;
    let events = client.events_before(args.subject.as_deref(), args.before).await?;
    output::show(args.read.json, &events, |events| {
        let rows: Vec<Vec<String>> =
            events.iter().map(|event| vec![at(event.at), event.subject.clone(), what(event)]).collect();
        let mut text = table_or("nothing happened", &["at", "subject", "what"], &rows);
        if let Some(last) = events.last() {
            text.push_str(&format!("\nearlier: --before {}\n", last.id));
        }
        text
    })
}

fn what(event: &EventRecord) -> String {
    let note = event.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
    format!("{} → {} by {}{note}", event.name, event.to, by(&event.by))
}

/// Who did it, in few words: an agent is named after its attempt, which is known from the subject.
pub fn by(principal: &Principal) -> String {
    match principal.kind {
        PrincipalKind::Agent => "its agent".to_owned(),
        PrincipalKind::Site => format!("site {}", principal.name),
        PrincipalKind::Token { .. } | PrincipalKind::Person { .. } | PrincipalKind::Farm => {
            principal.name.clone()
        }
    }
}
