//! What can be set of a simulated GitHub: figures with their source, and knobs of doubt.

use forgeyard_model::Timestamp;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// Settings of the twin. The defaults are GitHub's published or reported figures.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Seed of every choice that GitHub leaves open.
    pub seed: u64,
    /// Time at the start.
    pub now: Timestamp,
    /// Path before every REST call: empty as at github.com, or `/api/v3` as at an Enterprise Server.
    pub api_prefix: String,
    /// Path of the actions service on the same server.
    pub actions_path: String,
    /// Whether answers of the runner registration begin with a byte order mark, as they may.
    pub byte_order_mark: bool,
    /// Whether calls are counted against limits. Enterprise Servers have them off.
    pub rate_limits: bool,
    /// Calls per hour and installation (documented: 5,000).
    pub core_limit: u64,
    /// Registrations per hour and installation (documented: 10,000).
    pub registration_limit: u64,
    /// Calls per hour without authentication (documented: 60).
    pub anonymous_limit: u64,
    /// Points per minute and endpoint before the secondary limit answers: a read is 1, a write 5 (documented: 900).
    pub points_limit: u64,
    /// Check runs made, and deliveries sent again, per minute and App before the secondary limit answers (documented: 80).
    pub content_limit: u64,
    /// Runners per group (documented: 10,000).
    pub group_limit: usize,
    /// How long a JIT configuration may wait for its runner. GitHub does not say; 5 minutes is reported.
    pub jit_validity: Duration,
    /// How long a registration token is good (documented: 1 hour).
    pub registration_token_validity: Duration,
    /// How long an installation token is good (documented: 1 hour).
    pub installation_token_validity: Duration,
    /// A runner of one use that never connected is removed after this (documented: 1 day).
    pub unused_runner_kept: Duration,
    /// A runner that went silent in a job loses the job after this (assumed).
    pub lost_after: Duration,
    /// A runner that falls silent counts as online for so long (assumed).
    pub noticed_after: Duration,
    /// Whether bodies of webhooks hold all links of a repository. Simulations with many jobs go without.
    pub links_in_webhooks: bool,
    /// Whether bodies of deliveries that were accepted are kept for later reading.
    pub keep_accepted_bodies: bool,
    /// A queued job is cancelled after this (documented: 24 hours).
    pub queue_limit: Duration,
    /// How long deliveries are listed (documented: 3 days, Enterprise Server 7).
    pub delivery_history: Duration,
    /// How long an event takes from happening to being sent (assumed).
    pub delivery_delay: Duration,
    /// How long a job of a hosted runner waits (assumed).
    pub hosted_start: Duration,
    /// Labels of hosted runners.
    pub hosted_labels: Vec<String>,
    /// How far what REST tells of a job lies behind (terraform-aws-github-runner #2459: it does).
    pub read_lag: Duration,
    /// How far `busy` in lists of runners lies behind.
    pub list_lag: Duration,
    /// How long a poll of the message queue is held (reported: about 50 s).
    pub poll_hold: Duration,
    /// The same in real time, so that a poll ends when nobody moves the clock.
    pub poll_hold_real: Duration,
    /// A session that nobody polls lapses after this (reported: about 30 s).
    pub session_lapse: Duration,
    /// How long the token of a queue is good.
    pub queue_token_validity: Duration,
    /// How long the token of the admin connection is good.
    pub admin_token_validity: Duration,
    /// An assigned job that no runner takes is taken back after this (ARC #4602: 5 minutes).
    pub reassign_after: Duration,
    /// How often a job is assigned before nobody is asked again (ARC #4602: 3 times).
    pub assign_tries: u32,
    /// Whether runs again are kept from scale sets until a runner registers (pytorch/ci-infra #900).
    pub reruns_unannounced: bool,
    /// Whether statistics leave out assigned jobs while messages tell of them (ARC #3420, #3649).
    pub statistics_behind: bool,
    /// Whether a new session begins with empty statistics and an empty queue (ARC #4027).
    pub sessions_forget: bool,
    /// How many recorded calls are kept.
    pub calls_kept: usize,
}

impl Default for Setup {
    fn default() -> Self {
        let hosted = ["ubuntu-latest", "ubuntu-24.04", "ubuntu-22.04", "windows-latest", "macos-latest"];
        Self {
            seed: 1,
            now: Timestamp::from_micros(1_767_600_000_000_000),
            api_prefix: String::new(),
            actions_path: "/_services/actions-simulated".to_owned(),
            byte_order_mark: false,
            rate_limits: true,
            core_limit: 5_000,
            registration_limit: 10_000,
            anonymous_limit: 60,
            points_limit: 900,
            content_limit: 80,
            group_limit: 10_000,
            jit_validity: 5 * MINUTE,
            registration_token_validity: HOUR,
            installation_token_validity: HOUR,
            unused_runner_kept: DAY,
            lost_after: 10 * MINUTE,
            noticed_after: 2 * MINUTE,
            links_in_webhooks: true,
            keep_accepted_bodies: true,
            queue_limit: DAY,
            delivery_history: 3 * DAY,
            delivery_delay: Duration::from_secs(1),
            hosted_start: Duration::from_secs(10),
            hosted_labels: hosted.map(str::to_owned).to_vec(),
            read_lag: Duration::ZERO,
            list_lag: Duration::ZERO,
            poll_hold: Duration::from_secs(50),
            poll_hold_real: Duration::from_secs(1),
            session_lapse: Duration::from_secs(60),
            queue_token_validity: HOUR,
            admin_token_validity: HOUR,
            reassign_after: 5 * MINUTE,
            assign_tries: 3,
            reruns_unannounced: false,
            statistics_behind: false,
            sessions_forget: false,
            calls_kept: 100_000,
        }
    }
}

impl Setup {
    /// Settings with the paths of an Enterprise Server, where rate limits are off by default.
    pub fn enterprise_server() -> Self {
        Self {
            api_prefix: "/api/v3".to_owned(),
            rate_limits: false,
            delivery_history: 7 * DAY,
            ..Self::default()
        }
    }
}
