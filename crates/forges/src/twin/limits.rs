//! Rate limits: buckets per caller and resource, an hour long, and the secondary limits of a minute.

use super::calls::{Reply, Request};
use super::state::State;
use forgeyard_model::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::hash::{Hash as _, Hasher as _};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    since: Timestamp,
    used: u64,
}

/// All buckets, by caller and resource.
#[derive(Debug, Default)]
pub(super) struct Buckets {
    hours: BTreeMap<(String, &'static str), Bucket>,
    minutes: BTreeMap<(String, String), Bucket>,
}

/// Which bucket a call counts in.
fn resource(path: &str) -> &'static str {
    let registration =
        ["/generate-jitconfig", "/registration-token", "/remove-token"].iter().any(|end| path.ends_with(end));
    if registration { "actions_runner_registration" } else { "core" }
}

impl State {
    fn limit(&self, caller: &str, resource: &str) -> u64 {
        match (caller, resource) {
            ("anonymous", _) => self.setup.anonymous_limit,
            (_, "actions_runner_registration") => self.setup.registration_limit,
            _ => self.setup.core_limit,
        }
    }

    fn bucket(&mut self, caller: &str, resource: &'static str) -> &mut Bucket {
        let now = self.now;
        let bucket = self.buckets.hours.entry((caller.to_owned(), resource)).or_default();
        if bucket.used == 0 || now.since(bucket.since) >= HOUR {
            *bucket = Bucket { since: now, used: 0 };
        }
        bucket
    }

    /// Uses up calls of a caller, as if others had made them.
    pub fn use_up(&mut self, caller: &str, resource: &'static str, leave: u64) {
        let limit = self.limit(caller, resource);
        self.bucket(caller, resource).used = limit.saturating_sub(leave);
    }

    /// Counts a call; an error is the answer of a limit that is reached.
    pub(super) fn charge(&mut self, caller: &str, request: &Request, path: &str) -> Result<(), Reply> {
        if !self.setup.rate_limits || path == "/rate_limit" {
            return Ok(());
        }
        let resource = resource(path);
        let limit = self.limit(caller, resource);
        let bucket = self.bucket(caller, resource);
        if bucket.used >= limit {
            return Err(Reply::message(403, &format!("API rate limit exceeded for {caller} (simulated).")));
        }
        bucket.used += 1;
        let write = request.method != "GET";
        let points = if write { 5 } else { 1 };
        let endpoint: String = path.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        let endpoint = format!("{} {endpoint}", request.method);
        self.charge_minute(caller, endpoint, points, self.setup.points_limit)?;
        let again = path.starts_with("/app/hook/deliveries/") && path.ends_with("/attempts");
        if request.method == "POST" && (again || path.ends_with("/check-runs")) {
            let app = self.app_of(caller);
            self.charge_minute(&app, "content".to_owned(), 1, self.setup.content_limit)?;
        }
        Ok(())
    }

    /// The App behind a caller: what it makes as an installation and as itself counts together.
    fn app_of(&self, caller: &str) -> String {
        let id = caller.strip_prefix("installation:").and_then(|id| id.parse::<u64>().ok());
        let app = id.and_then(|id| self.installations.get(&id)).map(|row| format!("app:{}", row.app));
        app.unwrap_or_else(|| caller.to_owned())
    }

    fn charge_minute(&mut self, caller: &str, what: String, points: u64, limit: u64) -> Result<(), Reply> {
        let now = self.now;
        let bucket = self.buckets.minutes.entry((caller.to_owned(), what)).or_default();
        if now.since(bucket.since) >= MINUTE {
            *bucket = Bucket { since: now, used: 0 };
        }
        if bucket.used + points > limit {
            let wait = MINUTE.saturating_sub(now.since(bucket.since)).as_secs().max(1);
            let text =
                "You have exceeded a secondary rate limit. Please wait a few minutes before you try again.";
            return Err(Reply::message(403, text).with("retry-after", wait));
        }
        bucket.used += points;
        Ok(())
    }

    /// Lists of runs carry an entity tag. Who asks with the tag of what is still so is told only that, and nothing is taken of
    /// the hourly limit for it.
    pub(super) fn conditional(&mut self, caller: &str, request: &Request, path: &str, reply: &mut Reply) {
        if request.method != "GET" || reply.status != 200 || !path.ends_with("/actions/runs") {
            return;
        }
        let mut hash = std::hash::DefaultHasher::new();
        reply.body.hash(&mut hash);
        let tag = format!("W/\"{:016x}\"", hash.finish());
        if request.headers.get("if-none-match") == Some(&tag) {
            *reply = Reply { status: 304, headers: Vec::new(), body: Vec::new() };
            if self.setup.rate_limits {
                let bucket = self.bucket(caller, resource(path));
                bucket.used = bucket.used.saturating_sub(1);
            }
        }
        reply.headers.push(("etag".to_owned(), tag));
    }

    /// The headers that every answer carries.
    pub(super) fn limit_headers(&mut self, caller: &str, path: &str, reply: &mut Reply) {
        if !self.setup.rate_limits {
            return;
        }
        let resource = resource(path);
        for (name, value) in self.figures(caller, resource) {
            reply.headers.push((format!("x-ratelimit-{name}"), value.to_string()));
        }
        reply.headers.push(("x-ratelimit-resource".to_owned(), resource.to_owned()));
    }

    fn figures(&mut self, caller: &str, resource: &'static str) -> [(&'static str, u64); 4] {
        let limit = self.limit(caller, resource);
        let bucket = *self.bucket(caller, resource);
        let reset = u64::try_from(bucket.since.plus(HOUR).as_micros() / 1_000_000).unwrap_or(0);
        [
            ("limit", limit),
            ("remaining", limit.saturating_sub(bucket.used)),
            ("used", bucket.used),
            ("reset", reset),
        ]
    }

    /// `GET /rate_limit`.
    pub(super) fn rate_limit_json(&mut self, caller: &str) -> Value {
        let core: Value =
            self.figures(caller, "core").into_iter().map(|(k, v)| (k.to_owned(), json!(v))).collect();
        let registration: Value = self
            .figures(caller, "actions_runner_registration")
            .into_iter()
            .map(|(k, v)| (k.to_owned(), json!(v)))
            .collect();
        json!({
            "resources": { "core": core, "search": core, "actions_runner_registration": registration },
            "rate": core,
        })
    }
}
