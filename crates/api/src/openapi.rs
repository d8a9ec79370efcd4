//! The document that describes the HTTP API (OpenAPI 3.1), made from the table of routes and the types themselves.
//!
//! What a route takes and gives is named here by its type; a route of the table that is missing here is an error, and
//! so are two types of one name with different schemas.

use crate::cache::{CacheEntries, CacheRemoval, CacheRemoved, CacheView};
use crate::error::ApiError;
use crate::people::*;
use crate::pools::PoolView;
use crate::routes::{Method, ROUTES, Route, Who};
use crate::{agent, site};
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
use forgeyard_model::registration::TakenAnswer;
use forgeyard_model::runner::Runner;
use std::collections::BTreeMap;
use utoipa::openapi::path::{
    HttpMethod, Operation, OperationBuilder, Parameter, ParameterBuilder, ParameterIn,
};
use utoipa::openapi::request_body::{RequestBody, RequestBodyBuilder};
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, Schema, SchemaFormat, Type};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, InfoBuilder, License, OpenApiBuilder, PathItem, PathsBuilder, Ref,
    RefOr, Required, Response, ResponseBuilder,
};
use utoipa::{PartialSchema, ToSchema};

/// Why the document cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum OpenApiError {
    /// A route of the table is not described.
    #[error("{0} is in the table of routes, and `shape` in crates/api/src/openapi.rs does not describe it")]
    Undescribed(String),
    /// Two types of one name.
    #[error("two types of the name `{0}` have different schemas; give one of them another name")]
    Name(String),
    /// The document cannot be written.
    #[error("the document cannot be written as JSON")]
    Json(#[from] serde_json::Error),
}

type AnySchema = RefOr<Schema>;

/// The schemas that the document refers to, by name.
#[derive(Default)]
struct Schemas {
    known: BTreeMap<String, AnySchema>,
    clash: Option<String>,
}

impl Schemas {
    /// Takes in a type and all that it is made of; gives the way to refer to it.
    fn one<T: ToSchema>(&mut self) -> AnySchema {
        let mut found = vec![(T::name().into_owned(), T::schema())];
        T::schemas(&mut found);
        for (name, schema) in found {
            if self.known.get(&name).is_some_and(|known| *known != schema) {
                self.clash.get_or_insert(name.clone());
            }
            self.known.insert(name, schema);
        }
        RefOr::Ref(Ref::from_schema_name(T::name()))
    }

    fn many<T: ToSchema>(&mut self) -> AnySchema {
        ArrayBuilder::new().items(self.one::<T>()).into()
    }
}

/// What goes over the wire.
enum Body {
    Json(Box<AnySchema>),
    Raw(&'static [&'static str]),
}

/// What a route takes and gives.
struct Shape {
    query: Vec<Parameter>,
    takes: Option<Body>,
    gives: Body,
    status: &'static str,
}

impl Shape {
    fn gives(gives: Body) -> Self {
        Self { query: Vec::new(), takes: None, gives, status: "200" }
    }

    fn takes(takes: AnySchema, gives: Body) -> Self {
        Self { takes: Some(Body::Json(Box::new(takes))), ..Self::gives(gives) }
    }

    fn query(mut self, name: &str, required: bool, kind: Type, about: &str) -> Self {
        let schema = ObjectBuilder::new().schema_type(kind);
        self.query.push(parameter(name, ParameterIn::Query, required, schema.into(), about));
        self
    }
}

const BYTES: &[&str] = &["application/octet-stream"];
const TEXT: &[&str] = &["text/plain"];

fn parameter(name: &str, place: ParameterIn, required: bool, schema: AnySchema, about: &str) -> Parameter {
    let required = if required { Required::True } else { Required::False };
    let built =
        ParameterBuilder::new().name(name).parameter_in(place).required(required).schema(Some(schema));
    if about.is_empty() { built.build() } else { built.description(Some(about)).build() }
}

