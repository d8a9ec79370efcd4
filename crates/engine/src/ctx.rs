//! What a decision may know beside the state: the time, entropy, who asks, and the configuration.

use forgeyard_model::Timestamp;
use forgeyard_model::config::FarmConfig;
use forgeyard_model::principal::Principal;
use sha2::{Digest as _, Sha256};

/// Circumstances of one decision. Everything here is written to the journal, so that it can be replayed.
#[derive(Debug, Clone)]
pub struct Ctx<'a> {
    /// Position in the journal.
    pub seq: u64,
    /// Time of the decision; never runs behind the last one.
    pub now: Timestamp,
    /// Fresh entropy.
    pub entropy: [u8; 16],
    /// Who asks.
    pub by: Principal,
    /// What the farm is made of.
    pub config: &'a FarmConfig,
    /// Digest of `config`.
    pub config_digest: forgeyard_model::Digest,
}

impl Ctx<'_> {
    /// Entropy for the `index`-th new thing of this decision.
    pub fn entropy_for(&self, index: u32) -> u128 {
        let mut hash = Sha256::new();
        hash.update(self.entropy);
        hash.update(index.to_be_bytes());
        let sum = hash.finalize();
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&sum[..16]);
        u128::from_be_bytes(bytes)
    }
}
