//! All routes of the farm that programs use, in one table: the document that describes the HTTP API is made from it,
//! and a test of the control plane holds it against the real router, in both directions. The pages for people are not
//! here.

use crate::{agent, site};
use forgeyard_model::principal::Role;

/// Method of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// Reads.
    Get,
    /// Does something.
    Post,
    /// Stores bytes.
    Put,
}

impl Method {
    /// As it is written in a request.
    pub const fn as_str(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Post => "POST",
            Method::Put => "PUT",
        }
    }
}

/// Who may call a route, and how that is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// Everybody.
    Anybody,
    /// A person or program with an API token of at least this role.
    Token(Role),
    /// Whoever knows the farm's join token, which is in the body.
    Joining,
    /// A site, with its token.
    Site,
    /// The agent of a machine, with the one-shot token of its attempt, which is in the body.
    Redeeming,
    /// The agent of one attempt, with the session token of exactly this attempt.
    Agent,
    /// A forge, by the signature of the body.
    Forge,
}

/// One route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Method.
    pub method: Method,
    /// Path, with parameters in braces.
    pub path: &'static str,
    /// Who may call it.
    pub who: Who,
    /// What it does, in one sentence.
    pub summary: &'static str,
}

const fn get(path: &'static str, who: Who, summary: &'static str) -> Route {
    Route { method: Method::Get, path, who, summary }
}

const fn post(path: &'static str, who: Who, summary: &'static str) -> Route {
    Route { method: Method::Post, path, who, summary }
}

const fn put(path: &'static str, who: Who, summary: &'static str) -> Route {
    Route { method: Method::Put, path, who, summary }
}

const VIEWER: Who = Who::Token(Role::Viewer);
const MAINTAINER: Who = Who::Token(Role::Maintainer);
const OPERATOR: Who = Who::Token(Role::Operator);
const ADMIN: Who = Who::Token(Role::Admin);

