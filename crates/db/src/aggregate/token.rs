//! API tokens: the key is the digest of the token, which itself is nowhere; all are loaded.

use crate::table::{Aggregate, Table};
use forgeyard_model::principal::ApiToken;
use serde_json::Value;

impl Aggregate for ApiToken {
    const TABLE: Table =
        Table { kind: "token", columns: &[], uniques: &[], references: &[], wanted: "1 = 1" };

    fn cells(&self) -> Vec<Value> {
        Vec::new()
    }
}
