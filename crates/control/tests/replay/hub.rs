//! The *simulated* GitHub, reached without sockets: a call takes its time, webhooks are posted into the real router.

use super::time::Time;
use super::trace::Kind;
use axum::body::Body;
use axum::http::Request as HttpRequest;
use forgeyard_forges::twin::{
    CallFault, Direct, HookChaos, Misbehaviour, Outcome, Outgoing, Reply, Request, Served, State,
};
use forgeyard_model::Timestamp;
use forgeyard_testkit::rng::Rng;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tower::ServiceExt as _;

/// How the queued webhook of a job fared, and when each try of it failed.
#[derive(Debug, Clone, Default)]
pub struct Told {
    pub tried: bool,
    pub failed_at: Vec<Timestamp>,
    pub arrived: bool,
}

pub struct Hub {
    state: Mutex<State>,
    pub time: Arc<Time>,
    rng: Mutex<Rng>,
    /// Webhooks that tell of a queued job, by job.
    pub told: Mutex<BTreeMap<u64, Told>>,
    /// Calls to the forge in each hour, by what they are.
    pub calls: Mutex<BTreeMap<(u64, &'static str), u64>>,
    /// Answers that nothing changed: GitHub takes nothing of a limit for them.
    pub unchanged: Mutex<u64>,
    pub kinds: Mutex<BTreeMap<u64, Kind>>,
    /// When check runs were made, which count against the same limit as deliveries that are sent again.
    pub made: Mutex<Vec<Timestamp>>,
    /// What was left of an hourly limit of an App when it was lowest, in each hour.
    pub lowest: Mutex<BTreeMap<u64, u64>>,
    /// Answers that a secondary limit was reached.
    pub refused: Mutex<u64>,
    start: Timestamp,
}

impl Hub {
    pub fn new(state: State, time: Arc<Time>, seed: u64) -> Arc<Self> {
        let (told, calls, unchanged, kinds) = Default::default();
        let start = time.now();
        Arc::new(Self {
            state: Mutex::new(state),
            time,
            rng: Mutex::new(Rng::new(seed)),
            told,
            calls,
            unchanged,
            kinds,
            made: Mutex::default(),
            lowest: Mutex::default(),
            refused: Mutex::default(),
            start,
        })
    }

    /// Looks at the state, or changes it, at the time of the clock.
    pub fn with<R>(&self, look: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock().unwrap();
        state.advance_to(self.time.now());
        look(&mut state)
    }

    /// Between these, in milliseconds.
    pub fn between(&self, least: u64, most: u64) -> Duration {
        let span = usize::try_from(most - least).unwrap();
        Duration::from_millis(least + self.rng.lock().unwrap().below(span) as u64)
    }

    pub fn chance(&self, thousandth: u64) -> bool {
        self.rng.lock().unwrap().next_u64() % 1000 < thousandth
    }

    /// The way of the client to it.
    pub fn direct(self: &Arc<Self>) -> Direct {
        let hub = Arc::clone(self);
        Arc::new(move |request| {
            let hub = Arc::clone(&hub);
            Box::pin(async move {
                let hour = hub.time.now().since(hub.start).as_secs() / 3600;
                *hub.calls.lock().unwrap().entry((hour, about(&request.path))).or_default() += 1;
                hub.time.sleep(hub.between(80, 350)).await;
                let Served { mut outcome, closes, until, .. } = hub.with(|state| state.serve(&request));
                let reply = loop {
                    match outcome {
                        Outcome::Answer(reply) => break reply,
                        Outcome::Hold(_) if closes => return None,
                        Outcome::Hold(until) if hub.time.now() >= until => {
                            break Reply { status: 202, headers: Vec::new(), body: Vec::new() };
                        }
                        Outcome::Hold(until) => {
                            hub.time.sleep(Duration::from_secs(1)).await;
                            outcome = match hub.with(|state| state.serve_again(&request)) {
                                // Held until the time that was named first.
                                Outcome::Hold(_) => Outcome::Hold(until),
                                answer => answer,
                            };
                        }
                    }
                };
                if reply.status == 304 {
                    *hub.unchanged.lock().unwrap() += 1;
                }
                hub.note_limits(hour, &request, &reply);
                if std::env::var_os("REPLAY_TRACE")
                    .is_some_and(|part| request.path.contains(part.to_str().unwrap()))
                {
                    println!(
                        "TRACE {} {} {} {:?} -> {} closes {closes} until {until:?} {:?}",
                        hub.time.now(),
                        request.method,
                        request.path,
                        request.query,
                        reply.status,
                        String::from_utf8_lossy(&reply.body).chars().take(80).collect::<String>()
                    );
                }
                if let Some(until) = until {
                    hub.time.sleep(until.since(hub.time.now())).await;
                }
                (!closes).then_some(reply)
            })
        })
    }

