//! The decision: exit facts first, then text.

use super::rules::{Rule, Rules};
use super::scan::{PASSED, scan};
use forgeyard_model::job::{JobKind, Subject};
use forgeyard_model::resources::Limit;
use forgeyard_model::verdict::{
    Blame, ExitFacts, Hit, LogLine, OomFacts, Outcome, RetryPolicy, StepFacts, Verdict,
};

/// Everything that is known at the end of an attempt.
#[derive(Debug, Clone, Copy)]
pub struct Ending<'a> {
    /// What the supervisor saw.
    pub facts: &'a ExitFacts,
    /// Where rules matched in the job's log.
    pub hits: &'a [Hit],
    /// The last lines of the log.
    pub tail: &'a [LogLine],
    /// What the job was for.
    pub job: JobKind,
    /// The package that a test is about.
    pub subject: Option<&'a Subject>,
    /// Whether a device was asked for.
    pub wanted_device: bool,
}

/// Most lines shown as evidence.
const LINES: usize = 20;

/// Judges the end of an attempt.
pub fn judge(ending: &Ending<'_>) -> Verdict {
    let facts = ending.facts;
    if facts.canceled {
        return plain(ending, Outcome::Canceled, None, "stopped because the farm was asked to");
    }
    if let Some(error) = &facts.supervisor_error {
        return lost(ending, format!("the farm could not do its own part: {error}"));
    }
    if let Some(verdict) = substituted(ending) {
        return verdict;
    }
    if let Some(verdict) = limited(ending) {
        return verdict;
    }
    match failed_step(facts) {
        Step::Lost(cause) => lost(ending, cause),
        Step::Failed(step) => failed(ending, step),
        Step::Green => green(ending),
    }
}

enum Step<'a> {
    Green,
    Failed(&'a StepFacts),
    Lost(String),
}

fn failed_step(facts: &ExitFacts) -> Step<'_> {
    if facts.steps.is_empty() {
        return Step::Lost("no step began".to_owned());
    }
    for step in &facts.steps {
        match (step.exit_code, step.signal) {
            (Some(0), None) => {}
            (None, None) => return Step::Lost(format!("step `{}` left no exit record", step.name)),
            _ => return Step::Failed(step),
        }
    }
    Step::Green
}

fn plain(ending: &Ending<'_>, outcome: Outcome, class: Option<&str>, cause: impl Into<String>) -> Verdict {
    let last = ending.tail.len().saturating_sub(LINES);
    Verdict {
        outcome,
        class: class.map(str::to_owned),
        cause: cause.into(),
        rule: None,
        blame: None,
        retry: RetryPolicy::R0,
        lines: ending.tail[last..].to_vec(),
        fix: None,
    }
}

fn lost(ending: &Ending<'_>, cause: String) -> Verdict {
    Verdict {
        blame: Some(Blame::I),
        retry: RetryPolicy::RB,
        ..plain(ending, Outcome::Lost, Some("infra.runner-lost"), cause)
    }
}

/// The installed package must be the one that is tested; digests are compared, never names alone.
fn substituted(ending: &Ending<'_>) -> Option<Verdict> {
    let subject = ending.subject?;
    let found = ending.facts.installed.get(&subject.file_name);
    let cause = match found {
        Some(found) if found.trim_start_matches("sha256:") == subject.digest.hex() => return None,
        Some(found) => format!(
            "the test ran on another package: `{}` was installed with digest {found}, expected {}",
            subject.file_name, subject.digest
        ),
        // A test that ended early may have installed nothing; a green one must show what it ran on.
        None if !matches!(failed_step(ending.facts), Step::Green) => return None,
        None => format!(
            "the test ran without `{}` {}: it was not found installed",
            subject.file_name, subject.digest
        ),
    };
    let mut verdict = plain(ending, Outcome::Failed, Some("artifact.substituted"), cause);
    verdict.blame = Some(Blame::S);
    verdict.fix =
        Some("look at the lock of the test's environment: which channel gave the package?".to_owned());
    Some(verdict)
}

