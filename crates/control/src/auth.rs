//! Who calls. A token in the `Authorization` header, or a console session in a cookie. Loopback is no identity.
//!
//! A cookie travels by itself, so a cookie alone only ever reads. What changes something needs, beside the cookie, the
//! token that belongs to it: in the header [`CSRF_HEADER`] (checked by [`Caller`]) or in the field `csrf` of a form
//! (checked by [`Form`](crate::http::console::Form)). There is no third way to a `Caller`.

use crate::app::App;
use crate::http::error::HttpError;
use crate::keys;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use forgeyard_api::ApiError;
use forgeyard_api::error::ErrorKind;
use forgeyard_api::people::QueueRow;
use forgeyard_engine::gate::standing;
use forgeyard_model::access::HOME;
use forgeyard_model::approval::{Approver, elsewhere};
use forgeyard_model::config::RepositoryConfig;
use forgeyard_model::forge::{Person, Repository};
use forgeyard_model::principal::{Principal, PrincipalKind, Role, Standing};
use forgeyard_model::site::Site;
use forgeyard_model::{Digest, ForgeName, Id as _, PrincipalId};
use std::collections::BTreeMap;

/// Name of the console's cookie.
pub const COOKIE: &str = "forgeyard";

/// Header by which a script of our own pages shows where it comes from.
pub const CSRF_HEADER: &str = "x-forgeyard-csrf";

/// Who calls, as far as roles go. As an argument of a handler it is somebody with a role in the whole farm; whoever has
/// roles in single repositories only is a [`Member`], so that what does not ask for the repository is closed to them.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The principal, for the audit trail.
    pub principal: Principal,
    /// What it may do in the whole farm.
    pub role: Role,
    /// Where it may do what.
    pub standing: Standing,
    /// Roles at the forge by repository, as they were read at the sign-in of a person.
    pub forge_roles: BTreeMap<u64, String>,
    /// The session cookie, when there is one: its forms must carry the token that belongs to it.
    pub cookie: Option<String>,
}

/// What belongs to a repository, which is a number at a forge.
pub trait Placed {
    /// The forge, and the number there; 0 is work that a person handed in.
    fn place(&self) -> (&ForgeName, u64);
}

impl Placed for Repository {
    fn place(&self) -> (&ForgeName, u64) {
        (&self.forge, self.id)
    }
}

impl Placed for RepositoryConfig {
    fn place(&self) -> (&ForgeName, u64) {
        (&self.forge, self.id)
    }
}

impl Placed for QueueRow {
    fn place(&self) -> (&ForgeName, u64) {
        (&self.forge, self.repository_id)
    }
}

/// Somebody with a role anywhere. The handler asks where.
#[derive(Debug, Clone)]
pub struct Member(pub Caller);

impl Caller {
    fn shown(&self) -> String {
        match self.principal.kind {
            PrincipalKind::Person { id, ref forge } => {
                format!("{} (id {id}{})", self.principal.name, elsewhere(forge.as_ref()))
            }
            _ => format!("the token `{}`", self.principal.name),
        }
    }

    fn too_low(&self, role: Role, has: Option<Role>, place: &str) -> HttpError {
        let has = has.map_or_else(|| "no role".to_owned(), |role| role.to_string());
        let text = format!("this needs the role {role}{place}; {} has {has}", self.shown());
        let hint = match self.principal.kind {
            PrincipalKind::Person { id, ref forge } => {
                let place = elsewhere(forge.as_ref());
                format!("ask an operator for a member rule in the access file that names id {id}{place}")
            }
            _ => "ask an admin for a token with that role: `forgeyard token new`".to_owned(),
        };
        ApiError::new(ErrorKind::Forbidden, "auth.role", text).hint(hint).into()
    }

    /// Refuses callers below this role in the whole farm.
    pub fn need(&self, role: Role) -> Result<(), HttpError> {
        if self.standing.farm >= Some(role) {
            return Ok(());
        }
        Err(self.too_low(role, self.standing.farm, ""))
    }

    /// Its role in a repository.
    pub fn role_in(&self, repository: &impl Placed) -> Option<Role> {
        let (forge, id) = repository.place();
        self.standing.role_in(forge, id)
    }

