//! From a pipeline to nodes and edges.

use crate::console::tone::{self, Tone, Word};
use crate::console::{routes, words};
use forgeyard_api::people::PipelineView;
use forgeyard_model::attempt::Attempt;
use forgeyard_model::environment::EnvironmentState;
use forgeyard_model::forge::Trigger;
use forgeyard_model::job::{Hold, Job, JobKind, JobState};
use forgeyard_model::lease::Lease;
use forgeyard_model::pipeline::PipelineState;
use forgeyard_model::{JobId, Timestamp};
use std::collections::BTreeMap;
use std::time::Duration;

/// A stage of the chain; builds may fill several columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// What came from the forge.
    Event,
    /// Whether it is allowed.
    Gate,
    /// Rendering the recipe.
    Plan,
    /// Making packages.
    Builds,
    /// Testing them.
    Tests,
    /// Publishing them.
    Promotion,
    /// Using them.
    Environment,
}

impl Stage {
    /// Every stage, in order.
    pub const ALL: [Stage; 7] = [
        Stage::Event,
        Stage::Gate,
        Stage::Plan,
        Stage::Builds,
        Stage::Tests,
        Stage::Promotion,
        Stage::Environment,
    ];

    /// Title for people.
    pub const fn title(self) -> &'static str {
        match self {
            Stage::Event => "Event",
            Stage::Gate => "Gate",
            Stage::Plan => "Plan",
            Stage::Builds => "Build",
            Stage::Tests => "Test",
            Stage::Promotion => "Promotion",
            Stage::Environment => "Environment",
        }
    }
}

/// One node.
#[derive(Debug, Clone)]
pub struct Node {
    /// Its stage.
    pub stage: Stage,
    /// What it is called.
    pub title: String,
    /// Its state.
    pub word: Word,
    /// How long it took, or since when it runs.
    pub time: Time,
    /// A short remark: a device, a reason, a number of attempts.
    pub detail: String,
    /// Where it leads.
    pub href: Option<String>,
    /// Stands in for nodes that are not known yet.
    pub ghost: bool,
}

/// Time of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Time {
    /// None to speak of.
    None,
    /// Took this long.
    Took(Duration),
    /// Goes on since then.
    Since(Timestamp),
}

/// From one node to another, by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Edge {
    /// Before.
    pub from: usize,
    /// After.
    pub to: usize,
}

/// Nodes and edges of a chain. Edges always lead to a later node of the list or to an unrelated stage behind; a cycle
/// in bad data is cut by the layout.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    /// Nodes, in the order of the chain.
    pub nodes: Vec<Node>,
    /// Edges, without those that a longer way already says.
    pub edges: Vec<Edge>,
}

/// The chain of a pipeline.
pub fn graph(view: &PipelineView) -> Graph {
    let mut graph = Graph::default();
    let pipeline = &view.pipeline;
    let event = graph.add(Node {
        stage: Stage::Event,
        title: match &pipeline.event.trigger {
            Trigger::PullRequest { number, base, .. } => format!("PR #{number} to {base}"),
            Trigger::Push { .. } | Trigger::Manual => words::trigger(&pipeline.event),
        },
        word: Word::new(Tone::Good, "received"),
        time: Time::None,
        detail: format!("by {}", pipeline.event.sender.login),
        href: None,
        ghost: false,
    });
    let gate = graph.add(Node {
        stage: Stage::Gate,
        title: words::lane_word(pipeline.lane).to_owned(),
        word: Word::new(Tone::Good, "allowed"),
        time: Time::None,
        detail: match pipeline.allowed_by.as_slice() {
            [] => String::new(),
            [one] => format!("by {one}"),
            [first, more @ ..] => format!("by {first} +{}", more.len()),
        },
        href: None,
        ghost: false,
    });
    graph.edges.push(Edge { from: event, to: gate });

    let mut of_job: BTreeMap<JobId, usize> = BTreeMap::new();
    for kind in [JobKind::Plan, JobKind::Build, JobKind::Test] {
        for job in view.jobs.iter().filter(|job| job.kind == kind) {
            let node = graph.add(job_node(view, job));
            of_job.insert(job.id, node);
        }
        let stage = stage_of(kind);
        if !graph.nodes.iter().any(|node| node.stage == stage) {
            graph.add(ghost(stage, view));
        }
    }
    for job in &view.jobs {
        let Some(&to) = of_job.get(&job.id) else { continue };
        for need in &job.needs {
            if let Some(&from) = of_job.get(need) {
                graph.edges.push(Edge { from, to });
            }
        }
    }
    let promotion = graph.add(promotion_node(view));
    let environment = graph.add(environment_node(view));
    graph.edges.push(Edge { from: promotion, to: environment });
    graph.join(gate, promotion);
    graph.drop_redundant_edges();
    graph
}

