//! Sample rows of who used what, and of who may ask.

use super::{AWKWARD, Samples, parsed, stake};
use forgeyard_model::Digest;
use forgeyard_model::account::RepositoryKey;
use forgeyard_model::ledger::{Entry, LedgerRow, RepositoryUse, RunTimes};
use forgeyard_model::principal::ApiToken;

impl Samples {
    /// A row of the ledger.
    pub fn ledger(&mut self) -> LedgerRow {
        let number = self.number();
        let repository = RepositoryKey { forge: parsed("github"), id: number };
        if number.is_multiple_of(2) {
            let (work, flavor) = (AWKWARD.to_owned(), parsed("small"));
            let key = LedgerRow::times_key(&repository, &work, &flavor);
            let times = RunTimes { repository, work, flavor, seconds: vec![1, u32::MAX] };
            return LedgerRow { key, entry: Entry::Times(times), generation: 1 };
        }
        let key = LedgerRow::use_key(&repository);
        let mut used = RepositoryUse::new(repository, "octo".to_owned(), self.at());
        used.charge(self.at(), &parsed("small"), &stake().used(1_000_000), 60);
        LedgerRow { key, entry: Entry::Use(used), generation: 1 }
    }

    /// A token.
    pub fn token(&mut self) -> ApiToken {
        let number = self.number();
        ApiToken {
            principal: self.principal(),
            digest: Digest::of(&number.to_be_bytes()),
            created_at: self.at(),
            expires_at: number.is_multiple_of(2).then(|| self.at()),
            revoked_at: None,
            repositories: (1..number % 3).collect(),
            forge_roles: (0..number % 3).map(|id| (u64::MAX - id, AWKWARD.to_owned())).collect(),
            generation: 1,
        }
    }
}