    /// Refuses callers below this role in a repository; work that a person handed in is the whole farm's.
    pub fn need_in(&self, repository: &impl Placed, role: Role) -> Result<(), HttpError> {
        let has = self.role_in(repository);
        if has >= Some(role) {
            return Ok(());
        }
        let place = match repository.place() {
            (_, 0) => String::new(),
            (forge, id) => format!(" in repository {id} of {forge}"),
        };
        Err(self.too_low(role, has, &place))
    }

    /// Whether what belongs to a repository is shown.
    pub fn sees(&self, repository: &impl Placed) -> bool {
        self.role_in(repository).is_some()
    }

    /// Who this is when it judges a head of a repository.
    pub fn approver(&self, app: &App, repository: &impl Placed) -> Approver {
        match self.principal.kind {
            PrincipalKind::Person { id, ref forge } => {
                let person = Person { id, login: self.principal.name.clone() };
                let config = app.config();
                // What was read at sign-in was read at the person's own forge.
                let (at, number) = repository.place();
                let own = config.access.forge_of(forge.as_ref()).is_some_and(|own| own == *at);
                let at_forge = self.forge_roles.get(&number).filter(|_| own);
                let role = at_forge.and_then(|name| config.access.forge_roles.get(name).copied());
                Approver { person, forge: forge.clone(), token: None, role }
            }
            _ => Approver {
                person: Person { id: 0, login: self.principal.name.clone() },
                forge: None,
                token: Some(self.principal.id),
                role: None,
            },
        }
    }
}

/// The id of a person as a principal. Those of the first forge that there was are as they always were; those of others
/// have the upper half set, so that no number of one forge is ever a number of another.
fn principal_id(forge: &ForgeName, id: u64) -> PrincipalId {
    if forge.as_str() == HOME {
        return PrincipalId::from_bits((u128::from(id) << 1) | 1);
    }
    let digest = Digest::of(forge.as_str().as_bytes()).to_string();
    let forge = digest.bytes().rev().take(8).fold(0u128, |bits, byte| (bits << 7) | u128::from(byte & 0x7f));
    PrincipalId::from_bits((1 << 127) | (forge << 65) | (u128::from(id) << 1) | 1)
}

/// A person of a forge, as a principal.
pub fn person(forge: &ForgeName, person: &Person) -> Principal {
    Principal {
        id: principal_id(forge, person.id),
        name: person.login.clone(),
        kind: PrincipalKind::Person { id: person.id, forge: Some(forge.clone()) },
    }
}

fn unauthenticated(code: &str, message: &str) -> HttpError {
    ApiError::new(ErrorKind::Unauthenticated, code, message)
        .hint("send `Authorization: Bearer TOKEN`; the first token is in `admin.token` in the data folder")
        .into()
}

/// The bearer token of a request.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

/// The session cookie of a request, whatever it is worth.
pub fn cookie(headers: &HeaderMap) -> Option<&str> {
    cookie_named(headers, COOKIE)
}

/// A cookie of a request.
pub fn cookie_named<'a>(headers: &'a HeaderMap, wanted: &str) -> Option<&'a str> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(name, _)| *name == wanted)
        .map(|(_, value)| value)
}

/// The caller with this token, when it is valid now; else why it is not. Whoever shows a token that was good once may know
/// what became of it.
pub fn known(app: &App, digest: &Digest) -> Result<Caller, HttpError> {
    let now = app.clock.now();
    let farm = app.core.read();
    let Some(token) = farm.tokens.get(digest) else {
        return Err(unauthenticated("auth.unknown_token", "the token is unknown, revoked or over"));
    };
    let name = &token.principal.name;
    let over = |code: &str, text: String| {
        let error = ApiError::new(ErrorKind::Unauthenticated, code, text);
        Err(HttpError(error.hint("ask an admin for another one: `forgeyard token new`")))
    };
    if let Some(at) = token.revoked_at {
        return over("auth.token_revoked", format!("the token `{name}` was revoked at {at}"));
    }
    if let Some(end) = token.expires_at.filter(|end| *end <= now) {
        return over("auth.token_over", format!("the token `{name}` was good until {end}"));
    }
    let standing = match token.principal.kind {
        PrincipalKind::Token { role } if token.repositories.is_empty() => {
            Standing { farm: Some(role), repositories: BTreeMap::new() }
        }
        PrincipalKind::Token { role } => {
            let config = app.config();
            let mut standing = Standing::default();
            for known in &token.repositories {
                if let Some(forge) = config.access.forge_of(known.forge.as_ref()) {
                    standing.raise(&forge, known.id, role);
                }
            }
            standing
        }
        PrincipalKind::Person { id, ref forge } => {
            let config = app.config();
            let forge = config.access.forge_of(forge.as_ref());
            forge
                .map_or_else(Standing::default, |forge| standing::of(&config, &forge, id, &token.forge_roles))
        }
        PrincipalKind::Site | PrincipalKind::Agent | PrincipalKind::Farm => Standing::default(),
    };
    Ok(Caller {
        principal: token.principal.clone(),
        role: standing.highest().unwrap_or(Role::Viewer),
        standing,
        forge_roles: token.forge_roles.clone(),
        cookie: None,
    })
}