/// A limit that the supervisor enforced.
fn limited(ending: &Ending<'_>) -> Option<Verdict> {
    let facts = ending.facts;
    if let Some(oom) = &facts.oom {
        return Some(out_of_memory(ending, oom));
    }
    let limit = facts.limit?;
    if limit == Limit::Memory {
        let peak_bytes = facts.peak_memory_bytes.unwrap_or(0);
        return Some(out_of_memory(ending, &OomFacts { kills: 0, peak_bytes, limit_bytes: 0, victim: None }));
    }
    // Hardware that died under the job is the better explanation for reaching a time limit.
    if limit == Limit::Wall
        && let Some(hit) = kernel_hits(facts).into_iter().find(|hit| decisive(hit) >= 90)
    {
        return rule_verdict(ending, &hit, Outcome::Failed, "the job reached its time limit");
    }
    let (outcome, class, cause, fix) = match limit {
        Limit::Wall => (
            Outcome::TimedOut,
            "limit.wall",
            "the job reached its time limit on the wall clock",
            "raise `time-limit-seconds` of the flavor, or split the work; the last lines show where it stood",
        ),
        Limit::Disk => (
            Outcome::Failed,
            "limit.disk",
            "the job filled the disk space that its flavor gives it",
            "raise `disk-mib` of the flavor, or write less",
        ),
        Limit::Processes => (
            Outcome::Failed,
            "limit.processes",
            "the job reached its limit of processes and threads",
            "raise `processes` of the flavor, or start fewer at once",
        ),
        Limit::Network => (
            Outcome::Failed,
            "limit.network",
            "the job tried to use the network, which its flavor does not allow",
            "hand the bytes in as an input, or use a flavor with `network = true`",
        ),
        Limit::Memory | Limit::Cpu => (
            Outcome::Failed,
            "limit.cpu",
            "the job reached its limit of CPU time",
            "raise `cpu-millis` of the flavor",
        ),
    };
    let mut verdict = plain(ending, outcome, Some(class), cause);
    verdict.blame = Some(Blame::U);
    verdict.fix = Some(fix.to_owned());
    Some(verdict)
}

fn out_of_memory(ending: &Ending<'_>, oom: &OomFacts) -> Verdict {
    let victim = oom.victim.as_ref().map_or(String::new(), |name| format!("; the kernel killed `{name}`"));
    let limit = if oom.limit_bytes == 0 { String::new() } else { format!(" of {}", size(oom.limit_bytes)) };
    let cause =
        format!("out of memory: the job reached its limit{limit}, peak {}{victim}", size(oom.peak_bytes));
    // The next power of two above what was not enough.
    let next = oom.limit_bytes.max(oom.peak_bytes).max(1 << 20).saturating_add(1).checked_next_power_of_two();
    let mut verdict = plain(ending, Outcome::Failed, Some("host.oom"), cause);
    // Nothing in the log says which line mattered, and a runner that is gone cannot be asked: all that is at hand is kept.
    verdict.lines = ending.tail.to_vec();
    verdict.rule = Some("H01".to_owned());
    verdict.blame = Some(Blame::S);
    verdict.retry = RetryPolicy::RM;
    verdict.fix = Some(match next {
        Some(bytes) => format!("use a flavor with {} of memory, or run fewer jobs in parallel", size(bytes)),
        None => "run fewer jobs in parallel".to_owned(),
    });
    verdict
}

/// Mebibytes below 1 GiB, tenths of gibibytes above; no floating point, so that replays agree bit for bit.
fn size(bytes: u64) -> String {
    let mib = bytes >> 20;
    if mib < 1024 { format!("{mib} MiB") } else { format!("{}.{} GiB", mib / 1024, mib % 1024 * 10 / 1024) }
}

fn kernel_hits(facts: &ExitFacts) -> Vec<Hit> {
    let rules = Rules::builtin();
    let mut hits = scan(rules, facts.kernel_lines.iter().map(String::as_str));
    hits.retain(|hit| rules.get(&hit.rule).is_some_and(Rule::kernel));
    // 0 says that the line is from the kernel's log; the order of the list stays.
    hits.iter_mut().for_each(|hit| hit.line.number = 0);
    hits.sort_by_key(|hit| std::cmp::Reverse(decisive(hit)));
    hits
}

fn decisive(hit: &Hit) -> u32 {
    Rules::builtin().get(&hit.rule).filter(|rule| !rule.companion()).map_or(0, |rule| rule.priority)
}

