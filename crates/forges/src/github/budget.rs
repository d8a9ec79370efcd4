//! How many calls may be made, and when: pure arithmetic over the headers of answers and a time that is passed in.
//!
//! Two kinds of limits hold at once (runners.md §3.5):
//! - *primary*: so many calls per hour, installation and bucket (`core`, `actions_runner_registration`, …). Every
//!   answer says what is left and when it is full again. Work in the background slows down below a half, where
//!   less is left of the limit than of its hour, and stops below a tenth, so that what is left serves jobs;
//! - *secondary*: points per minute and route, created things per minute and hour, none of them in headers. They
//!   are kept before the first refusal, at nine tenths of what is published, over a sliding window.
//!
//! A refusal with `retry-after`, or one that speaks of a limit, stops all calls of the App until then: GitHub bans
//! those who go on. Without a time it is a minute, twice as long each time in a row.
//!
//! One [`Budget`] is kept per App. It counts calls in flight, so that many at once do not overrun what is left.

use forgeyard_model::Timestamp;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// A bucket of GitHub's hourly limits.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Bucket {
    /// Nearly everything.
    Core,
    /// Minting of runner configurations, `actions_runner_registration`.
    RunnerRegistration,
    /// One that this version does not spend from.
    Other(String),
}

impl Bucket {
    fn named(name: &str) -> Self {
        match name {
            "core" => Self::Core,
            "actions_runner_registration" => Self::RunnerRegistration,
            other => Self::Other(other.chars().take(64).collect()),
        }
    }
}

impl std::fmt::Display for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Core => "core",
            Self::RunnerRegistration => "actions_runner_registration",
            Self::Other(name) => name,
        })
    }
}

/// What a call costs of the secondary limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cost {
    /// It reads: one point.
    Read,
    /// It changes something: five points.
    Write,
    /// It makes something that people see, such as a check run: five points, and counted as content.
    Content,
    /// It asks for a delivery again: five points, and counted as content of the minute. Jobs wait for it, so it comes before what
    /// people only read.
    Delivery,
}

impl Cost {
    fn points(self) -> u32 {
        match self {
            Self::Read => 1,
            Self::Write | Self::Content | Self::Delivery => 5,
        }
    }
}

/// Whether somebody waits for the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// A job or a person waits.
    Now,
    /// A poll or a sweep; it leaves the last tenth to others.
    Background,
}

/// A call as the budget sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spending {
    /// The installation whose hourly limit is used; none for calls as the App itself.
    pub installation: Option<u64>,
    /// The bucket that it is expected to come from.
    pub bucket: Bucket,
    /// Route, the same for all calls of one kind.
    pub route: &'static str,
    /// Cost.
    pub cost: Cost,
    /// Urgency.
    pub urgency: Urgency,
}

/// Which limit a call met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Limit {
    /// The hourly limit of a bucket.
    Hourly(Bucket),
    /// The rest of an hourly limit is kept for urgent calls.
    Reserve(Bucket),
    /// Our own pace, below GitHub's secondary limits.
    Pace,
    /// GitHub told us to wait.
    Told,
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Hourly(bucket) => write!(f, "the hourly limit `{bucket}` is used up"),
            Self::Reserve(bucket) => write!(f, "the rest of the hourly limit `{bucket}` is kept for jobs"),
            Self::Pace => f.write_str("calls are made no faster than GitHub wants them"),
            Self::Told => f.write_str("GitHub asks to be left alone"),
        }
    }
}

/// What to do with a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Advice {
    /// Make it.
    Go,
    /// Make it, but come back less often: the pause between polls times this.
    Slow(u32),
    /// Do not make it before `until`.
    Wait {
        /// When it may be made.
        until: Timestamp,
        /// Why not now.
        limit: Limit,
    },
}