/// The same, for whoever does not need to know why not.
pub fn caller(app: &App, digest: &Digest) -> Option<Caller> {
    known(app, digest).ok()
}

/// The caller of a console session. Only reads may follow from this alone.
pub fn session(app: &App, headers: &HeaderMap) -> Result<Caller, HttpError> {
    let value = cookie(headers).ok_or_else(|| unauthenticated("auth.missing", "this needs a token"))?;
    let session = app.keys.read_cookie(value).filter(|(_, end)| *end > app.clock.now().as_micros());
    let found = session.and_then(|(digest, _)| caller(app, &digest));
    let found =
        found.ok_or_else(|| unauthenticated("auth.session_over", "the session is over; sign in again"))?;
    Ok(Caller { cookie: Some(value.to_owned()), ..found })
}

/// Whoever looks, when that is known: for what is shown, never for what is done.
pub fn viewer(app: &App, headers: &HeaderMap) -> Option<Caller> {
    match bearer(headers) {
        Some(token) => caller(app, &Digest::of(token.as_bytes())),
        None => session(app, headers).ok(),
    }
}

/// Refuses what carries a session's cookie without the token that belongs to it.
pub fn check_csrf(app: &App, cookie: &str, sent: Option<&str>) -> Result<(), HttpError> {
    if sent.is_some_and(|sent| keys::same(sent, &app.keys.csrf(cookie))) {
        return Ok(());
    }
    let text = "the request does not come from a page of this session";
    let error = ApiError::new(ErrorKind::Forbidden, "auth.csrf", text);
    Err(error.hint("load the page again and repeat; programs send a token in `Authorization`").into())
}

impl FromRequestParts<App> for Caller {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, HttpError> {
        let Member(found) = Member::from_request_parts(parts, app).await?;
        found.need(Role::Viewer)?;
        Ok(found)
    }
}

impl FromRequestParts<App> for Member {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, HttpError> {
        if let Some(token) = bearer(&parts.headers) {
            return known(app, &Digest::of(token.as_bytes())).map(Member);
        }
        let found = session(app, &parts.headers)?;
        if !parts.method.is_safe() {
            let sent = parts.headers.get(CSRF_HEADER).and_then(|value| value.to_str().ok());
            check_csrf(app, found.cookie.as_deref().unwrap_or_default(), sent)?;
        }
        Ok(Member(found))
    }
}

/// A site that calls with its token.
#[derive(Debug, Clone)]
pub struct SiteCaller(pub Site);

impl FromRequestParts<App> for SiteCaller {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, HttpError> {
        let Some(token) = bearer(&parts.headers) else {
            return Err(unauthenticated("site.no_token", "a site must send its token"));
        };
        let digest = Digest::of(token.as_bytes());
        let found = app.core.read().sites.values().find(|site| site.token == digest).cloned();
        found.map(SiteCaller).ok_or_else(|| {
            ApiError::new(ErrorKind::Unauthenticated, "site.unknown_token", "no site has this token")
                .hint("join again with the farm's join token")
                .into()
        })
    }
}

impl SiteCaller {
    /// The site as a principal.
    pub fn principal(&self) -> Principal {
        Principal {
            id: forgeyard_model::Id::derive(self.0.id, "principal"),
            name: self.0.name.to_string(),
            kind: PrincipalKind::Site,
        }
    }
}