    fn note_limits(&self, hour: u64, request: &Request, reply: &Reply) {
        let header = |wanted: &str| {
            reply.headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str())
        };
        if request.method == "POST" && request.path.ends_with("/check-runs") && reply.status == 201 {
            self.made.lock().unwrap().push(self.time.now());
        }
        if reply.status == 403 && header("retry-after").is_some() {
            *self.refused.lock().unwrap() += 1;
        }
        let left = header("x-ratelimit-remaining").and_then(|text| text.parse().ok());
        if let (Some("core"), Some(left)) = (header("x-ratelimit-resource"), left) {
            let mut lowest = self.lowest.lock().unwrap();
            let known = lowest.entry(hour).or_insert(left);
            *known = left.min(*known);
        }
    }

    /// Posts a webhook into a router; without one, nobody listens.
    pub async fn deliver(self: Arc<Self>, router: Option<axum::Router>, one: Outgoing) {
        self.time.sleep(self.between(40, 400)).await;
        let job = queued_job(&one);
        let answer = match router {
            Some(router) => {
                let mut request = HttpRequest::post("/webhooks/github");
                for (name, value) in &one.headers {
                    request = request.header(*name, value);
                }
                let request = request.body(Body::from(one.body.to_vec())).unwrap();
                Ok(router.oneshot(request).await.unwrap().status().as_u16())
            }
            None => Err("connection refused (simulated)".to_owned()),
        };
        if let (Some(job), Ok(202)) = (job, &answer) {
            self.told.lock().unwrap().entry(job).or_default().arrived = true;
        }
        self.with(|state| state.delivery_answered(one.delivery, answer));
    }
}

/// The job whose queueing a webhook tells of.
fn queued_job(one: &Outgoing) -> Option<u64> {
    // Most are of other events, and bodies are large.
    if !std::str::from_utf8(&one.body).is_ok_and(|text| text.contains("\"action\":\"queued\"")) {
        return None;
    }
    let body: serde_json::Value = serde_json::from_slice(&one.body).ok()?;
    (body["action"] == "queued").then(|| body["workflow_job"]["id"].as_u64())?
}

fn about(path: &str) -> &'static str {
    let has = |part: &str| path.contains(part);
    if has("/_services/") || has("/runner-registration") {
        "scale sets"
    } else if has("/generate-jitconfig") {
        "mint"
    } else if has("/actions/runners") {
        "runners"
    } else if has("/deliveries") {
        "deliveries"
    } else if has("/check-runs") {
        "check runs"
    } else if has("/actions/jobs/") {
        "jobs"
    } else if path.ends_with("/jobs") {
        "jobs of runs"
    } else if path.ends_with("/actions/runs") {
        "queues"
    } else if has("/actions/runs/") {
        "runs"
    } else {
        "tokens and other"
    }
}

/// Faults of every source, as long as the simulation runs.
pub fn plan_faults(state: &mut State) {
    state.set_hook_chaos(HookChaos {
        lost: 10,
        failed: 20,
        unheard: 10,
        duplicated: 20,
        swapped: 20,
        delayed: 50,
        longest: Duration::from_secs(90),
    });
    let faults = [
        (Misbehaviour::AnswerLost, 97),
        (Misbehaviour::RequestLost, 103),
        (Misbehaviour::server_error(502), 61),
        (Misbehaviour::SlowSimulated(Duration::from_secs(12)), 89),
        (Misbehaviour::too_many(5), 409),
        (Misbehaviour::EmptyBody, 307),
        (Misbehaviour::CutBody, 401),
    ];
    for (what, every) in faults {
        state.plan_call_fault(CallFault::next("", "/", what).every(every));
    }
}
