//! `/api/v1`: what the gate would say: one answer for API, console and command line.

use super::Answer;
use crate::app::App;
use crate::auth::{Caller, Member};
use crate::http::Routes;
use crate::http::error::HttpError;
use axum::extract::State;
use axum::{Json, routing};
use forgeyard_api::people::*;
use forgeyard_engine::approvals::with_acceptances;
use forgeyard_engine::gate;
use forgeyard_model::access::EventClass;
use forgeyard_model::forge::{ForgeEvent, Person, Repository, Trigger};
use forgeyard_model::principal::Role;
use std::collections::BTreeMap;

/// The routes.
pub(super) fn routes() -> Routes {
    use routing::post;
    Routes::new().route("/api/v1/access/explain", post(explain_access))
}

async fn explain_access(
    State(app): State<App>,
    Member(caller): Member,
    Json(question): Json<AccessQuestion>,
) -> Answer<AccessAnswer> {
    need_in_question(&app, &caller, &question)?;
    Ok(Json(ask_gate(&app, &question)))
}

/// Who asks about a repository needs a role there; about one that this farm has not, in the whole farm.
fn need_in_question(app: &App, caller: &Caller, question: &AccessQuestion) -> Result<(), HttpError> {
    match app.config().repository_meant(&question.repository) {
        Some(known) => caller.need_in(known, Role::Viewer),
        None => caller.need(Role::Viewer),
    }
}

/// What the gate would say, with the terms that were accepted at the farm itself.
pub fn ask_gate(app: &App, question: &AccessQuestion) -> AccessAnswer {
    let farm = app.core.read();
    let config = app.config();
    match with_acceptances(&config.access, &farm) {
        std::borrow::Cow::Borrowed(_) => answer(&config, question),
        std::borrow::Cow::Owned(access) => {
            drop(farm);
            let config = forgeyard_model::config::FarmConfig { access, ..(*config).clone() };
            answer(&config, question)
        }
    }
}

/// Everything that the gate would say under this configuration: the same for API, console and command line.
pub fn answer(config: &forgeyard_model::config::FarmConfig, question: &AccessQuestion) -> AccessAnswer {
    let known = config.repository_meant(&question.repository);
    let access = &config.access;
    // The question is about somebody of the forge of the repository.
    let login = known.and_then(|known| access.login(&known.forge, question.person)).cloned();
    let person = Person { id: question.person, login: login.unwrap_or_else(|| "unknown".to_owned()) };
    let role = known.and_then(|known| {
        gate::standing::in_repository(access, known, &known.forge, person.id, &BTreeMap::new())
    });
    let approval = match known {
        None => ApprovalAnswer {
            may: false,
            evidence: vec![format!("repository {} is not one of this farm", question.repository)],
            fix: None,
        },
        Some(known) => {
            let repository =
                Repository { forge: known.forge.clone(), id: known.id, name: known.name.clone() };
            let asked = (&person, &known.forge);
            match gate::may_approve(&repository, Some(known), &question.resource, access, asked, None) {
                Ok(rules) => ApprovalAnswer {
                    may: true,
                    evidence: rules
                        .into_iter()
                        .map(|(grant, how)| {
                            format!("grant `{grant}`: {} (id {}) {how}", person.login, person.id)
                        })
                        .collect(),
                    fix: None,
                },
                Err(reason) => ApprovalAnswer {
                    may: false,
                    evidence: if reason.evidence.is_empty() { vec![reason.message] } else { reason.evidence },
                    fix: reason.fix,
                },
            }
        }
    };
    AccessAnswer {
        decision: ask(config, question),
        approval,
        role: role.map(|(role, rule)| format!("{role}, by {rule}")),
    }
}

/// What the gate would say under this configuration.
pub fn ask(
    config: &forgeyard_model::config::FarmConfig,
    question: &AccessQuestion,
) -> forgeyard_model::access::Decision {
    let repository = config.repository_meant(&question.repository);
    let protected =
        repository.and_then(|repository| repository.protected.first()).map_or("main", String::as_str);
    let trigger = match question.event {
        EventClass::Push => Trigger::Push { git_ref: format!("refs/heads/{protected}") },
        EventClass::PullRequest | EventClass::ForkPullRequest => {
            let fork = question.event == EventClass::ForkPullRequest;
            Trigger::PullRequest {
                number: 1,
                base: protected.to_owned(),
                base_sha: "0".repeat(40),
                head_repository: if fork { 0 } else { question.repository.id },
                fork,
            }
        }
        EventClass::Schedule | EventClass::Dispatch | EventClass::Rerun => Trigger::Manual,
    };
    let person = Person {
        id: question.person,
        login: repository
            .and_then(|known| config.access.login(&known.forge, question.person))
            .cloned()
            .unwrap_or_else(|| "unknown".to_owned()),
    };
    let name = repository.map_or_else(|| "unknown".to_owned(), |repository| repository.name.clone());
    let forge = repository.map(|repository| repository.forge.clone());
    let Some(forge) = forge.or_else(|| "github".parse().ok()) else {
        let reason = forgeyard_model::Explanation::new("gate.no_forge", "no forge is configured");
        return forgeyard_model::access::Decision::Deny { reason };
    };
    let event = ForgeEvent {
        repository: Repository { forge, id: question.repository.id, name },
        trigger,
        head_sha: "0".repeat(40),
        sender: person.clone(),
        author: Some(person),
    };
    ask_about(config, &event, &question.resource)
}

/// What the gate would say to an event under this configuration.
pub fn ask_about(
    config: &forgeyard_model::config::FarmConfig,
    event: &ForgeEvent,
    resource: &str,
) -> forgeyard_model::access::Decision {
    let repository = config.repository(&event.repository.forge, event.repository.id);
    gate::decide(event, repository, resource, &config.access, None)
}
