//! GitHub's own cache service (v2) and artifact service (v4), as their official clients speak them.
//!
//! ```text
//! POST /twirp/github.actions.results.api.v1.CacheService/<method>       JSON or protobuf
//! POST /twirp/github.actions.results.api.v1.ArtifactService/<method>
//! POST /<scope>/-/github/twirp/…    the same; some clients keep the path of ACTIONS_RESULTS_URL, others drop it
//! PUT|GET|HEAD /-/github/<object>?… signed URLs, see [`signed`]; uploads as Azure's blob storage takes them
//! *    /_apis/artifactcache/…       the service of version 1, refused in words
//! ```
//!
//! - Who asks is in the token, as everywhere here; the official clients need it in the form of a JWT
//!   ([`crate::token::mint_jwt`]). Keys are looked for in the own scope and then in its parents; each scope is searched for
//!   the key, for keys that begin with it, and for the restore keys in their order, the newest first.
//! - An entry is never changed once it is finalized: another upload of the same key and version is refused.
//! - An artifact belongs to a run. Its ids are those that the client finds in its token; others are refused.
//! - What a URL for reading was given for is leased until the URL ends.
//! - Bytes: [`uploads`] keeps what is under way, [`archive`] refuses what is cut off, the store has the rest.

pub mod archive;
mod artifacts;
mod blobs;
pub mod block_list;
mod caches;
pub mod catalog;
pub mod messages;
pub mod signed;
pub mod twirp;
mod uploads;

use crate::authority::Caller;
use crate::connection::{Connection, End, Incoming, Thread};
use crate::exchange::{self, Access};
use crate::http::{Head, Method, Wrong};
use crate::scope::ScopePath;
use crate::service::Core;
use crate::store::{Provenance, StoreError};
use crate::surface::Surface;
use catalog::Catalog;
use forgeyard_model::{Digest, Timestamp};
use ring::rand::SecureRandom as _;
use signed::{Allowed, LIFE_SECONDS, Right, Signer};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use twirp::{Code, Coding, TwirpError};
use uploads::{UploadError, Uploads};

const CACHE: &str = "github.actions.results.api.v1.CacheService";
const ARTIFACT: &str = "github.actions.results.api.v1.ArtifactService";

/// What these services keep beside the store.
pub(crate) struct State {
    pub(crate) uploads: Uploads,
    catalog: Catalog,
    signer: Signer,
}

impl State {
    /// Opens it in the folder of the store. Uploads under way may take a quarter of the capacity.
    pub(crate) fn open(folder: &Path, capacity: u64, sync: bool) -> Result<Self, StoreError> {
        let folder = folder.join("github");
        fs_err::create_dir_all(&folder).map_err(StoreError::io("making", &folder))?;
        let secret = secret(&folder.join("url.key"))?;
        Ok(Self {
            uploads: Uploads::new(capacity / 4),
            catalog: Catalog::open(&folder, sync)?,
            signer: Signer::new(&secret),
        })
    }
}

/// The secret that signs URLs; made at the first start, so that a URL outlives a restart.
fn secret(path: &Path) -> Result<[u8; 32], StoreError> {
    let failed = |action| StoreError::io(action, path);
    match fs_err::read(path) {
        Ok(bytes) => {
            if let Ok(secret) = <[u8; 32]>::try_from(bytes) {
                return Ok(secret);
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed("reading")(error)),
    }
    let mut secret = [0; 32];
    let no_entropy = |_| std::io::Error::other("no random bytes");
    ring::rand::SystemRandom::new().fill(&mut secret).map_err(no_entropy).map_err(failed("making"))?;
    let beside = path.with_extension("new");
    let write = || {
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(&beside)?;
        std::io::Write::write_all(&mut file, &secret)?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    };
    write().map_err(failed("writing"))?;
    Ok(secret)
}

/// Who is asking, and where its URLs begin.
pub(crate) struct Asked {
    core: Arc<Core>,
    access: Rc<Access>,
    by: Provenance,
    ids: Option<Backend>,
    base: String,
    now: Timestamp,
}

impl Asked {
    /// A signed URL for what this caller was just allowed.
    fn url(&self, right: Right, object: String, scope: &ScopePath, file: Option<&str>) -> String {
        let until = self.now.as_micros() / 1_000_000 + LIFE_SECONDS;
        let longest = if right == Right::Upload { self.core.largest } else { 0 };
        let allowed = Allowed { right, object, scope: scope.clone(), until, longest };
        self.core.github.signer.sign(&self.base, &allowed, file).expose().to_owned()
    }

    /// What distinguishes one writer from another: its name and its run.
    fn writer(&self) -> String {
        format!("{}\n{}", self.by.principal, self.by.run.as_deref().unwrap_or_default())
    }
}

/// Ids of a run and of a job, in the form of GitHub's, made from what a token says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backend {
    /// Of the run.
    pub run: String,
    /// Of the job.
    pub job: String,
}

