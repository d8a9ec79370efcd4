//! Verdicts: what was observed at the end of an attempt, and what the farm makes of it.
//!
//! Exit facts come first, then text. Text gives a failure's class; only comparison gives blame. A verdict abstains
//! (`class = None`) when it does not know.

use crate::Timestamp;
use crate::resources::{DeviceKind, Limit};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How an attempt or a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// All that was asked was done and seen.
    Succeeded,
    /// The work itself failed.
    Failed,
    /// It ran past its time limit.
    TimedOut,
    /// Somebody stopped it.
    Canceled,
    /// The farm lost it: always our fault.
    Lost,
}

impl Outcome {
    /// The persisted spelling.
    pub const fn name(self) -> &'static str {
        match self {
            Outcome::Succeeded => "succeeded",
            Outcome::Failed => "failed",
            Outcome::TimedOut => "timed_out",
            Outcome::Canceled => "canceled",
            Outcome::Lost => "lost",
        }
    }
}

/// How one step ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StepFacts {
    /// Name of the step.
    pub name: String,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Timestamp,
    /// Exit status; absent when no exit record was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
}

/// What memory accounting said of an out-of-memory kill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OomFacts {
    /// Kills counted.
    pub kills: u64,
    /// Peak of the job, in bytes.
    pub peak_bytes: u64,
    /// The limit, in bytes.
    pub limit_bytes: u64,
    /// Command name of the victim, where the kernel log or the process table gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub victim: Option<String>,
}

/// What the supervisor saw of the devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeviceUse {
    /// What kind of device.
    pub kind: DeviceKind,
    /// Whether the job touched it.
    pub touched: bool,
    /// By what that was seen.
    pub evidence: Vec<String>,
}

/// Everything observed at the end of an attempt, by the supervisor outside the job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExitFacts {
    /// The steps that began, in order.
    pub steps: Vec<StepFacts>,
    /// A limit that stopped the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// Out-of-memory accounting, when a kill happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oom: Option<OomFacts>,
    /// Peak memory, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    /// CPU time, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_micros: Option<u64>,
    /// The job was stopped because the farm asked.
    #[serde(default)]
    pub canceled: bool,
    /// The supervisor could not do its own part (download, upload, start): always our fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supervisor_error: Option<String>,
    /// An output that was required and not found.
    #[serde(default)]
    pub missing_outputs: Vec<String>,
    /// What was seen of the devices, when some were leased.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceUse>,
    /// Metrics that the job handed back, by name.
    #[serde(default)]
    pub metrics: BTreeMap<String, Metric>,
    /// Digests of packages found installed in the job's environment, by file name.
    #[serde(default)]
    pub installed: BTreeMap<String, String>,
    /// Log bytes that were dropped because of the cap.
    #[serde(default)]
    pub log_dropped_bytes: u64,
    /// What the job had of the build cache, when it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheFacts>,
    /// Lines of the kernel's log that fell into the attempt's time and speak of its devices or processes.
    #[serde(default)]
    pub kernel_lines: Vec<String>,
}

/// What a job had of the build cache, counted beside it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CacheFacts {
    /// The scope from which it read upwards.
    pub scope: String,
    /// Whether it wrote there.
    pub writes: bool,
    /// Reads that found something.
    pub hits: u64,
    /// Reads that found nothing.
    pub misses: u64,
    /// Entries that were stored.
    pub stored: u64,
    /// Writes that were refused.
    pub denied: u64,
    /// Requests that were not put to the cache, because it did not answer.
    #[serde(default)]
    pub alone: u64,
    /// The same for each client that came.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<CacheClient>,
    /// What the budget of the scope said at the end of the job, when it was missed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cold: Option<CacheCold>,
}