/// The limits that are kept by ourselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Points per minute on one route.
    pub points_per_minute: u32,
    /// Created things per minute.
    pub content_per_minute: u32,
    /// Created things per hour.
    pub content_per_hour: u32,
}

impl Pace {
    /// How many runners one App registers each minute, at most.
    pub const fn registrations_per_minute(self) -> u32 {
        self.points_per_minute / 5
    }

    /// Nine tenths of what github.com publishes: 900 points, 80 and 500 created things.
    pub const GITHUB: Pace = Pace { points_per_minute: 810, content_per_minute: 72, content_per_hour: 450 };
    /// No limits, as on a server of one's own.
    pub const NONE: Pace =
        Pace { points_per_minute: u32::MAX, content_per_minute: u32::MAX, content_per_hour: u32::MAX };
}

/// What an answer says about limits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Heard {
    /// `x-ratelimit-limit`.
    pub limit: Option<u32>,
    /// `x-ratelimit-remaining`.
    pub remaining: Option<u32>,
    /// `x-ratelimit-reset`.
    pub reset: Option<Timestamp>,
    /// `x-ratelimit-resource`.
    pub bucket: Option<Bucket>,
    /// `retry-after`, in seconds.
    pub retry_after: Option<Duration>,
    /// Whether the text of a refusal speaks of a rate limit.
    pub speaks_of_limit: bool,
}

impl Heard {
    /// Reads headers; names in any case, anything malformed is as if it were not there.
    pub fn read<'a>(headers: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let mut heard = Self::default();
        for (name, value) in headers {
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                "x-ratelimit-limit" => heard.limit = value.parse().ok(),
                "x-ratelimit-remaining" => heard.remaining = value.parse().ok(),
                "x-ratelimit-reset" => heard.reset = value.parse().ok().and_then(seconds),
                "x-ratelimit-resource" => heard.bucket = Some(Bucket::named(value)),
                "retry-after" => heard.retry_after = value.parse().ok().map(Duration::from_secs),
                _ => {}
            }
        }
        heard
    }

    /// Reads the text of a refusal as well.
    pub fn with_text(mut self, text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text.get(..2048).unwrap_or(text)).to_ascii_lowercase();
        self.speaks_of_limit = text.contains("rate limit") || text.contains("abuse detection");
        self
    }
}

fn seconds(seconds: i64) -> Option<Timestamp> {
    seconds.checked_mul(1_000_000).map(Timestamp::from_micros)
}

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
/// What people see is made in this part of the minute while deliveries wait for the rest of it.
const CONTENT_SHARE: u32 = 4;
/// Nothing that GitHub says makes us wait longer than this: its windows are an hour.
const LONGEST_WAIT: Duration = Duration::from_secs(2 * 3600);

/// Whether less of an hourly limit is left than of its hour: at this pace it would be used up before its end.
fn behind(left: u64, limit: u64, rest: Duration) -> bool {
    u128::from(left) * HOUR.as_micros() < u128::from(limit) * rest.as_micros()
}

/// What is known of one hourly limit.
#[derive(Debug, Default)]
struct Hourly {
    known: Option<Known>,
    in_flight: u32,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    limit: u32,
    remaining: u32,
    reset: Timestamp,
}

/// Events of a sliding window, oldest first.
#[derive(Debug, Default)]
struct Window {
    events: VecDeque<(Timestamp, u32)>,
    sum: u32,
}

impl Window {
    fn forget(&mut self, now: Timestamp, span: Duration) {
        while let Some((at, weight)) = self.events.front().copied() {
            if at.plus(span) > now {
                break;
            }
            self.events.pop_front();
            self.sum = self.sum.saturating_sub(weight);
        }
    }

    fn add(&mut self, now: Timestamp, weight: u32) {
        self.events.push_back((now, weight));
        self.sum = self.sum.saturating_add(weight);
    }

