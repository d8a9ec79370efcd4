//! The authority: all that the cache shares with the control plane. Keys that sign tokens, the scopes, what is revoked.
//!
//! It is a JSON file that is replaced as a whole (written beside and renamed), so a reader sees one state or the other.
//! The service notices within a fifth of a second that it is another one ([`in_force`]); a file that cannot be read leaves the
//! last good one in force, and says so. Raising `epoch` voids every token of an older epoch at once; `revoked` voids single
//! ones, which people take back. Tokens of attempts are in a list of their own while they hold ([`live`]).

pub(crate) mod in_force;
pub mod live;

use crate::identity::policy::Issuer;
use crate::scope::{Grant, ScopeError, ScopePath, ScopeRule, ScopeTree, Who};
use crate::signature::Signer;
use crate::token::{self, Access, Claims, TokenError};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::VerifyingKey;
use forgeyard_model::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

/// The file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Snapshot {
    /// Public keys by id: Ed25519, base64.
    pub keys: BTreeMap<String, String>,
    /// The revocation epoch.
    #[serde(default)]
    pub epoch: u64,
    /// Ids of tokens that were taken back before their end.
    #[serde(default)]
    pub revoked: BTreeSet<String>,
    /// When tokens that were taken back end by themselves, where that is known; after that they need not be remembered.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ends: BTreeMap<String, Timestamp>,
    /// Scopes that were closed, and when: what they held goes. One that is written again is taken out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub closed: BTreeMap<ScopePath, Timestamp>,
    /// The scopes.
    #[serde(default)]
    pub scopes: Vec<ScopeRule>,
    /// Forges whose tokens are exchanged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub issuers: Vec<Issuer>,
}

impl Snapshot {
    /// Forgets what was taken back and has ended by itself.
    pub fn forget_ended(&mut self, now: Timestamp) {
        let Self { ends, revoked, .. } = self;
        ends.retain(|id, end| {
            let remembered = *end > now;
            if !remembered {
                revoked.remove(id);
            }
            remembered
        });
    }
}

