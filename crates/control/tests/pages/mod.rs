//! All pages, with one foreign text in every place that takes text, and in every state.

#![allow(unreachable_pub, reason = "a module of one test crate")]

use crate::farm;
use forgeyard_api::error::{ApiError, ErrorKind};
use forgeyard_api::people::PipelineView;
use forgeyard_control::console::{
    Names, Shell, access, artifacts, audit, blocks::Pager, cache, channels, deliveries, devices, entry,
    environments, history, job, log::LogWindow, pipeline, pipelines, pools, queue, sites, status, terms,
};
use forgeyard_model::access::{Access, Decision};
use forgeyard_model::attempt::AttemptState;
use forgeyard_model::delivery::{Delivery, DeliveryState};
use forgeyard_model::device::DeviceState;
use forgeyard_model::environment::EnvironmentState;
use forgeyard_model::forge::Trigger;
use forgeyard_model::job::{Hold, JobState};
use forgeyard_model::lease::LeaseState;
use forgeyard_model::pipeline::PipelineState;
use forgeyard_model::resources::{DeviceKind, Isolation};
use forgeyard_model::runner::RunnerState;
use forgeyard_model::verdict::{Blame, Outcome, RetryPolicy};
use forgeyard_model::{AttemptId, Explanation, Id, Lane};
use maud::Markup;

/// Name of an element and of its attributes.
#[derive(Debug, PartialEq, Eq)]
pub struct Skeleton {
    pub name: String,
    pub attributes: Vec<String>,
}

/// The insides of all tags. Escaped text and attribute values hold neither `<` nor `>`.
pub fn tags(html: &str) -> impl Iterator<Item = &str> {
    html.split('<').skip(1).map(|rest| rest.split('>').next().unwrap_or_default())
}

/// What a tag is, without the values of its attributes.
pub fn skeleton(tag: &str) -> Skeleton {
    let mut bare = String::new();
    for (index, part) in tag.split('"').enumerate() {
        bare.push_str(if index % 2 == 0 { part } else { "" });
    }
    let mut words = bare.split_ascii_whitespace();
    let name = words.next().unwrap_or_default().to_owned();
    Skeleton { name, attributes: words.map(|word| word.trim_end_matches('=').to_owned()).collect() }
}

fn explanation(text: &str) -> Explanation {
    Explanation::new(text, text).with(text).fix(text)
}

/// Puts the text wherever a pipeline carries text of others.
fn poison(view: &mut PipelineView, text: &str) {
    let pipeline = &mut view.pipeline;
    pipeline.event.repository.name = text.to_owned();
    pipeline.event.sender.login = text.to_owned();
    pipeline.event.head_sha = text.to_owned();
    pipeline.delivery = text.to_owned();
    pipeline.allowed_by = vec![text.to_owned(), text.to_owned()];
    if let Some(author) = &mut pipeline.event.author {
        author.login = text.to_owned();
    }
    match &mut pipeline.event.trigger {
        Trigger::Push { git_ref } => *git_ref = text.to_owned(),
        Trigger::PullRequest { base, .. } => *base = text.to_owned(),
        Trigger::Manual => {}
    }
    if let PipelineState::Failed { reason } | PipelineState::Canceled { reason } = &mut pipeline.state {
        *reason = explanation(text);
    }
    pipeline.not_promoted = pipeline.not_promoted.as_ref().map(|_| explanation(text));
    for job in &mut view.jobs {
        job.waiting = job.waiting.as_ref().map(|_| explanation(text));
        if let Some(spec) = &mut job.spec
            && let Some(subject) = &mut spec.subject
        {
            subject.file_name = text.to_owned();
        }
        if let Some(selection) = job.test.as_mut().and_then(|test| test.selection.as_mut()) {
            selection.reason = text.to_owned();
        }
        if let Some(verdict) = &mut job.verdict {
            verdict.cause = text.to_owned();
            verdict.class = Some(text.to_owned());
            verdict.fix = Some(text.to_owned());
            for line in &mut verdict.lines {
                line.text = text.to_owned();
            }
        }
        job.outputs.iter_mut().for_each(|output| *output = text.to_owned());
    }
    for attempt in &mut view.attempts {
        if let Some(step) = &mut attempt.step {
            *step = text.to_owned();
        }
        if let Some(facts) = &mut attempt.facts {
            facts.supervisor_error = Some(text.to_owned());
            facts.missing_outputs = vec![text.to_owned()];
            facts.steps.iter_mut().for_each(|step| step.name = text.to_owned());
        }
    }
    view.artifacts.iter_mut().for_each(|artifact| artifact.name = text.to_owned());
    if let Some(environment) = &mut view.environment {
        environment.specs = vec![text.to_owned()];
        if let EnvironmentState::Ready { lock, prefix, proof, .. } = &mut environment.state {
            *prefix = text.to_owned();
            for package in lock {
                package.file_name = text.to_owned();
                package.url = text.to_owned();
            }
            if let Some(proof) = proof {
                proof.argv = vec![text.to_owned()];
                proof.stdout = text.to_owned();
            }
        }
    }
}

