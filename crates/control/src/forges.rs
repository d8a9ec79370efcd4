//! Connections: which client speaks to the forge of a name, and where its runners are registered.
//!
//! They are made once, at the start, from files that name no secret but hold them. Without a connection, everything at
//! that forge is refused with an explanation, and never tried without credentials.

use forgeyard_forges::forgejo::Forgejo;
use forgeyard_forges::github::scaleset::ScaleSets;
use forgeyard_forges::github::{Github, LoginApp, RepositoryPath, Target};
use forgeyard_model::forge::Repository;
use forgeyard_model::{Explanation, ForgeName, Secret};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where the runners of a forge are registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Register {
    /// At the one repository whose job they are for: no other repository can take them.
    #[default]
    Repository,
    /// At the organisation: any of its repositories that the runner group admits can take them.
    Organisation,
}

/// A scale set that the farm is to have at a forge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScaleSetWish {
    /// The organisation or repository that it belongs to.
    pub at: Target,
    /// Its name.
    pub name: String,
    /// Its runner group.
    pub group: String,
    /// Its labels.
    pub labels: Vec<String>,
}

/// What a connection is made of.
pub struct ConnectionOptions {
    /// Name of the forge.
    pub forge: ForgeName,
    /// The client, with its Apps.
    pub github: Github,
    /// Where runners are registered.
    pub register: Register,
    /// Runner group of runners that are registered by REST; 1 is the default group.
    pub runner_group: u64,
    /// Scale sets to listen to.
    pub scale_sets: Vec<ScaleSetWish>,
}

/// A connection to one forge.
pub struct Connection {
    options: ConnectionOptions,
    /// Scale sets whose id is known: where they belong.
    sets: Mutex<BTreeMap<u64, ScaleSets>>,
    /// Commits of which the forge said that they are on a branch. Several runs are of one push.
    on_branches: Mutex<BTreeSet<OnBranch>>,
}

/// A commit on a branch: repository, branch, commit.
pub(crate) type OnBranch = (u64, String, String);

/// Commits that are remembered at most.
const REMEMBERED: usize = 1000;

impl Connection {
    /// Name of the forge.
    pub fn forge(&self) -> &ForgeName {
        &self.options.forge
    }

    /// The client.
    pub fn github(&self) -> &Github {
        &self.options.github
    }

    /// Runner group of runners that are registered by REST.
    pub fn runner_group(&self) -> u64 {
        self.options.runner_group
    }

    /// Scale sets to listen to.
    pub fn scale_sets(&self) -> &[ScaleSetWish] {
        &self.options.scale_sets
    }

    /// A repository as addresses name it.
    pub fn path(repository: &Repository) -> Result<RepositoryPath, Explanation> {
        RepositoryPath::parse(&repository.name).map_err(|error| {
            Explanation::new("forge.name", format!("the repository cannot be asked for: {error}"))
                .fix("write its `owner/name` into `[[repositories]]` of forgeyard.toml")
        })
    }

