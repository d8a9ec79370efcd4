//! One check run for each head commit: why its jobs wait, were refused, or came to nothing.
//!
//! Everything about one head is one text, made anew when the farm changed and sent only when it reads otherwise than what
//! was sent last. Who was sent what is a setting, so that a restart makes no second check run.

use super::RoundError;
use crate::app::App;
use crate::effect::causes;
use crate::forges::Connection;
use forgeyard_engine::Farm;
use forgeyard_forges::github::{CheckState, Conclusion, GithubError, NewCheck};
use forgeyard_model::demand::{Demand, DemandState};
use forgeyard_model::forge::Repository;
use forgeyard_model::{DemandId, Digest, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Name of the check run.
const NAME: &str = "forgeyard";
/// Pause after a forge did not take one.
const PAUSE: Duration = Duration::from_secs(300);

type Head = (u64, String);

/// What is remembered of check runs: the heads that are looked at, and what was sent.
#[derive(Default)]
pub struct Checks {
    heads: BTreeMap<Head, Seen>,
}

#[derive(Default)]
struct Seen {
    sent: Option<Sent>,
    loaded: bool,
    not_before: Timestamp,
}

/// What was sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Sent {
    id: u64,
    digest: Digest,
}

struct Told {
    state: CheckState,
    title: String,
    summary: String,
}

impl Checks {
    /// Sends what reads otherwise than before. Trouble is logged, and that head rests for a while.
    pub async fn round(&mut self, app: &App, connection: &Connection) {
        let now = app.clock.now();
        for ((id, sha), (repository, told)) in told(app, connection, &self.heads) {
            let over = matches!(told.state, CheckState::Completed(_));
            let seen = self.heads.entry((id, sha.clone())).or_default();
            if seen.not_before > now {
                continue;
            }
            match tell(app, connection, seen, &repository, &sha, told).await {
                // What is over is looked at once more only if one of its jobs lives again.
                Ok(()) if over => drop(self.heads.remove(&(id, sha))),
                Ok(()) => {}
                Err(RoundError::Forge(GithubError::Limited { until, .. })) => seen.not_before = until,
                Err(error) => {
                    tracing::warn!(repository = %repository.name, error = causes(&error), "a check run was not taken");
                    seen.not_before = now.plus(PAUSE);
                }
            }
        }
    }
}

/// What is to be told of every head with live demand, and of those that had some at the last look.
fn told(
    app: &App,
    connection: &Connection,
    known: &BTreeMap<Head, Seen>,
) -> BTreeMap<Head, (Repository, Told)> {
    let farm = app.core.read();
    let head = |demand: &Demand| (demand.repository.id, demand.head_sha.clone());
    let ours = |demand: &&Demand| demand.repository.forge == *connection.forge();
    let live = farm.index.live_demands.iter().filter_map(|id| farm.demands.get(id));
    let mut heads: BTreeMap<Head, Vec<&Demand>> =
        live.filter(ours).map(|demand| (head(demand), Vec::new())).collect();
    heads.extend(known.keys().map(|head| (head.clone(), Vec::new())));
    if heads.is_empty() {
        return BTreeMap::new();
    }
    for demand in farm.demands.values().filter(ours) {
        if let Some(of_head) = heads.get_mut(&head(demand)) {
            of_head.push(demand);
        }
    }
    let told = heads.into_iter().filter_map(|(head, demands)| {
        let repository = demands.first()?.repository.clone();
        Some((head, (repository, text(&farm, &demands))))
    });
    told.collect()
}