/// An object without fields.
fn nothing() -> AnySchema {
    ObjectBuilder::new().schema_type(Type::Object).into()
}

fn shape(schemas: &mut Schemas, route: &Route) -> Option<Shape> {
    use Body::Raw;
    let json = |schema| Body::Json(Box::new(schema));
    let of = schemas;
    Some(match (route.method, route.path) {
        (Method::Get, "/api/v1/status") => Shape::gives(json(of.one::<Status>())),
        (Method::Get, "/api/v1/public-key") => Shape::gives(json(of.one::<PublicKey>())),
        (Method::Get, "/api/v1/pipelines") => Shape::gives(json(of.many::<Pipeline>())),
        (Method::Get, "/api/v1/pipelines/{id}") => Shape::gives(json(of.one::<PipelineView>())),
        (Method::Get, "/api/v1/jobs") => Shape::gives(json(of.many::<Job>())),
        (Method::Get, "/api/v1/jobs/{id}") => Shape::gives(json(of.one::<JobView>())),
        (Method::Get, "/api/v1/jobs/{id}/why") => Shape::gives(json(of.one::<Why>())),
        (Method::Get, "/api/v1/jobs/{id}/log") => Shape::gives(json(of.one::<LogPiece>()))
            .query("offset", false, Type::Integer, "First byte; 0 when left out.")
            .query("end", false, Type::Integer, "First byte that is not wanted.")
            .query("raw", false, Type::Integer, "Given: the whole log as plain text."),
        (Method::Post, "/api/v1/jobs/{id}/rerun") => Shape::takes(of.one::<RerunRequest>(), json(nothing())),
        (Method::Get, "/api/v1/runners") => Shape::gives(json(of.many::<Runner>())),
        (Method::Get, "/api/v1/devices") => Shape::gives(json(of.many::<Device>())),
        (Method::Post, "/api/v1/runners/{id}/keep" | "/api/v1/devices/{id}/quarantine") => {
            Shape::takes(of.one::<ReasonRequest>(), json(nothing()))
        }
        (
            Method::Post,
            "/api/v1/jobs/{id}/cancel" | "/api/v1/devices/{id}/clear" | "/api/v1/leases/{id}/write-off",
        ) => Shape::gives(json(nothing())),
        (Method::Get, "/api/v1/leases") => Shape::gives(json(of.many::<Lease>())),
        (Method::Get, "/api/v1/pools") => Shape::gives(json(of.many::<PoolView>())),
        (Method::Get, "/api/v1/pools/{name}") => Shape::gives(json(of.one::<PoolView>())),
        (Method::Get, "/api/v1/cache") => Shape::gives(json(of.one::<CacheView>())),
        (Method::Get, "/api/v1/cache/entries") => Shape::gives(json(of.one::<CacheEntries>()))
            .query("scope", true, Type::String, "The scope.")
            .query("prefix", false, Type::String, "What the keys begin with."),
        (Method::Post, "/api/v1/cache/remove") => {
            Shape::takes(of.one::<CacheRemoval>(), json(of.one::<CacheRemoved>()))
        }
        (Method::Post, "/api/v1/pools/{name}/reset") => Shape::gives(json(nothing())),
        (Method::Post, "/api/v1/pools/{name}/drain") => {
            Shape::takes(of.one::<DrainRequest>(), json(nothing()))
        }
        (Method::Post, "/api/v1/sites/{id}/drain") => Shape::takes(of.one::<DrainRequest>(), json(nothing())),
        (Method::Get, "/api/v1/artifacts") => Shape::gives(json(of.many::<Artifact>())),
        (Method::Get, "/api/v1/artifacts/{id}") => Shape::gives(json(of.one::<Artifact>())),
        (Method::Get, "/api/v1/artifacts/{id}/bytes") => Shape::gives(Raw(BYTES)),
        // Envelopes of DSSE, which are not ours to describe.
        (Method::Get, "/api/v1/artifacts/{id}/statements") => {
            Shape::gives(json(ArrayBuilder::new().items(nothing()).into()))
        }
        (Method::Get, "/api/v1/channels") => Shape::gives(json(of.many::<Channel>())),
        (Method::Get, "/api/v1/environments") => Shape::gives(json(of.many::<Environment>())),
        (Method::Get, "/api/v1/environment-work") => Shape::gives(json(Option::<Environment>::schema()))
            .query("wait_seconds", false, Type::Integer, "Wait at most this long; cut to 60."),
        (Method::Post, "/api/v1/environments/{id}/result") => {
            Shape::takes(of.one::<EnvironmentResult>(), json(nothing()))
        }
        (Method::Get, "/api/v1/queue") => Shape::gives(json(of.many::<QueueRow>())),
        (Method::Get, "/api/v1/config/rules") => Shape::gives(json(of.one::<crate::rules::RulesView>())),
        (Method::Post, "/api/v1/config/reload") => Shape::gives(json(of.one::<crate::rules::Reloaded>())),
        (Method::Get, "/api/v1/config/history") => Shape::gives(json(of.many::<ConfigVersionView>())),
        (Method::Get, "/api/v1/config/history/{number}") => Shape::gives(json(of.one::<ConfigVersionView>())),
        (Method::Get, "/api/v1/approvals") => Shape::gives(json(of.many::<HeadApproval>())),
        (
            Method::Post,
            "/api/v1/demands/{id}/approve"
            | "/api/v1/demands/{id}/refuse"
            | "/api/v1/pipelines/{id}/approve"
            | "/api/v1/pipelines/{id}/refuse",
        ) => Shape::takes(of.one::<JudgeRequest>(), json(nothing())),
        (Method::Get, "/api/v1/terms") => Shape::gives(json(of.one::<TermsView>())),
        (Method::Post, "/api/v1/terms") => Shape::takes(of.one::<TermsRequest>(), json(nothing())),
        (Method::Get, "/api/v1/demands") => Shape::gives(json(of.many::<Demand>())).query(
            "job",
            false,
            Type::Integer,
            "Only those of the job of this number at its forge, however long ago they ended.",
        ),
        (Method::Get, "/api/v1/demands/{id}") => Shape::gives(json(of.one::<DemandView>())),
        (Method::Get, "/api/v1/deliveries") => Shape::gives(json(of.many::<Delivery>())),
        (Method::Get, "/api/v1/events") => Shape::gives(json(of.many::<EventRecord>()))
            .query("subject", false, Type::String, "Only of this thing, for example a job's id.")
            .query("before", false, Type::String, "Only older than this event."),
        (Method::Get, "/api/v1/usage") => Shape::gives(json(of.many::<UsageFact>()))
            .query(
                "since",
                false,
                Type::Integer,
                "Microseconds since the epoch; the beginning when left out.",
            )
            .query("until", false, Type::Integer, "Microseconds since the epoch; now when left out."),
        (Method::Get, "/api/v1/usage/month") => Shape::gives(json(of.one::<crate::usage::MonthUsage>())),
        (Method::Post, "/api/v1/access/explain") => {
            Shape::takes(of.one::<AccessQuestion>(), json(of.one::<AccessAnswer>()))
        }
        (Method::Put, "/api/v1/sources/{digest}") => {
            Shape { takes: Some(Raw(&["application/x-tar"])), ..Shape::gives(json(nothing())) }
        }
        (Method::Post, "/api/v1/runs") => Shape::takes(of.one::<RunRequest>(), json(of.one::<RunAnswer>())),
        (Method::Post, "/api/v1/tokens") => {
            Shape::takes(of.one::<TokenRequest>(), json(of.one::<TokenAnswer>()))
        }
        (Method::Get, "/api/v1/tokens") => Shape::gives(json(of.many::<TokenView>())),
        (Method::Post, "/api/v1/tokens/{principal}/revoke") => Shape::gives(json(nothing())),
        (Method::Get, "/api/v1/config") => Shape::gives(json(of.one::<ConfigView>())),
        (Method::Get, "/api/v1/live") => Shape::gives(Raw(&["text/event-stream"])).query(
            "pipeline",
            false,
            Type::String,
            "Only what belongs to this pipeline.",
        ),
        (Method::Post, site::JOIN) => Shape::takes(of.one::<site::Join>(), json(of.one::<site::Joined>())),
        (Method::Get, site::DESIRED) => Shape::gives(json(of.one::<site::DesiredSet>()))
            .query("after", true, Type::Integer, "Generation that the site has; 0 = none.")
            .query("epoch", true, Type::Integer, "Epoch that the site has; 0 = none.")
            .query("wait_seconds", true, Type::Integer, "Wait at most this long for news; cut to 60."),
        (Method::Post, site::REPORT) => {
            Shape::takes(of.one::<site::SiteReport>(), json(of.one::<site::Reported>()))
        }
        (Method::Post, agent::WAIT) => Shape::takes(of.one::<agent::Wait>(), json(of.one::<agent::Waited>())),
        (Method::Post, agent::REDEEM) => {
            Shape::takes(of.one::<agent::Redeem>(), json(of.one::<agent::Redeemed>()))
        }
        (Method::Post, agent::HEARTBEAT) => {
            Shape::takes(of.one::<agent::Heartbeat>(), json(of.one::<agent::HeartbeatAnswer>()))
        }
        (Method::Post, agent::LOG) => {
            let gives = json(of.one::<agent::LogAnswer>());
            let shape = Shape { takes: Some(Raw(BYTES)), ..Shape::gives(gives) };
            shape.query("offset", true, Type::Integer, "Where the bytes begin in the log.")
        }
        (Method::Get, agent::BLOB) => Shape::gives(Raw(BYTES)),
        (Method::Put, agent::ARTIFACT) => {
            let shape = Shape { takes: Some(Raw(BYTES)), ..Shape::gives(json(of.one::<Artifact>())) };
            shape.query("digest", true, Type::String, "Digest that the bytes must have.")
        }
        (Method::Post, agent::FINISH) => Shape::takes(of.one::<agent::Finish>(), json(nothing())),
        (Method::Get, agent::CACHE) => Shape::gives(json(of.one::<agent::CacheAccess>())),
        (Method::Post, agent::RUNNER_CONFIG) => {
            Shape::takes(of.one::<agent::RunnerConfigRequest>(), json(of.one::<agent::RunnerConfig>()))
        }
        (Method::Post, agent::RUNNER_TOOK) => {
            Shape::takes(of.one::<agent::RunnerTook>(), json(of.one::<TakenAnswer>()))
        }
        (Method::Post, "/webhooks/{forge}") => {
            Shape { status: "202", ..Shape::takes(nothing(), json(nothing())) }
        }
        (Method::Get, "/channels/{name}") => Shape::gives(json(of.one::<Channel>())),
        (Method::Get, "/channels/{name}/{subdir}/{file}") => {
            Shape::gives(Raw(&["application/json", "application/octet-stream", "application/zstd"]))
        }
        (Method::Get, "/metrics" | "/healthz") => Shape::gives(Raw(TEXT)),
        (Method::Get, "/openapi.json") => Shape::gives(json(nothing())),
        _ => return None,
    })
}