/// Every route.
pub const ROUTES: &[Route] = &[
    get("/api/v1/status", VIEWER, "State of the farm: jobs, machines, devices, sites, alarms."),
    get("/api/v1/public-key", Who::Anybody, "The key that statements are verified with."),
    get("/api/v1/pipelines", VIEWER, "Newest pipelines."),
    get("/api/v1/pipelines/{id}", VIEWER, "A pipeline with all that belongs to it."),
    get("/api/v1/jobs", VIEWER, "Newest jobs."),
    get("/api/v1/jobs/{id}", VIEWER, "A job with all that belongs to it, and its history."),
    get("/api/v1/jobs/{id}/why", VIEWER, "Why a job is where it is, with evidence and what to do."),
    get("/api/v1/jobs/{id}/log", VIEWER, "A piece of the log of the newest attempt, or all of it as text."),
    post("/api/v1/jobs/{id}/cancel", MAINTAINER, "Stops a job."),
    post("/api/v1/jobs/{id}/rerun", MAINTAINER, "Runs an ended job again; a test runs on its kept artifact."),
    get("/api/v1/runners", VIEWER, "Newest machines."),
    post("/api/v1/runners/{id}/keep", OPERATOR, "Leaves a machine standing for an autopsy."),
    get("/api/v1/devices", VIEWER, "All devices."),
    post("/api/v1/devices/{id}/clear", OPERATOR, "Lifts the quarantine of a device."),
    post("/api/v1/devices/{id}/quarantine", OPERATOR, "Takes a device out."),
    get("/api/v1/leases", VIEWER, "Newest leases."),
    post("/api/v1/leases/{id}/write-off", OPERATOR, "Declares the host of a lease lost."),
    get("/api/v1/pools", VIEWER, "All pools: machines, schedule, breaker, launches, the last error."),
    get("/api/v1/pools/{name}", VIEWER, "One pool, with its last day."),
    post("/api/v1/pools/{name}/drain", OPERATOR, "Stops or resumes giving work to a pool."),
    get("/api/v1/cache", VIEWER, "The build cache: what it holds, how it is hit; 404 where there is none."),
    get("/api/v1/cache/entries", OPERATOR, "Entries of a scope of the build cache, by key."),
    post("/api/v1/cache/remove", OPERATOR, "Removes entries of a scope, or all of a writer."),
    post("/api/v1/pools/{name}/reset", OPERATOR, "Has a pool start machines again at once."),
    post("/api/v1/sites/{id}/drain", OPERATOR, "Stops or resumes giving work to a site."),
    get("/api/v1/artifacts", VIEWER, "Newest artifacts."),
    get("/api/v1/artifacts/{id}", VIEWER, "The record of an artifact."),
    get("/api/v1/artifacts/{id}/bytes", VIEWER, "The bytes of an artifact; ranges are honoured."),
    get(
        "/api/v1/artifacts/{id}/statements",
        VIEWER,
        "Signed statements about an artifact; none if unpromoted.",
    ),
    get("/api/v1/channels", VIEWER, "All channels with what they hold."),
    get("/api/v1/environments", VIEWER, "Newest environments."),
    get("/api/v1/environment-work", OPERATOR, "The next environment to make, or null when the wait is over."),
    post("/api/v1/environments/{id}/result", OPERATOR, "What came of making an environment."),
    get("/api/v1/queue", VIEWER, "Who waits, since when and why; then who was refused lately."),
    get("/api/v1/demands", VIEWER, "Newest jobs of forges that want or wanted a runner."),
    get(
        "/api/v1/demands/{id}",
        VIEWER,
        "A job of a forge, why it is where it is, and what was launched for it.",
    ),
    get(
        "/api/v1/approvals",
        VIEWER,
        "What was said of heads: approved or refused, by whom, and whether it counts.",
    ),
    post(
        "/api/v1/demands/{id}/approve",
        MAINTAINER,
        "Lets the head of a job of a forge run; that commit alone.",
    ),
    post("/api/v1/demands/{id}/refuse", MAINTAINER, "Refuses the head of a job of a forge."),
    post("/api/v1/pipelines/{id}/approve", MAINTAINER, "Lets the head of a pipeline run; that commit alone."),
    post("/api/v1/pipelines/{id}/refuse", MAINTAINER, "Refuses the head of a pipeline."),
    get("/api/v1/terms", VIEWER, "The terms of service that count, and what the caller accepted."),
    post("/api/v1/terms", VIEWER, "Accepts the terms of service; for others only an admin."),
    get("/api/v1/deliveries", VIEWER, "Newest webhook deliveries and what became of them."),
    get("/api/v1/events", VIEWER, "The audit trail, newest first."),
    get("/api/v1/usage", VIEWER, "Usage facts of a span of time."),
    get("/api/v1/usage/month", VIEWER, "What was used this month, beside caps and budgets."),
    post("/api/v1/access/explain", VIEWER, "Asks the gate; nothing is started."),
    put("/api/v1/sources/{digest}", MAINTAINER, "Uploads a source archive for a run."),
    post("/api/v1/runs", MAINTAINER, "Runs a recipe folder whose source is uploaded."),
    post("/api/v1/tokens", ADMIN, "Makes an API token; it is shown once."),
    get("/api/v1/tokens", ADMIN, "API tokens, without the tokens themselves."),
    post("/api/v1/tokens/{principal}/revoke", ADMIN, "Revokes the API token of a principal."),
    get("/api/v1/config", VIEWER, "What the farm is set up with: pools, flavors, images, repositories."),
    get(
        "/api/v1/config/rules",
        OPERATOR,
        "Which configuration counts, and what became of its files when they were read last.",
    ),
    post(
        "/api/v1/config/reload",
        OPERATOR,
        "Reads the files of the configuration again; what they say counts from the next decision.",
    ),
    get("/api/v1/config/history", OPERATOR, "Every configuration that the farm ran with, newest first."),
    get("/api/v1/config/history/{number}", OPERATOR, "One of them, whole; it holds no secret."),
    get("/api/v1/live", VIEWER, "Server-sent events: what changed, as it changes."),
    post(site::JOIN, Who::Joining, "A site joins, or joins again under its name."),
    get(site::DESIRED, Who::Site, "What should be so at the site; waits until it is news."),
    post(site::REPORT, Who::Site, "What the site sees; complete, so what is not listed is not there."),
    post(agent::REDEEM, Who::Redeeming, "Redeems the one-shot token of an attempt for its job."),
    post(agent::WAIT, Who::Redeeming, "A machine made before there was work asks for some, and waits."),
    post(agent::HEARTBEAT, Who::Agent, "A sign of life; answers whether to stop."),
    post(agent::LOG, Who::Agent, "Log bytes from an offset; sending them again is fine."),
    get(agent::BLOB, Who::Agent, "An input of the job, by digest; ranges are honoured."),
    put(agent::ARTIFACT, Who::Agent, "The bytes of an output, verified against their digest."),
    post(agent::FINISH, Who::Agent, "The end of the attempt."),
    get(agent::CACHE, Who::Agent, "What the job may do in the build cache, with a token that ends with it."),
    post(agent::RUNNER_CONFIG, Who::Agent, "The configuration of a forge's runner program; waits for it."),
    post(
        agent::RUNNER_TOOK,
        Who::Agent,
        "What a runner took; answers whether it may run, once that is decided.",
    ),
    post(
        "/webhooks/{forge}",
        Who::Forge,
        "A webhook of the forge of this name; stored raw before anything else.",
    ),
    get("/channels/{name}", Who::Anybody, "A conda channel with what it holds."),
    get(
        "/channels/{name}/{subdir}/{file}",
        Who::Anybody,
        "An index, a package, or its statements (`.sigs`).",
    ),
    get("/metrics", VIEWER, "Metrics, in the text format of Prometheus."),
    get("/healthz", Who::Anybody, "Whether the database answers."),
    get("/openapi.json", Who::Anybody, "This document."),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_stands_once_in_the_table() {
        let mut seen: Vec<_> = ROUTES.iter().map(|route| (route.method, route.path)).collect();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), ROUTES.len());
    }
}