impl Backend {
    /// Of a token with this scope, principal and run. A token without a run is a run of its own.
    pub fn new(scope: &ScopePath, principal: &str, run: Option<&str>) -> Self {
        let run = run.unwrap_or(principal);
        let id = |what: &str, of: &str| {
            let hex = Digest::of(format!("{what}\n{scope}\n{run}\n{of}").as_bytes()).hex();
            let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
            [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-")
        };
        Self { run: id("run", ""), job: id("job", principal) }
    }

    /// As the claim `scp` of a runtime token of GitHub has them: `Actions.Results:<run>:<job>` among other words.
    pub fn read(scp: &str) -> Option<Self> {
        let ids = scp.split(' ').find_map(|word| word.strip_prefix("Actions.Results:"))?;
        let (run, job) = ids.split_once(':')?;
        let plain = |id: &str| {
            (1..=64).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        };
        (plain(run) && plain(job)).then(|| Self { run: run.to_owned(), job: job.to_owned() })
    }
}

/// 128 random bits.
fn random_id() -> Result<String, TwirpError> {
    let mut bytes = [0; 16];
    let filled = ring::rand::SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| TwirpError::new(Code::Unavailable, "no random bytes"))?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

fn unavailable(error: &StoreError) -> TwirpError {
    tracing::error!("GitHub's cache service: {error}");
    match error {
        StoreError::Full(_) => TwirpError::new(Code::ResourceExhausted, "the cache is full"),
        StoreError::TooLong(_) => TwirpError::new(Code::InvalidArgument, error.to_string()),
        _ => TwirpError::new(Code::Unavailable, "the cache cannot store or read at present"),
    }
}

fn refused(error: UploadError) -> TwirpError {
    let code = match error {
        UploadError::Taken => Code::AlreadyExists,
        UploadError::Many | UploadError::Space => Code::ResourceExhausted,
        UploadError::Unknown => Code::NotFound,
        UploadError::Another => Code::PermissionDenied,
        UploadError::Large | UploadError::Blocks => Code::InvalidArgument,
        UploadError::NoBlock | UploadError::Committed | UploadError::Open => Code::FailedPrecondition,
    };
    TwirpError::new(code, error.to_string())
}

/// A request to these services.
enum Route<'a> {
    Call { scope: Option<ScopePath>, service: &'a str, method: &'a str },
    Blob,
    First,
}

fn route(path: &str) -> Option<Route<'_>> {
    let (scope, rest) = match path.split_once("/-/github/") {
        Some(("", rest)) if !rest.starts_with("twirp/") && !rest.starts_with("_apis/") => {
            return Some(Route::Blob);
        }
        Some(("", rest)) => (None, rest),
        Some((scope, rest)) => (Some(scope.strip_prefix('/')?.parse().ok()?), rest),
        None => (None, path.strip_prefix('/')?),
    };
    if rest.starts_with("_apis/artifactcache/") {
        return Some(Route::First);
    }
    let (service, method) = rest.strip_prefix("twirp/")?.split_once('/')?;
    Some(Route::Call { scope, service, method })
}

/// Answers a request to these services; nothing when it is to none of them.
pub(crate) async fn answer(thread: &Thread, conn: &mut Connection, head: &Head) -> Option<Result<(), End>> {
    Some(match route(&head.path)? {
        Route::Blob => blobs::answer(thread, conn, head).await,
        Route::Call { scope, service, method } => {
            let outcome = call(thread, conn, head, scope.as_ref(), service, method).await;
            respond(conn, head, outcome).await
        }
        Route::First => refuse_first(thread, conn, head).await,
    })
}

/// The client prints what begins with these words, and goes on (mozilla/sccache#2330: it must not hang or be 5xx).
const FIRST: &str = "cache read denied: this cache speaks version 2 of GitHub's cache service and not version 1. Set \
                     ACTIONS_CACHE_SERVICE_V2=true and use a client that knows it (@actions/cache 4.0 and later)";

async fn refuse_first(thread: &Thread, conn: &mut Connection, head: &Head) -> Result<(), End> {
    conn.body(&thread.core, head, false).await?;
    let body = serde_json::json!({ "message": FIRST }).to_string();
    conn.begin(410, body.len() as u64, head.keep_alive, &[("Content-Type", "application/json")]);
    conn.send(Some(body.as_bytes())).await
}

async fn respond(
    conn: &mut Connection,
    head: &Head,
    outcome: Result<Result<(Coding, Vec<u8>), TwirpError>, End>,
) -> Result<(), End> {
    match outcome? {
        Ok((coding, body)) => {
            conn.begin(200, body.len() as u64, head.keep_alive, &[("Content-Type", coding.content_type())]);
            conn.send(Some(&body)).await
        }
        Err(error) => {
            tracing::info!(path = %head.path, client = %head.agent, "a call is refused: {error}");
            let body = error.body();
            let kind = ("Content-Type", "application/json");
            conn.begin(error.code.status(), body.len() as u64, head.keep_alive, &[kind]);
            conn.send(Some(&body)).await
        }
    }
}

