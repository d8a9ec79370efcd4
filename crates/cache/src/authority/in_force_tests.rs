use super::*;
use crate::authority::{Snapshot, public_text};
use crate::scope::ScopeRule;
use crate::token::{self, Access, Claims};
use ed25519_dalek::SigningKey;

const NOW: Timestamp = Timestamp::from_micros(50);

/// The files of an authority, with a token that is listed when it is to hold.
struct Files {
    folder: tempfile::TempDir,
    token: String,
}

impl Files {
    fn new() -> Self {
        let key = SigningKey::from_bytes(&[7; 32]);
        let claims = Claims {
            id: "att_1".to_owned(),
            key: "k".to_owned(),
            principal: "job_1".to_owned(),
            scope: "p/main".parse().unwrap(),
            access: Access::Write,
            expires_at: Timestamp::from_micros(100),
            epoch: 0,
            cold: false,
            listed: true,
            run: None,
        };
        let token = token::mint(&claims, &key).unwrap().expose().to_owned();
        let files = Self { folder: tempfile::tempdir().unwrap(), token };
        let keys = [("k".to_owned(), public_text(&key.verifying_key()))].into();
        let scopes = vec![ScopeRule::new("p/main".parse().unwrap())];
        let authority = Snapshot { keys, scopes, ..Snapshot::default() };
        files.replace(&files.path(), &serde_json::to_vec(&authority).unwrap());
        files
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("authority.json")
    }

    fn replace(&self, path: &Path, bytes: &[u8]) {
        let beside = path.with_extension("new");
        fs_err::write(&beside, bytes).unwrap();
        fs_err::rename(&beside, path).unwrap();
    }

    fn list(&self, ids: &[&str]) {
        let live = LiveTokens { tokens: ids.iter().map(|id| (*id).to_owned()).collect() };
        self.replace(&path_beside(&self.path()), &serde_json::to_vec(&live).unwrap());
    }

    fn holds(&self, in_force: &InForce) -> bool {
        let (caller, _) = in_force.identify(&self.token, NOW);
        assert!(matches!(&caller, Ok(_) | Err(TokenError::Revoked)), "{caller:?}");
        caller.is_ok()
    }
}

#[test]
fn token_of_an_attempt_holds_while_it_is_listed_and_at_once_when_it_comes() {
    let files = Files::new();
    let in_force = InForce::open(&files.path()).unwrap();
    assert!(!files.holds(&in_force), "no list lists nobody");
    files.list(&["att_0", "att_1"]);
    assert!(files.holds(&in_force), "without waiting for the next look");
    files.list(&["att_0"]);
    in_force.refresh();
    assert!(!files.holds(&in_force), "left out is taken back");
    files.list(&["att_1"]);
    assert!(files.holds(&InForce::open(&files.path()).unwrap()), "a service that starts reads the list");
}

#[test]
fn what_was_decided_of_a_token_holds_until_its_place_in_the_list_changes() {
    let files = Files::new();
    files.list(&["att_1"]);
    let in_force = InForce::open(&files.path()).unwrap();
    let generation = in_force.generation();
    let listed = in_force.identify(&files.token, NOW).1.unwrap();
    files.list(&["att_1", "att_2"]);
    in_force.refresh();
    assert!(listed.holds(&in_force), "others come and go");
    files.list(&["att_2"]);
    in_force.refresh();
    assert!(!listed.holds(&in_force));
    let missing = in_force.identify(&files.token, NOW).1.unwrap();
    assert!(missing.holds(&in_force));
    files.list(&["att_1"]);
    in_force.refresh();
    assert!(!missing.holds(&in_force), "one that was refused is asked about again");
    assert_eq!(in_force.generation(), generation, "nobody else is decided anew for that");
}

#[test]
fn list_that_cannot_be_read_leaves_the_last_one_and_at_a_start_lists_nobody() {
    let files = Files::new();
    files.list(&["att_1"]);
    let in_force = InForce::open(&files.path()).unwrap();
    files.replace(&path_beside(&files.path()), b"{\"tokens\":[\"att_1\"");
    in_force.refresh();
    assert!(files.holds(&in_force));
    assert!(!files.holds(&InForce::open(&files.path()).unwrap()));
    files.list(&[]);
    in_force.refresh();
    assert!(!files.holds(&in_force));
}

#[test]
fn list_that_never_was_is_no_trouble_and_one_that_went_away_is() {
    let files = Files::new();
    let in_force = InForce::open(&files.path()).unwrap();
    let failed = || in_force.seen.lock().unwrap().live.failed.clone();
    in_force.refresh();
    assert_eq!(failed(), None, "a cache that stands alone has none");
    files.list(&["att_1"]);
    assert!(files.holds(&in_force));
    fs_err::remove_file(path_beside(&files.path())).unwrap();
    in_force.refresh();
    assert!(failed().unwrap().contains("live.json"));
    assert!(files.holds(&in_force), "the last good one");
}

#[test]
fn authority_that_changed_is_taken_over_and_one_that_did_not_is_not_decided_anew() {
    let files = Files::new();
    files.list(&["att_1"]);
    let in_force = InForce::open(&files.path()).unwrap();
    let (before, bytes) = (in_force.generation(), fs_err::read(files.path()).unwrap());
    files.replace(&files.path(), &bytes);
    in_force.refresh();
    assert_eq!(in_force.generation(), before);
    let mut snapshot: Snapshot = serde_json::from_slice(&bytes).unwrap();
    snapshot.epoch = 1;
    files.replace(&files.path(), &serde_json::to_vec(&snapshot).unwrap());
    in_force.refresh();
    assert_eq!(in_force.generation(), before + 1);
    assert!(!files.holds(&in_force), "a token of an older epoch");
}

#[test]
fn file_is_read_when_its_stamp_changed_lately_and_seldom_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs_err::write(&path, b"a").unwrap();
    let mut watched = Watched::new(path.clone());
    let start = watched.since;
    assert!(!watched.due(start, Look::Glance));
    assert!(watched.due(start, Look::Closely), "two changes in one tick of the clock have one stamp");
    let settled = start + SETTLES;
    assert!(!watched.due(settled, Look::Closely));
    assert!(!watched.due(settled, Look::Glance));
    fs_err::write(folder.path().join("new"), b"b").unwrap();
    fs_err::rename(folder.path().join("new"), &path).unwrap();
    assert!(watched.due(settled, Look::Glance), "another file of the same size");
    assert!(!watched.due(settled, Look::Glance));
    let later = settled + SETTLES;
    assert!(!watched.due(later, Look::Closely));
    assert!(watched.due(settled + SLOWLY, Look::Closely), "for file systems that show old stamps");
    assert!(!watched.due(settled + SLOWLY, Look::Closely));
    fs_err::remove_file(&path).unwrap();
    assert!(watched.due(settled + SLOWLY, Look::Glance));
}
