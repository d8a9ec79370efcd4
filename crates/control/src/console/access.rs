//! The access explainer: ask what the gate would decide, see by which rule, and see all rules.

use super::blocks;
use super::shell::{Shell, Tab, page};
use super::tone::{Tone, Word};
use super::{routes, words};
use forgeyard_api::people::AccessAnswer;
use forgeyard_model::access::{Access, Decision, EventClass, Grant};
use forgeyard_model::resources::Isolation;
use forgeyard_model::who::ForgeId;
use maud::{Markup, html};
use std::collections::BTreeSet;

/// What is asked. Texts as they were typed, so that a wrong one can be corrected.
#[derive(Debug, Clone, Default)]
pub struct Question {
    /// Numeric id of the repository.
    pub repository: String,
    /// Numeric id of the person.
    pub person: String,
    /// Class of the event, in its persisted spelling.
    pub event: String,
    /// Pool or resource.
    pub resource: String,
}

/// Every event class, in the order of the form.
pub const EVENT_CLASSES: [EventClass; 6] = [
    EventClass::Push,
    EventClass::PullRequest,
    EventClass::ForkPullRequest,
    EventClass::Schedule,
    EventClass::Dispatch,
    EventClass::Rerun,
];

/// Persisted spelling of an event class.
pub const fn event_class(class: EventClass) -> &'static str {
    match class {
        EventClass::Push => "push",
        EventClass::PullRequest => "pull-request",
        EventClass::ForkPullRequest => "fork-pull-request",
        EventClass::Schedule => "schedule",
        EventClass::Dispatch => "dispatch",
        EventClass::Rerun => "rerun",
    }
}

/// The page. `trouble` says what is wrong with the question.
pub fn access(
    shell: &Shell,
    rules: &Access,
    question: &Question,
    answered: Option<&AccessAnswer>,
    trouble: Option<&str>,
) -> Markup {
    page(
        shell,
        Tab::Access,
        "Access",
        &html! {
            header.page-head {
                h1 { "Access" }
                p.lead { "Deny by default. People and repositories are matched by numeric id, so a renamed account gains nothing." }
            }
            (form(rules, question, trouble))
            @if let Some(answered) = answered {
                (answer(&answered.decision))
                (standing(answered))
            }
            (grants(rules))
        },
    )
}

fn form(rules: &Access, question: &Question, trouble: Option<&str>) -> Markup {
    let resources: BTreeSet<&String> = rules.grants.iter().flat_map(|grant| &grant.resources).collect();
    html! {
        section.card {
            h2 { "What would the gate say?" }
            form.ask method="get" action=(routes::ACCESS) {
                label { "Repository id"
                    input type="text" name="repository" list="repositories" value=(question.repository) required; }
                label { "Person id"
                    input type="text" inputmode="numeric" name="person" list="people" value=(question.person) required; }
                label { "Event"
                    select name="event" {
                        @for class in EVENT_CLASSES {
                            option value=(event_class(class)) selected[question.event == event_class(class)] { (event_class(class)) }
                        }
                    } }
                label { "Resource"
                    input type="text" name="resource" list="resources" value=(question.resource) required; }
                button.primary type="submit" { "Explain" }
                datalist #repositories {
                    @for grant in &rules.grants { @if let Some(id) = grant.repository.id {
                        @let id = ForgeId { forge: grant.repository.forge.clone(), id };
                        option value=(id) { (grant.repository.name) }
                    } }
                }
                datalist #people { @for (id, login) in &rules.logins { option value=(id) { (login) } } }
                datalist #resources { @for name in resources { option value=(name) {} } }
            }
            @if let Some(trouble) = trouble { p.trouble role="alert" { (Tone::Warn.icon()) (trouble) } }
        }
    }
}

fn isolation(isolation: Isolation) -> &'static str {
    match isolation {
        Isolation::SharedKernel => "shared kernel",
        Isolation::Vm => "a virtual machine of its own",
    }
}