/// Makes the document, as JSON for a file.
///
/// # Errors
/// When a route is not described, or two types have one name.
pub fn document() -> Result<String, OpenApiError> {
    let mut schemas = Schemas::default();
    let error = schemas.one::<ApiError>();
    // Answered as one that may be null, so it is only referred to there.
    schemas.one::<Environment>();
    let mut paths = PathsBuilder::new();
    for route in ROUTES {
        let name = || format!("{} {}", route.method.as_str(), route.path);
        let shape = shape(&mut schemas, route).ok_or_else(|| OpenApiError::Undescribed(name()))?;
        let method = match route.method {
            Method::Get => HttpMethod::Get,
            Method::Post => HttpMethod::Post,
            Method::Put => HttpMethod::Put,
        };
        paths = paths.path(route.path, PathItem::new(method, operation(route, shape, &error)));
    }
    if let Some(name) = schemas.clash {
        return Err(OpenApiError::Name(name));
    }
    let mut components = ComponentsBuilder::new().schemas_from_iter(schemas.known);
    for (name, about) in SCHEMES {
        let scheme = Http::builder().scheme(HttpAuthScheme::Bearer).description(Some(about)).build();
        components = components.security_scheme(name, SecurityScheme::Http(scheme));
    }
    let info = InfoBuilder::new()
        .title("Forgeyard")
        .version("1")
        .description(Some(ABOUT))
        .license(Some(License::new("Apache-2.0 OR MIT")))
        .build();
    let document =
        OpenApiBuilder::new().info(info).paths(paths.build()).components(Some(components.build())).build();
    let mut text = document.to_pretty_json()?;
    text.push('\n');
    Ok(text)
}

