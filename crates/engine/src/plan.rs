//! From a rendered plan to the builds of a pipeline.
//!
//! A component is what one build job makes: outputs that share a staging (its work folder cannot travel between
//! machines), or one output alone. Components form a graph without cycles, in build order.
//!
//! Invariants:
//! - every output of the plan is in exactly one component;
//! - a component stands after all components that it depends on;
//! - an output never depends on itself: a package that asks for its own name gets it from a channel.

use forgeyard_model::Explanation;
use forgeyard_model::plan::{PlannedOutput, RenderedPlan};
use petgraph::Direction;
use petgraph::algo::{tarjan_scc, toposort};
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::unionfind::UnionFind;
use std::collections::{BTreeMap, BTreeSet};

/// Most outputs that one plan may have.
pub const MAX_OUTPUTS: usize = 2000;
/// What names a staging in [`PlannedOutput::together_with`]; every other name there is an output.
pub const STAGING: &str = "staging/";

/// What one build job makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Component {
    /// Key, unique in the plan: the name of its first output, with `@` and the build string where the plan has
    /// several builds of that name.
    pub key: String,
    /// Its outputs, in build order.
    pub outputs: Vec<PlannedOutput>,
    /// Keys of the components whose packages it takes.
    pub depends_on: BTreeSet<String>,
}

impl Component {
    /// Names of its outputs, without repetition, in build order.
    pub fn output_names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for output in &self.outputs {
            if !names.contains(&output.name) {
                names.push(output.name.clone());
            }
        }
        names
    }
}

/// Turns a plan into components, each after those that it depends on.
///
/// # Errors
/// When the plan is empty or too large, lists an output twice, names an unknown output to build together with, or
/// has a cycle; the explanation names the outputs.
pub fn expand(plan: &RenderedPlan) -> Result<Vec<Component>, Explanation> {
    let outputs = &plan.outputs;
    if outputs.is_empty() {
        return Err(Explanation::new("plan.empty", "the recipe renders to no output")
            .fix("check `build.skip` and the variants of the recipe"));
    }
    if outputs.len() > MAX_OUTPUTS {
        let message =
            format!("the recipe renders to {} outputs, at most {MAX_OUTPUTS} are built", outputs.len());
        return Err(
            Explanation::new("plan.too-many-outputs", message).fix("use fewer variants, or split the recipe")
        );
    }
    let by_name = index(outputs)?;
    let graph = output_graph(outputs, &by_name);
    let order = toposort(&graph, None).map_err(|_| cycle(&graph, outputs))?;

    let groups = together(outputs, &by_name)?;
    Ok(components(outputs, &graph, &order, &groups))
}

/// Positions of outputs by name, and the check that no output stands twice.
fn index(outputs: &[PlannedOutput]) -> Result<BTreeMap<&str, Vec<usize>>, Explanation> {
    let mut seen = BTreeSet::new();
    let mut by_name: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, output) in outputs.iter().enumerate() {
        if !seen.insert((&output.name, &output.version, &output.build, &output.subdir)) {
            let message = format!("the plan has output `{}` twice", label(output));
            return Err(Explanation::new("plan.duplicate-output", message)
                .fix("give the outputs different names, or let the build string depend on what differs"));
        }
        by_name.entry(&output.name).or_default().push(at);
    }
    Ok(by_name)
}

/// Edges from what is needed to what needs it.
fn output_graph(outputs: &[PlannedOutput], by_name: &BTreeMap<&str, Vec<usize>>) -> DiGraph<usize, ()> {
    let mut graph = DiGraph::new();
    let nodes: Vec<NodeIndex> = (0..outputs.len()).map(|at| graph.add_node(at)).collect();
    for (at, output) in outputs.iter().enumerate() {
        for name in output.depends.iter().filter(|name| **name != output.name) {
            for maker in makers(outputs, by_name, output, name) {
                graph.update_edge(nodes[maker], nodes[at], ());
            }
        }
    }
    graph
}

/// The outputs that can serve a requirement. An exact pin is in the consumer's variant as `version build` and picks
/// one; without it, every build of that name counts.
fn makers(
    outputs: &[PlannedOutput],
    by_name: &BTreeMap<&str, Vec<usize>>,
    consumer: &PlannedOutput,
    name: &str,
) -> Vec<usize> {
    let Some(all) = by_name.get(name) else { return Vec::new() };
    let pin = consumer.variant.get(name);
    let exact = all.iter().copied().find(|at| {
        let maker = &outputs[*at];
        pin.is_some_and(|pin| *pin == format!("{} {}", maker.version, maker.build))
    });
    match exact {
        Some(one) => vec![one],
        None => all.clone(),
    }
}