/// What a step's end says by itself.
fn ended_how(step: &StepFacts) -> String {
    match (signal(step), step.exit_code) {
        (Some(signal), _) => format!("step `{}` was ended by {}", step.name, signal_name(signal)),
        (None, Some(code)) => format!("step `{}` failed with exit code {code}", step.name),
        (None, None) => format!("step `{}` failed", step.name),
    }
}

/// The signal that ended a step; shells report it as 128 and its number.
fn signal(step: &StepFacts) -> Option<i32> {
    step.signal.or_else(|| step.exit_code.map(|code| code - 128).filter(|number| (1..=31).contains(number)))
}

fn signal_name(signal: i32) -> String {
    match signal {
        4 => "SIGILL".into(),
        6 => "SIGABRT".into(),
        7 => "SIGBUS".into(),
        8 => "SIGFPE".into(),
        9 => "SIGKILL".into(),
        11 => "SIGSEGV".into(),
        15 => "SIGTERM".into(),
        other => format!("signal {other}"),
    }
}

/// The rule that a signal stands for.
fn signal_rule(signal: i32) -> Option<&'static str> {
    match signal {
        4 => Some("A10"),
        6 | 8 | 11 => Some("Q07"),
        7 => Some("H18"),
        _ => None,
    }
}

/// A step failed: the rule with the highest priority decides; of equal ones that with the earliest line, because
/// later lines are consequences.
fn failed(ending: &Ending<'_>, step: &StepFacts) -> Verdict {
    let rules = Rules::builtin();
    let kernel = kernel_hits(ending.facts);
    let memory_ran_out = kernel.iter().any(|hit| rules.get(&hit.rule).is_some_and(|r| r.klass == "host.oom"));
    let how = ended_how(step);
    if let Some(verdict) = refused(ending, step) {
        return verdict;
    }

    let mut candidates: Vec<(&Rule, Hit)> = Vec::new();
    for hit in &kernel {
        candidates.extend(rules.get(&hit.rule).map(|rule| (rule, hit.clone())));
    }
    for hit in pick(rules, ending.hits) {
        let Some(rule) = rules.get(&hit.rule) else { continue };
        if rule.kernel_only() || rule.killed() && !memory_ran_out {
            continue;
        }
        candidates.push((rule, hit.clone()));
    }
    if let Some(rule) = signal(step).and_then(signal_rule).and_then(|id| rules.get(id)) {
        let line = LogLine { number: u64::MAX, text: how.clone() };
        candidates.push((rule, Hit { rule: rule.id.clone(), line }));
    }
    candidates.retain(|(rule, _)| !rule.companion());
    candidates.sort_by(|(a, x), (b, y)| {
        (std::cmp::Reverse(a.priority), x.line.number).cmp(&(std::cmp::Reverse(b.priority), y.line.number))
    });
    let Some((_, hit)) = candidates.first() else {
        let cause = if signal(step) == Some(9) {
            format!("{how}; neither the memory accounting nor the kernel's log says why")
        } else {
            format!("{how}; no known line stands in the log")
        };
        return plain(ending, Outcome::Failed, None, cause);
    };
    let Some(mut verdict) = rule_verdict(ending, hit, Outcome::Failed, &how) else {
        return plain(ending, Outcome::Failed, None, how);
    };
    verdict.lines.extend(candidates.iter().skip(1).take(2).map(|(_, hit)| hit.line.clone()));
    verdict.lines.retain(|line| line.number != u64::MAX);
    if verdict.lines.is_empty() {
        verdict.lines = plain(ending, Outcome::Failed, None, "").lines;
    }
    verdict
}

/// A step of ours that says that what was asked for cannot be done as written: exit status 2, and the last words of
/// `steps/outcome.py`. Its own words are the cause.
fn refused(ending: &Ending<'_>, step: &StepFacts) -> Option<Verdict> {
    if step.exit_code != Some(2) {
        return None;
    }
    let beginning = format!("{}: refused: ", step.name);
    let line = ending.tail.iter().rev().find(|line| line.text.starts_with(&beginning))?;
    let cause = line.text[beginning.len()..].trim();
    let class = format!("{}.refused", step.name);
    let mut verdict = plain(ending, Outcome::Failed, Some(&class), cause);
    verdict.blame = Some(Blame::U);
    verdict.lines = vec![line.clone()];
    verdict.fix = Some("correct what the line names; asking again gives the same answer".to_owned());
    Some(verdict)
}

