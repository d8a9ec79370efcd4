//! Approvals of heads, accepted terms, and what follows when a rule no longer allows what runs.
//!
//! One word of somebody who may speak counts for everything of a repository at exactly one commit: jobs of a forge and
//! pipelines that are held, and those that come later at the same commit. It is asked for again at every decision, so that
//! a person or token that loses its right loses the approval with it. It never counts for another commit, and is void as
//! soon as the pull request has another head. Running something again at the forge approves nothing.
//!
//! Who may approve is asked of the gate ([`gate::may_approve`]) for the pools that the held work would use.

use crate::demand::admit::{self, Judged};
use crate::demand::{labels, launch, taken};
use crate::gate::{self, Approval};
use crate::lifecycle::DemandEvent;
use crate::tx::Tx;
use crate::{deliveries, people};
use forgeyard_model::access::Access;
use forgeyard_model::approval::{
    Acceptance, Approver, ConfigVersion, HeadApproval, Judgement, Way, head_key,
};
use forgeyard_model::demand::{DemandState, RunFacts};
use forgeyard_model::forge::{Person, Press, Repository, Trigger};
use forgeyard_model::input::{Refusal, RefusalKind, Reply};
use forgeyard_model::job::{Hold, JobState};
use forgeyard_model::principal::{PrincipalKind, Role};
use forgeyard_model::who::ForgeId;
use forgeyard_model::{DemandId, Digest, Explanation, ForgeName, JobId, PipelineId, RunnerId};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// Button of a check run that approves its head.
pub const APPROVE: &str = "forgeyard-approve";
/// Button of a check run that refuses its head.
pub const REFUSE: &str = "forgeyard-refuse";

/// The access rules, with the terms that people accepted at the farm itself.
pub(crate) fn access<'a>(tx: &Tx<'a>) -> Cow<'a, Access> {
    with_acceptances(&tx.config().access, tx.farm())
}

/// The same for whoever only reads.
pub fn with_acceptances<'a>(access: &'a Access, farm: &crate::Farm) -> Cow<'a, Access> {
    let newer = |acceptance: &&Acceptance| {
        access.terms_accepted.get(&acceptance.who()).is_none_or(|version| *version < acceptance.version)
    };
    if access.terms_version == 0 || !farm.acceptances.values().any(|row| newer(&row)) {
        return Cow::Borrowed(access);
    }
    let mut access = access.clone();
    for row in farm.acceptances.values() {
        let version = access.terms_accepted.entry(row.who()).or_insert(0);
        *version = (*version).max(row.version);
    }
    Cow::Owned(access)
}

fn row<'a>(tx: &'a Tx<'_>, repository: &Repository, head_sha: &str) -> Option<&'a HeadApproval> {
    tx.farm().approvals.get(&head_key(repository, head_sha))
}

/// The approval that a head has, as the gate wants it.
pub(crate) fn of_head(tx: &Tx<'_>, repository: &Repository, head_sha: &str) -> Option<Approval> {
    let judgement = row(tx, repository, head_sha)?.counts().filter(|judgement| judgement.approve)?;
    let role = match judgement.by.token {
        // A token that was revoked or is over takes its word back.
        Some(_) => Some(role_of_token(tx, &judgement.by, repository)?),
        None => judgement.by.role,
    };
    Some(Approval {
        repository: repository.id,
        head_sha: head_sha.to_owned(),
        by: judgement.by.person.clone(),
        forge: judgement.by.forge.clone(),
        role,
    })
}

/// What a person said against a head.
pub(crate) fn refused(tx: &Tx<'_>, repository: &Repository, head_sha: &str) -> Option<Explanation> {
    let judgement = row(tx, repository, head_sha)?.counts().filter(|judgement| !judgement.approve)?;
    let text = format!("{} refused commit {head_sha}", judgement.by.shown());
    let mut reason = Explanation::new("approval.refused", text);
    reason.evidence.extend(judgement.reason.clone());
    Some(reason.fix("push another commit, or have somebody who may approve look again"))
}

