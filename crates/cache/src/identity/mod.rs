//! Identity: a token of a forge is exchanged for one of this cache, `POST /v1/token`.
//!
//! ```text
//! POST /v1/token    {"token": "<JWT of the forge>"}   or the same as `Authorization: Bearer`
//! 200               {"token": "fyc_…", "runtime-token": "<JWT>", "scope", "access", "expires-at", "reason"}
//! 403               {"code", "message", "fix"}; 503 when the keys of the issuer cannot be had
//! ```
//!
//! - An issuer is known by its exact name and declared with its audience and its projects (the authority's file). The
//!   token is checked in [`jwt`], what it gets is decided in [`policy`].
//! - A token is exchanged once: its `jti`, or its digest where it has none, is remembered until it ends, over restarts too
//!   (`seen`). The memory is bounded; when it is full, nothing is exchanged.
//! - Keys are fetched once an hour, and once more for a key that is not known, at most every thirty seconds.
//! - A runtime token of GitHub, where such an issuer is declared, is also believed as it comes, by GitHub's services alone
//!   ([`crate::github`]) and for what its exchange would give: their clients cannot exchange it. Taking it back is done by
//!   taking the issuer out of the authority.
//! - Neither the foreign token nor ours is logged or kept.

pub mod jwt;
mod keys;
pub mod policy;
mod seen;

use crate::connection::{Connection, End, Incoming, Thread};
use crate::github::Backend;
use crate::http::{Head, Method, Wrong};
use crate::service::Core;
use crate::store::StoreError;
use crate::token::{self, Access, Claims};
use ed25519_dalek::SigningKey;
use forgeyard_model::{Digest, Secret, Timestamp};
use jwt::{JwtError, Unverified};
use keys::{KeyError, Keys};
use policy::{Issuer, IssuerKind, Refused};
use ring::rand::SecureRandom as _;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Signs the tokens that are given out.
#[derive(Clone)]
pub struct Minter {
    /// Id of the key, as the authority knows it.
    pub id: String,
    /// The key.
    pub key: SigningKey,
}

/// What the exchange keeps.
pub(crate) struct Exchange {
    minter: Option<Minter>,
    keys: Keys,
    seen: Mutex<seen::Seen>,
    /// Runtime tokens that were believed, by their digest, under the authority of this generation.
    believed: Mutex<HashMap<Digest, (u64, Direct)>>,
}

/// Who holds a runtime token of GitHub that came by itself, without an exchange.
#[derive(Clone)]
pub(crate) struct Direct {
    pub(crate) claims: Claims,
    /// The ids that the client finds in the token.
    pub(crate) ids: Option<Backend>,
}

/// Runtime tokens that are remembered at most.
const MOST_BELIEVED: usize = 10_000;

impl Exchange {
    /// Remembers in this folder what was exchanged.
    pub(crate) fn open(folder: &std::path::Path, minter: Option<Minter>) -> Result<Self, StoreError> {
        let path = folder.join("exchanged.log");
        let seen = seen::Seen::open(path.clone()).map_err(StoreError::io("reading or writing", path))?;
        Ok(Self { minter, keys: Keys::default(), seen: Mutex::new(seen), believed: Mutex::default() })
    }

    /// Whether this is the first time; remembers it until `end`, in seconds.
    fn first(&self, id: Digest, end: i64, now: Timestamp) -> Result<(), Denied> {
        let now = now.as_micros().div_euclid(1_000_000);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.first(id, end, now).map_err(|again| match again {
            seen::Again::Replay => Denied::Replay,
            seen::Again::Busy => Denied::Busy,
        })
    }
}

/// What is asked.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Request {
    token: String,
}

/// What is given.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Given {
    /// The token of this cache.
    pub token: String,
    /// The same as a JWT, for `ACTIONS_RUNTIME_TOKEN`.
    pub runtime_token: String,
    /// The scope.
    pub scope: String,
    /// Read or write.
    pub access: Access,
    /// Until when.
    pub expires_at: Timestamp,
    /// Why not more.
    pub reason: String,
}

