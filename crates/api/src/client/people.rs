//! Client of `/api/v1`: what the command line and the environment service ask.

use super::http::{self, ClientError, HttpOptions};
use crate::people::*;
use crate::pools::PoolView;
use forgeyard_model::DemandId;
use forgeyard_model::approval::HeadApproval;
use forgeyard_model::artifact::Artifact;
use forgeyard_model::channel::Channel;
use forgeyard_model::commit::{EventRecord, UsageFact};
use forgeyard_model::delivery::Delivery;
use forgeyard_model::demand::Demand;
use forgeyard_model::device::Device;
use forgeyard_model::environment::Environment;
use forgeyard_model::job::Job;
use forgeyard_model::lease::Lease;
use forgeyard_model::pipeline::Pipeline;
use forgeyard_model::runner::Runner;
use forgeyard_model::{
    ArtifactId, DeviceId, Digest, EnvironmentId, EventId, JobId, LeaseId, PipelineId, PoolName, PrincipalId,
    RunnerId, Secret, SiteId, Timestamp,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// A client of one farm. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    token: Option<Secret>,
}

/// An answer without content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct Nothing {}

impl Client {
    /// A client of the farm at this base URL.
    pub fn new(base: &str, token: Option<Secret>, options: &HttpOptions) -> Result<Self, ClientError> {
        Ok(Self { http: http::build(options)?, base: http::base(base)?, token })
    }

    /// Base URL of the farm.
    pub fn base(&self) -> &str {
        &self.base
    }

    fn request(&self, method: reqwest::Method, path: &str) -> (String, reqwest::RequestBuilder) {
        let call = format!("{method} {}{path}", self.base);
        let request = self.http.request(method, format!("{}{path}", self.base));
        let request = match &self.token {
            Some(token) => request.bearer_auth(token.expose()),
            None => request,
        };
        (call, request)
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let (call, request) = self.request(reqwest::Method::GET, path);
        http::json(call, request).await
    }

    async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ClientError> {
        let (call, request) = self.request(reqwest::Method::POST, path);
        http::json(call, request.json(body)).await
    }

    async fn act(&self, path: &str, body: &impl Serialize) -> Result<(), ClientError> {
        self.post::<Nothing>(path, body).await.map(|_| ())
    }

    /// State of the farm.
    pub async fn status(&self) -> Result<Status, ClientError> {
        self.get("/api/v1/status").await
    }

    /// Newest pipelines.
    pub async fn pipelines(&self) -> Result<Vec<Pipeline>, ClientError> {
        self.get("/api/v1/pipelines").await
    }

    /// A pipeline with all that belongs to it.
    pub async fn pipeline(&self, id: PipelineId) -> Result<PipelineView, ClientError> {
        self.get(&format!("/api/v1/pipelines/{id}")).await
    }

    /// Newest jobs.
    pub async fn jobs(&self) -> Result<Vec<Job>, ClientError> {
        self.get("/api/v1/jobs").await
    }

    /// A job with all that belongs to it.
    pub async fn job(&self, id: JobId) -> Result<JobView, ClientError> {
        self.get(&format!("/api/v1/jobs/{id}")).await
    }

    /// Why a job is where it is.
    pub async fn why(&self, id: JobId) -> Result<Why, ClientError> {
        self.get(&format!("/api/v1/jobs/{id}/why")).await
    }

    /// A piece of the log of a job's newest attempt.
    pub async fn log(&self, id: JobId, offset: u64) -> Result<LogPiece, ClientError> {
        self.get(&format!("/api/v1/jobs/{id}/log?offset={offset}")).await
    }

    /// Stops a job.
    pub async fn cancel(&self, id: JobId) -> Result<(), ClientError> {
        self.act(&format!("/api/v1/jobs/{id}/cancel"), &Nothing {}).await
    }

    /// Runs an ended job again; `test_only` refuses anything but a test on its kept artifact.
    pub async fn rerun(&self, id: JobId, test_only: bool) -> Result<(), ClientError> {
        self.act(&format!("/api/v1/jobs/{id}/rerun"), &RerunRequest { test_only }).await
    }

    /// Machines.
    pub async fn runners(&self) -> Result<Vec<Runner>, ClientError> {
        self.get("/api/v1/runners").await
    }

    /// Leaves a machine standing.
    pub async fn keep(&self, id: RunnerId, reason: &str) -> Result<(), ClientError> {
        self.act(&format!("/api/v1/runners/{id}/keep"), &ReasonRequest { reason: reason.to_owned() }).await
    }

    /// Devices.
    pub async fn devices(&self) -> Result<Vec<Device>, ClientError> {
        self.get("/api/v1/devices").await
    }

    /// Lifts a quarantine.
    pub async fn clear_device(&self, id: DeviceId) -> Result<(), ClientError> {
        self.act(&format!("/api/v1/devices/{id}/clear"), &Nothing {}).await
    }

    /// Takes a device out.
    pub async fn quarantine_device(&self, id: DeviceId, reason: &str) -> Result<(), ClientError> {
        let body = ReasonRequest { reason: reason.to_owned() };
        self.act(&format!("/api/v1/devices/{id}/quarantine"), &body).await
    }