fn role_of_token(tx: &Tx<'_>, by: &Approver, repository: &Repository) -> Option<Role> {
    let id = by.token?;
    let now = tx.now();
    let token = tx.farm().tokens.values().find(|token| token.principal.id == id)?;
    let over = token.revoked_at.is_some() || token.expires_at.is_some_and(|end| end <= now);
    let covers = token.repositories.is_empty()
        || tx.config().access.holds(&token.repositories, &repository.forge, repository.id);
    match token.principal.kind {
        PrincipalKind::Token { role } if !over && covers => Some(role),
        _ => None,
    }
}

/// What waits or works at one head.
struct Targets {
    demands: Vec<DemandId>,
    pipelines: Vec<PipelineId>,
    pull_request: Option<u64>,
    resources: BTreeSet<String>,
}

fn targets(tx: &Tx<'_>, repository: &Repository, head_sha: &str) -> Targets {
    let here = |other: &Repository| other.forge == repository.forge && other.id == repository.id;
    let mut found = Targets {
        demands: Vec::new(),
        pipelines: Vec::new(),
        pull_request: None,
        resources: BTreeSet::new(),
    };
    let farm = tx.farm();
    for demand in farm.index.live_demands.iter().filter_map(|id| farm.demands.get(id)) {
        if !here(&demand.repository) || demand.head() != head_sha {
            continue;
        }
        found.demands.push(demand.id);
        found.pull_request =
            found.pull_request.or(demand.facts.as_ref().and_then(|facts| facts.pull_request));
        let pools = labels::serving(tx.config(), &demand.labels);
        found.resources.extend(pools.into_iter().map(|pool| pool.name.to_string()));
    }
    for pipeline in farm.index.live_pipelines.iter().filter_map(|id| farm.pipelines.get(id)) {
        if !here(&pipeline.event.repository) || pipeline.event.head_sha != head_sha {
            continue;
        }
        found.pipelines.push(pipeline.id);
        if let Trigger::PullRequest { number, .. } = pipeline.event.trigger {
            found.pull_request = found.pull_request.or(Some(number));
        }
        found.resources.extend(deliveries::resources(tx));
    }
    found
}

/// Whether somebody may judge this head, for at least one of the pools that its work would use.
fn authorised(
    tx: &Tx<'_>,
    repository: &Repository,
    targets: &Targets,
    by: &Approver,
) -> Result<String, Explanation> {
    let config = tx.config();
    let known = config.repository(&repository.forge, repository.id);
    let access = access(tx);
    let role = match by.token {
        Some(_) => role_of_token(tx, by, repository),
        None => by.role,
    };
    let forge = access.forge_of(by.forge.as_ref());
    let Some(forge) = forge else {
        let text = "it is not known of which forge this person is";
        return Err(Explanation::new("approval.no_forge", text));
    };
    let mut refusal = None;
    for resource in &targets.resources {
        match gate::may_approve(repository, known, resource, &access, (&by.person, &forge), role) {
            Ok(rules) => {
                let rules: Vec<String> =
                    rules.into_iter().map(|(grant, how)| format!("grant `{grant}`: {how}")).collect();
                return Ok(rules.join("; "));
            }
            Err(reason) => refusal = refusal.or(Some(reason)),
        }
    }
    Err(refusal.unwrap_or_else(|| {
        Explanation::new("approval.no_pool", "no pool would serve what waits at this commit")
    }))
}