/// Why nothing is given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Denied {
    #[error("this cache exchanges no tokens: no issuer is declared, or it has no key to sign with")]
    Off,
    #[error("the request has no token")]
    None,
    #[error("the issuer of the token is not declared")]
    Issuer,
    #[error(transparent)]
    Token(#[from] JwtError),
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("the token was exchanged before")]
    Replay,
    #[error("too many tokens were exchanged within their life")]
    Busy,
    #[error("the keys of the issuer cannot be had: {0}")]
    Keys(KeyError),
    #[error("the token could not be made")]
    Mint,
}

impl Denied {
    const fn status(&self) -> u16 {
        match self {
            Denied::Off => 404,
            Denied::None => 400,
            Denied::Busy | Denied::Keys(_) | Denied::Mint => 503,
            _ => 403,
        }
    }

    const fn code(&self) -> &'static str {
        match self {
            Denied::Off => "exchange.off",
            Denied::None => "exchange.no-token",
            Denied::Issuer => "exchange.issuer",
            Denied::Token(_) => "exchange.token",
            Denied::Refused(_) => "exchange.project",
            Denied::Replay => "exchange.replay",
            Denied::Busy | Denied::Keys(_) | Denied::Mint => "exchange.unavailable",
        }
    }

    const fn fix(&self) -> &'static str {
        match self {
            Denied::Off => "declare the issuer in [[cache.issuers]]",
            Denied::None => "send {\"token\": …} or Authorization: Bearer",
            Denied::Issuer => {
                "compare the issuer of the token with [[cache.issuers]]: it has to be the same, byte by byte"
            }
            Denied::Token(_) => "ask the forge for a new token, with the audience of this cache",
            Denied::Refused(_) => {
                "declare the numeric ids of the project and its owner in [[cache.issuers.projects]]"
            }
            Denied::Replay => "ask the forge for a new token: each is exchanged once",
            Denied::Busy | Denied::Keys(_) | Denied::Mint => {
                "try again; without a token, public scopes can be read"
            }
        }
    }
}

/// Answers `POST /v1/token`.
pub(crate) async fn answer(thread: &Thread, conn: &mut Connection, head: &Head) -> Result<(), End> {
    let body = match conn.body(&thread.core, head, true).await? {
        Incoming::Memory(bytes) => bytes,
        _ => return Err(Wrong { status: 413, reason: "a token is not that long" }.into()),
    };
    let (status, body) = if head.method == Method::Post {
        match exchange(&thread.core, head, &body).await {
            Ok(given) => (200, serde_json::to_string(&given).unwrap_or_default()),
            Err(denied) => {
                tracing::warn!(client = %head.agent, peer = %conn.peer.ip(), "no token was given: {denied}");
                let (code, fix) = (denied.code(), denied.fix());
                let text = serde_json::json!({ "code": code, "message": denied.to_string(), "fix": fix });
                (denied.status(), text.to_string())
            }
        }
    } else {
        (405, "{}".to_owned())
    };
    let headers = [("Content-Type", "application/json"), ("Cache-Control", "no-store")];
    conn.begin(status, body.len() as u64, head.keep_alive, &headers);
    conn.send(Some(body.as_bytes())).await
}

async fn exchange(core: &Core, head: &Head, body: &[u8]) -> Result<Given, Denied> {
    let (authority, now) = (core.authority(), (core.clock)());
    let minter =
        core.exchange.minter.as_ref().filter(|_| !authority.issuers().is_empty()).ok_or(Denied::Off)?;
    let foreign = match serde_json::from_slice::<Request>(body) {
        Ok(request) => Secret::new(request.token),
        Err(_) => Secret::new(crate::authority::token_in(&head.authorization).ok_or(Denied::None)?),
    };
    let unverified = Unverified::read(foreign.expose())?;
    // the exact name; several kinds may share it
    let named: Vec<&Issuer> =
        authority.issuers().iter().filter(|issuer| issuer.issuer == unverified.issuer).collect();
    let mut denied = Denied::Issuer;
    for issuer in named {
        match believe(core, issuer, &unverified, now).await {
            Ok(claims) => {
                let decision = policy::decide(issuer, &claims)?;
                let id = match claims.text("jti") {
                    "" => Digest::of(foreign.expose().as_bytes()),
                    jti => Digest::of(format!("{}\n{jti}", issuer.issuer).as_bytes()),
                };
                core.exchange.first(id, claims.end(), now)?;
                return mint(minter, issuer, decision, authority.epoch(), now).ok_or(Denied::Mint);
            }
            Err(error) => denied = error,
        }
    }
    Err(denied)
}

