//! The client: which App and which token a call goes out with, what the budget says to it, what comes back.

use super::budget::{Advice, Bucket, Budget, Cost, Heard, Pace, Spending, Urgency};
use super::cause::Cause;
use super::endpoint::{Endpoint, Target};
use super::error::GithubError;
use super::key::AppIdentity;
use super::token::{Known, Tokens};
use super::wire::{Answer, HttpOptions, Proof, Request, Wire};
use forgeyard_model::{Secret, Timestamp};
use reqwest::{Method, Url};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Where the time comes from.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Calls of one App at the same time; GitHub allows 100.
const AT_ONCE: usize = 80;

/// Stands for "no installation" among those whose limits are counted. GitHub's ids begin above.
const AT_THE_DOOR: u64 = 0;

/// What a client is made of.
pub struct GithubOptions {
    /// Which GitHub.
    pub endpoint: Endpoint,
    /// The Apps, at least one. Each further App adds its limits.
    pub apps: Vec<AppIdentity>,
    /// The time.
    pub clock: Clock,
    /// Connections.
    pub http: HttpOptions,
}

/// A GitHub with the farm's Apps. Clones share everything.
#[derive(Clone)]
pub struct Github {
    inner: Arc<Inner>,
}

struct Inner {
    endpoint: Endpoint,
    wire: Wire,
    clock: Clock,
    apps: Vec<App>,
}

/// One App and what is known about it.
pub(crate) struct App {
    pub(crate) identity: AppIdentity,
    pub(crate) tokens: Tokens,
    /// What it last proved itself with, and when that was made: a signature costs a millisecond.
    proof: Mutex<Option<(Timestamp, Secret)>>,
    budget: Mutex<Budget>,
    at_once: Semaphore,
}

/// How long an App proves itself with one token, of the eight minutes that it is good for.
const PROVED: Duration = Duration::from_secs(4 * 60);

/// Which App makes a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Through {
    Any,
    First,
}

/// A call to the REST interface.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    method: Method,
    path: String,
    route: &'static str,
    query: Vec<(&'static str, String)>,
    body: Option<serde_json::Value>,
    etag: Option<String>,
    bucket: Bucket,
    cost: Cost,
    urgency: Urgency,
    through: Through,
}

impl Call {
    fn new(method: Method, route: &'static str, path: String, cost: Cost) -> Self {
        Self {
            method,
            path,
            route,
            query: Vec::new(),
            body: None,
            etag: None,
            bucket: Bucket::Core,
            cost,
            urgency: Urgency::Now,
            through: Through::Any,
        }
    }

    pub(crate) fn get(route: &'static str, path: String) -> Self {
        Self::new(Method::GET, route, path, Cost::Read)
    }

    pub(crate) fn post(route: &'static str, path: String) -> Self {
        Self::new(Method::POST, route, path, Cost::Write)
    }

    pub(crate) fn patch(route: &'static str, path: String) -> Self {
        Self::new(Method::PATCH, route, path, Cost::Write)
    }

    pub(crate) fn delete(route: &'static str, path: String) -> Self {
        Self::new(Method::DELETE, route, path, Cost::Write)
    }

    pub(crate) fn query(mut self, name: &'static str, value: impl std::fmt::Display) -> Self {
        self.query.push((name, value.to_string()));
        self
    }

    pub(crate) fn body(mut self, body: serde_json::Value) -> Self {
        self.body = Some(body);
        self
    }

    pub(crate) fn etag(mut self, etag: Option<String>) -> Self {
        self.etag = etag;
        self
    }

    pub(crate) fn bucket(mut self, bucket: Bucket) -> Self {
        self.bucket = bucket;
        self
    }

    /// A poll or a sweep: it leaves the rest of the limits to jobs.
    pub(crate) fn background(mut self) -> Self {
        self.urgency = Urgency::Background;
        self
    }

    /// A thing that people see. It belongs to the App that made it.
    pub(crate) fn content(mut self) -> Self {
        self.cost = Cost::Content;
        self.by_first()
    }

    /// Asks for a delivery again.
    pub(crate) fn delivery(mut self) -> Self {
        self.cost = Cost::Delivery;
        self
    }

    /// Only by the first App.
    pub(crate) fn by_first(mut self) -> Self {
        self.through = Through::First;
        self
    }

    fn title(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    fn spending(&self, installation: Option<u64>) -> Spending {
        Spending {
            installation,
            bucket: self.bucket.clone(),
            route: self.route,
            cost: self.cost,
            urgency: self.urgency,
        }
    }
}

impl App {
    /// A token that proves to be this App for four minutes at least.
    fn proof(&self, now: Timestamp) -> Result<Secret, GithubError> {
        let mut proof = self.proof.lock().unwrap_or_else(PoisonError::into_inner);
        match &*proof {
            Some((made, token)) if *made <= now && now < made.plus(PROVED) => Ok(token.clone()),
            _ => {
                let token = self.identity.sign(now)?;
                *proof = Some((now, token.clone()));
                Ok(token)
            }
        }
    }