const fn stage_of(kind: JobKind) -> Stage {
    match kind {
        JobKind::Plan => Stage::Plan,
        JobKind::Build => Stage::Builds,
        // A pipeline has no runners of a forge; one would stand where work stands.
        JobKind::Test | JobKind::Runner => Stage::Tests,
    }
}

fn ghost(stage: Stage, view: &PipelineView) -> Node {
    let ended = view.pipeline.state.ended();
    let (word, detail) = if ended {
        (Word::new(Tone::Idle, "not reached"), "")
    } else {
        let known_after = match stage {
            Stage::Plan => "after the source",
            Stage::Builds => "after the plan",
            _ => "after the builds",
        };
        (Word::new(Tone::Idle, "not known yet"), known_after)
    };
    Node {
        stage,
        title: stage.title().to_lowercase(),
        word,
        time: Time::None,
        detail: detail.to_owned(),
        href: None,
        ghost: true,
    }
}

fn job_node(view: &PipelineView, job: &Job) -> Node {
    let last =
        view.attempts.iter().filter(|attempt| attempt.job == job.id).max_by_key(|attempt| attempt.fence);
    let name = job.key.split('/').nth(1).unwrap_or(&job.key);
    Node {
        stage: stage_of(job.kind),
        title: name.to_owned(),
        word: tone::job(&job.state),
        time: job_time(job, last),
        detail: job_detail(job, last, &view.leases),
        href: Some(routes::job(job.id)),
        ghost: false,
    }
}

/// Time at work: of the last attempt, not of waiting. A queued job shows for how long.
fn job_time(job: &Job, last: Option<&Attempt>) -> Time {
    match (&job.state, last) {
        (JobState::Ended { .. }, Some(attempt)) => {
            let from = attempt.started_at.unwrap_or(attempt.placed_at);
            attempt.ended_at.or(job.ended_at).map_or(Time::None, |to| Time::Took(to.since(from)))
        }
        (JobState::Ended { .. }, None) | (JobState::Held(_), _) => Time::None,
        _ => Time::Since(job.since),
    }
}

fn job_detail(job: &Job, last: Option<&Attempt>, leases: &[Lease]) -> String {
    let gpu = job.spec.as_ref().is_some_and(|spec| spec.gpu.is_some()) || job.key.ends_with("/gpu");
    let lease = last.and_then(|attempt| leases.iter().find(|lease| lease.attempt == Some(attempt.id)));
    let mut parts: Vec<String> = Vec::new();
    if let JobState::Held(hold) = &job.state {
        parts.push(
            match hold {
                Hold::Source => "for the source",
                Hold::Artifacts { .. } => "for an artifact",
                Hold::Inspection => "for the test list",
                Hold::Approval { .. } => "of this head",
                Hold::Retry { .. } => "before a retry",
            }
            .to_owned(),
        );
    }
    if gpu {
        parts.push(if lease.is_some_and(|lease| lease.state.live()) { "GPU held" } else { "GPU" }.to_owned());
    } else if job.kind == JobKind::Test {
        parts.push("CPU".to_owned());
    }
    if let Some(class) = job.verdict.as_ref().and_then(|verdict| verdict.class.as_ref()) {
        parts.push(class.clone());
    } else if job.fence > 1 {
        parts.push(format!("{} attempts", job.fence));
    }
    parts.join(" · ")
}

