//! One check run for each head commit: why its jobs wait, were refused, or came to nothing.
//!
//! Everything about one head is one text, made anew when the farm changed and sent only when it reads otherwise than what
//! was sent last, each half a minute at most while jobs only come and go. Who was sent what is a setting, so that a restart makes
//! no second check run.

use super::RoundError;
use crate::app::App;
use crate::console::routes;
use crate::effect::causes;
use crate::forges::Connection;
use forgeyard_engine::Farm;
use forgeyard_engine::approvals::{APPROVE, REFUSE};
use forgeyard_forges::forgejo::{CommitStatus, Forgejo, ForgejoError, StatusState};
use forgeyard_forges::github::{CheckAction, CheckState, Conclusion, GithubError, NewCheck};
use forgeyard_model::approval::head_key;
use forgeyard_model::demand::{Demand, DemandState};
use forgeyard_model::forge::Repository;
use forgeyard_model::job::{Hold, JobState};
use forgeyard_model::pipeline::Pipeline;
use forgeyard_model::{DemandId, Digest, Explanation, ForgeName, PipelineId, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

/// Letters of a commit status; what does not fit is behind its link.
const DESCRIPTION: usize = 255;

/// Where a text is shown: as a check run at GitHub, as a commit status at a Forgejo, which has no check runs and no buttons.
#[derive(Clone, Copy)]
pub enum Board<'a> {
    /// A GitHub.
    Checks(&'a Connection),
    /// A Forgejo.
    Statuses(&'a ForgeName, &'a Forgejo),
}

impl Board<'_> {
    fn forge(&self) -> &ForgeName {
        match self {
            Self::Checks(connection) => connection.forge(),
            Self::Statuses(forge, _) => forge,
        }
    }
}

/// Name of the check run.
const NAME: &str = "forgeyard";
/// A text that changes while the state of its check run stays is told so long after the last one: at a head with many jobs one
/// of them moves all the time, and each change is a call.
const CALM: Duration = Duration::from_secs(30);
/// Pause after a forge did not take one.
const PAUSE: Duration = Duration::from_secs(300);

type Head = (u64, String);

/// What is remembered of check runs: the heads that are looked at, and what was sent.
#[derive(Default)]
pub struct Checks {
    heads: BTreeMap<Head, Seen>,
    /// Whether something is told later, without anything being written until then.
    owes: bool,
}

#[derive(Default)]
struct Seen {
    sent: Option<Sent>,
    loaded: bool,
    not_before: Timestamp,
    /// What its text was made of when it was last told.
    stamp: Option<u64>,
    /// When that was, and the state that was told.
    told: Option<(Timestamp, CheckState)>,
}

impl Seen {
    /// Whether a text with this state can wait. One that says who must act does not: somebody may look at it after a press of a
    /// button.
    fn calm(&self, state: CheckState, now: Timestamp) -> bool {
        !matches!(state, CheckState::Completed(_))
            && self.told.is_some_and(|(at, told)| told == state && now.since(at) < CALM)
    }
}

/// What was sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Sent {
    id: u64,
    digest: Digest,
}

/// A head of which something is to be told.
struct News {
    repository: Repository,
    told: Told,
    stamp: u64,
    /// Whether it has live demand, or a pipeline that waits.
    live: bool,
}

struct Told {
    state: CheckState,
    title: String,
    summary: String,
    /// Why the first job that is not served is not, for where there is room for one line only.
    first: Option<String>,
    /// Whether the buttons are shown that say whether the head may run.
    asks: bool,
}

/// A pipeline of a head that waits for an approval.
struct HeldPipeline<'a> {
    pipeline: &'a Pipeline,
    reason: &'a Explanation,
}

impl Checks {
    /// Sends what reads otherwise than before. Trouble is logged, and that head rests for a while.
    pub async fn round(&mut self, app: &App, board: Board<'_>) {
        let now = app.clock.now();
        self.owes = false;
        for ((id, sha), News { repository, told, stamp, live }) in self.news(app, board.forge(), now) {
            let (state, over) = (told.state, matches!(told.state, CheckState::Completed(_)));
            let seen = self.heads.entry((id, sha.clone())).or_default();
            match tell(app, board, seen, &repository, &sha, told).await {
                // What is over is looked at once more only if one of its jobs lives again.
                Ok(()) if over && !live => drop(self.heads.remove(&(id, sha))),
                Ok(()) => (seen.stamp, seen.told) = (Some(stamp), Some((now, state))),
                Err(RoundError::Forge(GithubError::Limited { until, .. })) => {
                    self.owes = true;
                    seen.not_before = until;
                }
                Err(error) => {
                    self.owes = true;
                    tracing::warn!(repository = %repository.name, error = causes(&error), "a check run was not taken");
                    seen.not_before = now.plus(PAUSE);
                }
            }
        }
    }