    /// Leases that are live, and those of the newest pipelines.
    pub async fn leases(&self) -> Result<Vec<Lease>, ClientError> {
        self.get("/api/v1/leases").await
    }

    /// Declares the host of a lease lost.
    pub async fn write_off(&self, id: LeaseId) -> Result<(), ClientError> {
        self.act(&format!("/api/v1/leases/{id}/write-off"), &Nothing {}).await
    }

    /// All pools.
    pub async fn pools(&self) -> Result<Vec<PoolView>, ClientError> {
        self.get("/api/v1/pools").await
    }

    /// One pool, with its last day.
    pub async fn pool(&self, name: &PoolName) -> Result<PoolView, ClientError> {
        self.get(&format!("/api/v1/pools/{name}")).await
    }

    /// Stops or resumes giving work to a pool.
    pub async fn drain_pool(&self, name: &PoolName, drain: bool) -> Result<(), ClientError> {
        self.act(&format!("/api/v1/pools/{name}/drain"), &DrainRequest { drain }).await
    }

    /// Has a pool start machines again at once.
    pub async fn reset_pool(&self, name: &PoolName) -> Result<(), ClientError> {
        self.act(&format!("/api/v1/pools/{name}/reset"), &Nothing {}).await
    }

    /// Stops or resumes giving work to a site.
    pub async fn drain(&self, id: SiteId, drain: bool) -> Result<(), ClientError> {
        self.act(&format!("/api/v1/sites/{id}/drain"), &DrainRequest { drain }).await
    }

    /// Newest artifacts.
    pub async fn artifacts(&self) -> Result<Vec<Artifact>, ClientError> {
        self.get("/api/v1/artifacts").await
    }

    /// One artifact.
    pub async fn artifact(&self, id: ArtifactId) -> Result<Artifact, ClientError> {
        self.get(&format!("/api/v1/artifacts/{id}")).await
    }

    /// The signed statements about an artifact, as DSSE envelopes.
    pub async fn statements(&self, id: ArtifactId) -> Result<Vec<serde_json::Value>, ClientError> {
        self.get(&format!("/api/v1/artifacts/{id}/statements")).await
    }

    /// The bytes of an artifact, as a stream that the caller verifies.
    pub async fn artifact_bytes(&self, id: ArtifactId) -> Result<reqwest::Response, ClientError> {
        let (call, request) = self.request(reqwest::Method::GET, &format!("/api/v1/artifacts/{id}/bytes"));
        match request.timeout(Duration::from_secs(3600)).send().await {
            Ok(answer) if answer.status().is_success() => Ok(answer),
            Ok(answer) => Err(http::refusal(call, answer).await),
            Err(source) => Err(ClientError::Transport { call, source: source.without_url() }),
        }
    }

    /// Channels.
    pub async fn channels(&self) -> Result<Vec<Channel>, ClientError> {
        self.get("/api/v1/channels").await
    }

    /// Environments.
    pub async fn environments(&self) -> Result<Vec<Environment>, ClientError> {
        self.get("/api/v1/environments").await
    }

    /// The next environment to make; `None` when none was asked for within `wait`.
    pub async fn environment_work(&self, wait: Duration) -> Result<Option<Environment>, ClientError> {
        let path = format!("/api/v1/environment-work?wait_seconds={}", wait.as_secs());
        let (call, request) = self.request(reqwest::Method::GET, &path);
        http::json(call, request.timeout(wait + Duration::from_secs(30))).await
    }

    /// Posts what came of making an environment.
    pub async fn post_environment_result(
        &self,
        id: EnvironmentId,
        result: &EnvironmentResult,
    ) -> Result<(), ClientError> {
        self.act(&format!("/api/v1/environments/{id}/result"), result).await
    }

    /// Who waits, since when and why.
    pub async fn queue(&self) -> Result<Vec<QueueRow>, ClientError> {
        self.get("/api/v1/queue").await
    }

    /// Jobs of forges of this number, however long ago they ended.
    pub async fn demands_numbered(&self, job: u64) -> Result<Vec<Demand>, ClientError> {
        self.get(&format!("/api/v1/demands?job={job}")).await
    }

    /// Newest jobs of forges that want or wanted a runner.
    pub async fn demands(&self) -> Result<Vec<Demand>, ClientError> {
        self.get("/api/v1/demands").await
    }

    /// A job of a forge, why it is where it is, and what was launched for it.
    pub async fn demand(&self, id: DemandId) -> Result<DemandView, ClientError> {
        self.get(&format!("/api/v1/demands/{id}")).await
    }

    /// What was said of heads, newest first.
    pub async fn approvals(&self) -> Result<Vec<HeadApproval>, ClientError> {
        self.get("/api/v1/approvals").await
    }

    /// Says whether the head of a job of a forge may run.
    pub async fn judge_demand(
        &self,
        id: DemandId,
        approve: bool,
        request: &JudgeRequest,
    ) -> Result<(), ClientError> {
        let word = if approve { "approve" } else { "refuse" };
        self.act(&format!("/api/v1/demands/{id}/{word}"), request).await
    }

