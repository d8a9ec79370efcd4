use super::*;
use forgeyard_model::environment::LockedPackage;

fn root() -> (tempfile::TempDir, Root) {
    let folder = tempfile::Builder::new().prefix("envs-").tempdir().unwrap();
    let root = Root::open(&folder.path().join("envs")).unwrap();
    (folder, root)
}

fn empty_lock() -> Lock {
    Lock::new("linux-64", Vec::new()).unwrap()
}

/// What a kill leaves: the folder and the lock file, and nobody who holds it.
fn kill(staging: Staging) -> PathBuf {
    let folder = staging.path().to_owned();
    let kept = folder.with_extension("kept");
    std::fs::rename(&folder, &kept).unwrap();
    drop(staging);
    std::fs::rename(&kept, &folder).unwrap();
    std::fs::write(folder.with_extension("lock"), b"").unwrap();
    folder
}

fn filled(root: &Root) -> Staging {
    let staging = root.begin_now(&empty_lock()).unwrap().unwrap();
    std::fs::create_dir(staging.path().join("conda-meta")).unwrap();
    std::fs::write(staging.path().join("file"), b"content").unwrap();
    staging
}

#[test]
fn a_kill_before_the_rename_leaves_nothing_usable_and_is_swept() {
    let (_folder, root) = root();
    let left = kill(filled(&root));
    assert!(left.exists());
    assert!(!root.prefix(&empty_lock()).unwrap().exists());
    assert_eq!(root.list().unwrap(), Vec::<String>::new());

    let live = filled(&root);
    root.sweep_now().unwrap();
    assert!(!left.exists() && !left.with_extension("lock").exists());
    assert!(live.path().join("file").exists(), "a sweep leaves the work of others alone");
    live.commit_now().unwrap();
    assert_eq!(root.list().unwrap(), [empty_lock().prefix_name()]);
    assert_eq!(std::fs::read_dir(root.path.join(STAGING)).unwrap().count(), 0);
}

#[test]
fn folder_in_which_something_is_still_written_is_left_to_the_next_sweep() {
    let (_folder, root) = root();
    let left = kill(filled(&root));
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    return;
                }
                // the sweep may take away what is there at any moment
                let _ = std::fs::create_dir_all(left.join("lib"));
                let _ = std::fs::write(left.join(format!("lib/{}", number % 64)), b"late");
            }
        });
        let failed: Vec<_> = (0..500).filter_map(|_| root.sweep_now().err()).collect();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(failed.is_empty(), "{} of 500: {}", failed.len(), failed[0]);
    });
    root.sweep_now().unwrap();
    assert_eq!(std::fs::read_dir(root.path.join(STAGING)).unwrap().count(), 0);
}

#[test]
fn giving_up_leaves_nothing() {
    let (_folder, root) = root();
    drop(filled(&root));
    assert_eq!(std::fs::read_dir(root.path.join(STAGING)).unwrap().count(), 0);
    assert!(!root.prefix(&empty_lock()).unwrap().exists());
}

#[test]
fn a_prefix_without_marker_is_made_anew() {
    let (_folder, root) = root();
    filled(&root).commit_now().unwrap();
    let prefix = root.prefix(&empty_lock()).unwrap();
    assert!(root.begin_now(&empty_lock()).unwrap().is_none(), "complete");
    std::fs::write(prefix.join(MARKER), b"{\"lock_di").unwrap();
    std::fs::write(prefix.join("file"), b"").unwrap();
    filled(&root).commit_now().unwrap();
    assert_eq!(std::fs::read(prefix.join("file")).unwrap(), b"content");
    assert_eq!(std::fs::read_dir(root.path.join(STAGING)).unwrap().count(), 0);
}

#[test]
fn two_that_make_the_same_prefix_both_succeed() {
    let (_folder, root) = root();
    let (first, second) = (filled(&root), filled(&root));
    first.commit_now().unwrap();
    second.commit_now().unwrap();
    assert_eq!(root.list().unwrap().len(), 1);
    assert_eq!(std::fs::read_dir(root.path.join(STAGING)).unwrap().count(), 0);
}

#[test]
fn what_was_not_installed_as_locked_gets_no_name() {
    let (_folder, root) = root();
    let package = LockedPackage {
        subdir: "noarch".into(),
        file_name: "a-1-0.conda".into(),
        digest: Digest::of(b"a"),
        url: "http://channel.example/noarch/a-1-0.conda".into(),
    };
    let lock = Lock::new("linux-64", vec![package]).unwrap();
    let staging = root.begin_now(&lock).unwrap().unwrap();
    std::fs::create_dir(staging.path().join("conda-meta")).unwrap();
    let error = staging.commit_now().unwrap_err();
    assert_eq!(error.code, "environment.digest_mismatch");
    assert!(error.evidence[0].contains("a-1-0.conda"), "{error}");
    assert!(!root.prefix(&lock).unwrap().exists());
}

#[test]
fn a_prefix_of_another_lock_is_reported_and_not_overwritten() {
    let (_folder, root) = root();
    filled(&root).commit_now().unwrap();
    let prefix = root.prefix(&empty_lock()).unwrap();
    let marker = Marker { lock_digest: Digest::of(b"another") };
    std::fs::write(prefix.join(MARKER), serde_json::to_vec(&marker).unwrap()).unwrap();
    let error = root.begin_now(&empty_lock()).unwrap_err();
    assert_eq!(error.code, "environment.prefix_damaged");
    assert!(prefix.join("file").exists());
}

#[tokio::test]
async fn a_removed_prefix_is_gone_and_only_prefixes_can_be_removed() {
    let (_folder, root) = root();
    filled(&root).commit_now().unwrap();
    let name = empty_lock().prefix_name();
    assert!(root.remove(&name).await.unwrap());
    assert!(!root.remove(&name).await.unwrap());
    for name in ["..", ".staging", "../../etc", ""] {
        assert_eq!(root.remove(name).await.unwrap_err().code, "environment.request_invalid");
    }
}

#[test]
fn a_root_that_scripts_could_not_name_is_refused_with_a_fix() {
    let long = format!("/tmp/{}", "x".repeat(200));
    for path in ["relative", "/tmp/with space", "/tmp/../etc", "/tmp/quo\"te", long.as_str()] {
        let error = Root::open(Path::new(path)).unwrap_err();
        assert_eq!(error.code, "environment.root_unusable", "{path}");
        assert!(error.fix.is_some());
    }
}
