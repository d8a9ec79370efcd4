//! What was promised, held against what happened; and the table.

use super::hub::{Hub, Told};
use super::machines::{Life, Sites};
use super::trace::Kind;
use super::world::{Plane, Seen, Settings};
use forgeyard_engine::Farm;
use forgeyard_forges::twin::{Conclusion, JobStatus, Sent};
use forgeyard_model::attempt::Attempt;
use forgeyard_model::demand::DemandState;
use forgeyard_model::verdict::Outcome;
use forgeyard_model::{ForgeName, JobId, RunnerId, Timestamp};
use futures::FutureExt as _;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

/// A machine is gone this long after its job's end.
const GONE: Duration = Duration::from_secs(600);
/// A job whose webhook failed is known this long after the last try that failed.
const FAILED: Duration = Duration::from_secs(120);
/// A job whose webhook was never sent is known this long after it was queued.
const NEVER_SENT: Duration = Duration::from_secs(300);
/// What GitHub lets an App make in a minute, deliveries that are sent again among it.
const MADE_PER_MINUTE: usize = 80;
const MINUTE: Duration = Duration::from_secs(60);

/// What came of it.
#[derive(Debug, Default)]
pub struct Report {
    /// Promises that were broken, with examples.
    pub broken: Vec<String>,
    /// What a person reads.
    pub text: String,
    pub jobs: usize,
    /// Jobs that ran when the control plane was killed.
    pub busy_at_crash: usize,
    /// Machines that were made.
    pub machines: usize,
    /// Calls by REST for each job, besides those of check runs.
    pub calls_per_job: f64,
    pub wall: Duration,
}

#[derive(Default)]
struct Spans(Vec<Duration>);

impl Spans {
    fn percentile(&self, hundredths: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let place = (sorted.len() * hundredths / 100).min(sorted.len().saturating_sub(1));
        sorted.get(place).map_or(0.0, Duration::as_secs_f64)
    }

    fn row(&self) -> String {
        format!(
            "{:>7} {:>9.1} {:>9.1} {:>9.1}",
            self.0.len(),
            self.percentile(50),
            self.percentile(95),
            self.percentile(100)
        )
    }
}

