//! Why a job, or a demand, is where it is: one text for CLI, API, console and check run.

use crate::demand::limits;
use crate::farm::Farm;
use crate::queue::predict::{Foresight, Outlook};
use forgeyard_model::demand::{Demand, DemandState, Repeat};
use forgeyard_model::job::{Hold, Job, JobState};
use forgeyard_model::registration::TakenAnswer;
use forgeyard_model::runner::RunnerWork;
use forgeyard_model::verdict::{LogLine, Outcome, RetryPolicy};
use forgeyard_model::{AttemptId, Explanation};

/// The answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The reason, with evidence and fix.
    pub reason: Explanation,
    /// What is foreseen, while it is queued.
    pub outlook: Option<Outlook>,
    /// What happens next without anybody's doing.
    pub next: String,
    /// Lines that decided.
    pub lines: Vec<LogLine>,
}

/// Explains a job.
pub fn why(seen: &Foresight<'_>, job: &Job) -> Answer {
    let farm = seen.farm;
    let mut lines = Vec::new();
    let (mut reason, next) = match &job.state {
        JobState::Held(hold) => held(farm, job, hold),
        JobState::Queued => {
            let reason = seen.reason(job).unwrap_or_else(|| {
                Explanation::new("queue.next", "it was just queued and is about to be placed")
            });
            (reason, "it is placed as soon as a machine that suits it is free".to_owned())
        }
        JobState::Placed { attempt } => {
            let runner = farm.attempts.get(attempt).and_then(|attempt| farm.runners.get(&attempt.runner));
            let waited = runner.is_some_and(|runner| matches!(runner.work, RunnerWork::Handed { .. }));
            let text = if waited {
                format!("a machine that waited was given to {attempt}")
            } else {
                format!("a machine is being made for {attempt}")
            };
            (Explanation::new("job.placed", text), "the machine calls, then the job begins".to_owned())
        }
        JobState::Starting { attempt } => match limited(farm, *attempt) {
            Some(reason) => (reason, "the runner registers, and takes a job".to_owned()),
            None => (
                Explanation::new("job.starting", format!("the machine of {attempt} prepares the inputs")),
                "the first step begins when every input is there".to_owned(),
            ),
        },
        JobState::Running { attempt } => {
            let step = farm.attempts.get(attempt).and_then(|attempt| attempt.step.clone());
            let text = match step {
                Some(step) => format!("step `{step}` runs in {attempt}"),
                None => format!("{attempt} runs"),
            };
            (Explanation::new("job.running", text), "it ends with a verdict, or at its time limit".to_owned())
        }
        JobState::Ended { outcome } => {
            let (reason, next, decisive) = ended(job, *outcome);
            lines = decisive;
            (reason, next)
        }
    };
    if !job.state.ended() && !matches!(job.state, JobState::Held(_)) {
        reason.evidence.extend(time_limit(seen, job));
    }
    Answer { reason, outlook: seen.of(job.id).cloned(), next, lines }
}

/// How long it may run, in the words of the flavor that decides it.
fn time_limit(seen: &Foresight<'_>, job: &Job) -> Option<String> {
    let attempt = job.state.attempt().and_then(|id| seen.farm.attempts.get(&id));
    let runner = attempt.and_then(|attempt| seen.farm.runners.get(&attempt.runner));
    // A machine keeps the shape that it was made with.
    let flavor = match runner {
        Some(runner) => &runner.shape,
        None => seen.config.flavor(&job.spec.as_ref()?.flavor)?,
    };
    let minutes = flavor.time_limit_seconds.div_ceil(60);
    let text = format!("its flavor {} has a time limit of {minutes} min", flavor.name);
    Some(match attempt.and_then(|attempt| attempt.deadline) {
        Some(end) if matches!(job.state, JobState::Running { .. }) => {
            format!("{text}; it is ended at {end} at the latest")
        }
        _ => text,
    })
}