/// Somebody says whether a head may run.
pub(crate) fn judged(
    tx: &mut Tx<'_>,
    repository: Repository,
    head_sha: String,
    approve: bool,
    reason: Option<String>,
    by: Approver,
    how: Way,
) -> Result<Reply, Refusal> {
    let targets = targets(tx, &repository, &head_sha);
    if targets.demands.is_empty() && targets.pipelines.is_empty() {
        let text = format!("nothing of {} waits or works at commit {head_sha}", repository.name);
        return Err(Refusal::new(RefusalKind::NotFound, "approval.nothing_there", text)
            .fix("look at the head that is there now: an approval counts for one commit alone"));
    }
    let rule = authorised(tx, &repository, &targets, &by)
        .map_err(|reason| Refusal { kind: RefusalKind::Forbidden, reason })?;
    let known = row(tx, &repository, &head_sha).cloned();
    if let Some(said) = known.as_ref().and_then(HeadApproval::counts)
        && (said.approve, &said.by.person.id, &said.by.forge, &said.by.token, &said.reason)
            == (approve, &by.person.id, &by.forge, &by.token, &reason)
    {
        return Ok(Reply::Unchanged);
    }
    let at = tx.now();
    let word = if approve { "approved" } else { "refused" };
    let note = format!("commit {head_sha} {word} by {} through {}; {rule}", by.shown(), how.name());
    let before = known.as_ref().and_then(HeadApproval::counts);
    let before = before.map(|said| if said.approve { "approved" } else { "refused" });
    let name = if approve { "HeadApproved" } else { "HeadRefused" };
    tx.event(name, head_key(&repository, &head_sha), before, word, Some(note.clone()));
    tx.put(HeadApproval {
        repository,
        head_sha,
        pull_request: targets.pull_request,
        judged: Some(Judgement { approve, reason, by, how, at }),
        void: None,
        turned_away: None,
        at,
        generation: known.map_or(0, |row| row.generation),
    });
    for id in targets.demands {
        let state = tx.demand(id)?.state.name();
        tx.event(name, id, Some(state), state, Some(note.clone()));
        again(tx, id)?;
    }
    for id in targets.pipelines {
        let state = tx.pipeline(id)?.state.name();
        tx.event(name, id, Some(state), state, Some(note.clone()));
        deliveries::reconsider(tx, id)?;
    }
    Ok(Reply::Done)
}

/// A button of a check run was pressed. Answers what is written beside the delivery; a press by somebody who may not is
/// answered in the check run.
pub(crate) fn pressed(tx: &mut Tx<'_>, press: Press) -> Result<Explanation, Refusal> {
    let approve = match press.button.as_str() {
        APPROVE => true,
        REFUSE => false,
        other => {
            let text = format!("a button `{other}` is none of this farm's");
            return Ok(Explanation::new("approval.other_button", text));
        }
    };
    let by = Approver {
        person: press.sender,
        forge: Some(press.repository.forge.clone()),
        token: None,
        role: None,
    };
    let (repository, head) = (press.repository, press.head_sha);
    let shown = by.shown();
    match judged(tx, repository.clone(), head.clone(), approve, None, by, Way::CheckRun) {
        Ok(_) => {
            let word = if approve { "approved" } else { "refused" };
            Ok(Explanation::new("approval.given", format!("{shown} {word} commit {head}")))
        }
        Err(refusal) => {
            let text = format!("{shown} pressed the button and may not: {}", refusal.reason.message);
            let mut told = Explanation { message: text, ..refusal.reason };
            told.code = "approval.turned_away".to_owned();
            turn_away(tx, repository, head, told.clone());
            Ok(told)
        }
    }
}

fn turn_away(tx: &mut Tx<'_>, repository: Repository, head_sha: String, told: Explanation) {
    let at = tx.now();
    let key = head_key(&repository, &head_sha);
    tx.event("ApprovalTurnedAway", &key, None, "turned away", Some(told.message.clone()));
    let known = tx.farm().approvals.get(&key).cloned();
    let row = known.unwrap_or(HeadApproval {
        repository,
        head_sha,
        pull_request: None,
        judged: None,
        void: None,
        turned_away: None,
        at,
        generation: 0,
    });
    tx.put(HeadApproval { turned_away: Some(told), at, ..row });
}

/// A pull request has this head now: what was said of its other heads is void, for good.
pub(crate) fn new_head(
    tx: &mut Tx<'_>,
    repository: &Repository,
    number: u64,
    head_sha: &str,
) -> Result<(), Refusal> {
    let old: Vec<HeadApproval> = tx
        .farm()
        .approvals
        .values()
        .filter(|row| row.repository.forge == repository.forge && row.repository.id == repository.id)
        .filter(|row| row.pull_request == Some(number) && row.head_sha != head_sha)
        .filter(|row| row.counts().is_some())
        .cloned()
        .collect();
    for row in old {
        let text = format!("pull request {number} has another head, {head_sha}");
        tx.event("ApprovalVoided", row.key(), None, "void", Some(text.clone()));
        let (place, head) = (row.repository.clone(), row.head_sha.clone());
        tx.put(HeadApproval { void: Some(Explanation::new("approval.void", text)), ..row });
        let targets = targets(tx, &place, &head);
        for id in targets.demands {
            // What a machine already works on was approved when it began.
            if tx.demand(id)?.state != DemandState::Running {
                again(tx, id)?;
            }
        }
    }
    let stale: Vec<PipelineId> = tx
        .farm()
        .index
        .live_pipelines
        .iter()
        .filter_map(|id| tx.farm().pipelines.get(id))
        .filter(|row| {
            row.event.repository.forge == repository.forge && row.event.repository.id == repository.id
        })
        .filter(|row| row.event.head_sha != head_sha && waits(tx, row.id).is_some())
        .filter(|row| matches!(row.event.trigger, Trigger::PullRequest { number: n, .. } if n == number))
        .map(|row| row.id)
        .collect();
    for id in stale {
        if let Some(job) = waits(tx, id) {
            people::stop(tx, job, "a newer head replaced it before it was approved")?;
        }
    }
    Ok(())
}

