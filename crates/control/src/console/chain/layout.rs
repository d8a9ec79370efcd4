//! Places for the nodes of a chain, by layers: each stage has its column; builds have one column for each step of
//! their dependencies. An edge that skips columns passes through a lane of its own, so that no line runs behind a node.
//!
//! When that makes more columns than fit, the ends are folded: the gate goes below the event, the environment below the
//! promotion.
//!
//! Deterministic: equal graphs give equal pictures.

use super::graph::{Graph, Stage};

/// Width of a node.
pub const NODE_WIDTH: f32 = 160.0;
/// Height of a node.
pub const NODE_HEIGHT: f32 = 72.0;
/// Space between columns, for the lines.
pub const COLUMN_GAP: f32 = 26.0;
/// Space between rows.
pub const ROW_GAP: f32 = 16.0;
/// Height of a lane that a long edge passes through.
pub const LANE_HEIGHT: f32 = 10.0;
/// Height of the line of titles.
pub const HEADER: f32 = 26.0;
/// Space around.
pub const MARGIN: f32 = 3.0;
/// More columns than this are folded.
pub const MOST_COLUMNS: usize = 7;

/// A place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// From the left.
    pub x: f32,
    /// From the top.
    pub y: f32,
}

/// A line from node to node: the points it passes; straight inside a column, curved between columns. Two points with
/// the same `x` lead down from a node to the one below.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Index of the edge in the graph.
    pub edge: usize,
    /// From the right side of a node to the left side of another, through pairs of points of the lanes between.
    pub points: Vec<Point>,
}

/// Title of a stage, over its first column; two stages when they are folded into one column.
#[derive(Debug, Clone, PartialEq)]
pub struct Heading {
    /// Stages.
    pub stages: Vec<Stage>,
    /// Left edge.
    pub x: f32,
}

/// A chain with places.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    /// Upper left corner of each node, by index.
    pub places: Vec<Point>,
    /// The lines.
    pub lines: Vec<Line>,
    /// The titles.
    pub headings: Vec<Heading>,
    /// Number of columns.
    pub columns: usize,
    /// Width of the picture.
    pub width: f32,
    /// Height of the picture.
    pub height: f32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Node(usize),
    /// Passage of an edge.
    Lane(usize),
}

/// Gives every node a place.
pub fn layout(graph: &Graph) -> Layout {
    let (column_of, headings, columns) = match columns(graph, false) {
        wide if wide.2 > MOST_COLUMNS => columns(graph, true),
        fitting => fitting,
    };
    let mut slots: Vec<Vec<Slot>> = vec![Vec::new(); columns];
    for (node, column) in column_of.iter().enumerate() {
        slots[*column].push(Slot::Node(node));
    }
    for (index, edge) in graph.edges.iter().enumerate() {
        let (from, to) = (column_of[edge.from] + 1, column_of[edge.to]);
        for column in slots.iter_mut().take(to).skip(from) {
            column.push(Slot::Lane(index));
        }
    }
    for _ in 0..4 {
        for column in 1..columns.saturating_sub(1) {
            sort(graph, &column_of, &mut slots, column, true);
        }
        for column in (1..columns.saturating_sub(1)).rev() {
            sort(graph, &column_of, &mut slots, column, false);
        }
    }
    place(graph, &column_of, &slots, headings, columns)
}

/// Stages and the column that their title stands over.
type Titled = (Vec<Stage>, usize);

/// The column of each node; the first column of each stage that has nodes; the number of columns.
fn columns(graph: &Graph, folded: bool) -> (Vec<usize>, Vec<Titled>, usize) {
    let depth = depths_of_builds(graph);
    let mut of = vec![0; graph.nodes.len()];
    let mut headings: Vec<Titled> = Vec::new();
    let mut next = 0;
    for stage in Stage::ALL {
        let here: Vec<usize> =
            (0..graph.nodes.len()).filter(|node| graph.nodes[*node].stage == stage).collect();
        if here.is_empty() {
            continue;
        }
        if let (true, Stage::Gate | Stage::Environment, Some((stages, column))) =
            (folded, stage, headings.last_mut())
        {
            stages.push(stage);
            for node in here {
                of[node] = *column;
            }
            continue;
        }
        headings.push((vec![stage], next));
        let mut width = 1;
        for node in here {
            of[node] = next + depth[node];
            width = width.max(depth[node] + 1);
        }
        next += width;
    }
    (of, headings, next)
}

/// Longest way from a build without needs, inside the builds. Nodes of a cycle keep the depth reached before it.
fn depths_of_builds(graph: &Graph) -> Vec<usize> {
    let inside = |node: usize| graph.nodes[node].stage == Stage::Builds;
    let edges: Vec<_> = graph.edges.iter().filter(|edge| inside(edge.from) && inside(edge.to)).collect();
    let mut depth = vec![0; graph.nodes.len()];
    let mut open_needs = vec![0_usize; graph.nodes.len()];
    for edge in &edges {
        open_needs[edge.to] += 1;
    }
    let mut ready: Vec<usize> = (0..graph.nodes.len()).filter(|node| open_needs[*node] == 0).collect();
    while let Some(node) = ready.pop() {
        for edge in edges.iter().filter(|edge| edge.from == node) {
            depth[edge.to] = depth[edge.to].max(depth[node] + 1);
            open_needs[edge.to] -= 1;
            if open_needs[edge.to] == 0 {
                ready.push(edge.to);
            }
        }
    }
    depth
}