/// Explains a demand: what it waits for itself, or what its launch waits for.
pub fn why_demand(seen: &Foresight<'_>, demand: &Demand) -> Answer {
    let farm = seen.farm;
    let plain = |code: &str, text: String, next: &str| Answer {
        reason: Explanation::new(code, text),
        outlook: None,
        next: next.to_owned(),
        lines: Vec::new(),
    };
    let forge = &demand.repository.forge;
    match &demand.state {
        DemandState::Unread => {
            let next = "the gate decides when that is known";
            let text = format!("{forge} is being asked whose work run {} is", demand.run);
            match limits::of_question(farm, demand) {
                Some(reason) => {
                    let text =
                        format!("{forge} will be asked whose work run {} is: {}", demand.run, reason.message);
                    let reason = Explanation { message: text, ..reason };
                    Answer { reason, outlook: None, next: next.to_owned(), lines: Vec::new() }
                }
                None => plain("demand.unread", text, next),
            }
        }
        DemandState::Waiting => plain(
            "demand.waiting",
            format!("a rule of an environment at {forge} holds it"),
            "a runner is wanted when the forge lets it go",
        ),
        DemandState::Held { reason, until } => Answer {
            reason: reason.clone(),
            outlook: None,
            next: match until {
                Some(until) => format!("it is tried again at {until}"),
                None => "it waits until somebody approves this head".to_owned(),
            },
            lines: Vec::new(),
        },
        DemandState::Refused { reason } => Answer {
            reason: reason.clone(),
            outlook: None,
            next: "nothing, until the access files change".to_owned(),
            lines: Vec::new(),
        },
        DemandState::Wanted | DemandState::Launching => {
            match demand.launch.and_then(|launch| farm.jobs.get(&launch)) {
                Some(launch) => why(seen, launch),
                None => plain("demand.no_launch", "its launch is no longer known".to_owned(), "nothing"),
            }
        }
        DemandState::Running => {
            let by = demand.taken_by.as_ref().map_or("a runner", |taker| taker.name.as_str());
            plain("demand.running", format!("{by} has it"), "it ends by the word of the forge")
        }
        DemandState::Ended => {
            let how = demand.conclusion.as_deref().unwrap_or("unknown");
            let said = format!("{forge} says: {how}");
            if let Some(repeat) = &demand.repeat {
                return repeated(farm, demand, repeat, said);
            }
            match refused_on_its_runner(farm, demand) {
                None => plain("demand.ended", said, "nothing"),
                Some(reason) => Answer {
                    reason: Explanation {
                        message: format!("its runner asked and ran no step of it: {}", reason.message),
                        ..reason.clone().with(said)
                    },
                    outlook: None,
                    next: "nothing; run again, it is decided anew".to_owned(),
                    lines: Vec::new(),
                },
            }
        }
        DemandState::Withdrawn { reason } => {
            Answer { reason: reason.clone(), outlook: None, next: "nothing".to_owned(), lines: Vec::new() }
        }
    }
}

/// What becomes of a job that was lost with its machine.
fn repeated(farm: &Farm, demand: &Demand, repeat: &Repeat, said: String) -> Answer {
    let (code, next) = match repeat {
        Repeat::Wanted { .. } => ("repeat.wanted", "the forge is asked to run it again when its run is over"),
        Repeat::Done { .. } => {
            ("repeat.done", "the forge makes a new job of the same run, which is a demand of its own")
        }
        Repeat::Dropped { .. } => ("repeat.dropped", "nothing; it may be run again by hand"),
    };
    let mut reason = Explanation::new(code, repeat.text()).with(said);
    if let (Repeat::Wanted { .. }, Some(waits)) = (repeat, limits::of_repeat(farm, demand)) {
        reason = reason.with(waits.message);
    }
    Answer { reason, outlook: None, next: next.to_owned(), lines: Vec::new() }
}