async fn believe(
    core: &Core,
    issuer: &Issuer,
    unverified: &Unverified<'_>,
    now: Timestamp,
) -> Result<jwt::Claims, Denied> {
    let key = core.exchange.keys.key(&issuer.key_url(), &unverified.key, now).await.map_err(Denied::Keys)?;
    let key = key.ok_or(JwtError::Key)?;
    let claims = unverified.clone().verify(&key, &issuer.issuer, issuer.audience.as_deref(), now)?;
    if issuer.kind == IssuerKind::GithubRuntime && claims.text("ac").is_empty() {
        // an identity token, made for whatever audience: not for here
        return Err(JwtError::Audience.into());
    }
    Ok(claims)
}

/// Who holds this runtime token of GitHub, where such an issuer is declared: for the clients under GitHub's own runner that
/// find the way here through a resolver and cannot exchange it. Checked once, then a look into a map.
pub(crate) async fn direct(core: &Core, token: &str, now: Timestamp) -> Option<Direct> {
    let (authority, generation) = (core.authority(), core.generation());
    let runtime = |issuer: &&Issuer| issuer.kind == IssuerKind::GithubRuntime;
    if token.starts_with(token::PREFIX) || !authority.issuers().iter().any(|issuer| runtime(&issuer)) {
        return None;
    }
    let key = Digest::of(token.as_bytes());
    let lock = || core.exchange.believed.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((then, known)) = lock().get(&key)
        && *then == generation
        && known.claims.expires_at > now
    {
        return Some(known.clone());
    }
    let unverified = Unverified::read(token).ok()?;
    for issuer in authority.issuers().iter().filter(runtime) {
        if issuer.issuer != unverified.issuer {
            continue;
        }
        let believed = believe(core, issuer, &unverified, now).await;
        let decided = believed.and_then(|claims| Ok((policy::decide(issuer, &claims)?, claims)));
        match decided {
            Ok((policy::Decision { scope, access, principal, run, reason }, claims)) => {
                tracing::info!(%scope, ?access, %principal, %run, "a runtime token is believed: {reason}");
                let claims_of_ours = Claims {
                    id: key.hex(),
                    key: String::new(),
                    principal,
                    scope,
                    access,
                    expires_at: Timestamp::from_micros(claims.end().saturating_mul(1_000_000)),
                    epoch: authority.epoch(),
                    cold: false,
                    listed: false,
                    run: Some(run),
                };
                let direct = Direct { claims: claims_of_ours, ids: Backend::read(claims.text("scp")) };
                let mut all = lock();
                if all.len() >= MOST_BELIEVED {
                    all.clear();
                }
                all.insert(key, (generation, direct.clone()));
                return Some(direct);
            }
            Err(error) => tracing::info!("a runtime token is not believed: {error}"),
        }
    }
    None
}

fn mint(
    minter: &Minter,
    issuer: &Issuer,
    decision: policy::Decision,
    epoch: u64,
    now: Timestamp,
) -> Option<Given> {
    let mut id = [0; 16];
    ring::rand::SystemRandom::new().fill(&mut id).ok()?;
    let policy::Decision { scope, access, principal, run, reason } = decision;
    tracing::info!(%scope, ?access, %principal, %run, issuer = %issuer.issuer, "a token was exchanged: {reason}");
    let expires_at = now.plus(Duration::from_secs(u64::from(issuer.hours) * 3600));
    let claims = Claims {
        id: format!("{:032x}", u128::from_be_bytes(id)),
        key: minter.id.clone(),
        principal,
        scope,
        access,
        expires_at,
        epoch,
        cold: false,
        listed: false,
        run: Some(run),
    };
    Some(Given {
        token: token::mint(&claims, &minter.key).ok()?.expose().to_owned(),
        runtime_token: token::mint_jwt(&claims, &minter.key).ok()?.expose().to_owned(),
        scope: claims.scope.to_string(),
        access,
        expires_at,
        reason: reason.to_owned(),
    })
}