fn promotion_node(view: &PipelineView) -> Node {
    let pipeline = &view.pipeline;
    let into = |word| {
        let detail = pipeline.channel.as_ref().map(|channel| format!("to {channel}")).unwrap_or_default();
        (word, detail, pipeline.channel.as_ref().map(routes::channel))
    };
    let (word, detail, href) = match (&pipeline.state, &pipeline.not_promoted) {
        (_, Some(reason)) => (Word::new(Tone::Idle, "not promoted"), reason.code.clone(), None),
        (PipelineState::Promoting, None) => into(Word::new(Tone::Active, "promoting")),
        (PipelineState::Environment, None) => into(Word::new(Tone::Good, "promoted")),
        (PipelineState::Running, None) => into(Word::new(Tone::Idle, "not reached yet")),
        (PipelineState::Succeeded, None) if pipeline.channel.is_some() => {
            into(Word::new(Tone::Good, "promoted"))
        }
        (PipelineState::Failed { .. }, None) if view.environment.is_some() => {
            into(Word::new(Tone::Good, "promoted"))
        }
        (PipelineState::Succeeded, None) => (Word::new(Tone::Idle, "not asked for"), String::new(), None),
        (PipelineState::Failed { .. } | PipelineState::Canceled { .. }, None) => {
            (Word::new(Tone::Idle, "not reached"), String::new(), None)
        }
    };
    Node {
        stage: Stage::Promotion,
        title: "channel".to_owned(),
        word,
        time: if pipeline.state == PipelineState::Promoting {
            Time::Since(pipeline.since)
        } else {
            Time::None
        },
        detail,
        href,
        ghost: word.tone == Tone::Idle,
    }
}

fn environment_node(view: &PipelineView) -> Node {
    let asked = view.pipeline.file.as_ref().and_then(|file| file.environment.as_ref());
    match &view.environment {
        Some(environment) => Node {
            stage: Stage::Environment,
            title: environment.name.to_string(),
            word: tone::environment(&environment.state),
            time: match environment.state {
                EnvironmentState::Requested => Time::Since(environment.since),
                EnvironmentState::Ready { .. } | EnvironmentState::Failed { .. } => {
                    Time::Took(environment.since.since(environment.requested_at))
                }
            },
            detail: match &environment.state {
                EnvironmentState::Ready { lock, .. } => format!("{} packages", lock.len()),
                EnvironmentState::Failed { reason } => reason.code.clone(),
                EnvironmentState::Requested => String::new(),
            },
            href: Some(routes::environment(environment.id)),
            ghost: false,
        },
        None => Node {
            stage: Stage::Environment,
            title: asked.map_or_else(|| "environment".to_owned(), |asked| asked.name.to_string()),
            word: match (asked, view.pipeline.state.ended()) {
                (None, _) if view.pipeline.file.is_some() => Word::new(Tone::Idle, "not asked for"),
                (_, true) => Word::new(Tone::Idle, "not reached"),
                (_, false) => Word::new(Tone::Idle, "not reached yet"),
            },
            time: Time::None,
            detail: String::new(),
            href: None,
            ghost: true,
        },
    }
}

impl Graph {
    /// Adds a node.
    pub fn add(&mut self, node: Node) -> usize {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Ties the loose ends between stages: what has nothing before it hangs on the stage before, what has nothing
    /// behind it leads to the stage behind.
    fn join(&mut self, gate: usize, promotion: usize) {
        let of = |graph: &Graph, stage: Stage| -> Vec<usize> {
            (0..graph.nodes.len()).filter(|node| graph.nodes[*node].stage == stage).collect()
        };
        let mut before = vec![gate];
        for stage in [Stage::Plan, Stage::Builds, Stage::Tests] {
            let here = of(self, stage);
            for &to in &here {
                if !self.edges.iter().any(|edge| edge.to == to) {
                    for &from in &before {
                        self.edges.push(Edge { from, to });
                    }
                }
            }
            before = here;
        }
        for from in (0..self.nodes.len()).filter(|node| self.nodes[*node].stage < Stage::Promotion) {
            if !self.edges.iter().any(|edge| edge.from == from) {
                self.edges.push(Edge { from, to: promotion });
            }
        }
    }

    /// Drops every edge that a longer way already says, and doubles.
    pub fn drop_redundant_edges(&mut self) {
        self.edges.sort_unstable();
        self.edges.dedup();
        self.edges.retain(|edge| edge.from != edge.to);
        let edges = self.edges.clone();
        self.edges.retain(|edge| {
            let mut seen = vec![false; self.nodes.len()];
            let mut open: Vec<usize> =
                edges.iter().filter(|e| e.from == edge.from && e.to != edge.to).map(|e| e.to).collect();
            while let Some(node) = open.pop() {
                if node == edge.to {
                    return false;
                }
                if !std::mem::replace(&mut seen[node], true) {
                    open.extend(edges.iter().filter(|e| e.from == node).map(|e| e.to));
                }
            }
            true
        });
    }
}