/// Why the runner of this farm that took it was told to run no step of it. The forge knows only that it failed.
fn refused_on_its_runner<'f>(farm: &'f Farm, demand: &Demand) -> Option<&'f Explanation> {
    let runner = farm.runners.get(&demand.taken_by.as_ref()?.runner?)?;
    let taken = runner.registration.as_deref()?.taken.as_ref()?;
    let same = taken.job.repository.id == demand.repository.id && taken.job.run == demand.run;
    match &taken.answer {
        TakenAnswer::Refused { reason } if same => Some(reason),
        _ => None,
    }
}

/// Why the machine of an attempt may not register yet, when a limit of the forge says so.
fn limited(farm: &Farm, attempt: AttemptId) -> Option<Explanation> {
    limits::of_registration(farm, farm.attempts.get(&attempt)?.runner)
}

fn held(farm: &Farm, job: &Job, hold: &Hold) -> (Explanation, String) {
    match hold {
        // No attempt failed: a limit of the forge is waited for.
        Hold::Retry { until } if job.waiting.as_ref().is_some_and(|reason| reason.code == limits::WAITS) => {
            let reason = job.waiting.clone().unwrap_or_else(|| Explanation::new(limits::WAITS, ""));
            (reason, format!("it is queued again at {until}"))
        }
        Hold::Source => (
            Explanation::new("job.held.source", "its source is being fetched"),
            "it is queued when the source is stored".to_owned(),
        ),
        Hold::Artifacts { of } => {
            let mut reason =
                Explanation::new("job.held.artifacts", "it waits for packages; no device is held meanwhile");
            for id in of {
                if let Some(build) = farm.jobs.get(id) {
                    reason = reason.with(format!("{} ({}) is {}", build.key, id, build.state.name()));
                }
            }
            if job.test.as_ref().is_some_and(|test| test.selection.is_none()) {
                reason = reason.with("where it runs is decided from the package's own test list");
            }
            (reason, "it is queued when every package is stored and read".to_owned())
        }
        Hold::Inspection => (
            Explanation::new("job.held.inspection", "its package is being read"),
            "it is queued when the test list is known".to_owned(),
        ),
        Hold::Approval { reason } => {
            (reason.clone(), "it waits until somebody approves this head".to_owned())
        }
        Hold::Retry { until } => {
            let cause =
                job.verdict.as_ref().map_or("the last attempt ended", |verdict| verdict.cause.as_str());
            (
                Explanation::new("job.held.retry", format!("attempt {} ended: {cause}", job.fence)),
                format!("it is queued again at {until}"),
            )
        }
    }
}

fn ended(job: &Job, outcome: Outcome) -> (Explanation, String, Vec<LogLine>) {
    let Some(verdict) = &job.verdict else {
        let text = format!("it {}", outcome.name());
        return (Explanation::new(format!("job.{}", outcome.name()), text), "nothing".to_owned(), Vec::new());
    };
    let class = match (&verdict.class, outcome) {
        (Some(class), _) => class.as_str(),
        (None, Outcome::Succeeded) => "succeeded",
        (None, _) => "unknown",
    };
    let mut reason = Explanation::new(format!("verdict.{class}"), verdict.cause.clone());
    if verdict.class.is_none() && outcome != Outcome::Succeeded {
        reason = reason.with("the farm does not know this failure; the last lines are shown");
    }
    if let Some(rule) = &verdict.rule {
        reason = reason.with(format!("signature {rule}"));
    }
    if let Some(blame) = verdict.blame {
        reason = reason.with(format!("text points at {blame:?}; text is not proof"));
    }
    reason.fix = verdict.fix.clone();
    let next = match (outcome, verdict.retry) {
        (Outcome::Succeeded | Outcome::Canceled, _) => "nothing",
        (_, RetryPolicy::R0) => "nothing: this is not retried",
        _ => "nothing: the retries that its class allows are used up",
    };
    (reason, next.to_owned(), verdict.lines.clone())
}
