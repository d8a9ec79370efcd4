//! Deliveries: webhook bodies, stored raw with their GUID before anything else is done with them.

use crate::{Digest, Explanation, PipelineId, Timestamp};
use serde::{Deserialize, Serialize};

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
    /// The sender's GUID, or one of ours for a local request.
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
