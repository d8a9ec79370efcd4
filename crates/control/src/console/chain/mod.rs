//! The picture of a pipeline: event → gate → plan → builds → tests → promotion → environment.
//!
//! Three steps, each pure: [`graph`] reads nodes and edges out of a pipeline, [`layout`] gives them places, [`draw`]
//! writes the picture. The same graph is also written as a list, which narrow screens show in place of the picture.

pub mod draw;
pub mod graph;
pub mod layout;

pub use draw::{list, picture};
pub use graph::{Edge, Graph, Node, Stage, graph};
pub use layout::{Layout, layout};

#[cfg(test)]
mod tests;
