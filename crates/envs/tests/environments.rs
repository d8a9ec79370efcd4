//! Environments from a real channel of small packages, over HTTP on loopback, with the real solver and installer.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod support;

use forgeyard_envs::{VirtualPackage, make, prefixes::Root};
use forgeyard_model::environment::EnvironmentState;
use std::os::unix::fs::MetadataExt as _;
use support::{Channel, Place};

#[tokio::test]
async fn environment_is_made_and_its_program_prints_the_baked_prefix() {
    let (channel, place) = (Channel::start().await, Place::new());
    let made = make(&place.request(&channel.url, &["fy-greet"], &["fy-greet"])).await.unwrap();
    assert!(made.prefix.starts_with(place.root()));
    assert_eq!(place.names(), [made.prefix.file_name().unwrap().to_str().unwrap()]);
    assert!(place.staging().is_empty());
    let proof = made.proof.clone().unwrap();
    assert_eq!(proof.stdout, format!("good evening from {}\n", made.prefix.display()));
    assert_eq!(proof.exit_code, 0);
    let baked = std::fs::read_to_string(made.prefix.join("share/fy-greet/prefix.txt")).unwrap();
    assert_eq!(baked.trim_end(), made.prefix.to_str().unwrap());
    let files: Vec<_> =
        made.lock.iter().map(|package| (package.subdir.as_str(), package.file_name.as_str())).collect();
    assert_eq!(
        files,
        [("linux-64", "fy-greet-1.0-hb0f4dca_0.conda"), ("noarch", "fy-words-2.0-h4616a5c_0.conda")]
    );
    assert!(made.lock[0].url.starts_with(&channel.url));
    let frozen = std::fs::read_to_string(made.prefix.join("conda-meta/frozen")).unwrap();
    assert!(frozen.contains("immutable"));
    let EnvironmentState::Ready { prefix, .. } = EnvironmentState::from(made.clone()) else { panic!() };
    assert_eq!(prefix, made.prefix.to_str().unwrap());
}

#[tokio::test]
async fn activation_sets_what_packages_ask_for() {
    let (channel, place) = (Channel::start().await, Place::new());
    let print = "echo $FY_WORDS_VERSION $FY_WORDS_FILE $CONDA_PREFIX; env | grep -c '^CARGO'";
    let request =
        place.request(&channel.url, &["fy-words ==1.0"], &["/bin/sh", "-c", &format!("{print} || true")]);
    let made = make(&request).await.unwrap();
    let prefix = made.prefix.display();
    assert_eq!(made.proof.unwrap().stdout, format!("1.0 {prefix}/share/fy-words/word.txt {prefix}\n0\n"));
}

#[tokio::test]
async fn the_same_specs_again_reuse_the_prefix() {
    let (channel, place) = (Channel::start().await, Place::new());
    let request = place.request(&channel.url, &["fy-greet"], &[]);
    let first = make(&request).await.unwrap();
    let inode = std::fs::metadata(&first.prefix).unwrap().ino();
    assert_eq!((first.reused, channel.downloads()), (false, 2));
    let again = make(&request).await.unwrap();
    assert_eq!((again.reused, channel.downloads()), (true, 2));
    assert_eq!((&again.prefix, again.lock_digest), (&first.prefix, first.lock_digest));
    assert_eq!(std::fs::metadata(&again.prefix).unwrap().ino(), inode);
    assert!(again.proof.is_none());
}

#[tokio::test]
async fn environments_made_at_the_same_time_share_one_prefix() {
    let (channel, place) = (Channel::start().await, Place::new());
    let request = place.request(&channel.url, &["fy-greet"], &["fy-greet"]);
    let tasks = (0..4).map(|_| {
        let request = request.clone();
        tokio::spawn(async move { make(&request).await })
    });
    let mut prefixes = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        prefixes.push(task.await.unwrap().unwrap().prefix);
    }
    prefixes.dedup();
    assert_eq!((prefixes.len(), place.names().len(), place.staging().len()), (1, 1, 0));
}

#[tokio::test]
async fn another_lock_has_another_prefix() {
    let (channel, place) = (Channel::start().await, Place::new());
    let one =
        make(&place.request(&channel.url, &["fy-greet", "fy-words ==1.0"], &["fy-greet"])).await.unwrap();
    let two = make(&place.request(&channel.url, &["fy-greet", "fy-words >=2"], &["fy-greet"])).await.unwrap();
    assert_ne!(one.prefix, two.prefix);
    assert_eq!(one.proof.unwrap().stdout, format!("hello from {}\n", one.prefix.display()));
    assert_eq!(two.proof.unwrap().stdout, format!("good evening from {}\n", two.prefix.display()));
}

#[tokio::test]
async fn what_was_published_a_moment_ago_is_seen() {
    let (channel, place) = (Channel::start().await, Place::new());
    let (name, record) = channel.unpublish("noarch", "fy-words-2.0");
    let request = place.request(&channel.url, &["fy-words"], &[]);
    let old = make(&request).await.unwrap();
    assert_eq!(old.lock[0].file_name, "fy-words-1.0-h4616a5c_0.conda");
    channel.edit_index("noarch", |index| index["packages.conda"][&name] = record);
    let new = make(&request).await.unwrap();
    assert_eq!(new.lock[0].file_name, name, "although the server allows a day of caching");
}