    /// Whether there is something to tell even when nothing is written any more.
    pub fn owes(&self) -> bool {
        self.owes
    }

    /// What is to be told of the heads with live demand, and of those that had some at the last look, where anything that their
    /// text is made of was written since it was last told, unless it can wait.
    fn news(&mut self, app: &App, forge: &ForgeName, now: Timestamp) -> BTreeMap<Head, News> {
        let known = &mut self.heads;
        // The core waits for readers: who is told of is looked up at once, what is told one head after the other.
        let heads: BTreeMap<Head, (u64, bool, Vec<PipelineId>)> = {
            let farm = app.core.read();
            let mut heads: BTreeMap<(u64, &str), (bool, Vec<PipelineId>)> =
                known.keys().map(|(id, sha)| ((*id, sha.as_str()), (false, Vec::new()))).collect();
            let live = farm.index.live_demands.iter().filter_map(|id| farm.demands.get(id));
            for demand in live.filter(|demand| demand.repository.forge == *forge) {
                heads.entry((demand.repository.id, &demand.head_sha)).or_default().0 = true;
            }
            let pipelines = farm.index.live_pipelines.iter().filter_map(|id| farm.pipelines.get(id));
            let ours = pipelines.filter(|pipeline| pipeline.event.repository.forge == *forge);
            for pipeline in ours.filter(|pipeline| held(&farm, pipeline).is_some()) {
                let of = heads.entry((pipeline.event.repository.id, &pipeline.event.head_sha)).or_default();
                of.0 = true;
                of.1.push(pipeline.id);
            }
            let stamped = heads.into_iter().filter_map(|((id, sha), (live, pipelines))| {
                let head = (id, sha.to_owned());
                let stamp = stamp(&farm, forge, &head, &pipelines);
                let same = known.get(&head).is_some_and(|seen| live && seen.stamp == Some(stamp));
                (!same).then_some((head, (stamp, live, pipelines)))
            });
            stamped.collect()
        };
        let mut found = BTreeMap::new();
        for (head, (stamp, live, pipelines)) in heads {
            let farm = app.core.read();
            let demands: Vec<&Demand> = farm.demands_of_head(forge, head.0, &head.1).collect();
            let pipelines = pipelines.iter().filter_map(|id| farm.pipelines.get(id));
            let held: Vec<HeldPipeline<'_>> =
                pipelines.filter_map(|pipeline| held(&farm, pipeline)).collect();
            let of_demand = demands.first().map(|demand| demand.repository.clone());
            let of_held = || held.first().map(|held| held.pipeline.event.repository.clone());
            let Some(repository) = of_demand.or_else(of_held) else {
                // Nothing of it is in memory any more.
                known.remove(&head);
                continue;
            };
            let counts = Counts::of(&demands, held.len());
            if known
                .get(&head)
                .is_some_and(|seen| seen.not_before > now || (live && seen.calm(counts.state(), now)))
            {
                self.owes = true;
                continue;
            }
            let told = text(&farm, &demands, &held, &counts);
            found.insert(head, News { repository, told, stamp, live });
        }
        found
    }
}

/// Stands for everything that the text of a head is made of: which rows, and which version of each.
fn stamp(farm: &Farm, forge: &ForgeName, head: &Head, pipelines: &[PipelineId]) -> u64 {
    let mut hash = DefaultHasher::new();
    let mut looked = None;
    for demand in farm.demands_of_head(forge, head.0, &head.1) {
        (demand.id, demand.generation).hash(&mut hash);
        let launch = demand.launch.and_then(|id| farm.jobs.get(&id));
        launch.map(|job| (job.id, job.generation)).hash(&mut hash);
        // What was said of a commit is one row, and nearly all demands of a head have the same commit.
        if looked.replace(demand.head()) != Some(demand.head()) && !farm.approvals.is_empty() {
            let said = farm.approvals.get(&head_key(&demand.repository, demand.head()));
            said.map(|row| row.generation).hash(&mut hash);
        }
    }
    for pipeline in pipelines.iter().filter_map(|id| farm.pipelines.get(id)) {
        (pipeline.id, pipeline.generation).hash(&mut hash);
        farm.jobs_of(pipeline.id).for_each(|job| (job.id, job.generation).hash(&mut hash));
        let said = farm.approvals.get(&head_key(&pipeline.event.repository, &pipeline.event.head_sha));
        said.map(|row| row.generation).hash(&mut hash);
    }
    hash.finish()
}

