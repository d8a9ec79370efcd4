//! Properties of the layout, on graphs that are made up at random, bad ones included.

use super::graph::{Edge, Graph, Node, Stage, Time};
use super::layout::{LANE_HEIGHT, MOST_COLUMNS, NODE_HEIGHT, NODE_WIDTH, layout};
use crate::console::tone::{Tone, Word};
use proptest::prelude::*;

fn node(stage: Stage, title: String) -> Node {
    Node {
        stage,
        title,
        word: Word::new(Tone::Idle, "idle"),
        time: Time::None,
        detail: String::new(),
        href: None,
        ghost: false,
    }
}

/// Builds and tests between the fixed ends; `ties` are pairs of builds, in either direction when `cyclic`.
fn graph(builds: usize, tests: &[usize], ties: &[(usize, usize)], cyclic: bool) -> Graph {
    let mut graph = Graph::default();
    let event = graph.add(node(Stage::Event, "event".to_owned()));
    let gate = graph.add(node(Stage::Gate, "gate".to_owned()));
    let plan = graph.add(node(Stage::Plan, "plan".to_owned()));
    let first = graph.nodes.len();
    for build in 0..builds {
        graph.add(node(Stage::Builds, format!("b{build}")));
        graph.edges.push(Edge { from: plan, to: first + build });
    }
    let tested: Vec<(usize, usize)> = tests
        .iter()
        .map(|build| (first + build % builds, graph.add(node(Stage::Tests, format!("t{build}")))))
        .collect();
    let promotion = graph.add(node(Stage::Promotion, "channel".to_owned()));
    let environment = graph.add(node(Stage::Environment, "env".to_owned()));
    graph.edges.extend([
        Edge { from: event, to: gate },
        Edge { from: gate, to: plan },
        Edge { from: promotion, to: environment },
    ]);
    for build in 0..builds {
        graph.edges.push(Edge { from: first + build, to: promotion });
    }
    for (build, test) in tested {
        graph.edges.extend([Edge { from: build, to: test }, Edge { from: test, to: promotion }]);
    }
    for (a, b) in ties {
        let (a, b) = (a % builds, b % builds);
        if cyclic || a < b {
            graph.edges.push(Edge { from: first + a, to: first + b });
        }
    }
    graph.drop_redundant_edges();
    graph
}

proptest! {
    #[test]
    fn nodes_and_lanes_never_lie_on_each_other(
        builds in 1_usize..9,
        tests in prop::collection::vec(0_usize..9, 0..9),
        ties in prop::collection::vec((0_usize..9, 0_usize..9), 0..16),
        cyclic: bool,
    ) {
        let graph = graph(builds, &tests, &ties, cyclic);
        let layout = layout(&graph);
        for (index, a) in layout.places.iter().enumerate() {
            prop_assert!(a.x >= 0.0 && a.x + NODE_WIDTH <= layout.width, "node {index} is in the picture");
            prop_assert!(a.y >= 0.0 && a.y + NODE_HEIGHT <= layout.height + 0.01, "node {index} is in the picture");
            for b in &layout.places[index + 1..] {
                prop_assert!(a.x != b.x || (a.y - b.y).abs() >= NODE_HEIGHT, "two nodes overlap: {a:?} {b:?}");
            }
        }
        for line in &layout.lines {
            // Straight parts inside columns are the lanes.
            for lane in line.points[1..line.points.len() - 1].chunks_exact(2) {
                prop_assert_eq!(lane[0].y, lane[1].y);
                for place in layout.places.iter().filter(|place| place.x == lane[0].x) {
                    let middle = place.y + NODE_HEIGHT / 2.0;
                    prop_assert!((middle - lane[0].y).abs() >= (NODE_HEIGHT + LANE_HEIGHT) / 2.0, "a line runs behind a node");
                }
            }
            let (first, last) = (line.points[0], line.points[line.points.len() - 1]);
            prop_assert!(last.x > first.x || (last.x == first.x && last.y > first.y), "lines lead onwards");
        }
        if !cyclic {
            prop_assert_eq!(layout.lines.len(), graph.edges.len(), "every edge of a sound graph is drawn");
        }
    }

    #[test]
    fn equal_graphs_have_equal_pictures(
        builds in 1_usize..7,
        tests in prop::collection::vec(0_usize..7, 0..7),
        ties in prop::collection::vec((0_usize..7, 0_usize..7), 0..12),
    ) {
        prop_assert_eq!(layout(&graph(builds, &tests, &ties, false)), layout(&graph(builds, &tests, &ties, false)));
    }
}

#[test]
fn ends_are_folded_only_when_the_chain_is_too_wide() {
    let plain = layout(&graph(1, &[0], &[], false));
    assert_eq!((plain.columns, plain.headings.len()), (MOST_COLUMNS, 7));
    let diamond = layout(&graph(4, &[0, 1, 2, 3], &[(0, 1), (0, 2), (1, 3), (2, 3)], false));
    assert_eq!((diamond.columns, diamond.headings.len()), (7, 5));
}

#[test]
fn an_edge_that_a_longer_way_says_is_dropped() {
    let graph = graph(3, &[], &[(0, 1), (1, 2), (0, 2)], false);
    let named = |from: &str, to: &str| {
        graph
            .edges
            .iter()
            .any(|edge| graph.nodes[edge.from].title == from && graph.nodes[edge.to].title == to)
    };
    assert!(named("b0", "b1") && named("b1", "b2"));
    assert!(!named("b0", "b2") && !named("plan", "b1"));
}

#[test]
fn a_cycle_in_bad_data_still_ends() {
    let graph = graph(3, &[0], &[(0, 1), (1, 2), (2, 0)], true);
    assert!(layout(&graph).width > 0.0);
}
