//! The build cache for the jobs of this farm: which scopes a repository has, tokens, what is taken back.
//!
//! All of it is written into the authority of the cache: scopes into `cache/authority.json`, the attempts whose tokens hold
//! into `cache/live.json`. The cache notices within a second. So control plane and cache share a folder and a key, and neither
//! asks the other.

use crate::cache_place::{KEY, authority_path, change_authority, signing_key};
use crate::config::CacheConfig;
use crate::output::Wrong;
use anyhow::Result;
use ed25519_dalek::SigningKey;
use forgeyard_api::client::http;
use forgeyard_cache::authority::live::{LiveTokens, path_beside};
use forgeyard_cache::authority::{Authority, Snapshot};
use forgeyard_cache::scope::{ScopePath, ScopeRule};
use forgeyard_cache::signature::with_keys;
use forgeyard_cache::token::{self, Access, Claims};
use forgeyard_control::cache_tokens::{CacheTokens, Minted, Wanted};
use forgeyard_control::clock::Clock;
use forgeyard_engine::cache_scopes::Scopes;
use forgeyard_model::AttemptId;
use forgeyard_model::config::RepositoryConfig;
use forgeyard_model::forge::Repository;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Days after which what a pull request wrote goes, when nobody used it: for closings of which nobody told us.
const PULL_DAYS: u32 = 7;
/// How long it is remembered that a scope was closed.
const CLOSED: Duration = Duration::from_secs(30 * 24 * 3600);

/// See the module.
pub struct FarmTokens {
    data: PathBuf,
    address: String,
    /// The file of certificate authorities that jobs are told of, and what was in it when it was of use.
    ca: Option<(PathBuf, Mutex<String>)>,
    key: SigningKey,
    declared: Vec<Scopes>,
    clock: Clock,
}

fn path(text: &str) -> Result<ScopePath> {
    text.parse()
        .map_err(|error| Wrong::new(format!("{error}")).fix("correct [cache] in the configuration").into())
}

/// The rules of a repository for which none are declared: private, and pull requests read main.
fn usual(scopes: &Scopes) -> Result<[ScopeRule; 2]> {
    let main = ScopeRule { trusted: true, ..ScopeRule::new(path(&scopes.main)?) };
    let pulls = ScopeRule {
        family: true,
        parents: vec![main.path.clone()],
        ttl_days: Some(PULL_DAYS),
        ..ScopeRule::new(path(&scopes.pulls)?)
    };
    Ok([main, pulls])
}

fn scopes_of(declared: &[Scopes], forge: &forgeyard_model::ForgeName, id: u64) -> Scopes {
    let known = declared.iter().find(|scopes| scopes.forge == *forge && scopes.id == id);
    known.cloned().unwrap_or_else(|| Scopes::usual(forge, id))
}

/// Adds the rules of a repository that are missing; answers whether there were some.
fn complete(rules: &mut Vec<ScopeRule>, scopes: &Scopes) -> Result<bool> {
    let before = rules.len();
    for rule in usual(scopes)? {
        if !rules.iter().any(|known| known.path == rule.path) {
            rules.push(rule);
        }
    }
    Ok(rules.len() > before)
}

/// All scopes of a farm: those that are declared, and those of its repositories.
pub fn rules(
    declared: Vec<ScopeRule>,
    config: &CacheConfig,
    repositories: &[RepositoryConfig],
) -> Result<Vec<ScopeRule>> {
    let mut all = declared;
    for scopes in &config.repositories {
        let named = |text: &str| -> Result<Option<&ScopeRule>> {
            let path = path(text)?;
            Ok(all.iter().find(|rule| rule.path == path))
        };
        let (main, pulls) = (named(&scopes.main)?, named(&scopes.pulls)?);
        let wrong = match (main, pulls) {
            (None, _) => Some(format!("`{}`, which is not declared", scopes.main)),
            (Some(main), _) if main.family => Some(format!("`{}`, which is a family", scopes.main)),
            (_, Some(pulls)) if pulls.family && !pulls.trusted => None,
            _ => Some(format!("`{}`, which is no untrusted family of scopes", scopes.pulls)),
        };
        if let Some(wrong) = wrong {
            let text = format!("[[cache.repositories]] of {} at {} names {wrong}", scopes.id, scopes.forge);
            return Err(Wrong::new(text).fix("declare it under [[cache.scopes]]").into());
        }
    }
    if config.jobs.unwrap_or(true) {
        for repository in repositories {
            complete(&mut all, &scopes_of(&config.repositories, &repository.forge, repository.id))?;
        }
    }
    Ok(all)
}

impl FarmTokens {
    /// That of a farm with a cache; none where jobs are to have none.
    pub fn open(data: &Path, config: &CacheConfig) -> Result<Option<Self>> {
        if !config.jobs.unwrap_or(true) {
            return Ok(None);
        }
        let address = crate::cache_address::of_jobs(config)?;
        let known = |file: &PathBuf| Ok::<_, anyhow::Error>((file.clone(), Mutex::new(authorities(file)?)));
        let ca = config.ca_file.as_ref().map(known).transpose()?;
        Ok(Some(Self {
            data: data.to_owned(),
            address,
            ca,
            key: signing_key(data)?,
            declared: config.repositories.clone(),
            clock: Clock::system(),
        }))
    }