/// Why a pipeline waits for an approval, when it does.
fn held<'a>(farm: &'a Farm, pipeline: &'a Pipeline) -> Option<HeldPipeline<'a>> {
    farm.jobs_of(pipeline.id).find_map(|job| match &job.state {
        JobState::Held(Hold::Approval { reason }) => Some(HeldPipeline { pipeline, reason }),
        _ => None,
    })
}

/// How many jobs of a head are what.
struct Counts {
    held: usize,
    refused: usize,
    live: usize,
    waiting: usize,
}

impl Counts {
    fn of(demands: &[&Demand], pipelines: usize) -> Self {
        let count =
            |wanted: fn(&DemandState) -> bool| demands.iter().filter(|demand| wanted(&demand.state)).count();
        Self {
            held: count(|state| matches!(state, DemandState::Held { until: None, .. })) + pipelines,
            refused: count(|state| matches!(state, DemandState::Refused { .. })),
            live: count(|state| !state.ended() && !matches!(state, DemandState::Refused { .. })),
            waiting: count(|state| {
                !state.ended() && !matches!(state, DemandState::Running | DemandState::Refused { .. })
            }),
        }
    }

    fn state(&self) -> CheckState {
        if self.held > 0 {
            CheckState::Completed(Conclusion::ActionRequired)
        } else if self.refused > 0 {
            CheckState::Completed(Conclusion::Failure)
        } else if self.live == 0 {
            CheckState::Completed(Conclusion::Success)
        } else if self.waiting == self.live {
            CheckState::Queued
        } else {
            CheckState::InProgress
        }
    }
}