/// What is wrong with an authority.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// Not the expected JSON.
    #[error("reading the authority of the cache: {0}")]
    Json(#[from] serde_json::Error),
    /// A key that is none.
    #[error("key `{0}` of the authority is not an Ed25519 public key in base64")]
    Key(String),
    /// The scopes.
    #[error("scopes of the authority: {0}")]
    Scopes(#[from] ScopeError),
    /// A key that signs for Nix.
    #[error("the signing key {} of scope `{scope}`: {reason}", file.display())]
    SigningKey {
        /// The scope.
        scope: ScopePath,
        /// The file.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// An issuer.
    #[error("issuer `{issuer}` of the authority: {reason}")]
    Issuer {
        /// Its name.
        issuer: String,
        /// What is wrong.
        reason: String,
    },
}

/// The snapshot, checked.
#[derive(Debug, Clone, Default)]
pub struct Authority {
    keys: BTreeMap<String, VerifyingKey>,
    epoch: u64,
    revoked: BTreeSet<String>,
    closed: BTreeMap<ScopePath, Timestamp>,
    tree: ScopeTree,
    issuers: Vec<Issuer>,
    signers: BTreeMap<ScopePath, Arc<Signer>>,
}

/// A caller that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// What its token says; nothing for a caller without one.
    pub claims: Option<Claims>,
}

impl Caller {
    /// A caller without a token.
    pub const ANONYMOUS: Caller = Caller { claims: None };

    /// Whether it looks after the cache rather than using it.
    pub fn admin(&self) -> bool {
        self.claims.as_ref().is_some_and(|claims| claims.access == Access::Admin)
    }
}

impl Authority {
    /// Reads and checks a snapshot.
    pub fn read(json: &[u8]) -> Result<Self, AuthorityError> {
        Self::new(serde_json::from_slice(json)?)
    }

    /// Checks a snapshot.
    pub fn new(snapshot: Snapshot) -> Result<Self, AuthorityError> {
        let mut keys = BTreeMap::new();
        for (id, text) in snapshot.keys {
            let bytes = STANDARD.decode(&text).ok().and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
            let key = bytes.and_then(|bytes| VerifyingKey::from_bytes(&bytes).ok());
            keys.insert(id.clone(), key.ok_or(AuthorityError::Key(id))?);
        }
        let tree = ScopeTree::new(snapshot.scopes)?;
        for issuer in &snapshot.issuers {
            if let Some(reason) = issuer.wrong(&tree) {
                return Err(AuthorityError::Issuer { issuer: issuer.issuer.clone(), reason });
            }
        }
        let Snapshot { epoch, revoked, closed, issuers, .. } = snapshot;
        Ok(Self { keys, epoch, revoked, closed, tree, issuers, signers: BTreeMap::new() })
    }

    /// The same with these keys for Nix, by the path of the rule; [`crate::signature::with_keys`] reads them.
    #[must_use]
    pub fn with_signers(self, signers: BTreeMap<ScopePath, Arc<Signer>>) -> Self {
        Self { signers, ..self }
    }

    /// The key that signs what Nix reads from a scope.
    pub fn signer(&self, scope: &ScopePath) -> Option<Arc<Signer>> {
        self.signers.get(&self.tree.of(scope)?.path).map(Arc::clone)
    }

    /// Forges whose tokens are exchanged.
    pub fn issuers(&self) -> &[Issuer] {
        &self.issuers
    }

    /// Scopes that were closed, and when.
    pub const fn closed(&self) -> &BTreeMap<ScopePath, Timestamp> {
        &self.closed
    }

    /// The revocation epoch.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The scopes.
    pub const fn tree(&self) -> &ScopeTree {
        &self.tree
    }

    /// Who holds this token, if it is valid now.
    pub fn identify(&self, token: &str, now: Timestamp) -> Result<Caller, TokenError> {
        let claims = token::read(token, |id| self.keys.get(id))?;
        if claims.expires_at <= now {
            return Err(TokenError::Expired);
        }
        if claims.epoch < self.epoch || self.revoked.contains(&claims.id) {
            return Err(TokenError::Revoked);
        }
        Ok(Caller { claims: Some(claims) })
    }

    /// What a caller may do who addresses this scope, or none in particular.
    pub fn grant(&self, caller: &Caller, asked: Option<&ScopePath>) -> Grant {
        let who = match &caller.claims {
            Some(claims) if claims.access != Access::Admin => Who::Member {
                scope: claims.scope.clone(),
                writes: claims.access == Access::Write,
                cold: claims.cold,
            },
            _ => Who::Anonymous,
        };
        self.tree.grant(&who, asked)
    }
}

/// A public key as the authority writes it.
pub fn public_text(key: &VerifyingKey) -> String {
    STANDARD.encode(key.as_bytes())
}

/// The token in an `Authorization` header: Bearer, the password of Basic, or the access key of a request to S3.
///
/// The signature of such a request is not looked at: the token is in the header as it is with Bearer, and holds by itself.
pub fn token_in(header: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(header).ok()?.trim();
    let (scheme, rest) = text.split_once(' ')?;
    let rest = rest.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(rest.to_owned());
    }
    if scheme == "AWS4-HMAC-SHA256" {
        let credential = rest.split(',').find_map(|part| part.trim().strip_prefix("Credential="))?;
        return credential.split('/').next().map(str::to_owned);
    }
    if scheme.eq_ignore_ascii_case("basic") {
        let decoded = String::from_utf8(STANDARD.decode(rest).ok()?).ok()?;
        return decoded.split_once(':').map(|(_, password)| password.to_owned());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use ed25519_dalek::SigningKey;
    use proptest::prelude::*;

    fn key() -> SigningKey {
        SigningKey::from_bytes(&[7; 32])
    }

    fn snapshot() -> Snapshot {
        let public = STANDARD.encode(key().verifying_key().to_bytes());
        let main = ScopeRule::new("p/main".parse().unwrap());
        let family = ScopeRule {
            family: true,
            parents: vec![main.path.clone()],
            ..ScopeRule::new("p/pr".parse().unwrap())
        };
        Snapshot {
            keys: [("k1".to_owned(), public)].into(),
            scopes: vec![main, family],
            ..Snapshot::default()
        }
    }

    fn claims() -> Claims {
        Claims {
            id: "t1".to_owned(),
            key: "k1".to_owned(),
            principal: "job_1".to_owned(),
            scope: "p/pr/7".parse().unwrap(),
            access: Access::Write,
            expires_at: Timestamp::from_micros(100),
            epoch: 0,
            cold: false,
            listed: false,
            run: None,
        }
    }

    fn token(claims: &Claims) -> String {
        token::mint(claims, &key()).unwrap().expose().to_owned()
    }

    const NOW: Timestamp = Timestamp::from_micros(50);

    #[test]
    fn token_is_believed_until_its_end_its_epoch_or_its_revocation() {
        let authority = Authority::new(snapshot()).unwrap();
        let good = token(&claims());
        let caller = authority.identify(&good, NOW).unwrap();
        let grant = authority.grant(&caller, None);
        assert_eq!(grant.writes, Some("p/pr/7".parse().unwrap()));
        let late = Timestamp::from_micros(100);
        assert_eq!(authority.identify(&good, late), Err(TokenError::Expired));
        let raised = Authority::new(Snapshot { epoch: 1, ..snapshot() }).unwrap();
        assert_eq!(raised.identify(&good, NOW), Err(TokenError::Revoked));
        let revoked = Snapshot { revoked: ["t1".to_owned()].into(), ..snapshot() };
        assert_eq!(Authority::new(revoked).unwrap().identify(&good, NOW), Err(TokenError::Revoked));
    }

    #[test]
    fn what_was_taken_back_and_has_ended_is_forgotten() {
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<_>>();
        let ends = [("old".to_owned(), NOW), ("new".to_owned(), Timestamp::from_micros(51))].into();
        let mut taken = Snapshot { revoked: ids(&["old", "new", "by hand"]), ends, ..snapshot() };
        taken.forget_ended(NOW);
        assert_eq!((taken.revoked, taken.ends.len()), (ids(&["by hand", "new"]), 1));
    }

    #[test]
    fn token_of_another_key_or_with_other_claims_is_refused() {
        let authority = Authority::new(snapshot()).unwrap();
        let other = SigningKey::from_bytes(&[8; 32]);
        let forged = token::mint(&claims(), &other).unwrap();
        assert_eq!(authority.identify(forged.expose(), NOW), Err(TokenError::Signature));
        let unknown = token(&Claims { key: "k2".to_owned(), ..claims() });
        assert_eq!(authority.identify(&unknown, NOW), Err(TokenError::Key));
        let (mine, main) =
            (token(&claims()), token(&Claims { scope: "p/main".parse().unwrap(), ..claims() }));
        let swapped = format!("{}.{}", main.split_once('.').unwrap().0, mine.split_once('.').unwrap().1);
        assert_eq!(authority.identify(&swapped, NOW), Err(TokenError::Signature));
    }

    #[test]
    fn token_comes_as_bearer_or_as_password() {
        assert_eq!(token_in(b"Bearer abc").as_deref(), Some("abc"));
        let basic = format!("Basic {}", STANDARD.encode("anybody:abc"));
        assert_eq!(token_in(basic.as_bytes()).as_deref(), Some("abc"));
        let s3 =
            b"AWS4-HMAC-SHA256 Credential=abc/20260101/auto/s3/aws4_request, SignedHeaders=host, Signature=0";
        assert_eq!(token_in(s3).as_deref(), Some("abc"));
        assert_eq!(token_in(b"Digest abc"), None);
    }

    proptest! {
        #[test]
        fn changed_token_is_never_believed(at in 4usize..150, with in "[A-Za-z0-9_.-]") {
            let authority = Authority::new(snapshot()).unwrap();
            let good = token(&claims());
            let mut changed = good.clone();
            if at < good.len() {
                changed.replace_range(at..=at, &with);
            }
            prop_assume!(changed != good);
            // the last character of base64 carries unused bits; a decoder that is strict refuses those
            prop_assert!(authority.identify(&changed, NOW).is_err());
        }

        #[test]
        fn any_header_is_read_or_refused(header: Vec<u8>) {
            let _ = token_in(&header);
        }
    }
}