/// A run of a pull request was read. Reads come in any order: only a commit that was first heard of after an approval of
/// another head was given makes that void.
pub(crate) fn new_head_of_run(
    tx: &mut Tx<'_>,
    repository: &Repository,
    number: u64,
    facts: &RunFacts,
) -> Result<(), Refusal> {
    let first = tx
        .farm()
        .demands
        .values()
        .filter(|demand| demand.repository.forge == repository.forge && demand.repository.id == repository.id)
        .filter(|demand| demand.head_sha == facts.head_sha)
        .map(|demand| demand.created_at)
        .min();
    let newest = tx
        .farm()
        .approvals
        .values()
        .filter(|row| row.repository.forge == repository.forge && row.repository.id == repository.id)
        .filter(|row| row.pull_request == Some(number) && row.head_sha != facts.head_sha)
        .map(|row| row.at)
        .max();
    match (first, newest) {
        (Some(first), Some(newest)) if first > newest => new_head(tx, repository, number, &facts.head_sha),
        _ => Ok(()),
    }
}

/// The plan job of a pipeline that waits for an approval.
pub(crate) fn waits(tx: &Tx<'_>, id: PipelineId) -> Option<JobId> {
    tx.farm()
        .jobs_of(id)
        .find(|job| matches!(job.state, JobState::Held(Hold::Approval { .. })))
        .map(|job| job.id)
}

/// Somebody accepts the terms. Only the version that is asked for can be accepted: nobody accepts what is not written yet.
pub(crate) fn accepted(
    tx: &mut Tx<'_>,
    person: Person,
    forge: Option<ForgeName>,
    version: u32,
    how: Way,
) -> Result<Reply, Refusal> {
    let current = tx.config().access.terms_version;
    if current == 0 {
        let text = "this farm asks nobody to accept terms of service";
        return Err(Refusal::new(RefusalKind::Conflict, "terms.none", text));
    }
    if version != current {
        let text =
            format!("version {version} of the terms is not the one that counts; that is version {current}");
        return Err(Refusal::new(RefusalKind::Conflict, "terms.other_version", text)
            .fix(format!("read version {current} and accept that")));
    }
    if person.id == 0 {
        let text = "terms are accepted by a person of the forge, by numeric id";
        return Err(Refusal::new(RefusalKind::Invalid, "terms.nobody", text));
    }
    let who = ForgeId { forge: forge.clone(), id: person.id };
    let known = tx.farm().acceptances.get(&who).cloned();
    if known.as_ref().is_some_and(|row| row.version >= version) {
        return Ok(Reply::Unchanged);
    }
    let before = known.as_ref().map(|row| format!("version {}", row.version));
    let note = format!("{} (id {}), through {}", person.login, person.id, how.name());
    tx.event(
        "TermsAccepted",
        format!("person/{who}"),
        before.as_deref(),
        &format!("version {version}"),
        Some(note),
    );
    let (at, generation) = (tx.now(), known.map_or(0, |row| row.generation));
    tx.put(Acceptance { person, forge, version, how, at, generation });
    // Whoever was held for that is asked about again.
    let held: Vec<DemandId> = tx
        .farm()
        .index
        .live_demands
        .iter()
        .filter_map(|id| tx.farm().demands.get(id))
        .filter(|demand| {
            matches!(demand.state, DemandState::Held { until: None, .. } | DemandState::Refused { .. })
        })
        .map(|demand| demand.id)
        .collect();
    for id in held {
        again(tx, id)?;
    }
    let pipelines: Vec<PipelineId> =
        tx.farm().index.live_pipelines.iter().filter(|id| waits(tx, **id).is_some()).copied().collect();
    for id in pipelines {
        deliveries::reconsider(tx, id)?;
    }
    Ok(Reply::Done)
}