/// Every page with `text` in it.
pub fn all_pages(text: &str, shell: &Shell) -> Vec<(String, String)> {
    let mut shell = shell.clone();
    shell.farm = text.to_owned();
    if let Some(viewer) = &mut shell.viewer {
        viewer.name = text.to_owned();
    }
    let shell = &shell;
    let mut names = farm::names();
    names.sites.values_mut().for_each(|name| *name = text.to_owned());
    let mut pages: Vec<(String, Markup)> = Vec::new();
    let mut add = |name: &str, page| pages.push((name.to_owned(), page));

    let mut rows = Vec::new();
    for (name, mut view) in [
        ("planning", farm::planning()),
        ("running", farm::running()),
        ("failed", farm::failed()),
        ("succeeded", farm::succeeded()),
    ] {
        poison(&mut view, text);
        add(&format!("pipeline {name}"), pipeline::pipeline(shell, &view, &names));
        for row in &view.jobs {
            let mut page = farm::job_view(&view, &row.key);
            page.events.iter_mut().for_each(|event| event.note = Some(text.to_owned()));
            let mut why = farm::why(&page);
            why.reason = explanation(text);
            why.next = text.to_owned();
            why.allowed_by = vec![text.to_owned()];
            let log = LogWindow { lines: vec![text.to_owned(); 3], ..farm::log(true) };
            add(&format!("job {name} {}", row.key), job::job(shell, &page, &why, &log, &names));
        }
        add("artifacts", artifacts::artifacts(shell, &view.artifacts, &Pager::default()));
        for artifact in &view.artifacts {
            add(
                "artifact",
                artifacts::artifact(
                    shell,
                    &artifacts::ArtifactView {
                        artifact,
                        pipeline: &view.pipeline,
                        job: view.jobs.iter().find(|job| Some(job.id) == artifact.job),
                        attempt: view.attempts.iter().find(|attempt| Some(attempt.id) == artifact.attempt),
                        tests: &view.jobs,
                        promoted: &[],
                    },
                    &names,
                ),
            );
        }
        if let Some(environment) = &view.environment {
            add("environment", environments::environment(shell, environment));
            add("environments", environments::environments(shell, std::slice::from_ref(environment)));
        }
        rows.push(view.pipeline);
    }
    add("pipelines", pipelines::pipelines(shell, &rows, pipelines::Filter::All, &Pager::default()));
    for (name, page) in standing(text, shell, &names) {
        add(name, page);
    }
    pages.into_iter().map(|(name, page)| (name, page.into_string())).collect()
}

