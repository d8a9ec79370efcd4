//! What tests share: a seeded generator, builders, and the deterministic farm.
//!
//! Everything in [`sim`] is *simulated*: sites, machines, agents, forges and stores are small models whose only purpose
//! is to drive the real engine through every order of events, losses and crashes that a seed can name.

pub mod build;
pub mod rng;
pub mod sim;
