//! Addresses of pages and actions, in one place, so that a link and its route cannot drift apart unseen.

use forgeyard_model::{
    ArtifactId, ChannelName, DemandId, DeviceId, EnvironmentId, JobId, LeaseId, PipelineId, PoolName,
    RunnerId, SiteId,
};

/// The list of pipelines; also the front page.
pub const PIPELINES: &str = "/pipelines";
/// Who waits.
pub const QUEUE: &str = "/queue";
/// All devices.
pub const DEVICES: &str = "/devices";
/// All sites.
pub const SITES: &str = "/sites";
/// All pools.
pub const POOLS: &str = "/pools";
/// All artifacts.
pub const ARTIFACTS: &str = "/artifacts";
/// The build cache.
pub const CACHE: &str = "/cache";
/// A scope of it.
pub const CACHE_SCOPE: &str = "/cache/scope";
/// Remove entries of it (POST, fields `scope` and `prefix`, or `writer`; and `back`, a scope).
pub const CACHE_REMOVE: &str = "/cache/remove";
/// All channels. Below `/channels` are the channels themselves, as conda clients see them.
pub const CHANNELS: &str = "/channel";
/// All environments.
pub const ENVIRONMENTS: &str = "/environments";
/// The access explainer.
pub const ACCESS: &str = "/access";
/// Webhook deliveries.
pub const DELIVERIES: &str = "/deliveries";
/// The audit trail.
pub const AUDIT: &str = "/audit";
/// The public status page.
pub const STATUS: &str = "/status";
/// The same as JSON.
pub const STATUS_JSON: &str = "/status.json";
/// Sign in.
pub const LOGIN: &str = "/login";
/// Where the browser comes back to from a forge.
pub const LOGIN_CALLBACK: &str = "/login/callback";

/// Sign in with a forge; `?next=` as for the sign-in page.
pub fn login_forge(forge: &str, next: &str) -> String {
    format!("{LOGIN}/forge/{forge}?next={}", query(next))
}

/// A scope of the build cache, and of its keys those that begin so.
pub fn cache_scope(scope: &str, prefix: &str) -> String {
    match prefix {
        "" => format!("{CACHE_SCOPE}?scope={}", query(scope)),
        _ => format!("{CACHE_SCOPE}?scope={}&prefix={}", query(scope), query(prefix)),
    }
}

/// Sign out (POST).
pub const LOGOUT: &str = "/logout";

/// The history of the configuration: `?from=NUMBER&to=NUMBER` compares two.
pub const CONFIG: &str = "/config";

/// The terms of service (POST accepts them).
pub const TERMS: &str = "/terms";

/// Let the head of a job of a forge run (POST, fields `head`, `back`).
pub fn demand_approve(id: DemandId) -> String {
    format!("/demands/{id}/approve")
}

/// Refuse the head of a job of a forge (POST, fields `head`, `reason`, `back`).
pub fn demand_refuse(id: DemandId) -> String {
    format!("/demands/{id}/refuse")
}

/// Let the head of a pipeline run (POST, field `head`).
pub fn pipeline_approve(id: PipelineId) -> String {
    format!("{PIPELINES}/{id}/approve")
}

/// Refuse the head of a pipeline (POST, fields `head`, `reason`).
pub fn pipeline_refuse(id: PipelineId) -> String {
    format!("{PIPELINES}/{id}/refuse")
}

/// A pipeline.
pub fn pipeline(id: PipelineId) -> String {
    format!("{PIPELINES}/{id}")
}

/// The live part of a pipeline's page.
pub fn pipeline_fragment(id: PipelineId) -> String {
    format!("{PIPELINES}/{id}?fragment=chain")
}

/// Server-sent events of a pipeline.
pub fn live(id: PipelineId) -> String {
    format!("/api/v1/live?pipeline={id}")
}

/// A job.
pub fn job(id: JobId) -> String {
    format!("/jobs/{id}")
}

/// The live part of a job's page.
pub fn job_fragment(id: JobId) -> String {
    format!("/jobs/{id}?fragment=state")
}

/// Pieces of a job's log: `?offset=BYTES`, and `&end=BYTES` to stop before a known place.
pub fn job_log(id: JobId) -> String {
    format!("/api/v1/jobs/{id}/log")
}

/// Run a job again (POST). A test runs on its kept artifact.
pub fn job_rerun(id: JobId) -> String {
    format!("/jobs/{id}/rerun")
}

/// Stop a job (POST).
pub fn job_cancel(id: JobId) -> String {
    format!("/jobs/{id}/cancel")
}

/// Lift a quarantine (POST).
pub fn device_clear(id: DeviceId) -> String {
    format!("{DEVICES}/{id}/clear")
}

/// Take a device out (POST, field `reason`).
pub fn device_quarantine(id: DeviceId) -> String {
    format!("{DEVICES}/{id}/quarantine")
}

/// Declare the host of a lease lost (POST).
pub fn lease_write_off(id: LeaseId) -> String {
    format!("/leases/{id}/write-off")
}

/// Leave a machine standing for an autopsy (POST, field `reason`).
pub fn runner_keep(id: RunnerId) -> String {
    format!("/runners/{id}/keep")
}

/// Stop giving work to a site (POST, field `drain` = `true` or `false`).
pub fn site_drain(id: SiteId) -> String {
    format!("{SITES}/{id}/drain")
}

/// Stop giving work to a pool (POST, field `drain` = `true` or `false`).
pub fn pool_drain(name: &PoolName) -> String {
    format!("{POOLS}/{name}/drain")
}

/// Have a pool start machines again (POST).
pub fn pool_reset(name: &PoolName) -> String {
    format!("{POOLS}/{name}/reset")
}

/// An artifact.
pub fn artifact(id: ArtifactId) -> String {
    format!("{ARTIFACTS}/{id}")
}

/// Bytes of an artifact.
pub fn artifact_bytes(id: ArtifactId) -> String {
    format!("/api/v1/artifacts/{id}/bytes")
}

/// A channel.
pub fn channel(name: &ChannelName) -> String {
    format!("{CHANNELS}/{name}")
}

/// The root of a channel as conda clients see it, below the farm's own address.
pub fn channel_root(name: &ChannelName) -> String {
    format!("/channels/{name}")
}

/// An environment.
pub fn environment(id: EnvironmentId) -> String {
    format!("{ENVIRONMENTS}/{id}")
}

/// The audit trail of one thing.
pub fn audit_of(subject: &str) -> String {
    format!("{AUDIT}?subject={}", query(subject))
}

/// A text as part of a query string: all but unreserved characters are percent-encoded.
pub fn query(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