const ABOUT: &str = "The contract of a farm with people and programs (`/api/v1`), with sites (`/site/v1`) and with \
agents (`/agent/v1`), and what forges and package clients use. Every answer that is no success is an `ApiError`. \
Times are microseconds since the Unix epoch, in UTC.";

const SCHEMES: [(&str, &str); 3] = [
    ("token", "An API token. What it may do depends on its role: viewer, maintainer, operator, admin."),
    ("site", "The token that a site got when it joined."),
    ("session", "The session token that an agent got for its one-shot token; for one attempt only."),
];

fn operation(route: &Route, shape: Shape, error: &AnySchema) -> Operation {
    let mut operation = OperationBuilder::new()
        .tag(tag(route.path))
        .operation_id(Some(operation_id(route)))
        .summary(Some(route.summary))
        .description(Some(who(route.who)));
    for name in path_parameters(route.path) {
        let schema = ObjectBuilder::new().schema_type(Type::String);
        operation = operation.parameter(parameter(name, ParameterIn::Path, true, schema.into(), ""));
    }
    for parameter in shape.query {
        operation = operation.parameter(parameter);
    }
    if let Some(takes) = shape.takes {
        operation = operation.request_body(Some(request(takes)));
    }
    operation = operation.response(shape.status, response(shape.gives));
    for (status, about) in refusals(route) {
        let content = ContentBuilder::new().schema(Some(error.clone())).build();
        operation = operation
            .response(status, ResponseBuilder::new().description(about).content("application/json", content));
    }
    match security(route.who) {
        Some(name) => operation.security(SecurityRequirement::new::<_, [&str; 0], &str>(name, [])).build(),
        None => operation.build(),
    }
}