    fn forget_proof(&self) {
        *self.proof.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(crate) fn budget(&self) -> MutexGuard<'_, Budget> {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Github {
    /// A client. Nothing is called yet.
    pub fn new(options: GithubOptions) -> Result<Self, GithubError> {
        let wire = Wire::new(&options.http)?;
        Self::over(options, wire)
    }

    /// A client of a *simulated* GitHub in the same process: everything but the sockets.
    #[cfg(feature = "twin")]
    pub fn direct(options: GithubOptions, direct: crate::twin::Direct) -> Result<Self, GithubError> {
        Self::over(options, Wire::Direct(direct))
    }

    fn over(options: GithubOptions, wire: Wire) -> Result<Self, GithubError> {
        if options.apps.is_empty() {
            let reason = "at least one is needed, calls without one are never made".to_owned();
            return Err(GithubError::Setup { what: "Apps".to_owned(), reason });
        }
        let pace = if options.endpoint.metered() { Pace::GITHUB } else { Pace::NONE };
        let app = |identity| App {
            identity,
            tokens: Tokens::default(),
            proof: Mutex::default(),
            budget: Mutex::new(Budget::new(pace)),
            at_once: Semaphore::new(AT_ONCE),
        };
        Ok(Self {
            inner: Arc::new(Inner {
                wire,
                endpoint: options.endpoint,
                clock: options.clock,
                apps: options.apps.into_iter().map(app).collect(),
            }),
        })
    }

    /// Which GitHub this is.
    pub fn endpoint(&self) -> &Endpoint {
        &self.inner.endpoint
    }

    /// How many Apps there are; calls as an App itself name one by its place, from zero.
    pub fn apps(&self) -> usize {
        self.inner.apps.len()
    }

    /// What the budget says to polling an organisation or repository, through the App that is best off.
    pub fn pace(&self, target: &Target) -> Advice {
        let call = Call::get("pace", String::new()).background();
        let now = self.now();
        let mut best: Option<Advice> = None;
        for app in &self.inner.apps {
            let Some(Known::At(installation)) = app.tokens.known(target, now) else { return Advice::Go };
            let advice = app.budget().ask(now, &call.spending(Some(installation)));
            best = Some(match (best, advice) {
                (None, advice) => advice,
                (Some(Advice::Go), _) | (_, Advice::Go) => return Advice::Go,
                (Some(Advice::Wait { until, limit }), Advice::Wait { until: other, limit: others }) => {
                    if other < until {
                        Advice::Wait { until: other, limit: others }
                    } else {
                        Advice::Wait { until, limit }
                    }
                }
                (Some(Advice::Slow(factor)), _) | (_, Advice::Slow(factor)) => Advice::Slow(factor),
            });
        }
        best.unwrap_or(Advice::Go)
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.inner.clock)()
    }

    pub(crate) fn wire(&self) -> &Wire {
        &self.inner.wire
    }

    /// The App at a place.
    pub(crate) fn app(&self, place: usize) -> Result<&App, GithubError> {
        self.inner.apps.get(place).ok_or_else(|| GithubError::Setup {
            what: format!("App number {place}"),
            reason: format!("there are {}", self.inner.apps.len()),
        })
    }

    /// Makes a call as an App itself.
    pub(crate) async fn as_app(&self, app: &App, call: Call) -> Result<Answer, GithubError> {
        let token = app.proof(self.now())?;
        let answer = self.exchange(app, None, Proof::Bearer(token), &call).await?;
        if answer.status == 401 {
            // The key may have been replaced, or a clock set.
            app.forget_proof();
        }
        Ok(answer)
    }

    /// Makes a call with a registration token, which opens the way to the actions service. What its answer says of
    /// limits is kept apart: it is not known whose they are.
    pub(crate) async fn at_the_door(&self, token: Secret, call: Call) -> Result<Answer, GithubError> {
        self.exchange(self.app(0)?, Some(AT_THE_DOOR), Proof::RemoteAuth(token), &call).await
    }

    /// Makes a call with the rights of the installation at an account, through the App that is best off.
    pub(crate) async fn installed(&self, target: &Target, call: Call) -> Result<Answer, GithubError> {
        let now = self.now();
        let mut apps: Vec<&App> = self.inner.apps.iter().collect();
        match call.through {
            Through::First => apps.truncate(1),
            Through::Any => apps.sort_by_cached_key(|app| match app.tokens.known(target, now) {
                Some(Known::Absent) => 2000,
                Some(Known::At(installation)) => {
                    1000 - app.budget().share(now, &call.spending(Some(installation))).min(1000)
                }
                None => 0,
            }),
        }
        let mut worst: Option<GithubError> = None;
        for app in apps {
            match self.through(app, target, &call).await {
                Ok(answer) => return Ok(answer),
                // Another App may be better off.
                Err(error) if is_about_the_app(&error) => worst = Some(sooner(worst, error)),
                Err(error) => return Err(error),
            }
        }
        Err(worst.unwrap_or_else(|| GithubError::Setup {
            what: "Apps".to_owned(),
            reason: "there is none".to_owned(),
        }))
    }