/// Pages that are not about one pipeline.
fn standing(text: &str, shell: &Shell, names: &Names) -> Vec<(&'static str, Markup)> {
    let mut view = farm::devices_view();
    for device in &mut view.devices {
        device.facts.driver = text.to_owned();
        if !device.facts.kind.simulated() {
            device.facts.model = text.to_owned();
        }
        if let DeviceState::Quarantined { reason } = &mut device.state {
            *reason = explanation(text);
        }
    }
    let mut hosts = farm::sites();
    for site in &mut hosts {
        if let Some(host) = &mut site.host {
            host.host = text.to_owned();
            host.cannot.iter_mut().for_each(|(_, why)| *why = text.to_owned());
        }
    }
    let mut channel = farm::channel();
    channel.entries.iter_mut().for_each(|entry| entry.file_name = text.to_owned());
    let mut came = farm::deliveries();
    for row in &mut came {
        row.guid = text.to_owned();
        row.event = text.to_owned();
        if let DeliveryState::Settled { reason } | DeliveryState::Rejected { reason } = &mut row.state {
            *reason = explanation(text);
        }
    }
    let mut waiting = farm::queue();
    for row in &mut waiting {
        row.what = text.to_owned();
        row.repository = text.to_owned();
        row.next = text.to_owned();
        row.reason = explanation(text);
    }
    let mut pooled = farm::pools();
    for row in &mut pooled {
        row.trouble = row.trouble.as_ref().map(|_| explanation(text));
        if let Some(error) = &mut row.last_error {
            error.reason = explanation(text);
        }
        row.schedule.iter_mut().for_each(|entry| entry.zone = text.to_owned());
    }
    let mut cached = farm::caches::cache();
    cached.address = text.to_owned();
    for scope in &mut cached.scopes {
        scope.scope = text.to_owned();
        scope.traffic.iter_mut().for_each(|it| it.client = text.to_owned());
        if let Some(budget) = &mut scope.budget {
            (budget.text, budget.cause) = (text.to_owned(), Some(text.to_owned()));
        }
    }
    for it in &mut cached.warm {
        for place in [&mut it.list, &mut it.kind, &mut it.path, &mut it.source] {
            text.clone_into(place);
        }
        it.error = it.error.as_ref().map(|_| text.to_owned());
    }
    let mut kept = farm::caches::entries();
    for entry in &mut kept.entries {
        entry.kind = text.to_owned();
        entry.key = text.to_owned();
        entry.principal = text.to_owned();
        entry.run = Some(text.to_owned());
        entry.client = text.to_owned();
    }
    let mut events = farm::events();
    for event in &mut events {
        event.subject = text.to_owned();
        event.by.name = text.to_owned();
        event.note = Some(text.to_owned());
    }
    let mut rules = farm::access();
    for grant in &mut rules.grants {
        grant.id = text.to_owned();
        grant.repository.name = text.to_owned();
    }
    rules.logins.values_mut().for_each(|login| *login = text.to_owned());
    rules.notes = vec![text.to_owned()];
    let question = access::Question {
        repository: text.to_owned(),
        person: text.to_owned(),
        event: "push".to_owned(),
        resource: text.to_owned(),
    };
    let deny = Decision::Deny { reason: explanation(text) };
    let allow = Decision::Allow {
        by: vec![text.to_owned()],
        lane: Lane::Protected,
        isolation: Isolation::Vm,
        evidence: vec![text.to_owned()],
    };
    let answered = |decision: Decision| {
        let mut answered = farm::answered(decision);
        answered.approval.evidence = vec![text.to_owned()];
        answered.approval.fix = Some(text.to_owned());
        answered.role = Some(text.to_owned());
        answered
    };
    let mut state = farm::status(true);
    state.alarms = vec![explanation(text)];
    let mut error = ApiError::new(ErrorKind::Conflict, text, text).hint(text);
    error.evidence = vec![text.to_owned()];
    vec![
        ("devices", devices::devices(shell, &view, names)),
        ("sites", sites::sites(shell, &hosts)),
        ("channel", channels::channel(shell, &channel)),
        ("channels", channels::channels(shell, std::slice::from_ref(&channel))),
        ("queue", queue::queue(shell, &waiting)),
        ("pools", pools::pools(shell, &pooled)),
        ("cache", cache::cache(shell, cache::Look::Here(&cached))),
        ("cache away", cache::cache(shell, cache::Look::Silent(&explanation(text)))),
        ("scope of the cache", cache::scope(shell, &cached.scopes[0], text, Some(&kept))),
        ("deliveries", deliveries::deliveries(shell, &came, &Pager::default())),
        ("audit", audit::audit(shell, &events, text, &Pager::default())),
        ("access refused", access::access(shell, &rules, &question, Some(&answered(deny)), Some(text))),
        ("access allowed", access::access(shell, &rules, &question, Some(&answered(allow)), None)),
        ("terms", terms::terms(shell, &farm::terms(text))),
        ("configuration", {
            let versions = farm::versions(text);
            let compared = history::Compared { old: &versions[2], new: &versions[1] };
            history::history(shell, &versions, Some(compared))
        }),
        ("status", status::status(shell, &state)),
        ("login", entry::login(shell, text, &[text.to_owned()], Some(&error))),
        ("error", entry::error(shell, &error)),
        ("not found", entry::not_found(shell, text)),
    ]
}