fn raw() -> AnySchema {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .format(Some(SchemaFormat::Custom("binary".to_owned())))
        .into()
}

fn contents(body: Body) -> Vec<(&'static str, AnySchema)> {
    match body {
        Body::Json(schema) => vec![("application/json", *schema)],
        Body::Raw(kinds) => kinds.iter().map(|kind| (*kind, raw())).collect(),
    }
}

fn request(body: Body) -> RequestBody {
    let mut request = RequestBodyBuilder::new().required(Some(Required::True));
    for (kind, schema) in contents(body) {
        request = request.content(kind, ContentBuilder::new().schema(Some(schema)).build());
    }
    request.build()
}

fn response(body: Body) -> Response {
    let mut response = ResponseBuilder::new().description("Done.");
    for (kind, schema) in contents(body) {
        response = response.content(kind, ContentBuilder::new().schema(Some(schema)).build());
    }
    response.build()
}

/// Statuses that a caller should be ready for. Any other is an `ApiError` as well.
fn refusals(route: &Route) -> Vec<(&'static str, &'static str)> {
    let mut all = vec![("default", "Refused, with code, reason and what to do.")];
    match route.who {
        Who::Anybody => {}
        Who::Token(_) | Who::Site => all.push(("401", "No or no valid token.")),
        Who::Joining => all.push(("403", "The join token is not that of this farm.")),
        Who::Redeeming => all.extend([
            ("401", "The token is not one of this farm."),
            ("403", "The token was redeemed already, by another nonce or before the first heartbeat."),
            ("410", "The attempt is over."),
        ]),
        Who::Agent => all.extend([
            ("403", "The session token is not that of this attempt."),
            ("410", "The attempt is over or superseded; stop."),
        ]),
        Who::Forge => all.extend([
            ("401", "The signature is missing or does not fit the body."),
            ("413", "The body has more than 25 MiB."),
            ("503", "It could not be stored in time; nothing was acknowledged. Send it again."),
            ("507", "The disk is full; nothing was stored."),
        ]),
    }
    if matches!(route.who, Who::Token(role) if role > forgeyard_model::principal::Role::Viewer) {
        all.push(("403", "The role of the token is too low."));
    }
    if route.method == Method::Put {
        all.extend([
            ("413", "The body is larger than the farm takes."),
            ("422", "The bytes have another digest; nothing was recorded."),
            ("507", "No space is left; nothing was stored."),
        ]);
    }
    if route.path.contains('{') && route.method == Method::Get {
        all.push(("404", "There is no such thing."));
    }
    all
}