#[tokio::test]
async fn a_package_whose_bytes_are_not_those_of_the_index_is_refused() {
    let (channel, place) = (Channel::start().await, Place::new());
    channel.edit_index("linux-64", |index| {
        for record in index["packages.conda"].as_object_mut().unwrap().values_mut() {
            record["sha256"] = "00".repeat(32).into();
        }
    });
    let error = make(&place.request(&channel.url, &["fy-greet"], &["fy-greet"])).await.unwrap_err();
    assert_eq!(error.code, "environment.digest_mismatch", "{error}");
    assert!(error.message.contains("fy-greet-1.0"), "{error}");
    assert!(error.evidence.iter().any(|line| line.contains(&"00".repeat(32))), "{error}");
    assert!(place.names().is_empty());
    // Another package may still be on its way to the disk when the first one is refused; what it leaves is swept.
    let root = forgeyard_envs::prefixes::Root::open(&place.root()).unwrap();
    for _ in 0..600 {
        root.sweep().await.unwrap();
        if place.staging().is_empty() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("left in staging: {:?}", place.staging());
}

#[tokio::test]
async fn a_package_without_a_digest_is_refused() {
    let (channel, place) = (Channel::start().await, Place::new());
    channel.edit_index("noarch", |index| {
        for record in index["packages.conda"].as_object_mut().unwrap().values_mut() {
            record.as_object_mut().unwrap().remove("sha256");
        }
    });
    let error = make(&place.request(&channel.url, &["fy-words"], &[])).await.unwrap_err();
    assert_eq!(error.code, "environment.package_unverifiable", "{error}");
    assert_eq!(channel.downloads(), 0);
}

#[tokio::test]
async fn a_cached_package_that_was_edited_is_fetched_again() {
    let (channel, place) = (Channel::start().await, Place::new());
    let made = make(&place.request(&channel.url, &["fy-words ==1.0"], &[])).await.unwrap();
    // The file of the environment and that of the cache may be one inode: an edit in place reaches both.
    std::fs::write(made.prefix.join("share/fy-words/word.txt"), "tampered\n").unwrap();
    let cached = place.cache().join("packages/fy-words-1.0-h4616a5c_0/share/fy-words/word.txt");
    std::fs::write(&cached, "tampered\n").unwrap();
    let request = place.request(&channel.url, &["fy-greet", "fy-words ==1.0"], &["fy-greet"]);
    let made = make(&request).await.unwrap();
    assert_eq!(made.proof.unwrap().stdout, format!("hello from {}\n", made.prefix.display()));
}

#[tokio::test]
async fn specs_that_cannot_be_satisfied_are_explained_by_the_solver() {
    let (channel, place) = (Channel::start().await, Place::new());
    let cases: [(&[&str], &str); 3] = [
        (&["fy-absent"], "fy-absent"),
        (&["fy-greet", "fy-words >=3"], "fy-words"),
        (&["fy-needs-gpu"], "__cuda"),
    ];
    for (specs, named) in cases {
        let error = make(&place.request(&channel.url, specs, &[])).await.unwrap_err();
        assert_eq!(error.code, "environment.unsolvable", "{error}");
        assert!(error.evidence[0].contains(specs[specs.len() - 1].split(' ').next().unwrap()), "{error}");
        assert!(error.evidence.iter().any(|line| line.contains(named)), "{error}");
        assert!(error.evidence.iter().any(|line| line.starts_with("this host offers: __unix")), "{error}");
        assert!(error.fix.is_some());
        println!("{error}\n");
    }
    let mut request = place.request(&channel.url, &["fy-needs-gpu"], &[]);
    request.virtual_packages.push(VirtualPackage::new("__cuda", "12.9"));
    make(&request).await.unwrap();
}

#[tokio::test]
async fn a_channel_that_does_not_answer_is_named() {
    let place = Place::new();
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{gone}/channels/main");
    let error = make(&place.request(&url, &["fy-words"], &[])).await.unwrap_err();
    assert_eq!(error.code, "environment.channel_unreachable", "{error}");
    assert!(error.message.contains(&url), "{error}");
}

#[tokio::test]
async fn a_program_that_is_not_in_the_environment_fails_the_proof() {
    let (channel, place) = (Channel::start().await, Place::new());
    let error = make(&place.request(&channel.url, &["fy-greet"], &["sh"])).await.unwrap_err();
    assert_eq!(error.code, "environment.program_missing");
    assert!(error.evidence.contains(&"its programs: fy-greet".to_owned()), "{error}");
}

const CHANNEL: &str = "FORGEYARD_TEST_CHANNEL";
const PLACE: &str = "FORGEYARD_TEST_PLACE";

/// Not a claim of its own: the process that the next test kills.
#[tokio::test]
#[ignore = "runs as a child of another test"]
async fn child_makes_an_environment() {
    let (Ok(channel), Ok(folder)) = (std::env::var(CHANNEL), std::env::var(PLACE)) else { return };
    let mut request = Place::new().request(&channel, &["fy-greet"], &[]);
    request.root_dir = format!("{folder}/envs").into();
    request.cache_dir = format!("{folder}/cache").into();
    make(&request).await.unwrap();
}

#[tokio::test]
async fn a_process_killed_during_the_install_leaves_nothing_usable() {
    let (channel, place) = (Channel::start().await, Place::new());
    channel.stall(true);
    let mut child = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_makes_an_environment", "--ignored"])
        .stdout(std::process::Stdio::null())
        .env(CHANNEL, &channel.url)
        .env(PLACE, place.root().parent().unwrap())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    channel.stalled().await;
    child.kill().await.unwrap();
    assert_eq!(place.names(), Vec::<String>::new());
    assert_eq!(place.staging().len(), 2, "a folder and its lock file");

    channel.stall(false);
    let made = make(&place.request(&channel.url, &["fy-greet"], &["fy-greet"])).await.unwrap();
    assert!(!made.reused);
    let root = Root::open(&place.root()).unwrap();
    root.sweep().await.unwrap();
    assert!(place.staging().is_empty());
    assert_eq!(root.list().unwrap().len(), 1);
}