    async fn through(&self, app: &App, target: &Target, call: &Call) -> Result<Answer, GithubError> {
        let mut renewed = false;
        loop {
            let (installation, token) = self.token(app, target).await?;
            let answer = self.exchange(app, Some(installation), Proof::Bearer(token.clone()), call).await?;
            match answer.status {
                // It was revoked, or the App was installed anew.
                401 if !renewed => app.tokens.drop_token(installation, &token).await,
                403 if matches!(answer.cause(), Cause::Suspended) => return Err(answer.refusal()),
                _ => return Ok(answer),
            }
            renewed = true;
        }
    }

    /// One call as the budget allows; follows redirects of renamed repositories.
    async fn exchange(
        &self,
        app: &App,
        installation: Option<u64>,
        proof: Proof,
        call: &Call,
    ) -> Result<Answer, GithubError> {
        let title = call.title();
        let base = &self.inner.endpoint;
        let mut url = self.url(&call.path, &call.query)?;
        let spending = call.spending(installation);
        for _ in 0..3 {
            let answer = self.spend(app, &spending, &title, url.clone(), proof.clone(), call).await?;
            let moved = matches!(answer.status, 301 | 302 | 307 | 308);
            let Some(place) = answer.header("location").filter(|_| moved) else { return Ok(answer) };
            match url.join(place) {
                Ok(there) if there.origin() == url.origin() => url = there,
                _ => {
                    let reason = format!("it leads away from {}", base.api());
                    return Err(GithubError::Answer { call: title, field: "location".to_owned(), reason });
                }
            }
        }
        let reason = "it leads on and on".to_owned();
        Err(GithubError::Answer { call: title, field: "location".to_owned(), reason })
    }

    async fn spend(
        &self,
        app: &App,
        spending: &Spending,
        title: &str,
        url: Url,
        proof: Proof,
        call: &Call,
    ) -> Result<Answer, GithubError> {
        // The semaphore is never closed.
        let _turn = app.at_once.acquire().await.ok();
        {
            let mut budget = app.budget();
            let now = self.now();
            if let Advice::Wait { until, limit } = budget.ask(now, spending) {
                return Err(GithubError::Limited { call: title.to_owned(), limit, until });
            }
            budget.sent(now, spending);
        }
        let mut counted = Counted { app, spending: Some(spending) };
        let mut headers = vec![
            ("accept", "application/vnd.github+json".to_owned()),
            ("x-github-api-version", "2022-11-28".to_owned()),
        ];
        if let Some(etag) = &call.etag {
            headers.push(("if-none-match", etag.clone()));
        }
        let answer = self
            .inner
            .wire
            .exchange(Request {
                call: title.to_owned(),
                method: call.method.clone(),
                url,
                proof,
                headers,
                body: call.body.clone(),
                timeout: None,
            })
            .await?;
        counted.spending = None;
        let pairs =
            answer.headers.iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)));
        let mut heard = Heard::read(pairs);
        if !answer.succeeded() {
            heard = heard.with_text(&answer.body);
        }
        match app.budget().heard(self.now(), spending, answer.status, &heard) {
            Some((limit, until)) => Err(GithubError::Limited { call: title.to_owned(), limit, until }),
            None => Ok(answer),
        }
    }

    pub(crate) fn url(&self, path: &str, query: &[(&'static str, String)]) -> Result<Url, GithubError> {
        let text = format!("{}{path}", self.inner.endpoint.api());
        let mut url = Url::parse(&text).map_err(|error| GithubError::Setup {
            what: format!("address `{text}`"),
            reason: error.to_string(),
        })?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query.iter().map(|(name, value)| (*name, value.as_str())));
        }
        Ok(url)
    }

    /// A token for calls at an account, with the installation that it belongs to.
    pub(crate) async fn token(&self, app: &App, target: &Target) -> Result<(u64, Secret), GithubError> {
        let mut again = false;
        loop {
            let installation = self.installation_id(app, target).await?;
            match self.installation_token(app, installation).await {
                Ok(token) => return Ok((installation, token)),
                // Apps get installed anew, under another id.
                Err(GithubError::Refused { status: 404, .. }) if !again => {
                    app.tokens.forget(target);
                    again = true;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Takes a call that was given up, or got no answer, out of those in flight.
struct Counted<'a> {
    app: &'a App,
    spending: Option<&'a Spending>,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        if let Some(spending) = self.spending {
            self.app.budget().lost(spending);
        }
    }
}

/// Whether another App could do better.
fn is_about_the_app(error: &GithubError) -> bool {
    matches!(error, GithubError::Limited { .. })
        || matches!(error.cause(), Some(Cause::NotInstalled | Cause::Suspended | Cause::AppUnknown))
}

/// Of what several Apps said, the answer that is most useful: the shortest wait, else the first.
fn sooner(known: Option<GithubError>, new: GithubError) -> GithubError {
    match (known, new) {
        (None, new) => new,
        (Some(GithubError::Limited { until: old, .. }), new @ GithubError::Limited { until, .. })
            if until < old =>
        {
            new
        }
        (Some(known @ GithubError::Limited { .. }), _) => known,
        (Some(_), new @ GithubError::Limited { .. }) => new,
        (Some(known), _) => known,
    }
}

#[cfg(test)]
mod tests;
