//! Commits: what one decision writes, in one transaction: rows, the event rows (the audit trail), the journal entry,
//! usage facts and outbox effects.

use crate::approval::{Acceptance, ConfigVersion, HeadApproval};
use crate::artifact::Artifact;
use crate::attempt::Attempt;
use crate::channel::Channel;
use crate::delivery::Delivery;
use crate::demand::Demand;
use crate::device::Device;
use crate::effect::PendingEffect;
use crate::environment::Environment;
use crate::input::JournalEntry;
use crate::job::Job;
use crate::lease::Lease;
use crate::ledger::LedgerRow;
use crate::pipeline::Pipeline;
use crate::pool::PoolRecord;
use crate::principal::{ApiToken, Principal};
use crate::runner::Runner;
use crate::site::Site;
use crate::{DemandId, EventId, ForgeName, Timestamp};
use serde::{Deserialize, Serialize};

/// One row, as it shall be. `generation` 1 inserts; any other value replaces the row whose generation is one less.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "row", rename_all = "snake_case")]
pub enum Row {
    /// A webhook delivery.
    Delivery(Delivery),
    /// A demand.
    Demand(Demand),
    /// A pipeline.
    Pipeline(Pipeline),
    /// A job.
    Job(Job),
    /// An attempt.
    Attempt(Attempt),
    /// A runner.
    Runner(Runner),
    /// A lease.
    Lease(Lease),
    /// A device.
    Device(Device),
    /// A site.
    Site(Site),
    /// An artifact.
    Artifact(Artifact),
    /// A channel.
    Channel(Channel),
    /// An environment.
    Environment(Environment),
    /// An outbox effect.
    Effect(PendingEffect),
    /// An API token.
    Token(ApiToken),
    /// A row of the ledger.
    Ledger(LedgerRow),
    /// What is remembered of a pool.
    Pool(PoolRecord),
    /// What was said of a head.
    Approval(HeadApproval),
    /// Accepted terms.
    Acceptance(Acceptance),
    /// A configuration.
    Config(ConfigVersion),
}

macro_rules! rows {
    ($($variant:ident: $kind:literal, $key:expr;)*) => {
        impl Row {
            /// Name of the aggregate, as in table names.
            pub const fn kind(&self) -> &'static str {
                match self { $(Row::$variant(_) => $kind,)* }
            }
            /// Row version.
            pub const fn generation(&self) -> u64 {
                match self { $(Row::$variant(row) => row.generation,)* }
            }
            /// Primary key, as text.
            pub fn key(&self) -> String {
                match self { $(Row::$variant(row) => { let key: fn(&$variant) -> String = $key; key(row) })* }
            }
        }
        $(impl From<$variant> for Row { fn from(row: $variant) -> Row { Row::$variant(row) } })*
    };
}

type Effect = PendingEffect;
type Token = ApiToken;
type Ledger = LedgerRow;
type Pool = PoolRecord;
type Approval = HeadApproval;
type Config = ConfigVersion;

rows! {
    Delivery: "delivery", |row| row.guid.clone();
    Demand: "demand", |row| row.id.to_string();
    Pipeline: "pipeline", |row| row.id.to_string();
    Job: "job", |row| row.id.to_string();
    Attempt: "attempt", |row| row.id.to_string();
    Runner: "runner", |row| row.id.to_string();
    Lease: "lease", |row| row.id.to_string();
    Device: "device", |row| row.id.to_string();
    Site: "site", |row| row.id.to_string();
    Artifact: "artifact", |row| row.id.to_string();
    Channel: "channel", |row| row.name.to_string();
    Environment: "environment", |row| row.id.to_string();
    Effect: "effect", |row| row.id.to_string();
    Token: "token", |row| row.digest.to_string();
    Ledger: "ledger", |row| row.key.clone();
    Pool: "pool", |row| row.name.to_string();
    Approval: "approval", HeadApproval::key;
    Acceptance: "acceptance", |row| row.who().to_string();
    Config: "config", |row| ConfigVersion::key(row.number);
}

/// An event row: what changed, who caused it, when. Together they are the audit trail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EventRecord {
    /// Its id.
    pub id: EventId,
    /// When.
    pub at: Timestamp,
    /// Who.
    pub by: Principal,
    /// Past tense: `JobQueued`, `RunnerBooted`.
    pub name: String,
    /// The thing that changed: `job_…`.
    pub subject: String,
    /// State before, absent for a new thing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// State after.
    pub to: String,
    /// One sentence, where the state alone does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A fact for the usage ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UsageFact {
    /// What was used: `runner_micros`, `gpu_micros`, `money_millionths`, `artifact_bytes`.
    pub what: String,
    /// How much, in the unit that the name carries.
    pub amount: u64,
    /// By which attempt or pipeline.
    pub subject: String,
    /// For which repository, by numeric id; 0 = handed in by a person.
    pub repository: u64,
    /// The forge of the repository; absent for work that was handed in, and in facts of before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forge: Option<ForgeName>,
    /// When it was known.
    pub at: Timestamp,
}

/// What one decision writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    /// The input and its circumstances.
    pub journal: JournalEntry,
    /// Rows, in the order in which they were last written.
    pub rows: Vec<Row>,
    /// Event rows.
    pub events: Vec<EventRecord>,
    /// Usage facts.
    pub usage: Vec<UsageFact>,
    /// Demands that leave memory with all that belongs to them. They stay in the database as they are.
    pub retired: Vec<DemandId>,
}