/// Every page that can be empty, empty.
pub fn empty_pages(shell: &Shell) -> Vec<(String, String)> {
    let none = Pager::default();
    let mut pages: Vec<(String, Markup)> = pipelines::Filter::ALL
        .into_iter()
        .map(|filter| {
            (format!("pipelines {}", filter.name()), pipelines::pipelines(shell, &[], filter, &none))
        })
        .collect();
    for (name, page) in [
        ("devices", devices::devices(shell, &devices::DevicesView::default(), &Names::default())),
        ("sites", sites::sites(shell, &[])),
        ("artifacts", artifacts::artifacts(shell, &[], &none)),
        ("channels", channels::channels(shell, &[])),
        ("environments", environments::environments(shell, &[])),
        ("access", access::access(shell, &Access::default(), &access::Question::default(), None, None)),
        ("queue", queue::queue(shell, &[])),
        ("pools", pools::pools(shell, &[])),
        ("cache", cache::cache(shell, cache::Look::None)),
        ("deliveries", deliveries::deliveries(shell, &[], &none)),
        ("audit", audit::audit(shell, &[], "", &none)),
        ("audit of a thing", audit::audit(shell, &[], "job_x", &none)),
    ] {
        pages.push((name.to_owned(), page));
    }
    pages.into_iter().map(|(name, page)| (name, page.into_string())).collect()
}