#[allow(clippy::too_many_arguments, reason = "everything that was seen, once")]
pub fn judge(
    settings: &Settings,
    hub: &Hub,
    plane: &Plane,
    sites: &Sites,
    seen: &Seen,
    simulated: Duration,
    wall: Duration,
    starts: u64,
) -> Report {
    let busy_at_crash = seen.busy_at_crash.load(std::sync::atomic::Ordering::Relaxed);
    let machines = sites.lives.lock().unwrap().len();
    let mut report = Report { wall, busy_at_crash, machines, ..Report::default() };
    let mut broken: BTreeMap<&'static str, (usize, String)> = BTreeMap::new();
    let mut breaks = |promise: &'static str, example: String| {
        broken.entry(promise).or_insert((0, example)).0 += 1;
    };
    let told = told(hub);
    let forced = forced(hub, &told);
    let Some(app) = plane.app() else { panic!("the control plane is down at the end") };
    let farm = app.core.read();
    let forge: ForgeName = "github".parse().unwrap();
    let (mut queue, mut noticed): (BTreeMap<Kind, Spans>, BTreeMap<&str, Spans>) = Default::default();
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    let kinds = hub.kinds.lock().unwrap().clone();
    hub.with(|state| {
        for job in state.jobs() {
            report.jobs += 1;
            let view = job.view();
            let demand = farm.demand_of(&forge, job.id);
            let lasted = view.completed_at.map(|at| at.since(job.created_at));
            if view.status != JobStatus::Completed {
                let known = demand.map_or("unknown", |demand| demand.state.name());
                breaks(
                    "no demand is lost",
                    format!("job {} is {:?}; the farm calls it {known}", job.id, view.status),
                );
            }
            *ends.entry(view.conclusion.map_or("none", Conclusion::name).to_owned()).or_default() += 1;
            if let (Some(begun), Some(kind)) =
                (view.started_at.filter(|_| view.runner.is_some()), kinds.get(&job.id))
            {
                queue.entry(*kind).or_default().0.push(begun.since(job.created_at));
            }
            let fate = told.get(&job.id).cloned().unwrap_or_default();
            let Some(demand) = demand else {
                // One that was over before anybody had to know of it is no demand.
                if lasted.is_none_or(|lasted| lasted > NEVER_SENT) {
                    breaks("no demand is lost", format!("the farm never heard of job {}", job.id));
                }
                continue;
            };
            if !demand.state.ended() && !matches!(demand.state, DemandState::Refused { .. }) {
                breaks(
                    "no demand is lost",
                    format!("job {} ends as {}: {:?}", job.id, demand.state.name(), demand.reason()),
                );
            }
            let (class, late) = recovery(&fate, &forced, job.id, job.created_at, demand.created_at);
            noticed.entry(class).or_default().0.push(demand.created_at.since(job.created_at));
            if let Some(late) = late {
                breaks(
                    late,
                    format!(
                        "job {}: queued {}, failed {:?}, known {}, by {:?}",
                        job.id, job.created_at, fate.failed_at, demand.created_at, demand.seen
                    ),
                );
            }
        }
    });
    let open = farm.index.live_demands.iter().filter_map(|id| farm.demands.get(id));
    let histories: Vec<String> = open.take(3).map(|demand| history(&app, demand, hub)).collect();
    let lives = sites.lives.lock().unwrap().clone();
    launches(&farm, &lives, &mut breaks);
    let mut leaving = Spans::default();
    let mut takers: BTreeMap<u64, usize> = BTreeMap::new();
    for (runner, life) in &lives {
        if let Some(job) = life.took {
            *takers.entry(job).or_default() += 1;
        }
        if life.killed_at_work {
            let attempt = farm.runners.get(runner).and_then(|row| farm.attempts.get(&row.work.attempt()?));
            let why = attempt.and_then(|attempt| attempt.verdict.as_ref()).map(|verdict| &verdict.cause);
            breaks("no runner is killed at work", format!("{runner} at job {:?}: {why:?}", life.took));
        }
        match (life.over_at, life.gone_at) {
            (Some(over), Some(gone)) => {
                leaving.0.push(gone.since(over));
                if gone.since(over) > GONE {
                    breaks("every runner is gone in 10 minutes", format!("{runner}: {over} to {gone}"));
                }
            }
            (_, None) => breaks(
                "every runner is gone in 10 minutes",
                format!("{runner} stands: {:?}", farm.runners.get(runner).map(|row| &row.state)),
            ),
            (None, Some(_)) => {}
        }
    }
    for (job, times) in takers.iter().filter(|(_, times)| **times > 1) {
        breaks("a job is begun once", format!("job {job} by {times} machines"));
    }
    let mut bad: BTreeMap<String, usize> = BTreeMap::new();
    hub.with(|state| {
        for (runner, life) in &lives {
            let Some(job) = life.took.and_then(|job| state.job(job)) else { continue };
            if job.view().conclusion == Some(Conclusion::Failure) && job.spec.outcome == Conclusion::Success {
                let attempt =
                    farm.runners.get(runner).and_then(|row| farm.attempts.get(&row.work.attempt()?));
                let class = attempt
                    .and_then(|attempt| attempt.verdict.as_ref())
                    .map(|verdict| verdict.class.clone().unwrap_or_else(|| verdict.cause.clone()));
                *bad.entry(class.unwrap_or_default()).or_default() += 1;
            }
        }
    });
    let left = hub.with(|state| state.runners().count());
    if left > 0 {
        let names: Vec<String> =
            hub.with(|state| state.runners().take(3).map(|row| format!("{row:?}")).collect());
        let ours = hub.with(|state| state.runners().map(|row| row.name.clone()).collect::<Vec<_>>());
        let rows = farm
            .runners
            .values()
            .filter(|row| row.registration.as_ref().is_some_and(|one| ours.contains(&one.name)));
        let names: Vec<String> = names
            .into_iter()
            .chain(rows.map(|row| format!("{:?} {:?}", row.state, row.registration)))
            .collect();
        breaks("no registration is left", format!("{left} at the forge: {names:?}"));
    }
    for text in &seen.broken {
        breaks("caps are never exceeded", text.clone());
    }
    for text in sites.surprises.lock().unwrap().iter() {
        breaks("agents are answered", text.clone());
    }
    report.broken = broken
        .into_iter()
        .map(|(promise, (times, example))| format!("{promise}: broken {times} times, as {example}"))
        .collect();

    let text = &mut report.text;
    let _ = writeln!(
        text,
        "{}: {} jobs ({}x load, seed {}), {:.2} h simulated in {:.1} s; {} control planes, each killed but the last",
        settings.title,
        report.jobs,
        settings.load,
        settings.seed,
        simulated.as_secs_f64() / 3600.0,
        wall.as_secs_f64(),
        starts
    );
    let _ = writeln!(text, "  {:<44} {:>7} {:>9} {:>9} {:>9}", "seconds", "jobs", "p50", "p95", "longest");
    for (kind, spans) in &queue {
        let _ =
            writeln!(text, "  {:<44} {}", format!("queued to begun, flavor {}", kind.name()), spans.row());
    }
    for (class, spans) in &noticed {
        let _ = writeln!(text, "  {:<44} {}", format!("queued to known, {class}"), spans.row());
    }
    let _ = writeln!(text, "  {:<44} {}", "program's end to machine gone", leaving.row());
    let _ = writeln!(
        text,
        "  at most {} attempts at once (caps {} and {:?} of the organisation), {} of a repository (cap {:?}), machines {:?} of {:?}, {} launches queued; ends {ends:?}",
        seen.most_running,
        app.config().max_running,
        app.config().queue.caps.organisation,
        seen.most_of_repository,
        app.config().queue.caps.repository,
        seen.most_in_pool,
        app.config().pools.iter().map(|pool| pool.max).collect::<Vec<_>>(),
        seen.longest_queue
    );
    let calls = hub.calls.lock().unwrap();
    let mut all: BTreeMap<&str, u64> = BTreeMap::new();
    let mut hours: BTreeMap<u64, u64> = BTreeMap::new();
    for ((hour, what), count) in calls.iter() {
        *all.entry(what).or_default() += count;
        if *what != "scale sets" {
            *hours.entry(*hour).or_default() += count;
        }
    }
    let _ =
        writeln!(text, "  calls to the forge {all:?}; REST in its busiest hour {:?}", hours.values().max());
    let counted = all.iter().filter(|(what, _)| !matches!(**what, "scale sets" | "check runs"));
    let unchanged = *hub.unchanged.lock().unwrap();
    let rest = counted.map(|(_, count)| count).sum::<u64>() - unchanged;
    report.calls_per_job = rest as f64 / report.jobs as f64;
    let _ = writeln!(
        text,
        "  {:.2} REST calls for each job besides check runs, and {:.2} that were answered with nothing new, which cost nothing",
        report.calls_per_job,
        unchanged as f64 / report.jobs as f64
    );
    let longest = forced.values().max().copied().unwrap_or_default();
    let late = forced.values().filter(|wait| !wait.is_zero()).count();
    let _ = writeln!(
        text,
        "  of {} failed webhooks of queued jobs {late} had to wait for GitHub's limit of {MADE_PER_MINUTE} a minute, at most {:.1} s; they are judged by 120 s and that; secondary limits met {} times",
        forced.len(),
        longest.as_secs_f64(),
        hub.refused.lock().unwrap()
    );
    let _ = writeln!(
        text,
        "  {} Apps; least that was left of an hour's calls of one of them, by hour: {:?}",
        settings.apps,
        hub.lowest.lock().unwrap().values().collect::<Vec<_>>()
    );
    let _ = writeln!(text, "  jobs that failed although their steps would have passed: {bad:?}");
    for line in report.broken.iter().chain(&histories) {
        let _ = writeln!(text, "  BROKEN: {line}");
    }
    report
}