/// What one client of a job had of the build cache.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CacheClient {
    /// The surface: `dav` and `s3` (sccache), `ccache`, `bazel`, `nix`, `turbo`, `gradle`, `kv`, `github`, `warm`.
    pub client: String,
    /// Reads that found something.
    pub hits: u64,
    /// Reads that found nothing.
    pub misses: u64,
    /// Entries that were stored.
    pub stored: u64,
    /// Writes that were refused.
    pub denied: u64,
    /// Bytes that came from the cache.
    pub received_bytes: u64,
    /// Bytes of the entries that were stored.
    pub sent_bytes: u64,
}

/// A budget that is missed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CacheCold {
    /// The cause, in one word: `denied`, `key-churn`, `evicted`…
    pub cause: String,
    /// The figures, and what to do.
    pub text: String,
}

impl CacheClient {
    /// For logs and pages.
    pub fn text(&self) -> String {
        let Self { client, hits, misses, stored, denied, received_bytes, sent_bytes } = self;
        let mib = |bytes: &u64| *bytes as f64 / f64::from(1 << 20);
        let refused = if *denied > 0 { format!(", {denied} refused") } else { String::new() };
        format!(
            "{client}: {hits} of {} hit, {stored} stored{refused}; {:.1} MiB received, {:.1} MiB sent",
            hits.saturating_add(*misses),
            mib(received_bytes),
            mib(sent_bytes)
        )
    }
}

impl CacheFacts {
    /// Most clients that are told of.
    const SHOWN: usize = 12;

    /// All that there is to say, a line each: the sum, each client, why it is cold.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![self.text()];
        lines.extend(self.clients.iter().take(Self::SHOWN).map(CacheClient::text));
        lines.extend(self.cold.iter().map(|cold| format!("cold ({}): {}", cold.cause, cold.text)));
        lines
    }

    /// For logs and pages.
    pub fn text(&self) -> String {
        let Self { hits, misses, stored, denied, alone, .. } = self;
        let mut text = format!(
            "{hits} of {} reads hit, {stored} entries stored, {denied} refused",
            hits.saturating_add(*misses)
        );
        if *alone > 0 {
            text.push_str(&format!("; {alone} requests without the cache, which did not answer"));
        }
        text
    }
}

/// A figure that a job handed back. Written as a string in decimal so that rows compare exactly.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Metric {
    /// The value, in decimal.
    pub value: String,
    /// Its unit, for example `GFLOP/s`.
    pub unit: String,
}

/// What is done after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum RetryPolicy {
    /// Never.
    R0,
    /// Once, same place.
    R1,
    /// Once, on another host of the same architecture.
    R2,
    /// Diagnostic run on another architecture; never turns red into green.
    R3,
    /// With back-off, at most five times.
    RB,
    /// Quarantine the device, run elsewhere.
    RQ,
    /// With more memory or fewer parallel jobs.
    RM,
    /// Hold until the capacity changes.
    RE,
}

/// Whom a class points at, as far as text can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Blame {
    /// Package or user code.
    U,
    /// Architecture.
    A,
    /// Driver stack of the host.
    D,
    /// Hardware.
    H,
    /// Host or service.
    I,
    /// Scheduling or configuration.
    S,
    /// External source.
    X,
}

/// One decisive line of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogLine {
    /// Line number, from 1; 0 = from the kernel's log.
    pub number: u64,
    /// The text, masked and cut.
    pub text: String,
}

/// A place in a log where a signature matched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Hit {
    /// Id of the signature.
    pub rule: String,
    /// Where.
    pub line: LogLine,
}

/// What the farm makes of the end of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Verdict {
    /// How it ended.
    pub outcome: Outcome,
    /// Failure class, for example `load.missing-lib`; absent when the farm abstains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// One sentence for people.
    pub cause: String,
    /// Signature that decided, when text did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Where text points; never proof.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blame: Option<Blame>,
    /// What is done next.
    pub retry: RetryPolicy,
    /// The lines that decided, or the last ones.
    #[serde(default)]
    pub lines: Vec<LogLine>,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}