fn answer(decision: &Decision) -> Markup {
    match decision {
        Decision::Deny { reason } => blocks::explanation(Tone::Bad, "Refused", reason, None),
        Decision::Allow { by, lane, isolation: least, evidence } => html! {
            section.why.t-good {
                (Tone::Good.icon())
                div {
                    p.why-title { span { "Allowed" } @for rule in by { code { (rule) } " " } }
                    p.why-message { "Lane: " (lane) ". Least isolation: " (isolation(*least)) "." }
                    @if !evidence.is_empty() { ol.evidence { @for line in evidence { li { (words::visible(line)) } } } }
                }
            }
        },
    }
}

/// What else the person may do there.
fn standing(answered: &AccessAnswer) -> Markup {
    let approval = &answered.approval;
    html! {
        section.card {
            h2 { "The same person, as an approver" }
            p { @if approval.may { (Word::new(Tone::Good, "may approve commits of others").badge()) }
                @else { (Word::new(Tone::Idle, "may not approve commits of others").badge()) } }
            @if !approval.evidence.is_empty() {
                ul.evidence { @for line in &approval.evidence { li { (words::visible(line)) } } }
            }
            @if let Some(fix) = &approval.fix { p.fix { strong { "What to do: " } (words::visible(fix)) } }
            p.sub { "Role in this farm for the repository: " (answered.role.as_deref().unwrap_or("none")) }
        }
    }
}

fn grants(rules: &Access) -> Markup {
    html! {
        section.card {
            h2 { "Grants" }
            @if rules.grants.is_empty() {
                (blocks::empty("No grant yet", "Without a grant the gate refuses every event. Access is data in files that live in git.", &html! {
                    p { "Add the first rule to the access file, then check it:" }
                    (blocks::command("[[grants]]\nid = \"first\"\nrepository = { id = 123456, name = \"owner/name\" }\nresources = [\"cpu\", \"gpu\"]\nevents = [\"push\", \"pull-request\"]"))
                    (blocks::command("forgeyard access check FILE"))
                }))
            } @else {
                div.table-scroll { table.stack {
                    thead { tr {
                        th scope="col" { "Rule" }
                        th scope="col" { "Repository" }
                        th scope="col" { "Opens" }
                        th scope="col" { "On" }
                        th scope="col" { "For" }
                        th scope="col" { "Isolation" }
                    } }
                    tbody { @for grant in &rules.grants { (row(rules, grant)) } }
                } }
            }
            @if rules.terms_version > 0 {
                p.quiet-text { a href=(routes::TERMS) { "Terms" } ": "  "Terms of service version " (rules.terms_version) " must be accepted; "
                    (rules.terms_accepted.values().filter(|version| **version >= rules.terms_version).count()) " people have by the access files." }
            }
            @if !rules.notes.is_empty() {
                details.history { summary { "What the import could not carry over" span.count-quiet { (rules.notes.len()) } }
                    ul.plain { @for note in &rules.notes { li { (words::visible(note)) } } } }
            }
        }
    }
}

fn row(rules: &Access, grant: &Grant) -> Markup {
    html! {
        tr {
            td data-label="Rule" { code { (grant.id) } }
            td data-label="Repository" {
                (grant.repository.name)
                div.sub {
                    @match grant.repository.id {
                        Some(id) => { "id " (id) }
                        None => { (Word::new(Tone::Warn, "no id: never allows").badge()) }
                    }
                }
            }
            td data-label="Opens" { (grant.resources.iter().cloned().collect::<Vec<_>>().join(", ")) }
            td data-label="On" { (grant.events.iter().map(|class| event_class(*class)).collect::<Vec<_>>().join(", ")) }
            td data-label="For" { (audience(rules, grant)) }
            td data-label="Isolation" { @match grant.isolation { Some(least) => { (isolation(least)) } None => { "by lane" } } }
        }
    }
}

fn audience(rules: &Access, grant: &Grant) -> Markup {
    let mut who: Vec<String> = grant
        .users
        .iter()
        .map(|id| rules.logins.get(id).map_or_else(|| format!("id {id}"), |login| format!("{login} ({id})")))
        .collect();
    who.extend(grant.lists.iter().map(|list| format!("list {list}")));
    who.extend(grant.teams.iter().map(|team| format!("team {team}")));
    let everybody = who.is_empty();
    html! {
        @if everybody { "everybody" } @else { (who.join(", ")) }
        @if !grant.roles.is_empty() { div.sub { "with a role: " (grant.roles.iter().cloned().collect::<Vec<_>>().join(", ")) } }
    }
}