    /// Says whether the head of a pipeline may run.
    pub async fn judge_pipeline(
        &self,
        id: PipelineId,
        approve: bool,
        request: &JudgeRequest,
    ) -> Result<(), ClientError> {
        let word = if approve { "approve" } else { "refuse" };
        self.act(&format!("/api/v1/pipelines/{id}/{word}"), request).await
    }

    /// What terms of service there are, and what the caller accepted.
    pub async fn terms(&self) -> Result<TermsView, ClientError> {
        self.get("/api/v1/terms").await
    }

    /// Accepts the terms of service.
    pub async fn accept_terms(&self, request: &TermsRequest) -> Result<(), ClientError> {
        self.act("/api/v1/terms", request).await
    }

    /// Newest webhook deliveries.
    pub async fn deliveries(&self) -> Result<Vec<Delivery>, ClientError> {
        self.get("/api/v1/deliveries").await
    }

    /// The audit trail, newest first; of one subject when given.
    pub async fn events(&self, subject: Option<&str>) -> Result<Vec<EventRecord>, ClientError> {
        self.events_before(subject, None).await
    }

    /// The audit trail from the event before this one back, newest first; of one subject when given.
    pub async fn events_before(
        &self,
        subject: Option<&str>,
        before: Option<EventId>,
    ) -> Result<Vec<EventRecord>, ClientError> {
        let before = before.map(|id| id.to_string());
        let pairs = [("subject", subject), ("before", before.as_deref())];
        let query = http::query(pairs.into_iter().filter_map(|(key, value)| Some((key, value?))));
        self.get(&format!("/api/v1/events{query}")).await
    }

    /// What was used this month, beside caps and budgets.
    pub async fn month_usage(&self) -> Result<crate::usage::MonthUsage, ClientError> {
        self.get("/api/v1/usage/month").await
    }

    /// Usage facts.
    pub async fn usage(&self) -> Result<Vec<UsageFact>, ClientError> {
        self.usage_since(Timestamp::default()).await
    }

    /// Usage facts that became known at this instant or later.
    pub async fn usage_since(&self, since: Timestamp) -> Result<Vec<UsageFact>, ClientError> {
        self.get(&format!("/api/v1/usage?since={}", since.as_micros())).await
    }

    /// What the farm is set up with.
    pub async fn config(&self) -> Result<ConfigView, ClientError> {
        self.get("/api/v1/config").await
    }

    /// Which configuration counts, and what became of its files when they were read last.
    pub async fn rules(&self) -> Result<crate::rules::RulesView, ClientError> {
        self.get("/api/v1/config/rules").await
    }

    /// Reads the files of the configuration again.
    pub async fn reload_config(&self) -> Result<crate::rules::Reloaded, ClientError> {
        self.post("/api/v1/config/reload", &serde_json::json!({})).await
    }

    /// Every configuration that the farm ran with, newest first, without their texts.
    pub async fn config_history(&self) -> Result<Vec<ConfigVersionView>, ClientError> {
        self.get("/api/v1/config/history").await
    }

    /// One configuration that the farm ran with.
    pub async fn config_version(&self, number: u64) -> Result<ConfigVersionView, ClientError> {
        self.get(&format!("/api/v1/config/history/{number}")).await
    }

    /// Asks the gate without doing anything.
    pub async fn explain_access(&self, question: &AccessQuestion) -> Result<AccessAnswer, ClientError> {
        self.post("/api/v1/access/explain", question).await
    }

    /// Uploads a source archive.
    pub async fn upload_source(&self, digest: Digest, bytes: Vec<u8>) -> Result<(), ClientError> {
        let (call, request) = self.request(reqwest::Method::PUT, &format!("/api/v1/sources/{digest}"));
        let request = request.timeout(Duration::from_secs(3600)).body(bytes);
        http::json::<Nothing>(call, request).await.map(|_| ())
    }

    /// Runs a recipe folder whose source is uploaded.
    pub async fn run(&self, request: &RunRequest) -> Result<RunAnswer, ClientError> {
        self.post("/api/v1/runs", request).await
    }

    /// Makes an API token.
    pub async fn issue_token(&self, request: &TokenRequest) -> Result<TokenAnswer, ClientError> {
        self.post("/api/v1/tokens", request).await
    }

    /// API tokens, without the tokens themselves.
    pub async fn tokens(&self) -> Result<Vec<TokenView>, ClientError> {
        self.get("/api/v1/tokens").await
    }

    /// Revokes the API token of a principal.
    pub async fn revoke_token(&self, id: PrincipalId) -> Result<(), ClientError> {
        self.act(&format!("/api/v1/tokens/{id}/revoke"), &Nothing {}).await
    }

    /// The public key of the farm, PEM. Needs no token.
    pub async fn public_key(&self) -> Result<PublicKey, ClientError> {
        self.get("/api/v1/public-key").await
    }
}