    /// Where a runner for a job of this repository is registered.
    pub fn target(&self, repository: &Repository) -> Result<Target, Explanation> {
        let path = Self::path(repository)?;
        Ok(match self.options.register {
            Register::Repository => Target::Repository(path),
            Register::Organisation => Target::Organisation(path.owner().clone()),
        })
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<u64, ScaleSets>> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the forge said before that this commit is on this branch.
    pub(crate) fn was_on_branch(&self, commit: &OnBranch) -> bool {
        self.on_branches.lock().unwrap_or_else(PoisonError::into_inner).contains(commit)
    }

    /// Remembers that the forge said so.
    pub(crate) fn learn_on_branch(&self, commit: OnBranch) {
        let mut known = self.on_branches.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(commit);
    }

    /// Remembers where a scale set belongs.
    pub(crate) fn learn_set(&self, id: u64, sets: &ScaleSets) {
        self.known().insert(id, sets.clone());
    }

    /// Where the scale set of this id belongs, once its listener found it.
    pub(crate) fn set(&self, id: u64) -> Option<ScaleSets> {
        self.known().get(&id).cloned()
    }
}

/// All connections, by the name of the forge, and what their webhooks are signed with. Cheap to clone.
#[derive(Clone, Default)]
pub struct Connections {
    all: Arc<BTreeMap<ForgeName, Arc<Connection>>>,
    logins: Arc<BTreeMap<ForgeName, LoginApp>>,
    secrets: Arc<BTreeMap<ForgeName, Vec<Secret>>>,
    forgejos: Arc<BTreeMap<ForgeName, Forgejo>>,
}

impl Connections {
    /// Of these. The last one of a name counts.
    pub fn new(all: impl IntoIterator<Item = ConnectionOptions>) -> Self {
        let all = all.into_iter().map(|options| {
            (
                options.forge.clone(),
                Arc::new(Connection { options, sets: Mutex::default(), on_branches: Mutex::default() }),
            )
        });
        Self {
            all: Arc::new(all.collect()),
            logins: Arc::default(),
            secrets: Arc::default(),
            forgejos: Arc::default(),
        }
    }

    /// The same, with the Apps by which people sign in.
    #[must_use]
    pub fn with_logins(self, logins: impl IntoIterator<Item = (ForgeName, LoginApp)>) -> Self {
        Self { logins: Arc::new(logins.into_iter().collect()), ..self }
    }

    /// Names of the forges with which people sign in.
    pub fn sign_in_names(&self) -> Vec<String> {
        self.logins.keys().map(ToString::to_string).collect()
    }

    /// The App by which people sign in with a forge.
    pub fn login(&self, forge: &ForgeName) -> Option<&LoginApp> {
        self.logins.get(forge)
    }

    /// The same, which trusts webhooks of this forge that are signed with any of these. Each App has its own secret, and
    /// a secret of one forge proves nothing at another.
    #[must_use]
    pub fn trusting(mut self, forge: ForgeName, secrets: impl IntoIterator<Item = Secret>) -> Self {
        Arc::make_mut(&mut self.secrets).entry(forge).or_default().extend(secrets);
        self
    }

    /// The same with a Forgejo.
    #[must_use]
    pub fn with_forgejo(mut self, forge: ForgeName, client: Forgejo) -> Self {
        Arc::make_mut(&mut self.forgejos).insert(forge, client);
        self
    }

    /// The client of a forge, if that is a Forgejo.
    pub fn forgejo(&self, forge: &ForgeName) -> Option<&Forgejo> {
        self.forgejos.get(forge)
    }

    /// All that are a Forgejo.
    pub fn forgejos(&self) -> impl Iterator<Item = (&ForgeName, &Forgejo)> {
        self.forgejos.iter()
    }

    /// What webhooks of this forge may be signed with.
    pub fn webhook_secrets(&self, forge: &ForgeName) -> &[Secret] {
        self.secrets.get(forge).map_or(&[], Vec::as_slice)
    }

    /// Names of the forges that are connected or may send webhooks.
    pub fn names(&self) -> impl Iterator<Item = &ForgeName> {
        let silent =
            self.all.keys().chain(self.forgejos.keys()).filter(|name| !self.secrets.contains_key(name));
        self.secrets.keys().chain(silent)
    }

    /// The connection to a forge, or what a person does to have one.
    pub fn of(&self, forge: &ForgeName) -> Result<&Arc<Connection>, Explanation> {
        self.all.get(forge).ok_or_else(|| {
            let text = format!("no connection to the forge `{forge}` is configured");
            Explanation::new("forge.not_connected", text).fix(format!(
                "declare it in forgeyard.toml: `[[forges]]` with `name = \"{forge}\"`, and `[[forges.apps]]` with the \
                 App's `client-id` and `key-file`; then start again"
            ))
        })
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Connection>> {
        self.all.values()
    }
}