fn tag(path: &str) -> &'static str {
    match path.split('/').nth(1) {
        Some("api") => "people and programs",
        Some("site") => "sites",
        Some("agent") => "agents",
        Some("webhooks") => "forges",
        Some("channels") => "channels",
        _ => "operation",
    }
}

fn who(who: Who) -> String {
    match who {
        Who::Anybody => "Needs no token.".to_owned(),
        Who::Token(role) => format!("Needs an API token with at least the role {role}."),
        Who::Joining => "Needs the farm's join token, in the body.".to_owned(),
        Who::Site => "Needs the token of the site.".to_owned(),
        Who::Redeeming => "Needs the one-shot token of the attempt, in the body.".to_owned(),
        Who::Agent => "Needs the session token of exactly this attempt.".to_owned(),
        Who::Forge => {
            "Needs the header `X-Hub-Signature-256`, `X-GitHub-Event` and `X-GitHub-Delivery`.".to_owned()
        }
    }
}

fn security(who: Who) -> Option<&'static str> {
    match who {
        Who::Token(_) => Some("token"),
        Who::Site => Some("site"),
        Who::Agent => Some("session"),
        Who::Anybody | Who::Joining | Who::Redeeming | Who::Forge => None,
    }
}

fn path_parameters(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

/// `get_api_v1_jobs_id_why`: the same for as long as the route is the same.
fn operation_id(route: &Route) -> String {
    let words = route.path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let words: Vec<&str> = words.collect();
    format!("{}_{}", route.method.as_str().to_ascii_lowercase(), words.join("_"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeSet;

    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                if let Some(target) = fields.get("$ref").and_then(Value::as_str) {
                    found.insert(target.trim_start_matches("#/components/schemas/").to_owned());
                }
                fields.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn document_describes_every_route_and_every_reference_in_it_is_there() {
        let document: Value = serde_json::from_str(&document().unwrap()).unwrap();
        assert_eq!(document["openapi"], "3.1.0");
        for route in ROUTES {
            let method = route.method.as_str().to_ascii_lowercase();
            let operation = &document["paths"][route.path][method];
            assert_eq!(operation["summary"], route.summary, "{}", route.path);
            assert!(operation["responses"]["default"].is_object(), "{}", route.path);
        }
        let mut wanted = BTreeSet::new();
        references(&document, &mut wanted);
        let known = document["components"]["schemas"].as_object().unwrap();
        for name in wanted {
            assert!(known.contains_key(&name), "{name} is referred to and not described");
        }
    }

    #[test]
    fn operation_ids_are_different() {
        let ids: BTreeSet<_> = ROUTES.iter().map(operation_id).collect();
        assert_eq!(ids.len(), ROUTES.len());
    }
}