/// Calls `look` with a page for each state of everything; says how many pages that were. The matches in
/// `forgeyard_control::console::tone` are total, so a new state cannot be forgotten there; the lists here are kept beside.
pub fn pages_of_all_states(shell: &Shell, mut look: impl FnMut(&str, &str)) -> usize {
    let names = farm::names();
    let mut count = 0;
    let mut show = |name: &str, page: Markup| {
        count += 1;
        look(name, &page.into_string());
    };
    let reason = || explanation("because");
    let attempt = AttemptId::derive(farm::site_id(1), "a");

    for state in [
        PipelineState::Running,
        PipelineState::Promoting,
        PipelineState::Environment,
        PipelineState::Succeeded,
        PipelineState::Failed { reason: reason() },
        PipelineState::Canceled { reason: reason() },
    ] {
        for lane in [Lane::ForkPr, Lane::SameRepoPr, Lane::Protected] {
            for stop in [farm::Stop::Planning, farm::Stop::Testing, farm::Stop::Failed, farm::Stop::Done] {
                let mut view = farm::diamond(farm::pipeline(6, 400, lane, state.clone()), stop);
                if stop == farm::Stop::Done {
                    view.pipeline.event.trigger = Trigger::Manual;
                }
                for made in [
                    None,
                    Some(EnvironmentState::Requested),
                    Some(EnvironmentState::Failed { reason: reason() }),
                    Some(farm::ready()),
                ] {
                    view.environment = made.map(|made| farm::environment(&view.pipeline, made));
                    show(
                        &format!("pipeline {} {lane}", state.name()),
                        pipeline::pipeline(shell, &view, &names),
                    );
                }
            }
        }
    }
    let outcomes = [Outcome::Succeeded, Outcome::Failed, Outcome::TimedOut, Outcome::Canceled, Outcome::Lost];
    let mut states = vec![
        JobState::Held(Hold::Source),
        JobState::Held(Hold::Artifacts { of: [].into() }),
        JobState::Held(Hold::Inspection),
        JobState::Held(Hold::Approval { reason: reason() }),
        JobState::Held(Hold::Retry { until: farm::NOW }),
        JobState::Queued,
        JobState::Placed { attempt },
        JobState::Starting { attempt },
        JobState::Running { attempt },
    ];
    states.extend(outcomes.map(|outcome| JobState::Ended { outcome }));
    let base = farm::failed();
    for key in ["plan", "build/fy-core", "test/fy-solve/gpu"] {
        for state in &states {
            let mut view = farm::job_view(&base, key);
            view.job.state = state.clone();
            let why = farm::why(&view);
            show(
                &format!("{key} {}", state.name()),
                job::job(shell, &view, &why, &LogWindow::default(), &names),
            );
        }
    }
    let mut view = farm::job_view(&base, "test/fy-solve/gpu");
    let why = farm::why(&view);
    for state in AttemptState::ALL {
        for outcome in outcomes.map(Some).into_iter().chain([None]) {
            view.attempts[0].state = state;
            view.attempts[0].outcome = outcome;
            show("attempt", job::job(shell, &view, &why, &farm::log(true), &names));
        }
    }
    for state in LeaseState::ALL {
        view.leases[0].state = state;
        show("lease", job::job(shell, &view, &why, &farm::log(true), &names));
    }
    for state in [
        RunnerState::Requested,
        RunnerState::Creating,
        RunnerState::Booting,
        RunnerState::Ready,
        RunnerState::Registered,
        RunnerState::Busy,
        RunnerState::Draining,
        RunnerState::Deleting,
        RunnerState::Deleted,
        RunnerState::Failed { reason: reason() },
        RunnerState::Kept { reason: reason() },
    ] {
        view.runners[0].state = state;
        show("runner", job::job(shell, &view, &why, &farm::log(true), &names));
    }
    for (retry, blame) in [
        (RetryPolicy::R0, Blame::U),
        (RetryPolicy::R1, Blame::A),
        (RetryPolicy::R2, Blame::D),
        (RetryPolicy::R3, Blame::H),
        (RetryPolicy::RB, Blame::I),
        (RetryPolicy::RQ, Blame::S),
        (RetryPolicy::RM, Blame::X),
        (RetryPolicy::RE, Blame::X),
    ] {
        if let Some(verdict) = &mut view.job.verdict {
            verdict.retry = retry;
            verdict.blame = Some(blame);
        }
        show("verdict", job::job(shell, &view, &why, &farm::log(true), &names));
    }
    let lease = farm::lease_id();
    for kind in [DeviceKind::Nvidia, DeviceKind::Amd, DeviceKind::OpenclCpu] {
        for state in [
            DeviceState::Ready,
            DeviceState::Leased { lease },
            DeviceState::Resetting { lease },
            DeviceState::Verifying { lease },
            DeviceState::Quarantined { reason: reason() },
        ] {
            let view = devices::DevicesView {
                devices: vec![farm::device("key", kind, "model", state)],
                ..farm::devices_view()
            };
            show("device", devices::devices(shell, &view, &names));
        }
    }
    for state in [EnvironmentState::Requested, EnvironmentState::Failed { reason: reason() }, farm::ready()] {
        let row = farm::environment(&base.pipeline, state);
        show("environment", environments::environment(shell, &row));
        show("environments", environments::environments(shell, &[row]));
    }
    for state in [
        DeliveryState::Stored,
        DeliveryState::Started { pipeline: base.pipeline.id },
        DeliveryState::Settled { reason: reason() },
        DeliveryState::Rejected { reason: reason() },
    ] {
        let row = Delivery { state, ..farm::deliveries().remove(0) };
        show("delivery", deliveries::deliveries(shell, &[row], &Pager::default()));
    }
    for kind in [
        ErrorKind::Invalid,
        ErrorKind::Unauthenticated,
        ErrorKind::Forbidden,
        ErrorKind::NotFound,
        ErrorKind::Conflict,
        ErrorKind::Superseded,
        ErrorKind::TooLarge,
        ErrorKind::Range,
        ErrorKind::Mismatch,
        ErrorKind::Internal,
        ErrorKind::Unavailable,
        ErrorKind::NoSpace,
    ] {
        show("error", entry::error(shell, &ApiError::new(kind, "code", "message")));
    }
    for state in [farm::status(true), farm::status(false), farm::empty_status()] {
        show("status", status::status(shell, &state));
    }
    count
}
