//! Deliveries: webhook bodies, stored raw with their GUID before anything else is done with them.
//!
//! A GUID is unique at its forge only, and one forge must not be able to use up the GUIDs of another. So the key of a
//! delivery is `forge:guid` ([`key`]). The first forge of every farm is called `github`, and its deliveries keep the bare
//! GUID: rows that were stored before farms had several forges are read as what they are.

use crate::{Digest, Explanation, ForgeName, PipelineId, Timestamp};
use serde::{Deserialize, Serialize};

/// The forge whose deliveries are stored under their bare GUID.
const FIRST: &str = "github";

/// The key of a delivery of a forge. The GUID must hold no `:`.
pub fn key(forge: &ForgeName, guid: &str) -> String {
    if forge.as_str() == FIRST { guid.to_owned() } else { format!("{forge}:{guid}") }
}

/// The name of the forge in the key of a delivery.
pub fn forge_of(key: &str) -> &str {
    key.split_once(':').map_or(FIRST, |(forge, _)| forge)
}

/// What became of a delivery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum DeliveryState {
    /// Durable, not looked at.
    Stored,
    /// Started a pipeline.
    Started {
        /// Which.
        pipeline: PipelineId,
    },
    /// Understood; the gate refused, or there was nothing to do.
    Settled {
        /// Why.
        reason: Explanation,
    },
    /// Could not be understood.
    Rejected {
        /// Why.
        reason: Explanation,
    },
}

impl DeliveryState {
    /// The persisted spelling.
    pub const fn name(&self) -> &'static str {
        match self {
            DeliveryState::Stored => "stored",
            DeliveryState::Started { .. } => "started",
            DeliveryState::Settled { .. } => "settled",
            DeliveryState::Rejected { .. } => "rejected",
        }
    }
}

/// A delivery row. The body itself is stored beside it, by the same transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Delivery {
    /// The sender's GUID, with its forge as [`key`] writes it.
    pub guid: String,
    /// Event name, `pull_request`.
    pub event: String,
    /// Digest of the raw body.
    pub body: Digest,
    /// What became of it.
    #[serde(flatten)]
    pub state: DeliveryState,
    /// How often it came.
    pub times: u32,
    /// When it first came.
    pub received_at: Timestamp,
    /// Row version.
    pub generation: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guids_of_two_forges_never_meet_and_old_rows_are_of_the_first() {
        let forge = |text: &str| text.parse::<ForgeName>().unwrap();
        let (first, other) = (key(&forge("github"), "0b98-a"), key(&forge("lab.ghes"), "0b98-a"));
        assert_eq!((first.as_str(), other.as_str()), ("0b98-a", "lab.ghes:0b98-a"));
        assert_eq!((forge_of(&first), forge_of(&other)), ("github", "lab.ghes"));
    }
}