/// A path through the outputs that comes back to where it began. Called only when there is one.
fn cycle(graph: &DiGraph<usize, ()>, outputs: &[PlannedOutput]) -> Explanation {
    let knot = tarjan_scc(graph).into_iter().find(|knot| knot.len() > 1).unwrap_or_default();
    let inside: BTreeSet<NodeIndex> = knot.iter().copied().collect();
    let mut path: Vec<NodeIndex> = Vec::new();
    let mut at = inside.first().copied();
    // Inside a strongly connected part every node has a successor inside, so the walk must meet itself.
    while let Some(node) = at {
        if let Some(start) = path.iter().position(|seen| *seen == node) {
            path.drain(..start);
            path.push(node);
            break;
        }
        path.push(node);
        at = graph.neighbors(node).filter(|next| inside.contains(next)).min();
    }
    path.reverse();
    let names: Vec<String> = path.iter().map(|node| format!("`{}`", key(outputs, graph[*node]))).collect();
    let message = format!("the outputs need each other in a circle: {}", names.join(" needs "));
    Explanation::new("plan.cycle", message)
        .fix("remove one of these requirements; what only tests need belongs into `tests`")
}

/// For every output, the number of its group of outputs that are built together.
fn together(
    outputs: &[PlannedOutput],
    by_name: &BTreeMap<&str, Vec<usize>>,
) -> Result<Vec<usize>, Explanation> {
    let mut stagings: BTreeMap<&str, usize> = BTreeMap::new();
    let mut groups = UnionFind::new(outputs.len());
    for (at, output) in outputs.iter().enumerate() {
        for other in &output.together_with {
            if let Some(staging) = other.strip_prefix(STAGING) {
                groups.union(*stagings.entry(staging).or_insert(at), at);
            } else if let Some(partners) = by_name.get(other.as_str()) {
                for partner in partners {
                    groups.union(*partner, at);
                }
            } else {
                let message = format!(
                    "output `{}` must be built together with `{other}`, which the plan does not have",
                    output.name
                );
                return Err(Explanation::new("plan.unknown-output", message)
                    .fix("name an output or a staging of the same recipe under `inherit`"));
            }
        }
    }
    Ok(groups.into_labeling())
}

/// Groups of outputs as components, in build order. Groups that need each other although their outputs do not form
/// a circle (A and C share a staging, B stands between them) can only be built in one job, so they are merged.
fn components(
    outputs: &[PlannedOutput],
    graph: &DiGraph<usize, ()>,
    order: &[NodeIndex],
    groups: &[usize],
) -> Vec<Component> {
    let mut group_graph: DiGraph<usize, ()> = DiGraph::new();
    let mut node_of: BTreeMap<usize, NodeIndex> = BTreeMap::new();
    for group in groups {
        node_of.entry(*group).or_insert_with(|| group_graph.add_node(*group));
    }
    for edge in graph.edge_indices() {
        if let Some((from, to)) = graph.edge_endpoints(edge) {
            let (from, to) = (node_of[&groups[graph[from]]], node_of[&groups[graph[to]]]);
            if from != to {
                group_graph.update_edge(from, to, ());
            }
        }
    }
    // Tarjan gives the parts in reverse topological order.
    let mut knots = tarjan_scc(&group_graph);
    knots.reverse();
    let mut knot_of: BTreeMap<usize, usize> = BTreeMap::new();
    for (number, knot) in knots.iter().enumerate() {
        knot_of.extend(knot.iter().map(|node| (group_graph[*node], number)));
    }
    let mut members: Vec<Vec<usize>> = vec![Vec::new(); knots.len()];
    for node in order {
        let at = graph[*node];
        members[knot_of[&groups[at]]].push(at);
    }
    let key_of = |number: usize| key(outputs, members[number][0]);
    let mut made: Vec<Component> = Vec::with_capacity(members.len());
    let mut nodes: Vec<NodeIndex> = order.to_vec();
    nodes.sort_by_key(|node| graph[*node]);
    for (number, inside) in members.iter().enumerate() {
        let needed = inside.iter().flat_map(|at| graph.neighbors_directed(nodes[*at], Direction::Incoming));
        let makers: BTreeSet<usize> = needed.map(|node| knot_of[&groups[graph[node]]]).collect();
        let depends_on = makers.into_iter().filter(|maker| *maker != number).map(key_of).collect();
        let outputs = inside.iter().map(|at| outputs[*at].clone()).collect();
        made.push(Component { key: key_of(number), outputs, depends_on });
    }
    made
}

/// The shortest text that only this output has.
fn key(outputs: &[PlannedOutput], at: usize) -> String {
    let forms: [fn(&PlannedOutput) -> String; 3] = [
        |output| output.name.clone(),
        |output| format!("{}@{}", output.name, output.build),
        |output| format!("{}@{}@{}", output.name, output.version, output.build),
    ];
    let own = &outputs[at];
    forms
        .iter()
        .find(|form| {
            outputs.iter().filter(|other| other.name == own.name && form(other) == form(own)).count() == 1
        })
        .map_or_else(|| label(own), |form| form(own))
}

/// Everything that tells an output from all others.
fn label(output: &PlannedOutput) -> String {
    format!("{}@{}@{}@{}", output.name, output.version, output.build, output.subdir)
}

#[cfg(test)]
mod tests;