    fn change(&self, change: impl FnOnce(&mut Snapshot) -> Result<bool>) -> io::Result<Snapshot> {
        change_authority(&self.data, change)
            .map(|(_, snapshot)| snapshot)
            .map_err(|error| io::Error::other(format!("{error:#}")))
    }
}

/// The certificate authorities of a file, as they are in it now.
fn authorities(file: &Path) -> Result<String> {
    let wrong = |reason: String| {
        Wrong::new(format!("`ca-file` of [cache], {}: {reason}", file.display())).fix(
            "name a file in PEM with the authority that signed the certificate of the cache, or leave it out where the system knows it",
        )
    };
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    http::authorities(text.as_bytes()).map_err(wrong)?;
    Ok(text)
}

/// Public keys of what Nix reads from a scope and its parents.
fn nix_keys(snapshot: &Snapshot, scope: &ScopePath) -> Vec<String> {
    let authority =
        Authority::new(snapshot.clone()).and_then(|all| with_keys(all, |path| fs_err::read(path)));
    // A key that cannot be read is told by the cache itself.
    let Ok(authority) = authority else { return Vec::new() };
    let chain = authority.tree().chain(scope);
    chain
        .iter()
        .filter_map(|scope| authority.signer(scope))
        .map(|signer| signer.public().to_string())
        .collect()
}

impl CacheTokens for FarmTokens {
    fn scopes(&self, repository: &Repository) -> Scopes {
        scopes_of(&self.declared, &repository.forge, repository.id)
    }

    fn mint(&self, wanted: &Wanted) -> io::Result<Minted> {
        let scope: ScopePath = wanted.given.scope.parse().map_err(io::Error::other)?;
        let snapshot = self.change(|snapshot| {
            // A pull request that was opened again is not closed.
            let opened = snapshot.closed.remove(&scope).is_some();
            Ok(complete(&mut snapshot.scopes, &wanted.scopes)? | opened)
        })?;
        let claims = Claims {
            id: wanted.attempt.to_string(),
            key: KEY.to_owned(),
            principal: wanted.principal.clone(),
            access: if wanted.given.writes { Access::Write } else { Access::Read },
            expires_at: wanted.expires_at,
            epoch: snapshot.epoch,
            cold: false,
            listed: true,
            run: Some(wanted.run.clone()),
            scope: scope.clone(),
        };
        let token = token::mint_jwt(&claims, &self.key).map_err(io::Error::other)?;
        let ca = self.ca.as_ref().map(|(file, known)| {
            let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
            match authorities(file) {
                Ok(text) => *known = text,
                Err(error) => tracing::warn!("{error:#}; what it held before goes on"),
            }
            known.clone()
        });
        Ok(Minted { address: self.address.clone(), token, nix_keys: nix_keys(&snapshot, &scope), ca })
    }

    fn list(&self, live: &[AttemptId]) -> io::Result<()> {
        let path = path_beside(&authority_path(&self.data));
        let tokens = LiveTokens { tokens: live.iter().map(ToString::to_string).collect() };
        let bytes = serde_json::to_vec(&tokens)?;
        if fs_err::read(&path).is_ok_and(|known| known == bytes) {
            return Ok(());
        }
        fs_err::create_dir_all(path.parent().unwrap_or(&self.data))?;
        let beside = path.with_extension("json.new");
        fs_err::write(&beside, bytes)?;
        fs_err::rename(&beside, &path)
    }

