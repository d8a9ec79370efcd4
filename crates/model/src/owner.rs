//! What a job belongs to: a pipeline of ours, or one foreign job that wants a runner.

use crate::{DemandId, PipelineId};
use serde::{Deserialize, Serialize};

/// The owner of a job and of its attempts. In a row it is one field, `pipeline` or `demand`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    /// A pipeline.
    Pipeline(PipelineId),
    /// A demand.
    Demand(DemandId),
}

impl Owner {
    /// The pipeline, when it is one.
    pub const fn pipeline(self) -> Option<PipelineId> {
        match self {
            Owner::Pipeline(id) => Some(id),
            Owner::Demand(_) => None,
        }
    }

    /// The demand, when it is one.
    pub const fn demand(self) -> Option<DemandId> {
        match self {
            Owner::Demand(id) => Some(id),
            Owner::Pipeline(_) => None,
        }
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Owner::Pipeline(id) => id.fmt(f),
            Owner::Demand(id) => id.fmt(f),
        }
    }
}

impl From<PipelineId> for Owner {
    fn from(id: PipelineId) -> Self {
        Owner::Pipeline(id)
    }
}

impl From<DemandId> for Owner {
    fn from(id: DemandId) -> Self {
        Owner::Demand(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Id as _;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(tag = "state")]
    enum State {
        A { x: u32 },
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Row {
        id: u32,
        #[serde(flatten)]
        owner: Owner,
        #[serde(flatten)]
        state: State,
    }

    #[test]
    fn rows_that_exist_keep_their_spelling() {
        let id = PipelineId::from_bits(7);
        let row = Row { id: 1, owner: id.into(), state: State::A { x: 2 } };
        let text = format!(r#"{{"id":1,"pipeline":"{id}","state":"A","x":2}}"#);
        assert_eq!(serde_json::to_string(&row).unwrap(), text);
        assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), row);
        let id = DemandId::from_bits(7);
        let text = format!(r#"{{"id":1,"demand":"{id}","state":"A","x":2}}"#);
        assert_eq!(serde_json::from_str::<Row>(&text).unwrap().owner, Owner::Demand(id));
    }
}