async fn call(
    thread: &Thread,
    conn: &mut Connection,
    head: &Head,
    scope: Option<&ScopePath>,
    service: &str,
    method: &str,
) -> Result<Result<(Coding, Vec<u8>), TwirpError>, End> {
    let body = match conn.body(&thread.core, head, true).await? {
        Incoming::Memory(bytes) => bytes,
        _ => return Err(Wrong { status: 413, reason: "a message of this service is at most 1 MiB" }.into()),
    };
    if head.method != Method::Post {
        return Ok(Err(TwirpError::new(Code::BadRoute, "calls are made with POST")));
    }
    let Some(coding) = Coding::of(&head.content_type) else {
        let kinds = "the content type is neither application/json nor application/protobuf";
        return Ok(Err(TwirpError::new(Code::Malformed, kinds)));
    };
    let (core, now) = (Arc::clone(&thread.core), (thread.core.clock)());
    let mut access = exchange::access(thread, head, scope, Surface::Github);
    let mut ids = None;
    if access.provenance.principal.is_empty()
        && let Some(token) = crate::authority::token_in(&head.authorization)
        && let Some(direct) = crate::identity::direct(&core, &token, now).await
    {
        let caller = Caller { claims: Some(direct.claims) };
        access = Rc::new(Access::of(&core, &caller, core.generation(), scope, Surface::Github));
        ids = direct.ids;
    }
    let by = Provenance {
        client: head.agent.clone(),
        address: conn.peer.ip().to_string(),
        ..access.provenance.clone()
    };
    let scheme = if head.secure { "https" } else { "http" };
    let base = format!("{scheme}://{}", head.host);
    let asked = Asked { core, access, by, ids, base, now };
    let answer = dispatch(&asked, coding, service, method, &body).await;
    Ok(answer.map(|bytes| (coding, bytes)))
}

async fn dispatch(
    asked: &Asked,
    coding: Coding,
    service: &str,
    method: &str,
    body: &[u8],
) -> Result<Vec<u8>, TwirpError> {
    Ok(match (service, method) {
        (CACHE, "CreateCacheEntry") => coding.write(&caches::create(asked, coding.read(body)?)?),
        (CACHE, "FinalizeCacheEntryUpload") => {
            coding.write(&caches::finalize(asked, coding.read(body)?).await?)
        }
        (CACHE, "GetCacheEntryDownloadURL") => coding.write(&caches::look(asked, &coding.read(body)?)?),
        (ARTIFACT, "CreateArtifact") => coding.write(&artifacts::create(asked, coding.read(body)?)?),
        (ARTIFACT, "FinalizeArtifact") => {
            coding.write(&artifacts::finalize(asked, coding.read(body)?).await?)
        }
        (ARTIFACT, "ListArtifacts") => coding.write(&artifacts::list(asked, &coding.read(body)?)?),
        (ARTIFACT, "GetSignedArtifactURL") => coding.write(&artifacts::url(asked, &coding.read(body)?)?),
        (ARTIFACT, "DeleteArtifact") => coding.write(&artifacts::delete(asked, &coding.read(body)?)?),
        _ => return Err(TwirpError::new(Code::BadRoute, format!("no call {method} of {service} here"))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_of_calls_are_told_apart() {
        let call = |path| match route(path) {
            Some(Route::Call { scope, service, method }) => {
                (scope.map(|scope| scope.to_string()), service.to_owned(), method.to_owned())
            }
            _ => panic!("no call: {path}"),
        };
        assert_eq!(call("/twirp/S/M"), (None, "S".to_owned(), "M".to_owned()));
        assert_eq!(call("/-/github/twirp/S/M"), (None, "S".to_owned(), "M".to_owned()));
        assert_eq!(call("/p/main/-/github/twirp/S/M").0.as_deref(), Some("p/main"));
        assert!(matches!(route("/-/github/ab"), Some(Route::Blob)));
        assert!(matches!(route("/_apis/artifactcache/cache"), Some(Route::First)));
        assert!(matches!(route("/p/-/github/_apis/artifactcache/caches"), Some(Route::First)));
        for other in ["/", "/twirp", "/p/main/-/kv/a", "/p/-/github/ab"] {
            assert!(route(other).is_none(), "{other}");
        }
    }

    #[test]
    fn ids_of_a_run_are_shared_by_its_jobs_and_by_nobody_else() {
        let of = |scope: &str, principal, run| Backend::new(&scope.parse().unwrap(), principal, run);
        let (a, b) = (of("p/main", "job a", Some("7")), of("p/main", "job b", Some("7")));
        assert!(a.run == b.run && a.job != b.job);
        assert_ne!(a.run, of("p/pr/1", "job a", Some("7")).run);
        assert_ne!(of("p/main", "x", None).run, of("p/main", "y", None).run);
        assert!(!a.run.contains([':', ' ']) && a.run.len() == 36);
    }

    proptest! {
        #[test]
        fn any_path_is_routed_without_a_panic(path in "(/[a-z-]{0,4}){0,3}(/-/github/)?(twirp/|_apis/)?\\PC{0,20}") {
            let _ = route(&path);
        }
    }
}
