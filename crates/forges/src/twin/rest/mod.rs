//! REST of the simulated GitHub: which path is which call. Paths are without the prefix of an Enterprise Server.
//!
//! A call that is not simulated is answered 404 with a message that says so, and never with something made up.

mod app;
mod checks;
mod hooks;
mod repositories;
mod runners;
mod runs;

use super::auth::Caller;
use super::calls::{Reply, Request};
use super::runners::Scope;
use super::state::State;
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use serde_json::json;

/// Who calls what.
pub(super) struct Context<'a> {
    pub(super) request: &'a Request,
    pub(super) caller: Caller,
    /// Path without the prefix.
    pub(super) path: &'a str,
}

impl Context<'_> {
    /// Size and number of the page that is asked for.
    fn page(&self) -> (usize, usize) {
        let number = |name: &str| self.request.number(name).and_then(|number| usize::try_from(number).ok());
        let size = number("per_page").unwrap_or(30).clamp(1, 100);
        (size, number("page").unwrap_or(1).max(1))
    }
}

impl State {
    pub(super) fn rest(&mut self, request: &Request, path: &str) -> Reply {
        let caller = self.caller_name(request);
        let mut reply = match self.charge(&caller, request, path) {
            Err(limited) => limited,
            Ok(()) => self.rest_call(request, path).unwrap_or_else(|error| error),
        };
        self.conditional(&caller, request, path, &mut reply);
        self.limit_headers(&caller, path, &mut reply);
        self.numbers.timer += 1;
        let id = format!("5150:C0DE:{:06X}", self.numbers.timer);
        let now =
            jiff::Timestamp::from_microsecond(self.now.as_micros()).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        let date =
            jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&now).unwrap_or_default();
        reply.with("x-github-request-id", id).with("server", "simulated-github").with("date", date)
    }

    fn rest_call(&mut self, request: &Request, path: &str) -> Result<Reply, Reply> {
        let caller = self.caller(request)?;
        let context = Context { request, caller, path };
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        match parts.as_slice() {
            ["rate_limit"] => {
                let name = self.caller_name(request);
                Ok(Reply::json(200, &self.rate_limit_json(&name)))
            }
            ["meta"] => Ok(Reply::json(200, &json!({ "verifiable_password_authentication": false }))),
            ["app" | "app-manifests" | "installation" | "users" | "user", ..] => {
                self.app_calls(&context, &parts)
            }
            ["orgs", org, rest @ ..] => {
                let org = self.account_by_login(org).ok_or_else(Reply::not_found)?.id;
                self.org_calls(&context, org, rest)
            }
            ["repos", owner, name, rest @ ..] => {
                let found = self.repository_by_name(&format!("{owner}/{name}"));
                let id = found.ok_or_else(Reply::not_found)?.id;
                self.repository_calls(&context, id, rest)
            }
            // Runner endpoints of enterprises take classic personal tokens only (runners.md §3.3).
            ["enterprises", ..] if matches!(context.caller, Caller::Installation { .. }) => {
                Err(Reply::message(403, "Resource not accessible by integration"))
            }
            _ => Err(not_simulated()),
        }
    }

    fn org_calls(&mut self, context: &Context<'_>, org: u64, rest: &[&str]) -> Result<Reply, Reply> {
        match rest {
            ["installation"] => self.installation_of(context, org, None),
            ["actions", "runners", rest @ ..] => {
                self.runner_calls(context, Scope::Organization(org), org, rest)
            }
            ["actions", "runner-groups", rest @ ..] => self.group_calls(context, org, rest),
            ["hooks", rest @ ..] => {
                self.require(&context.caller, "organization_hooks", "read", org, None)?;
                self.hook_calls(context, super::hooks::HookOwner::Organization(org), rest)
            }
            _ => Err(not_simulated()),
        }
    }

    fn repository_calls(&mut self, context: &Context<'_>, id: u64, rest: &[&str]) -> Result<Reply, Reply> {
        let owner = self.repositories.get(&id).map_or(0, |one| one.owner);
        match rest {
            ["installation"] => self.installation_of(context, owner, Some(id)),
            ["actions", "runners", rest @ ..] => {
                self.runner_calls(context, Scope::Repository(id), owner, rest)
            }
            ["actions", "runs" | "jobs", ..] => self.run_calls(context, owner, id, rest),
            ["check-runs", ..] | ["commits", _, "check-runs"] => self.check_calls(context, owner, id, rest),
            ["hooks", rest @ ..] => {
                self.require(&context.caller, "repository_hooks", "read", owner, Some(id))?;
                self.hook_calls(context, super::hooks::HookOwner::Repository(id), rest)
            }
            _ => self.plain_repository_calls(context, owner, id, rest),
        }
    }

    /// A page of a list, with `total_count` and the header `link`.
    pub(super) fn listed(&self, context: &Context<'_>, name: &str, all: &[impl Serialize]) -> Reply {
        let (size, page) = context.page();
        let from = (page - 1).saturating_mul(size);
        let mut reply =
            Reply::json(200, &Listed { name, items: all.iter().skip(from).take(size), of: all.len() });
        if from.saturating_add(size) < all.len() {
            reply = reply.with("link", self.link(context, &[("page", (page + 1).to_string())]));
        }
        reply
    }

    /// The `link` header to the next page: the same query with these values.
    pub(super) fn link(&self, context: &Context<'_>, with: &[(&str, String)]) -> String {
        let mut query = context.request.query.clone();
        query.extend(with.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        let query: Vec<String> = query.iter().map(|(name, value)| format!("{name}={value}")).collect();
        format!("<{}{}?{}>; rel=\"next\"", self.urls.api, context.path, query.join("&"))
    }
}

/// A page of a list, under the name that GitHub gives such lists.
struct Listed<'a, I> {
    name: &'a str,
    items: I,
    of: usize,
}

impl<I: Iterator<Item: Serialize> + Clone> Serialize for Listed<'_, I> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        struct Items<I>(I);
        impl<I: Iterator<Item: Serialize> + Clone> Serialize for Items<I> {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_seq(self.0.clone())
            }
        }
        let mut fields = to.serialize_map(Some(2))?;
        fields.serialize_entry("total_count", &self.of)?;
        fields.serialize_entry(self.name, &Items(self.items.clone()))?;
        fields.end()
    }
}

pub(super) fn not_simulated() -> Reply {
    Reply::message(404, "Not Found (this call is not simulated)")
}

pub(super) fn id_of(text: &str) -> Result<u64, Reply> {
    text.parse().map_err(|_| Reply::not_found())
}
