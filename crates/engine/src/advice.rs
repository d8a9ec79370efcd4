//! What to do about a job that was killed at a limit of its machine: take another flavor, by name, with what was measured
//! (OGS 28: "lost communication", four lines of log and no advice).
//!
//! The verdict says what happened; this names the shape of the farm that would have been enough. For a job of a forge that
//! is a pool and its labels, since nobody there knows flavors.

use forgeyard_model::attempt::Attempt;
use forgeyard_model::config::FarmConfig;
use forgeyard_model::job::{Job, JobKind};
use forgeyard_model::resources::Flavor;
use forgeyard_model::verdict::{ExitFacts, Verdict};

/// What ran out.
#[derive(Clone, Copy, PartialEq)]
enum Short {
    Memory,
    Time,
    Disk,
    Processes,
    Cpu,
    /// The supervisor was not heard any more while the job ran: it may have been starved of either.
    Starved,
}

fn short(verdict: &Verdict) -> Option<Short> {
    Some(match verdict.class.as_deref()? {
        "host.oom" => Short::Memory,
        "limit.wall" => Short::Time,
        "limit.disk" => Short::Disk,
        "limit.processes" => Short::Processes,
        "limit.cpu" => Short::Cpu,
        "infra.agent-lost" => Short::Starved,
        _ => return None,
    })
}

/// Whether a shape has more of it, and how much that is.
fn more(what: Short, had: &Flavor, other: &Flavor) -> bool {
    let enough = match what {
        Short::Memory => other.memory_mib > had.memory_mib,
        Short::Time => other.time_limit_seconds > had.time_limit_seconds,
        Short::Disk => other.disk_mib > had.disk_mib,
        Short::Processes => other.processes > had.processes,
        Short::Cpu => other.cpu_millis > had.cpu_millis,
        Short::Starved => other.memory_mib > had.memory_mib || other.cpu_millis > had.cpu_millis,
    };
    let no_less = other.memory_mib >= had.memory_mib
        && other.cpu_millis >= had.cpu_millis
        && other.disk_mib >= had.disk_mib
        && other.time_limit_seconds >= had.time_limit_seconds
        && had.gpu.is_some() == other.gpu.is_some()
        && (other.network || !had.network);
    enough && no_less
}

fn shape(flavor: &Flavor) -> String {
    format!(
        "{} MiB of memory, {} CPUs, {} MiB of disk, {} processes, {} minutes",
        flavor.memory_mib,
        f64::from(flavor.cpu_millis) / 1000.0,
        flavor.disk_mib,
        flavor.processes,
        flavor.time_limit_seconds / 60
    )
}

fn measured(facts: Option<&ExitFacts>) -> String {
    let Some(facts) = facts else { return String::new() };
    let peak = facts.oom.as_ref().map(|oom| oom.peak_bytes).or(facts.peak_memory_bytes);
    let peak = peak.map(|bytes| format!("{} MiB of memory at most", bytes >> 20));
    let cpu = facts.cpu_micros.map(|micros| format!("{} s of CPU time", micros / 1_000_000));
    let wall =
        facts.steps.first().zip(facts.steps.last()).map(|(first, last)| {
            format!("{} s on the clock", last.ended_at.since(first.started_at).as_secs())
        });
    let parts: Vec<String> = [peak, cpu, wall].into_iter().flatten().collect();
    if parts.is_empty() { String::new() } else { format!(" (measured: {})", parts.join(", ")) }
}

/// Adds to the verdict which shape of this farm would do, with what was measured.
pub(crate) fn add(
    config: &FarmConfig,
    job: &Job,
    attempt: &Attempt,
    facts: Option<&ExitFacts>,
    verdict: &mut Verdict,
) {
    let Some(what) = short(verdict) else { return };
    let had = attempt.stake.as_ref().and_then(|stake| config.flavor(&stake.flavor));
    let Some(had) = had else { return };
    let before = verdict.fix.take().map(|fix| format!("{fix}; ")).unwrap_or_default();
    let starved = match what {
        Short::Starved => "if this comes again with the same job, it takes what its supervisor needs: ",
        _ => "",
    };
    let had_text = format!("it had flavor {}: {}{}", had.name, shape(had), measured(facts));
    let text = match job.kind {
        JobKind::Runner => {
            let offers = config.pools.iter().filter_map(|pool| {
                let offer = pool.runners.as_ref()?;
                let flavor = config.flavor(&offer.flavor).filter(|other| more(what, had, other))?;
                Some((flavor, pool, offer))
            });
            match offers.min_by_key(|(flavor, ..)| (flavor.memory_mib, flavor.cpu_millis)) {
                Some((flavor, pool, offer)) => {
                    let labels: Vec<&str> = offer.labels.iter().map(String::as_str).collect();
                    format!(
                        "ask for the labels {} of pool {} (flavor {}: {})",
                        labels.join(", "),
                        pool.name,
                        flavor.name,
                        shape(flavor)
                    )
                }
                None => format!(
                    "no pool of this farm offers a larger runner than flavor {}: ask an operator for one",
                    had.name
                ),
            }
        }
        _ => {
            let larger = config.flavors.iter().filter(|other| more(what, had, other));
            match larger.min_by_key(|flavor| (flavor.memory_mib, flavor.cpu_millis)) {
                Some(flavor) => format!("take flavor {} ({})", flavor.name, shape(flavor)),
                None => {
                    format!("no flavor of this farm is larger than {}: ask an operator for one", had.name)
                }
            }
        }
    };
    verdict.fix = Some(format!("{before}{starved}{text}; {had_text}"));
}