/// Sorts a column by the mean height of what its slots are tied to in the neighbouring column.
fn sort(graph: &Graph, column_of: &[usize], slots: &mut [Vec<Slot>], column: usize, forward: bool) {
    let neighbour = if forward { column - 1 } else { column + 1 };
    let heights = heights(&slots[neighbour]);
    let height_of =
        |wanted: Slot| slots[neighbour].iter().position(|slot| *slot == wanted).map(|index| heights[index]);
    // The end of an edge in the neighbouring column: the node itself, or the lane that leads on to it.
    let end = |edge: usize| {
        let node = if forward { graph.edges[edge].from } else { graph.edges[edge].to };
        if column_of[node] == neighbour { Slot::Node(node) } else { Slot::Lane(edge) }
    };
    let mean = |slot: Slot, own: f32| {
        let tied: Vec<f32> = match slot {
            Slot::Lane(edge) => height_of(end(edge)).into_iter().collect(),
            Slot::Node(node) => (0..graph.edges.len())
                .filter(|edge| node == if forward { graph.edges[*edge].to } else { graph.edges[*edge].from })
                .filter_map(|edge| height_of(end(edge)))
                .collect(),
        };
        if tied.is_empty() { own } else { tied.iter().sum::<f32>() / tied.len() as f32 }
    };
    let own = self::heights(&slots[column]);
    let mut keyed: Vec<(f32, Slot)> =
        slots[column].iter().enumerate().map(|(index, slot)| (mean(*slot, own[index]), *slot)).collect();
    keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
    slots[column] = keyed.into_iter().map(|(_, slot)| slot).collect();
}

const fn height(slot: Slot) -> f32 {
    match slot {
        Slot::Node(_) => NODE_HEIGHT,
        Slot::Lane(_) => LANE_HEIGHT,
    }
}

fn total(column: &[Slot]) -> f32 {
    let gaps = column.len().saturating_sub(1) as f32 * ROW_GAP;
    column.iter().map(|slot| height(*slot)).sum::<f32>() + gaps
}

/// Middle of each slot, relative to the middle of the column.
fn heights(column: &[Slot]) -> Vec<f32> {
    let mut y = -total(column) / 2.0;
    column
        .iter()
        .map(|slot| {
            let middle = y + height(*slot) / 2.0;
            y += height(*slot) + ROW_GAP;
            middle
        })
        .collect()
}

fn place(
    graph: &Graph,
    column_of: &[usize],
    slots: &[Vec<Slot>],
    headings: Vec<Titled>,
    columns: usize,
) -> Layout {
    let tallest = slots.iter().map(|column| total(column)).fold(NODE_HEIGHT, f32::max);
    let left = |column: usize| MARGIN + column as f32 * (NODE_WIDTH + COLUMN_GAP);
    let middle = MARGIN + HEADER + tallest / 2.0;
    let mut places = vec![Point { x: 0.0, y: 0.0 }; graph.nodes.len()];
    let mut lanes = vec![Vec::new(); graph.edges.len()];
    for (column, here) in slots.iter().enumerate() {
        for (slot, y) in here.iter().zip(heights(here)) {
            match slot {
                Slot::Node(node) => {
                    places[*node] = Point { x: left(column), y: middle + y - NODE_HEIGHT / 2.0 };
                }
                Slot::Lane(edge) => {
                    let y = middle + y;
                    lanes[*edge]
                        .extend([Point { x: left(column), y }, Point { x: left(column) + NODE_WIDTH, y }]);
                }
            }
        }
    }
    let lines = graph
        .edges
        .iter()
        .enumerate()
        // A line that would lead back comes from bad data and is left out.
        .filter(|(_, edge)| {
            let (from, to) = (column_of[edge.from], column_of[edge.to]);
            to > from || (to == from && places[edge.to].y > places[edge.from].y)
        })
        .map(|(index, edge)| {
            let (from, to) = (places[edge.from], places[edge.to]);
            if column_of[edge.to] == column_of[edge.from] {
                let x = from.x + NODE_WIDTH / 2.0;
                let points = vec![Point { x, y: from.y + NODE_HEIGHT }, Point { x, y: to.y }];
                return Line { edge: index, points };
            }
            let mut points = vec![Point { x: from.x + NODE_WIDTH, y: from.y + NODE_HEIGHT / 2.0 }];
            points.append(&mut lanes[index]);
            points.push(Point { x: to.x, y: to.y + NODE_HEIGHT / 2.0 });
            Line { edge: index, points }
        })
        .collect();
    Layout {
        places,
        lines,
        headings: headings.into_iter().map(|(stages, column)| Heading { stages, x: left(column) }).collect(),
        columns,
        width: left(columns) - COLUMN_GAP + MARGIN,
        height: tallest + HEADER + 2.0 * MARGIN,
    }
}
