//! The actions service of the simulated GitHub: scale sets, sessions, the message queue, runners, and the wire of the
//! stand-in runner program.
//!
//! Errors carry `typeName` and `message`, as clients of the real service read them. Paths under `/_simulated/` are ours:
//! they stand for the protocol between the service and the real runner program, which is not public.

use super::auth::Opens;
use super::calls::{Outcome, Reply, Request};
use super::jobs::Conclusion;
use super::runners::{MintError, RemoveError, RunnerSpec, Scope};
use super::scale_sets::SetError;
use super::state::State;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

/// An error of the actions service.
fn exception(status: u16, name: &str, message: &str) -> Reply {
    Reply::json(
        status,
        &json!({
            "$id": "1",
            "innerException": null,
            "message": message,
            "typeName": format!("GitHub.Actions.Runtime.WebApi.{name}, GitHub.Actions.Runtime.WebApi"),
            "typeKey": name,
            "errorCode": 0,
            "eventId": 3000,
        }),
    )
    .with("activityid", "5150c0de-0000-4000-8000-000000000000")
}

fn unauthorized() -> Reply {
    exception(401, "VssUnauthorizedException", "the token is not valid, or is no longer valid")
}

impl State {
    /// Step 2 of the chain: a registration token opens an admin connection.
    pub(super) fn runner_registration(&mut self, request: &Request) -> Result<Reply, Reply> {
        let token = request.authorization("remoteauth").unwrap_or_default();
        let scope = match self.token(token).map(|token| &token.opens) {
            Some(Opens::Registration(scope)) => *scope,
            _ => return Err(Reply::message(401, "Bad credentials")),
        };
        let body = request.parse()?;
        let url = body.get("url").and_then(Value::as_str).unwrap_or_default();
        if self.scope_of_page(url) != Some(scope) || body.get("runner_event").is_none() {
            return Err(Reply::message(404, "Not Found: the url names nothing that this token is for"));
        }
        let life = self.setup.admin_token_validity;
        let (text, expires_at) = self.give_token("", Opens::Admin(scope), life);
        // Clients read `exp` out of the token, so it has the form of a JWT; only its text opens anything.
        let claims = json!({ "exp": expires_at.as_micros() / 1_000_000, "simulated": text }).to_string();
        let jwt = format!(
            "{}.{}.{}",
            URL_SAFE_NO_PAD.encode(r#"{"alg":"none","typ":"JWT"}"#),
            URL_SAFE_NO_PAD.encode(claims),
            URL_SAFE_NO_PAD.encode(&text)
        );
        if let Some(token) = self.tokens.remove(&text) {
            self.tokens.insert(jwt.clone(), token);
        }
        let mut reply = Reply::json(200, &json!({ "url": self.urls.actions, "token": jwt }));
        if self.setup.byte_order_mark {
            reply.body.splice(0..0, [0xef, 0xbb, 0xbf]);
        }
        Ok(reply)
    }

    /// What `http://…/org` or `http://…/org/repo` names.
    fn scope_of_page(&self, url: &str) -> Option<Scope> {
        let path = url.strip_prefix(&self.urls.html)?.trim_matches('/');
        if path.contains('/') {
            return self.repository_by_name(path).map(|one| Scope::Repository(one.id));
        }
        self.account_by_login(path).map(|one| Scope::Organization(one.id))
    }

    pub(super) fn actions_service(&mut self, request: &Request, path: &str) -> Outcome {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let answer = match parts.as_slice() {
            ["_apis", "runtime", "simulated-queue", session, "messages", rest @ ..] => {
                return self.queue(request, session, rest).unwrap_or_else(Outcome::Answer);
            }
            ["_simulated", "runner", rest @ ..] => {
                return self.runner_wire(request, rest).unwrap_or_else(Outcome::Answer);
            }
            ["_apis", rest @ ..] => self.admin(request, rest),
            _ => Err(exception(404, "VssResourceNotFoundException", "no simulated resource is here")),
        };
        Outcome::Answer(answer.unwrap_or_else(|error| error))
    }

    /// Calls with the token of the admin connection.
    fn admin(&mut self, request: &Request, parts: &[&str]) -> Result<Reply, Reply> {
        let token = request.authorization("bearer").unwrap_or_default();
        let opens = self.token(token).map(|token| token.opens.clone()).ok_or_else(unauthorized)?;
        if let (["runtime", "runnerscalesets", set, "acquirejobs"], Opens::Queue(session)) = (parts, &opens) {
            return self.acquire_call(request, number(set)?, session);
        }
        let Opens::Admin(scope) = opens else { return Err(unauthorized()) };
        let method = request.method.as_str();
        match (method, parts) {
            ("GET", ["runtime", "runnergroups"]) => Ok(self.groups_call(request, scope)),
            ("GET", ["runtime", "runnerscalesets"]) => Ok(self.sets_call(request, scope)),
            ("POST", ["runtime", "runnerscalesets"]) => self.make_set(request, scope),
            (_, ["runtime", "runnerscalesets", id, rest @ ..]) => {
                let id = number(id)?;
                if self.sets.rows.get(&id).is_none_or(|set| set.scope != scope) {
                    let text = format!("no runner scale set has the id {id}");
                    return Err(exception(404, "RunnerScaleSetNotFoundException", &text));
                }
                self.set_call(request, scope, id, rest)
            }
            ("GET", ["distributedtask", "pools", "0", "agents"]) => Ok(self.agents_call(request, scope)),
            (_, ["distributedtask", "pools", "0", "agents", id]) => {
                self.agent_call(method, scope, number(id)?)
            }
            _ => Err(exception(404, "VssResourceNotFoundException", "no simulated resource is here")),
        }
    }

    fn groups_call(&self, request: &Request, scope: Scope) -> Reply {
        let mut all = vec![(1, "Default".to_owned())];
        if let Scope::Organization(owner) = scope {
            let own = self.groups.values().filter(|group| group.organization == owner);
            all.extend(own.map(|group| (group.id, group.name.clone())));
        }
        if let Some(name) = request.query.get("groupName") {
            all.retain(|(_, one)| one.eq_ignore_ascii_case(name));
        }
        let value: Vec<Value> = all
            .iter()
            .map(|(id, name)| json!({ "id": id, "name": name, "isDefaultGroup": *id == 1 }))
            .collect();
        Reply::json(200, &json!({ "count": value.len(), "value": value }))
    }

    fn sets_call(&self, request: &Request, scope: Scope) -> Reply {
        let group = request.number("runnerGroupId");
        let name = request.query.get("name");
        let fits = |set: &&super::scale_sets::ScaleSet| {
            set.scope == scope
                && group.is_none_or(|group| group == set.group)
                && name.is_none_or(|name| name.eq_ignore_ascii_case(&set.name))
        };
        let value: Vec<Value> =
            self.sets.rows.values().filter(fits).map(|set| self.scale_set_json(set)).collect();
        Reply::json(200, &json!({ "count": value.len(), "value": value }))
    }

    fn make_set(&mut self, request: &Request, scope: Scope) -> Result<Reply, Reply> {
        let body = request.parse()?;
        let name = body.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let group = body.get("runnerGroupId").and_then(Value::as_u64).unwrap_or(1);
        let labels = body.get("labels").and_then(Value::as_array).cloned().unwrap_or_default();
        let labels = labels
            .iter()
            .filter_map(|label| label.get("name").and_then(Value::as_str).map(str::to_owned))
            .collect();
        let settings = body.get("RunnerSetting").cloned().unwrap_or_else(|| json!({}));
        match self.add_scale_set(scope, group, &name, labels, settings) {
            Ok(id) => Ok(self.set_reply(id)),
            Err(error @ SetError::NameTaken(_)) => {
                Err(exception(409, "RunnerScaleSetExistsException", &error.to_string()))
            }
            Err(error) => Err(exception(400, "ArgumentException", &error.to_string())),
        }
    }

    fn set_reply(&self, id: u64) -> Reply {
        let body = self.sets.rows.get(&id).map_or(Value::Null, |set| self.scale_set_json(set));
        Reply::json(200, &body)
    }

    fn set_call(&mut self, request: &Request, scope: Scope, id: u64, rest: &[&str]) -> Result<Reply, Reply> {
        match (request.method.as_str(), rest) {
            ("GET", []) => Ok(self.set_reply(id)),
            ("PATCH", []) => {
                let body = request.parse()?;
                if let Some(set) = self.sets.rows.get_mut(&id) {
                    // Labels stay: they cannot be changed later (GARM).
                    if let Some(name) = body.get("name").and_then(Value::as_str) {
                        set.name = name.to_owned();
                    }
                    if let Some(group) = body.get("runnerGroupId").and_then(Value::as_u64) {
                        set.group = group;
                    }
                    if let Some(settings) = body.get("RunnerSetting") {
                        set.settings = settings.clone();
                    }
                }
                Ok(self.set_reply(id))
            }
            ("DELETE", []) => {
                self.remove_scale_set(id);
                Ok(Reply::empty(204))
            }
            ("POST", ["sessions"]) => {
                let body = request.parse()?;
                let owner = body.get("ownerName").and_then(Value::as_str).unwrap_or_default().to_owned();
                match self.open_session(id, &owner) {
                    Some(session) => Ok(self.session_reply(id, &session)),
                    None => {
                        let text = format!("the runner scale set {id} has an open session");
                        Err(exception(409, "RunnerScaleSetSessionConflictException", &text))
                    }
                }
            }
            ("PATCH", ["sessions", session]) => match self.session_seen(session) {
                Some(set) if set == id => Ok(self.session_reply(id, session)),
                _ => Err(exception(404, "RunnerScaleSetSessionNotFoundException", "no such session")),
            },
            ("DELETE", ["sessions", session]) => {
                if self.session_seen(session) == Some(id) {
                    self.drop_session(id);
                }
                Ok(Reply::empty(204))
            }
            ("POST", ["generatejitconfig"]) => self.set_jit(request, scope, id),
            _ => Err(exception(404, "VssResourceNotFoundException", "no simulated resource is here")),
        }
    }

    pub(super) fn session_reply(&mut self, set: u64, session: &str) -> Reply {
        let life = self.setup.queue_token_validity;
        let (token, _) = self.give_token("queue-", Opens::Queue(session.to_owned()), life);
        let url = format!("{}/_apis/runtime/simulated-queue/{session}/messages", self.urls.actions);
        let row = self.sets.rows.get(&set);
        let owner = row.and_then(|row| row.session.as_ref()).map(|open| open.owner.clone());
        let body = json!({
            "sessionId": session,
            "ownerName": owner,
            "runnerScaleSet": row.map(|row| self.scale_set_json(row)),
            "messageQueueUrl": url,
            "messageQueueAccessToken": token,
            "statistics": self.statistics(set),
        });
        Reply::json(200, &body)
    }

    fn set_jit(&mut self, request: &Request, scope: Scope, id: u64) -> Result<Reply, Reply> {
        let body = request.parse()?;
        let text = |name: &str| body.get(name).and_then(Value::as_str).map(str::to_owned);
        let Some(set) = self.sets.rows.get(&id) else { return Err(unauthorized()) };
        let spec = RunnerSpec {
            scope,
            name: text("name").unwrap_or_default(),
            group: set.group,
            labels: set.labels.clone(),
            work_folder: text("workFolder").unwrap_or_else(|| "_work".to_owned()),
            set: Some(id),
        };
        if spec.name.is_empty() {
            return Err(exception(400, "ArgumentException", "the runner needs a name"));
        }
        let name = spec.name.clone();
        match self.mint_jit(spec) {
            Ok((runner, encoded)) => {
                let body = json!({
                    "runner": { "id": runner, "name": name, "runnerScaleSetId": id },
                    "encodedJITConfig": encoded,
                });
                Ok(Reply::json(200, &body))
            }
            Err(error @ MintError::NameTaken { .. }) => {
                Err(exception(409, "AgentExistsException", &error.to_string()))
            }
            Err(error) => Err(exception(403, "AccessDeniedException", &error.to_string())),
        }
    }

    fn agents_call(&self, request: &Request, scope: Scope) -> Reply {
        let name = request.query.get("agentName");
        let value: Vec<Value> = self
            .runners
            .values()
            .filter(|row| row.scope == scope && name.is_none_or(|name| name.eq_ignore_ascii_case(&row.name)))
            .map(agent_json)
            .collect();
        Reply::json(200, &json!({ "count": value.len(), "value": value }))
    }

    fn agent_call(&mut self, method: &str, scope: Scope, id: u64) -> Result<Reply, Reply> {
        let row = self.runners.get(&id).filter(|row| row.scope == scope);
        match (method, row) {
            ("GET", Some(row)) => Ok(Reply::json(200, &agent_json(row))),
            ("GET", None) => {
                Err(exception(404, "AgentNotFoundException", &format!("no agent has the id {id}")))
            }
            // Also when the id is unknown (ARC decision record of 2022-12-27).
            ("DELETE", None) => Ok(Reply::empty(204)),
            ("DELETE", Some(_)) => match self.remove_runner(id) {
                Err(error @ RemoveError::JobStillRunning { .. }) => {
                    Err(exception(400, "JobStillRunningException", &error.to_string()))
                }
                _ => Ok(Reply::empty(204)),
            },
            _ => Err(exception(405, "VssServiceException", "no such method")),
        }
    }

    fn acquire_call(&mut self, request: &Request, set: u64, session: &str) -> Result<Reply, Reply> {
        if self.session_seen(session) != Some(set) {
            return Err(unauthorized());
        }
        let body = request.parse()?;
        let ids: Vec<u64> =
            body.as_array().map(|ids| ids.iter().filter_map(Value::as_u64).collect()).unwrap_or_default();
        let taken = self.acquire(set, &ids);
        Ok(Reply::json(200, &json!({ "count": taken.len(), "value": taken })))
    }

    /// The message queue, with the token of the session.
    fn queue(&mut self, request: &Request, session: &str, rest: &[&str]) -> Result<Outcome, Reply> {
        let token = request.authorization("bearer").unwrap_or_default();
        let opens = self.token(token).map(|token| &token.opens);
        if !matches!(opens, Some(Opens::Queue(of)) if of == session) {
            return Err(unauthorized());
        }
        let Some(set) = self.session_seen(session) else {
            return Err(exception(404, "RunnerScaleSetSessionNotFoundException", "the session has lapsed"));
        };
        match (request.method.as_str(), rest) {
            ("GET", []) => {
                if let Some(row) = self.sets.rows.get_mut(&set) {
                    let capacity = request.headers.get("x-scalesetmaxcapacity");
                    row.capacity = capacity.and_then(|text| text.parse().ok()).or(row.capacity);
                }
                self.settle();
                let last = request.number("lastMessageId").unwrap_or(0);
                Ok(match self.next_message(set, last) {
                    Some(message) => Outcome::Answer(Reply::json(200, &message)),
                    None => Outcome::Hold(self.now.plus(self.setup.poll_hold)),
                })
            }
            ("DELETE", [id]) => {
                let id = number(id)?;
                if let Some(row) = self.sets.rows.get_mut(&set) {
                    row.messages.remove(&id);
                }
                Ok(Outcome::Answer(Reply::empty(204)))
            }
            _ => Err(exception(405, "VssServiceException", "no such method")),
        }
    }

    /// The wire of the stand-in runner program.
    fn runner_wire(&mut self, request: &Request, rest: &[&str]) -> Result<Outcome, Reply> {
        let body = request.parse()?;
        if rest == ["connect"] {
            let encoded = body.get("jit").and_then(Value::as_str).unwrap_or_default();
            let id = self
                .connect(encoded)
                .map_err(|error| exception(409, "TaskAgentSessionConflictException", &error.to_string()))?;
            let name = self.runners.get(&id).map(|row| row.name.clone());
            let (token, _) =
                self.give_token("runner-", Opens::Runner(id), std::time::Duration::from_secs(5 * 86_400));
            let body = json!({ "runnerId": id, "name": name, "token": token, "simulated": true });
            return Ok(Outcome::Answer(Reply::json(200, &body)));
        }
        let token = request.authorization("bearer").unwrap_or_default();
        let Some(Opens::Runner(id)) = self.token(token).map(|token| token.opens.clone()) else {
            return Err(unauthorized());
        };
        let done = |done: bool| {
            let status = if done { 204 } else { 409 };
            Outcome::Answer(Reply::empty(status))
        };
        Ok(match rest {
            ["job"] => self.runner_job(id),
            ["begin"] => done(self.begin_job(id)),
            ["end"] => {
                let conclusion = match body.get("conclusion").and_then(Value::as_str) {
                    Some("success") => Conclusion::Success,
                    Some("cancelled") => Conclusion::Cancelled,
                    _ => Conclusion::Failure,
                };
                done(self.end_job(id, conclusion))
            }
            ["disconnect"] => {
                self.disconnect(id);
                done(true)
            }
            _ => return Err(exception(404, "VssResourceNotFoundException", "no simulated resource is here")),
        })
    }

    fn runner_job(&mut self, id: u64) -> Outcome {
        let Some(row) = self.runners.get(&id) else {
            let text = "the registration of this runner has been deleted from the server";
            return Outcome::Answer(exception(404, "AgentNotFoundException", text));
        };
        let job = row.job.and_then(|job| self.jobs.get(&job));
        let Some(job) = job else { return Outcome::Hold(self.now.plus(self.setup.poll_hold)) };
        let run = self.runs.get(&job.run);
        let repository = run.map(|run| run.spec.repository);
        let body = json!({
            "jobId": job.id,
            "runId": job.run,
            "attempt": job.attempt,
            "name": job.spec.name,
            "labels": job.spec.labels,
            "repository": repository.map(|id| self.full_name(id)),
            "repositoryId": repository,
            "actor": run.map(|run| run.spec.actor.login.clone()),
            "actorId": run.map(|run| run.spec.actor.id),
            "triggeringActor": run.map(|run| run.triggering_actor.login.clone()),
            "durationSeconds": job.spec.duration.as_secs(),
            "conclusion": job.spec.outcome.name(),
            "cancelRequested": job.cancel_requested,
            "simulated": true,
        });
        Outcome::Answer(Reply::json(200, &body))
    }
}

fn number(text: &str) -> Result<u64, Reply> {
    text.parse().map_err(|_| exception(400, "ArgumentException", "an id is a number"))
}

fn agent_json(row: &super::runners::RunnerRow) -> Value {
    json!({
        "id": row.id,
        "name": row.name,
        "runnerScaleSetId": row.set,
        "status": if row.online { "online" } else { "offline" },
        "ephemeral": row.ephemeral,
    })
}