    /// When `weight` more fits, if not now.
    fn room(&mut self, now: Timestamp, span: Duration, weight: u32, limit: u32) -> Option<Timestamp> {
        self.forget(now, span);
        let mut sum = self.sum;
        if sum.saturating_add(weight) <= limit {
            return None;
        }
        for (at, old) in &self.events {
            sum = sum.saturating_sub(*old);
            if sum.saturating_add(weight) <= limit {
                return Some(at.plus(span));
            }
        }
        Some(now.plus(span))
    }
}

/// The limits of one App.
#[derive(Debug)]
pub struct Budget {
    pace: Pace,
    hourly: HashMap<(Option<u64>, Bucket), Hourly>,
    routes: HashMap<&'static str, Window>,
    /// Buckets that answers named for a route, where another one was expected.
    learned: HashMap<&'static str, Bucket>,
    content_minute: Window,
    content_hour: Window,
    /// When a delivery last had to wait for the content of the minute.
    deliveries_waited: Option<Timestamp>,
    blocked: Option<Timestamp>,
    strikes: u32,
}

impl Budget {
    /// A budget of which nothing is spent.
    pub fn new(pace: Pace) -> Self {
        Self {
            pace,
            hourly: HashMap::new(),
            routes: HashMap::new(),
            learned: HashMap::new(),
            content_minute: Window::default(),
            content_hour: Window::default(),
            deliveries_waited: None,
            blocked: None,
            strikes: 0,
        }
    }

    /// Whether a call may be made now.
    pub fn ask(&mut self, now: Timestamp, call: &Spending) -> Advice {
        if let Some(until) = self.blocked.filter(|until| *until > now) {
            return Advice::Wait { until, limit: Limit::Told };
        }
        if let Some(until) = self.paced(now, call) {
            return Advice::Wait { until, limit: Limit::Pace };
        }
        let Some((known, left)) = self.left(now, call) else { return Advice::Go };
        let (left, limit) = (u64::from(left), u64::from(known.limit));
        if left == 0 {
            return Advice::Wait { until: known.reset, limit: Limit::Hourly(call.bucket.clone()) };
        }
        match call.urgency {
            Urgency::Now => Advice::Go,
            Urgency::Background if left * 10 < limit => {
                Advice::Wait { until: known.reset, limit: Limit::Reserve(call.bucket.clone()) }
            }
            // Below a half it slows down, unless the hour is further gone than its calls.
            Urgency::Background if left * 2 < limit && behind(left, limit, known.reset.since(now)) => {
                Advice::Slow(3)
            }
            Urgency::Background => Advice::Go,
        }
    }

    /// Share of the hourly limit that is left, in thousandths; full while nothing is known.
    pub fn share(&self, now: Timestamp, call: &Spending) -> u32 {
        let Some((known, left)) = self.left(now, call) else { return 1000 };
        u32::try_from(u64::from(left) * 1000 / u64::from(known.limit.max(1))).unwrap_or(1000)
    }

    /// A call is made. One of [`Budget::heard`] and [`Budget::lost`] follows.
    pub fn sent(&mut self, now: Timestamp, call: &Spending) {
        self.entry(call).in_flight += 1;
        if self.pace.points_per_minute < u32::MAX {
            self.routes.entry(call.route).or_default().add(now, call.cost.points());
        }
        if self.pace.content_per_hour < u32::MAX {
            if matches!(call.cost, Cost::Content | Cost::Delivery) {
                self.content_minute.add(now, 1);
            }
            if call.cost == Cost::Content {
                self.content_hour.add(now, 1);
            }
        }
    }

    /// A call got no answer.
    pub fn lost(&mut self, call: &Spending) {
        let entry = self.entry(call);
        entry.in_flight = entry.in_flight.saturating_sub(1);
    }