/// How the webhooks that tell of queued jobs fared: what arrived was noted on the way, what failed stands in the list.
fn told(hub: &Hub) -> BTreeMap<u64, Told> {
    let mut told = hub.told.lock().unwrap().clone();
    hub.with(|state| {
        for delivery in state.deliveries().filter(|one| one.action.as_deref() == Some("queued")) {
            let Ok(body) = serde_json::from_slice::<serde_json::Value>(&delivery.body) else { continue };
            let Some(job) = body["workflow_job"]["id"].as_u64() else { continue };
            let fate = told.entry(job).or_default();
            fate.tried = true;
            if matches!(delivery.sent, Sent::Failed(..)) {
                fate.failed_at.push(delivery.at);
            }
        }
    });
    told
}

/// How long GitHub's limit alone keeps each failed webhook of a queued job from being sent again, if every one were asked for
/// at the moment at which it failed, in their order, together with the check runs that were made.
fn forced(hub: &Hub, told: &BTreeMap<u64, Told>) -> BTreeMap<(u64, Timestamp), Duration> {
    let failed = told.iter().flat_map(|(job, fate)| fate.failed_at.iter().map(|at| (*at, Some(*job))));
    let made = hub.made.lock().unwrap().clone();
    let mut asked: Vec<(Timestamp, Option<u64>)> =
        failed.chain(made.into_iter().map(|at| (at, None))).collect();
    asked.sort_unstable();
    let mut done: Vec<Timestamp> = Vec::with_capacity(asked.len());
    let mut waits = BTreeMap::new();
    for (at, job) in asked {
        let free = done.len().checked_sub(MADE_PER_MINUTE).map(|before| done[before].plus(MINUTE));
        let turn = free.map_or(at, |free| free.max(at));
        done.push(turn);
        waits.extend(job.map(|job| ((job, at), turn.since(at))));
    }
    waits
}