/// One text of all jobs of a head.
fn text(farm: &Farm, demands: &[&Demand]) -> Told {
    let count =
        |wanted: fn(&DemandState) -> bool| demands.iter().filter(|demand| wanted(&demand.state)).count();
    let held = count(|state| matches!(state, DemandState::Held { until: None, .. }));
    let refused = count(|state| matches!(state, DemandState::Refused { .. }));
    let live = count(|state| !state.ended() && !matches!(state, DemandState::Refused { .. }));
    let waiting =
        count(|state| !state.ended() && !matches!(state, DemandState::Running | DemandState::Refused { .. }));
    let state = if held > 0 {
        CheckState::Completed(Conclusion::ActionRequired)
    } else if refused > 0 {
        CheckState::Completed(Conclusion::Failure)
    } else if live == 0 {
        CheckState::Completed(Conclusion::Success)
    } else if waiting == live {
        CheckState::Queued
    } else {
        CheckState::InProgress
    };
    let jobs = demands.len();
    let title = match (held, refused, live) {
        (0, 0, 0) => format!("{jobs} jobs had their runners, or no longer want one"),
        (0, 0, _) => format!("{waiting} of {jobs} jobs wait for a runner"),
        (0, _, _) => format!("{refused} of {jobs} jobs are refused"),
        (_, _, _) => format!("{held} of {jobs} jobs need an approval"),
    };
    let mut summary = String::from("| job | state | why |\n|---|---|---|\n");
    for demand in demands {
        let why = why(farm, demand.id).unwrap_or_default();
        let state = demand.state.name();
        summary.push_str(&format!("| {} | {state} | {} |\n", cell(&demand.name), cell(&why)));
    }
    Told { state, title, summary }
}

/// Why a job is where it is, in one line, without times: a text that changes by itself would be sent again and again.
fn why(farm: &Farm, id: DemandId) -> Option<String> {
    let demand = farm.demands.get(&id)?;
    if let Some(reason) = demand.reason() {
        let fix = reason.fix.as_ref().map(|fix| format!(" To do: {fix}.")).unwrap_or_default();
        return Some(format!("{}.{fix}", reason.message));
    }
    if let Some(conclusion) = &demand.conclusion {
        return Some(format!("ended as `{conclusion}`"));
    }
    let job = farm.jobs.get(&demand.launch?)?;
    job.waiting.as_ref().map(|reason| reason.message.clone())
}

/// Foreign text as a cell of a table: no markup of its own, no line breaks.
fn cell(text: &str) -> String {
    let cut: String = text.chars().take(500).collect();
    let mut out = String::with_capacity(cut.len());
    for letter in cut.chars() {
        match letter {
            '|' | '`' | '<' | '>' | '[' | ']' | '*' | '_' | '\\' | '@' | '#' => {
                out.push('\\');
                out.push(letter);
            }
            letter if letter.is_control() => out.push(' '),
            letter => out.push(letter),
        }
    }
    out
}

async fn tell(
    app: &App,
    connection: &Connection,
    seen: &mut Seen,
    repository: &Repository,
    sha: &str,
    told: Told,
) -> Result<(), RoundError> {
    let key = format!("check/{}/{}/{sha}", repository.forge, repository.id);
    if !seen.loaded {
        let kept = app.store.setting(&key).await?;
        seen.sent = kept.and_then(|text| serde_json::from_str(&text).ok());
        seen.loaded = true;
    }
    let digest = Digest::of(format!("{:?}\n{}\n{}", told.state, told.title, told.summary).as_bytes());
    if seen.sent.as_ref().is_some_and(|sent| sent.digest == digest) {
        return Ok(());
    }
    let path = Connection::path(repository).map_err(|reason| RoundError::Missing(reason.message))?;
    let check = NewCheck {
        name: NAME.to_owned(),
        head_sha: sha.to_owned(),
        external_id: None,
        details_url: Some(format!("{}/", app.public_url)),
        state: told.state,
        title: told.title,
        summary: told.summary,
        text: None,
        actions: Vec::new(),
    };
    let github = connection.github();
    let run = match &seen.sent {
        Some(sent) => github.update_check(&path, sent.id, &check).await?,
        None => github.create_check(&path, &check).await?,
    };
    let sent = Sent { id: run.id, digest };
    if let Ok(text) = serde_json::to_string(&sent) {
        app.store.set_setting(&key, &text).await?;
    }
    seen.sent = Some(sent);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_in_a_check_run_has_no_markup_and_mentions_nobody() {
        assert_eq!(cell("a|b\n<img> @all"), "a\\|b \\<img\\> \\@all");
        assert_eq!(cell(&"x".repeat(600)).len(), 500);
    }
}