/// The line of each rule that counts: the first of collectives and devices, elsewhere the last.
fn pick<'h>(rules: &Rules, hits: &'h [Hit]) -> Vec<&'h Hit> {
    let mut picked: Vec<&Hit> = Vec::new();
    for hit in hits {
        let first = rules.get(&hit.rule).is_some_and(Rule::first_counts);
        match picked.iter_mut().find(|other| other.rule == hit.rule) {
            None => picked.push(hit),
            Some(other) => {
                if (hit.line.number < other.line.number) == first {
                    *other = hit;
                }
            }
        }
    }
    picked
}

fn rule_verdict(ending: &Ending<'_>, hit: &Hit, outcome: Outcome, how: &str) -> Option<Verdict> {
    let rule = Rules::builtin().get(&hit.rule)?;
    let mut verdict = plain(ending, outcome, Some(&rule.klass), format!("{how}: {}", rule.cause));
    verdict.rule = Some(rule.id.clone());
    verdict.blame = Some(rule.blame);
    verdict.retry = policy(rule, hit);
    verdict.lines = vec![hit.line.clone()];
    Some(verdict)
}

/// The policy of a rule, without what the job's own output may not decide.
fn policy(rule: &Rule, hit: &Hit) -> RetryPolicy {
    let from_kernel = hit.line.number == 0;
    match rule.retry {
        _ if rule.klass.starts_with("test.") => RetryPolicy::R0,
        // A job that prints the right words must not take devices out of service.
        RetryPolicy::RQ if !from_kernel => RetryPolicy::R2,
        other => other,
    }
}

/// All steps were green: was there anything behind it?
fn green(ending: &Ending<'_>) -> Verdict {
    let facts = ending.facts;
    if !facts.missing_outputs.is_empty() {
        let cause =
            format!("all steps were green, but outputs are missing: {}", facts.missing_outputs.join(", "));
        let mut verdict = plain(ending, Outcome::Failed, Some("build.output-missing"), cause);
        verdict.blame = Some(Blame::U);
        verdict.fix = Some("the build must write its packages to the output folder".to_owned());
        return verdict;
    }
    if ending.job == JobKind::Test
        && let Some(verdict) = empty_test(ending)
    {
        return verdict;
    }
    if ending.wanted_device
        && let Some(verdict) = unused_device(ending)
    {
        return verdict;
    }
    Verdict { lines: Vec::new(), ..plain(ending, Outcome::Succeeded, None, "all steps were green") }
}

fn empty_test(ending: &Ending<'_>) -> Option<Verdict> {
    if ending.hits.iter().any(|hit| hit.rule == PASSED) {
        return None;
    }
    let hit = ending.hits.iter().find(|hit| matches!(hit.rule.as_str(), "Q10" | "Q11"))?;
    rule_verdict(ending, hit, Outcome::Failed, "all steps were green, but no test ran")
}

fn unused_device(ending: &Ending<'_>) -> Option<Verdict> {
    let seen = match &ending.facts.device {
        Some(device) if device.touched => return None,
        Some(device) if device.evidence.is_empty() => format!("{} was never touched", device.kind.label()),
        Some(device) => format!("{} was never touched ({})", device.kind.label(), device.evidence.join("; ")),
        None => "nothing was observed of the device".to_owned(),
    };
    let fallback = ending.hits.iter().find(|hit| {
        Rules::builtin().get(&hit.rule).is_some_and(|rule| rule.klass == "load.silent-cpu-fallback")
    });
    let class = if fallback.is_some() { "load.silent-cpu-fallback" } else { "test.device-unused" };
    let cause = format!("DeviceUnused: all steps were green, but {seen}");
    let mut verdict = plain(ending, Outcome::Failed, Some(class), cause);
    if let Some(hit) = fallback {
        verdict.rule = Some(hit.rule.clone());
        verdict.lines = vec![hit.line.clone()];
    }
    verdict.blame = Some(Blame::U);
    verdict.fix =
        Some("let the test use the device, or mark it as needing none in `forgeyard.toml`".to_owned());
    Some(verdict)
}
