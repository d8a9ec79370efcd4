//! Calls about check runs.

use super::super::auth::Caller;
use super::super::calls::Reply;
use super::super::checks::CheckRun;
use super::super::state::State;
use super::{Context, id_of, not_simulated};
use serde_json::Value;

impl State {
    pub(super) fn check_calls(
        &mut self,
        context: &Context<'_>,
        owner: u64,
        repository: u64,
        rest: &[&str],
    ) -> Result<Reply, Reply> {
        let method = context.request.method.as_str();
        let level = if method == "GET" { "read" } else { "write" };
        self.require(&context.caller, "checks", level, owner, Some(repository))?;
        match (method, rest) {
            ("POST", ["check-runs"]) => {
                let app = match &context.caller {
                    Caller::Installation { id, .. } => self.installations.get(id).map_or(0, |row| row.app),
                    _ => return Err(Reply::message(403, "You must authenticate via a GitHub App.")),
                };
                let body = context.request.parse()?;
                let name = body.get("name").and_then(Value::as_str);
                let sha = body.get("head_sha").and_then(Value::as_str);
                if name.is_none() {
                    return Err(Reply::invalid("name", "missing_field"));
                }
                let sha = sha.ok_or_else(|| Reply::invalid("head_sha", "missing_field"))?.to_owned();
                well_formed(&body)?;
                let id = self.add_check(repository, app, &sha, body);
                Ok(self.check_reply(201, id))
            }
            ("PATCH", ["check-runs", id]) => {
                let id = self.check_of(repository, id_of(id)?)?;
                let body = context.request.parse()?;
                well_formed(&body)?;
                self.change_check(id, &body);
                Ok(self.check_reply(200, id))
            }
            ("GET", ["check-runs", id]) => {
                let id = self.check_of(repository, id_of(id)?)?;
                Ok(self.check_reply(200, id))
            }
            ("GET", ["commits", sha, "check-runs"]) => {
                let name = context.request.query.get("check_name");
                let fits = |row: &&CheckRun| {
                    row.repository == repository
                        && row.head_sha == *sha
                        && name
                            .is_none_or(|name| row.fields.get("name").and_then(Value::as_str) == Some(name))
                };
                let all: Vec<Value> =
                    self.checks.values().filter(fits).map(|row| self.check_json(row)).collect();
                Ok(self.listed(context, "check_runs", &all))
            }
            _ => Err(not_simulated()),
        }
    }

    fn check_of(&self, repository: u64, id: u64) -> Result<u64, Reply> {
        match self.checks.get(&id) {
            Some(row) if row.repository == repository => Ok(id),
            _ => Err(Reply::not_found()),
        }
    }

    fn check_reply(&self, status: u16, id: u64) -> Reply {
        Reply::json(status, &self.checks.get(&id).map_or(Value::Null, |row| self.check_json(row)))
    }
}

/// What GitHub refuses: more than three buttons, a completed check run without conclusion.
fn well_formed(body: &Value) -> Result<(), Reply> {
    if body.get("actions").and_then(Value::as_array).is_some_and(|actions| actions.len() > 3) {
        return Err(Reply::invalid("actions", "invalid"));
    }
    let completed = body.get("status").and_then(Value::as_str) == Some("completed");
    if completed && body.get("conclusion").is_none_or(Value::is_null) {
        return Err(Reply::invalid("conclusion", "missing_field"));
    }
    if let Some(output) = body.get("output")
        && output.get("summary").and_then(Value::as_str).is_none()
    {
        return Err(Reply::invalid("output.summary", "missing_field"));
    }
    Ok(())
}