/// How a job came to be known, and which promise that breaks.
fn recovery(
    fate: &Told,
    forced: &BTreeMap<(u64, Timestamp), Duration>,
    job: u64,
    queued: Timestamp,
    known: Timestamp,
) -> (&'static str, Option<&'static str>) {
    let failed = fate.failed_at.iter().filter(|at| **at <= known).max();
    match failed {
        Some(last) => {
            let within = FAILED + forced.get(&(job, *last)).copied().unwrap_or_default();
            let promise = "a failed webhook is made up for in 2 minutes, and what GitHub's limit forces";
            ("webhook failed", (known.since(*last) > within).then_some(promise))
        }
        None if fate.arrived || fate.tried => ("webhook arrived", None),
        None => {
            let late = known.since(queued) > NEVER_SENT;
            (
                "webhook never sent",
                late.then_some("a webhook that was never sent is made up for in 5 minutes"),
            )
        }
    }
}

/// At most one attempt of a launch lives, fences grow, and of those that came to a good end no two had the same job: a
/// launch is tried again when its runner took another one.
fn launches(farm: &Farm, lives: &BTreeMap<RunnerId, Life>, breaks: &mut impl FnMut(&'static str, String)) {
    let mut of_job: BTreeMap<JobId, Vec<&Attempt>> = BTreeMap::new();
    for attempt in farm.attempts.values() {
        of_job.entry(attempt.job).or_default().push(attempt);
    }
    for (job, mut attempts) in of_job {
        attempts.sort_by_key(|attempt| attempt.fence);
        let mut accepted: Vec<u64> = attempts
            .iter()
            .filter(|attempt| attempt.facts.is_some() && attempt.outcome == Some(Outcome::Succeeded))
            .filter_map(|attempt| lives.get(&attempt.runner)?.took)
            .collect();
        accepted.sort_unstable();
        if accepted.windows(2).any(|two| two[0] == two[1]) {
            breaks("at most one attempt is accepted", format!("{job}: {accepted:?}"));
        }
        let live = attempts.iter().filter(|attempt| attempt.state.live()).count();
        if live > 1 || attempts.windows(2).any(|two| two[0].fence >= two[1].fence) {
            breaks("at most one attempt of a launch lives", format!("{job}: {live}"));
        }
    }
}

/// What became of a demand that is not over at the end, for whoever looks for the reason.
fn history(app: &forgeyard_control::app::App, demand: &forgeyard_model::demand::Demand, hub: &Hub) -> String {
    let mut text = format!("history of {} (job {} of run {}):", demand.id, demand.job, demand.run);
    hub.with(|state| {
        let job = state.job(demand.job).map(|job| job.view());
        let _ = write!(text, "\n    at the forge: {job:?}\n    known: {demand:?}");
    });
    let mut subjects = vec![demand.id.to_string()];
    subjects.extend(demand.launch.map(|launch| launch.to_string()));
    let farm = app.core.read();
    for attempt in demand.launch.into_iter().flat_map(|launch| farm.attempts_of(launch)) {
        subjects.extend([attempt.id.to_string(), attempt.runner.to_string()]);
    }
    let mut events = Vec::new();
    for subject in subjects {
        let query = forgeyard_db::EventQuery { subject: Some(subject), before: None, limit: 100 };
        events.extend(app.store.events(query).now_or_never().and_then(Result::ok).unwrap_or_default());
    }
    events.sort_by_key(|event| event.id);
    for event in events {
        let _ = write!(
            text,
            "\n    {} {} {} {:?} -> {}: {:?}",
            event.at, event.subject, event.name, event.from, event.to, event.note
        );
    }
    text
}