    /// A call was answered. Says which limit it met, if it was refused for one, and until when to wait.
    pub fn heard(
        &mut self,
        now: Timestamp,
        call: &Spending,
        status: u16,
        heard: &Heard,
    ) -> Option<(Limit, Timestamp)> {
        self.lost(call);
        let bucket = heard.bucket.clone().unwrap_or_else(|| call.bucket.clone());
        if bucket != call.bucket {
            self.learned.insert(call.route, bucket.clone());
        }
        if let (Some(limit), Some(remaining), Some(reset)) = (heard.limit, heard.remaining, heard.reset) {
            // A reset further away than any window is a clock that is wrong; it must not stop the farm.
            let reset = reset.min(now.plus(LONGEST_WAIT));
            let entry = self.hourly.entry((call.installation, bucket.clone())).or_default();
            // Answers arrive in any order. Within one window, what is left only falls.
            entry.known = Some(match entry.known {
                Some(old) if old.reset == reset => {
                    Known { limit, remaining: old.remaining.min(remaining), reset }
                }
                Some(old) if old.reset > reset && old.reset > now => old,
                _ => Known { limit, remaining, reset },
            });
        }
        let refused = status == 429 || status == 403 || (status >= 500 && heard.retry_after.is_some());
        if !refused {
            if self.blocked.is_none_or(|until| until <= now) && status < 400 {
                self.strikes = 0;
            }
            return None;
        }
        if let Some(pause) = heard.retry_after {
            let until = now.plus(pause.min(LONGEST_WAIT));
            self.block(until);
            return Some((Limit::Told, until));
        }
        if heard.remaining == Some(0) && (status == 429 || heard.speaks_of_limit) {
            let until = heard.reset.map_or(now.plus(MINUTE), |reset| reset.min(now.plus(LONGEST_WAIT)));
            return Some((Limit::Hourly(bucket), until));
        }
        if status == 429 || heard.speaks_of_limit {
            self.strikes = (self.strikes + 1).min(5);
            let until = now.plus(MINUTE * (1 << (self.strikes - 1)));
            self.block(until);
            return Some((Limit::Told, until));
        }
        None
    }

    fn block(&mut self, until: Timestamp) {
        self.blocked = Some(self.blocked.map_or(until, |old| old.max(until)));
    }

    fn entry(&mut self, call: &Spending) -> &mut Hourly {
        self.hourly.entry((call.installation, call.bucket.clone())).or_default()
    }

    /// What is left of the hourly limit, without what is under way.
    fn left(&self, now: Timestamp, call: &Spending) -> Option<(Known, u32)> {
        let of = |bucket: &Bucket| self.hourly.get(&(call.installation, bucket.clone()));
        let spent_from = self.learned.get(call.route).unwrap_or(&call.bucket);
        let known = of(spent_from)?.known.filter(|known| known.reset > now)?;
        let in_flight = of(&call.bucket).map_or(0, |entry| entry.in_flight);
        Some((known, known.remaining.saturating_sub(in_flight)))
    }

    fn paced(&mut self, now: Timestamp, call: &Spending) -> Option<Timestamp> {
        let pace = self.pace;
        let route = self
            .routes
            .get_mut(call.route)
            .and_then(|window| window.room(now, MINUTE, call.cost.points(), pace.points_per_minute));
        match call.cost {
            Cost::Read | Cost::Write => route,
            Cost::Delivery => {
                let minute = self.content_minute.room(now, MINUTE, 1, pace.content_per_minute);
                if minute.is_some() {
                    self.deliveries_waited = Some(now);
                }
                route.max(minute)
            }
            Cost::Content => {
                let wait = self.deliveries_waited.is_some_and(|at| now.since(at) < MINUTE * 2);
                let share =
                    if wait { pace.content_per_minute / CONTENT_SHARE } else { pace.content_per_minute };
                let minute = self.content_minute.room(now, MINUTE, 1, share);
                let hour = self.content_hour.room(now, HOUR, 1, pace.content_per_hour);
                route.max(minute).max(hour)
            }
        }
    }
}

#[cfg(test)]
mod tests;