/// One text of all jobs of a head.
fn text(farm: &Farm, demands: &[&Demand], pipelines: &[HeldPipeline<'_>], counts: &Counts) -> Told {
    let Counts { held, refused, live, waiting } = *counts;
    let state = counts.state();
    let jobs = demands.len() + pipelines.len();
    let title = match (held, refused, live) {
        (0, 0, 0) => format!("{jobs} jobs had their runners, or no longer want one"),
        (0, 0, _) => format!("{waiting} of {jobs} jobs wait for a runner"),
        (0, _, _) => format!("{refused} of {jobs} jobs are refused"),
        (_, _, _) => format!("{held} of {jobs} jobs need an approval"),
    };
    let first = demands
        .iter()
        .filter(|demand| !matches!(demand.state, DemandState::Running | DemandState::Ended))
        .find_map(|demand| why(farm, demand.id))
        .or_else(|| pipelines.first().map(|held| sentence(held.reason)));
    let mut summary = String::from("| job | state | why |\n|---|---|---|\n");
    for demand in demands {
        let why = why(farm, demand.id).unwrap_or_default();
        let state = demand.state.name();
        summary.push_str(&format!("| {} | {state} | {} |\n", cell(&demand.name), cell(&why)));
    }
    for HeldPipeline { pipeline, reason } in pipelines {
        let why = sentence(reason);
        summary.push_str(&format!("| pipeline {} | held | {} |\n", pipeline.id, cell(&why)));
    }
    summary.push_str(&cached(farm, demands));
    let head = demands.first().map(|demand| head_key(&demand.repository, demand.head())).or_else(|| {
        pipelines.first().map(|held| head_key(&held.pipeline.event.repository, &held.pipeline.event.head_sha))
    });
    summary.push_str(&said(farm, head.as_deref()));
    Told { state, title, summary, first, asks: held > 0 }
}

/// What the jobs of a head that are over had of the build cache.
fn cached(farm: &Farm, demands: &[&Demand]) -> String {
    let mut text = String::new();
    for demand in demands.iter().filter(|demand| demand.state.ended()) {
        let Some(launch) = demand.launch else { continue };
        for (number, line) in crate::views::cached(farm, launch).iter().enumerate() {
            let name = if number == 0 { cell(&demand.name) } else { String::new() };
            text.push_str(&format!("| {name} | {} |\n", cell(line)));
        }
    }
    match text.is_empty() {
        true => text,
        false => format!("\n| job | build cache |\n|---|---|\n{text}"),
    }
}

/// What was said of a head, and what was answered to the last person who tried and may not.
fn said(farm: &Farm, head: Option<&str>) -> String {
    let Some(row) = head.and_then(|head| farm.approvals.get(head)) else { return String::new() };
    let mut text = String::new();
    if let Some(judged) = &row.judged {
        let word = if judged.approve { "Approved" } else { "Refused" };
        text.push_str(&format!(
            "\n**{word}** by {} through {}.",
            cell(&judged.by.shown()),
            judged.how.name()
        ));
        if let Some(reason) = &judged.reason {
            text.push_str(&format!(" {}", cell(reason)));
        }
        text.push('\n');
    }
    if let Some(void) = &row.void {
        text.push_str(&format!("\nThat no longer counts: {}.\n", cell(&void.message)));
    }
    if let Some(told) = &row.turned_away {
        text.push_str(&format!("\n**Not approved:** {}.\n", cell(&told.message)));
        for line in &told.evidence {
            text.push_str(&format!("- {}\n", cell(line)));
        }
        if let Some(fix) = &told.fix {
            text.push_str(&format!("\nTo do: {}.\n", cell(fix)));
        }
    }
    text
}

fn sentence(reason: &Explanation) -> String {
    let fix = reason.fix.as_ref().map(|fix| format!(" To do: {fix}.")).unwrap_or_default();
    format!("{}.{fix}", reason.message)
}

/// Why a job is where it is, in one line, without times: a text that changes by itself would be sent again and again.
fn why(farm: &Farm, id: DemandId) -> Option<String> {
    let demand = farm.demands.get(&id)?;
    if let Some(reason) = demand.reason() {
        return Some(sentence(reason));
    }
    if let Some(conclusion) = &demand.conclusion {
        return Some(format!("ended as `{conclusion}`"));
    }
    let job = farm.jobs.get(&demand.launch?)?;
    job.waiting.as_ref().map(|reason| reason.message.clone())
}

/// What a person presses who may say whether the head may run. GitHub shows them to whoever may write to the repository; who
/// really may is asked when one is pressed.
fn buttons() -> Vec<CheckAction> {
    vec![
        CheckAction {
            label: "Approve for GPU".to_owned(),
            description: "Let exactly this commit run".to_owned(),
            identifier: APPROVE.to_owned(),
        },
        CheckAction {
            label: "Refuse".to_owned(),
            description: "This commit must not run".to_owned(),
            identifier: REFUSE.to_owned(),
        },
    ]
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
    board: Board<'_>,
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
    let details = format!("{}{}", app.public_url.trim_end_matches('/'), routes::QUEUE);
    let connection = match board {
        Board::Checks(connection) => connection,
        Board::Statuses(_, client) => {
            let status = status(&told, details);
            let refused = |error: ForgejoError| RoundError::Missing(causes(&error));
            client.set_status(&path, sha, &status).await.map_err(refused)?;
            return remember(app, seen, &key, Sent { id: 0, digest }).await;
        }
    };
    let check = NewCheck {
        name: NAME.to_owned(),
        head_sha: sha.to_owned(),
        external_id: None,
        details_url: Some(details),
        state: told.state,
        title: told.title,
        summary: told.summary,
        text: None,
        actions: if told.asks { buttons() } else { Vec::new() },
    };
    let github = connection.github();
    let run = match &seen.sent {
        Some(sent) => github.update_check(&path, sent.id, &check).await?,
        None => github.create_check(&path, &check).await?,
    };
    remember(app, seen, &key, Sent { id: run.id, digest }).await
}

async fn remember(app: &App, seen: &mut Seen, key: &str, sent: Sent) -> Result<(), RoundError> {
    if let Ok(text) = serde_json::to_string(&sent) {
        app.store.set_setting(key, &text).await?;
    }
    seen.sent = Some(sent);
    Ok(())
}

/// The same text as a commit status: its title and the first reason. What waits for an approval is pending, because a status
/// has no button; the link leads to where one is.
fn status(told: &Told, target_url: String) -> CommitStatus {
    let state = match told.state {
        CheckState::Queued | CheckState::InProgress | CheckState::Completed(Conclusion::ActionRequired) => {
            StatusState::Pending
        }
        CheckState::Completed(Conclusion::Success) => StatusState::Success,
        CheckState::Completed(_) => StatusState::Failure,
    };
    let text = match &told.first {
        Some(why) => format!("{}: {why}", told.title),
        None => told.title.clone(),
    };
    let plain = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter });
    let description = plain.take(DESCRIPTION).collect();
    CommitStatus { state, context: NAME.to_owned(), description, target_url }
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