    fn close(&self, repository: &Repository, number: u64) -> io::Result<()> {
        let scope: ScopePath = self.scopes(repository).pull(number).parse().map_err(io::Error::other)?;
        let now = self.clock.now();
        self.change(|snapshot| {
            snapshot.closed.retain(|_, at| now.since(*at) < CLOSED);
            snapshot.closed.insert(scope, now);
            Ok(true)
        })
        .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forgeyard_model::Id as _;

    fn opened(data: &Path) -> FarmTokens {
        FarmTokens::open(data, &CacheConfig::default()).unwrap().unwrap()
    }

    fn repository() -> Repository {
        Repository { forge: "github".parse().unwrap(), id: 42, name: "octo/demo".to_owned() }
    }

    fn wanted(tokens: &FarmTokens, scope: &str, writes: bool) -> Wanted {
        Wanted {
            attempt: AttemptId::from_bits(1),
            given: forgeyard_engine::cache_scopes::Given { scope: scope.to_owned(), writes, reason: "" },
            scopes: tokens.scopes(&repository()),
            principal: "job_1.1".to_owned(),
            run: "pipe_1".to_owned(),
            expires_at: Clock::system().now().plus(Duration::from_secs(60)),
        }
    }

    fn authority(data: &Path) -> (Authority, Snapshot) {
        let snapshot: Snapshot =
            serde_json::from_slice(&fs_err::read(data.join("cache/authority.json")).unwrap()).unwrap();
        let mut with_key = snapshot.clone();
        let key = signing_key(data).unwrap();
        with_key.keys.insert(KEY.to_owned(), forgeyard_cache::authority::public_text(&key.verifying_key()));
        (Authority::new(with_key).unwrap(), snapshot)
    }

    #[test]
    fn jobs_are_told_of_the_authorities_of_a_file_and_a_file_of_no_use_is_refused_at_the_start() {
        let data = tempfile::tempdir().unwrap();
        let file = data.path().join("ca.pem");
        let config = CacheConfig { ca_file: Some(file.clone()), ..CacheConfig::default() };
        let refused = || format!("{:#}", FarmTokens::open(data.path(), &config).err().unwrap());
        assert!(refused().contains("ca.pem"), "{}", refused());
        fs_err::write(&file, "no certificate").unwrap();
        assert!(refused().contains("holds no certificate"), "{}", refused());
        let made = || rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap().cert.pem();
        let (first, second) = (made(), made());
        fs_err::write(&file, &first).unwrap();
        let tokens = FarmTokens::open(data.path(), &config).unwrap().unwrap();
        let told = || tokens.mint(&wanted(&tokens, "github/42/pr/7", true)).unwrap().ca.unwrap();
        assert_eq!(told(), first);
        fs_err::write(&file, &second).unwrap();
        assert_eq!(told(), second);
        fs_err::remove_file(&file).unwrap();
        assert_eq!(told(), second, "a token is worth more than a file that went");
    }

    #[test]
    fn token_of_a_job_holds_for_its_scope_until_the_attempt_ends() {
        let data = tempfile::tempdir().unwrap();
        let tokens = opened(data.path());
        let wanted = wanted(&tokens, "github/42/pr/7", true);
        let token = tokens.mint(&wanted).unwrap().token;
        let (all, _) = authority(data.path());
        let now = Clock::system().now();
        let caller = all.identify(token.expose(), now).unwrap();
        let claims = caller.claims.clone().unwrap();
        assert_eq!((claims.principal.as_str(), claims.run.as_deref()), ("job_1.1", Some("pipe_1")));
        let grant = all.grant(&caller, None);
        let paths: Vec<&str> = grant.reads.iter().map(ScopePath::as_str).collect();
        assert_eq!(paths, ["github/42/pr/7", "github/42/main"]);
        assert_eq!(grant.writes.unwrap().as_str(), "github/42/pr/7");
        assert_eq!(
            tokens.mint(&wanted).unwrap().token.expose(),
            token.expose(),
            "asking again gives the same"
        );
        assert!(claims.listed && claims.id == wanted.attempt.to_string());
    }

    #[test]
    fn list_of_live_tokens_is_written_when_it_is_another_one() {
        let data = tempfile::tempdir().unwrap();
        let tokens = opened(data.path());
        let path = data.path().join("cache/live.json");
        let all: Vec<AttemptId> = (1..=3).map(AttemptId::from_bits).collect();
        tokens.list(&all).unwrap();
        let read = || serde_json::from_slice::<LiveTokens>(&fs_err::read(&path).unwrap()).unwrap().tokens;
        assert_eq!(read(), all.iter().map(ToString::to_string).collect());
        let inode = || std::os::unix::fs::MetadataExt::ino(&fs_err::metadata(&path).unwrap());
        let before = inode();
        tokens.list(&all).unwrap();
        assert_eq!(inode(), before, "the same list is not written again");
        tokens.list(&all[1..]).unwrap();
        assert_eq!(read(), all[1..].iter().map(ToString::to_string).collect());
    }

    #[test]
    fn closed_pull_request_is_marked_and_one_that_is_opened_again_is_not() {
        let data = tempfile::tempdir().unwrap();
        let tokens = opened(data.path());
        tokens.close(&repository(), 7).unwrap();
        assert_eq!(authority(data.path()).1.closed.len(), 1);
        tokens.mint(&wanted(&tokens, "github/42/pr/7", true)).unwrap();
        assert!(authority(data.path()).1.closed.is_empty());
    }

    #[test]
    fn declared_scopes_must_exist_and_pull_requests_must_not_be_trusted() {
        let scopes = Scopes {
            main: "iree/main".to_owned(),
            pulls: "iree/pr".to_owned(),
            ..Scopes::usual(&"github".parse().unwrap(), 42)
        };
        let config = CacheConfig { repositories: vec![scopes.clone()], ..CacheConfig::default() };
        assert!(rules(Vec::new(), &config, &[]).unwrap_err().to_string().contains("iree/main"));
        let [main, pulls] = usual(&scopes).unwrap();
        let trusted = ScopeRule { trusted: true, ..pulls.clone() };
        assert!(
            rules(vec![main.clone(), trusted], &config, &[]).unwrap_err().to_string().contains("untrusted")
        );
        assert_eq!(rules(vec![main, pulls], &config, &[]).unwrap().len(), 2);
    }
}