/// The farm runs under this configuration from now on. What it no longer allows is ended: grants that were taken back do
/// not live on in machines that they opened.
pub(crate) fn adopted(
    tx: &mut Tx<'_>,
    config: String,
    by: String,
    repeats: Option<u64>,
    changes: Vec<String>,
) -> Result<Reply, Refusal> {
    let digest: Digest = tx.ctx.config_digest;
    let last = tx.farm().configs.last_key_value().map(|(number, row)| (*number, row.digest));
    // What lives was allowed under this very configuration: a restart alone ends nothing.
    if last.is_some_and(|(_, known)| known == digest) {
        return Ok(Reply::Unchanged);
    }
    let number = last.map_or(1, |(number, _)| number + 1);
    let at = tx.now();
    let note = repeats.map(|older| format!("the same as version {older}"));
    let mut note = note.unwrap_or_else(|| format!("by {by}"));
    if !changes.is_empty() {
        note.push_str(&format!(": {}", changes.join("; ")));
    }
    let note = Some(note);
    let from = last.map(|(number, _)| format!("version {number}"));
    tx.event("ConfigAdopted", "config", from.as_deref(), &format!("version {number}"), note);
    tx.put(ConfigVersion { number, digest, at, by, repeats, changes, config, generation: 0 });
    revoke(tx)?;
    Ok(Reply::Done)
}

/// Asks the gate again about everything that lives.
fn revoke(tx: &mut Tx<'_>) -> Result<(), Refusal> {
    let live: Vec<DemandId> = tx.farm().index.live_demands.iter().copied().collect();
    for id in live {
        if tx.demand(id)?.decided_under != Some(tx.ctx.config_digest) {
            again(tx, id)?;
        }
    }
    let runners: Vec<RunnerId> = tx.farm().index.live_runners.iter().map(|(_, id)| *id).collect();
    for id in runners {
        taken::again(tx, id)?;
    }
    let live: Vec<PipelineId> = tx.farm().index.live_pipelines.iter().copied().collect();
    for id in live {
        deliveries::reconsider(tx, id)?;
    }
    Ok(())
}

/// Asks the gate again about a demand, whatever its state, and lets go or ends what is no longer allowed.
pub(crate) fn again(tx: &mut Tx<'_>, id: DemandId) -> Result<(), Refusal> {
    let mut demand = tx.demand(id)?;
    match demand.state {
        DemandState::Held { until: None, .. } | DemandState::Refused { .. } => {
            if demand.facts.is_some() {
                admit::decide(tx, id)
            } else {
                Ok(())
            }
        }
        DemandState::Wanted | DemandState::Launching => {
            let judged = admit::judge(tx, &demand);
            demand.decided_under = Some(tx.ctx.config_digest);
            let (event, state, reason) = match judged {
                Judged::Allowed(admission) => {
                    demand.admission = Some(admission);
                    tx.put(demand);
                    return Ok(());
                }
                Judged::Held(reason) => {
                    let state = DemandState::Held { reason: reason.clone(), until: None };
                    (DemandEvent::DemandHeld, state, reason)
                }
                Judged::Refused(reason) => {
                    let state = DemandState::Refused { reason: reason.clone() };
                    (DemandEvent::DemandRefused, state, reason)
                }
            };
            demand.admission = None;
            let launch = demand.launch.take();
            tx.move_demand(demand, event, state)?;
            launch.map_or(Ok(()), |launch| launch::release(tx, launch, &reason))
        }
        DemandState::Running => {
            let reason = match admit::judge(tx, &demand) {
                Judged::Allowed(_) => return Ok(()),
                Judged::Held(reason) | Judged::Refused(reason) => reason,
            };
            let Some(launch) = demand.launch else { return Ok(()) };
            people::stop(tx, launch, &format!("no longer allowed: {}", reason.message))
        }
        DemandState::Unread | DemandState::Waiting | DemandState::Held { .. } => Ok(()),
        DemandState::Ended | DemandState::Withdrawn { .. } => Ok(()),
    }
}
