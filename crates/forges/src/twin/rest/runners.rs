//! Calls about runners and their groups.

use super::super::auth::Opens;
use super::super::calls::Reply;
use super::super::clock::iso;
use super::super::runners::{MintError, RemoveError, RunnerRow, RunnerSpec, Scope};
use super::super::state::State;
use super::{Context, id_of, not_simulated};
use serde_json::{Value, json};

impl State {
    pub(super) fn runner_calls(
        &mut self,
        context: &Context<'_>,
        scope: Scope,
        account: u64,
        rest: &[&str],
    ) -> Result<Reply, Reply> {
        let method = context.request.method.as_str();
        let level = if method == "GET" { "read" } else { "write" };
        let (permission, repository) = match scope {
            Scope::Organization(_) => ("organization_self_hosted_runners", None),
            Scope::Repository(id) => ("administration", Some(id)),
        };
        self.require(&context.caller, permission, level, account, repository)?;
        match (method, rest) {
            ("POST", ["generate-jitconfig"]) => self.generate_jit(context, scope),
            ("POST", ["registration-token" | "remove-token"]) => {
                let life = self.setup.registration_token_validity;
                let (token, expires_at) = self.give_token("A", Opens::Registration(scope), life);
                Ok(Reply::json(201, &json!({ "token": token, "expires_at": iso(expires_at) })))
            }
            ("GET", []) => {
                let name = context.request.query.get("name");
                let fits = |row: &&RunnerRow| {
                    row.scope == scope && name.is_none_or(|name| name.eq_ignore_ascii_case(&row.name))
                };
                let all: Vec<Value> =
                    self.runners.values().filter(fits).map(|row| self.runner_json(row, true)).collect();
                Ok(self.listed(context, "runners", &all))
            }
            ("GET", ["downloads"]) => Ok(Reply::json(200, &self.downloads())),
            ("GET", [id]) => {
                let id = id_of(id)?;
                let row = self.runners.get(&id).filter(|row| row.scope == scope);
                Ok(Reply::json(200, &self.runner_json(row.ok_or_else(Reply::not_found)?, false)))
            }
            ("DELETE", [id]) => {
                let id = id_of(id)?;
                if self.runners.get(&id).is_none_or(|row| row.scope != scope) {
                    return Err(Reply::not_found());
                }
                match self.remove_runner(id) {
                    Ok(()) => Ok(Reply::empty(204)),
                    Err(error @ RemoveError::JobStillRunning { .. }) => {
                        Err(Reply::unprocessable(&error.to_string()))
                    }
                    Err(RemoveError::Unknown) => Err(Reply::not_found()),
                }
            }
            _ => Err(not_simulated()),
        }
    }

    fn generate_jit(&mut self, context: &Context<'_>, scope: Scope) -> Result<Reply, Reply> {
        let body = context.request.parse()?;
        let name = body.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| Reply::invalid_text("`name` wasn't supplied."))?.to_owned();
        let group = body.get("runner_group_id").and_then(Value::as_u64);
        let group = group.ok_or_else(|| Reply::invalid_text("`runner_group_id` wasn't supplied."))?;
        let labels: Vec<String> = body
            .get("labels")
            .and_then(Value::as_array)
            .map(|labels| labels.iter().filter_map(Value::as_str).map(str::to_owned).collect())
            .unwrap_or_default();
        if labels.is_empty() || labels.len() > 100 {
            return Err(Reply::invalid_text("`labels` takes 1 to 100 labels."));
        }
        let work_folder = body.get("work_folder").and_then(Value::as_str).unwrap_or("_work").to_owned();
        let spec = RunnerSpec { scope, name, group, labels, work_folder, set: None };
        let (id, encoded) = self.mint_jit(spec).map_err(|error| {
            let status = match &error {
                MintError::NameTaken { .. } => 409,
                MintError::NoGroup => 404,
                MintError::HostedGroup
                | MintError::GroupFull { .. }
                | MintError::OwnRunnersDisabled
                | MintError::ActionsDisabled => 403,
            };
            Reply::message(status, &error.to_string())
        })?;
        let runner = self.runners.get(&id).map_or(Value::Null, |row| self.runner_json(row, false));
        Ok(Reply::json(201, &json!({ "runner": runner, "encoded_jit_config": encoded })))
    }

    /// Programs that nobody can download: they are simulated.
    fn downloads(&self) -> Value {
        let program = |os: &str, architecture: &str| {
            let filename = format!("actions-runner-{os}-{architecture}-0.0.0-simulated.tar.gz");
            json!({
                "os": os,
                "architecture": architecture,
                "download_url": format!("{}/simulated-downloads/{filename}", self.urls.html),
                "filename": filename,
                "sha256_checksum": "0".repeat(64),
            })
        };
        json!([program("linux", "x64"), program("linux", "arm64"), program("win", "x64")])
    }

    pub(super) fn group_calls(
        &mut self,
        context: &Context<'_>,
        org: u64,
        rest: &[&str],
    ) -> Result<Reply, Reply> {
        let method = context.request.method.as_str();
        let level = if method == "GET" { "read" } else { "write" };
        self.require(&context.caller, "organization_self_hosted_runners", level, org, None)?;
        match (method, rest) {
            ("GET", []) => {
                let mut all = vec![self.group_json(org, 1), self.group_json(org, 2)];
                let own = self.groups.values().filter(|group| group.organization == org);
                all.extend(own.map(|group| self.group_json(org, group.id)));
                Ok(self.listed(context, "runner_groups", &all))
            }
            ("POST", []) => {
                let body = context.request.parse()?;
                let name = body.get("name").and_then(Value::as_str);
                let name = name.ok_or_else(|| Reply::invalid("name", "missing_field"))?;
                let selected = body.get("selected_repository_ids").and_then(Value::as_array);
                let selected = selected.map(|ids| ids.iter().filter_map(Value::as_u64).collect());
                let id = self.add_group(org, name, selected);
                Ok(Reply::json(201, &self.group_json(org, id)))
            }
            ("GET", [id]) => {
                let id = id_of(id)?;
                if id > 2 && self.groups.get(&id).is_none_or(|group| group.organization != org) {
                    return Err(Reply::not_found());
                }
                Ok(Reply::json(200, &self.group_json(org, id)))
            }
            _ => Err(not_simulated()),
        }
    }

    fn group_json(&self, org: u64, id: u64) -> Value {
        let group = self.groups.get(&id);
        let login = self.accounts.get(&org).map_or("", |account| account.login.as_str());
        let selected = group.is_some_and(|group| group.selected.is_some());
        json!({
            "id": id,
            "name": self.group_name(id),
            "visibility": if selected { "selected" } else { "all" },
            "default": id == 1,
            "runners_url": format!("{}/orgs/{login}/actions/runner-groups/{id}/runners", self.urls.api),
            "inherited": false,
            "allows_public_repositories": group.is_none_or(|group| group.public_repositories),
            "restricted_to_workflows": false,
            "selected_workflows": [],
            "workflow_restrictions_read_only": false,
        })
    }
}
