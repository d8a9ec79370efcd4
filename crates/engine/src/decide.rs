//! The one door: an input is accepted whole or refused whole.

use crate::tx::Tx;
use crate::{
    Ctx, Farm, agents, approvals, deliveries, demand, outbox, people, placement, pools, sites, time,
};
use forgeyard_model::commit::Commit;
use forgeyard_model::deadline;
use forgeyard_model::input::{Input, Refusal, Reply};

/// What an accepted input gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Decided {
    /// What to store; `None` when nothing changed.
    pub commit: Option<Commit>,
    /// What to answer.
    pub reply: Reply,
}

/// Decides one input. On a refusal the farm is as before.
pub fn decide(farm: &mut Farm, ctx: &Ctx<'_>, input: Input) -> Result<Decided, Refusal> {
    let mut tx = Tx::new(farm, ctx);
    let unwritten = opens_unwritten(tx.farm(), ctx, &input);
    let decided = apply(&mut tx, &input).and_then(|reply| {
        if unwritten || placement::may_open(tx.rows()) {
            placement::place_queued(&mut tx)?;
        }
        Ok(reply)
    });
    match decided {
        Ok(reply) => {
            let keep = tx.changed() || matches!(input, Input::FarmStarted { .. });
            let commit = keep.then(|| tx.finish(input));
            Ok(Decided { commit, reply })
        }
        Err(refusal) => {
            tx.roll_back();
            Err(refusal)
        }
    }
}

/// Inputs after which a job may find a place although no row says so: time has passed, or a site is not what it was.
fn opens_unwritten(farm: &Farm, ctx: &Ctx<'_>, input: &Input) -> bool {
    match input {
        Input::FarmStarted { .. } | Input::Ticked | Input::SiteJoined { .. } | Input::DrainSite { .. } => {
            true
        }
        Input::SiteReported { site, report } => farm.sites.get(site).is_none_or(|known| {
            let silent = known.heard_at.is_none_or(|at| ctx.now.since(at) > deadline::SITE_SILENCE);
            silent || known.host.as_ref() != Some(&report.host)
        }),
        _ => false,
    }
}

fn apply(tx: &mut Tx<'_>, input: &Input) -> Result<Reply, Refusal> {
    // Large, and many: it is read where it lies.
    if let Input::SiteReported { site, report } = input {
        return sites::reported(tx, *site, report);
    }
    match input.clone() {
        Input::DeliveryReceived { guid, event, body } => deliveries::received(tx, guid, event, body),
        Input::DeliveryRead { guid, meaning, asked } => deliveries::read(tx, &guid, meaning, asked),
        Input::EffectSettled { effect, result } => outbox::settled(tx, effect, *result),
        Input::EffectTroubled { effect, trouble } => outbox::troubled(tx, effect, trouble),
        Input::EffectDeferred { effect, until, reason } => outbox::deferred(tx, effect, until, reason),
        Input::SiteJoined { name, token, public_key } => sites::joined(tx, name, token, public_key),
        Input::SiteReported { site, report } => sites::reported(tx, site, &report),
        Input::TokenRedeemed { attempt, nonce } => agents::redeemed(tx, attempt, nonce),
        Input::AgentHeard { attempt, fence, step } => agents::heard(tx, attempt, fence, step),
        Input::ArtifactStored { attempt, fence, kind, name, digest, size } => {
            agents::stored(tx, attempt, fence, agents::Stored { kind, name, digest, size })
        }
        Input::AttemptFinished { attempt, fence, facts, hits, tail } => {
            agents::finished(tx, attempt, fence, *facts, &hits, &tail)
        }
        Input::DemandReported { source, jobs } => demand::reported(tx, source, jobs),
        Input::DemandGone { forge, job } => demand::gone(tx, &forge, job),
        Input::HeadJudged { repository, head_sha, approve, reason, approver, how } => {
            approvals::judged(tx, repository, head_sha, approve, reason, approver, how)
        }
        Input::TermsAccepted { person, forge, version, how } => {
            approvals::accepted(tx, person, forge, version, how)
        }
        Input::ConfigAdopted { text, started_by, repeats, changes } => {
            approvals::adopted(tx, text, started_by, repeats, changes)
        }
        Input::RunnerConfigFetched { attempt, fence } => demand::registration::fetched(tx, attempt, fence),
        Input::RunnerConfigLost { attempt, fence } => demand::registration::lost(tx, attempt, fence),
        Input::RunnerQuiet { attempt, fence, seconds } => demand::quiet::heard(tx, attempt, fence, seconds),
        Input::RunnerHandover { attempt, fence, job, facts } => {
            demand::handover::asked(tx, attempt, fence, &job, *facts)
        }
        Input::RunnerTook { attempt, fence, job } => demand::taken::by_hook(tx, attempt, fence, job),
        Input::FarmStarted { epoch } => {
            tx.resume(epoch);
            Ok(Reply::Done)
        }
        Input::Ticked => time::ticked(tx),
        Input::CancelJob { job } => people::cancel(tx, job),
        Input::RerunJob { job } => people::rerun(tx, job),
        Input::ClearDevice { device } => people::clear_device(tx, device),
        Input::QuarantineDevice { device, reason } => people::quarantine_device(tx, device, reason),
        Input::WriteOffLease { lease } => people::write_off(tx, lease),
        Input::KeepRunner { runner, reason } => people::keep(tx, runner, reason),
        Input::WarmCalled { runner, nonce } => pools::warm::called(tx, runner, nonce),
        Input::DrainPool { pool, drain } => pools::drain(tx, &pool, drain),
        Input::ResetPool { pool } => pools::launch::reset(tx, &pool),
        Input::DrainSite { site, drain } => people::drain(tx, site, drain),
        Input::RunRequested { guid, source, file } => deliveries::run_requested(tx, guid, source, *file),
        Input::TokenIssued { token } => people::token_issued(tx, token),
        Input::TokenRevoked { digest } => people::token_revoked(tx, digest),
    }
}
