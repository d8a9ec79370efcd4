//! `scripts/install-runner.sh` with a made-up archive: what is not exactly what was named is refused, and then nothing is
//! installed. GitHub's own program is not here and was never installed by these tests.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

struct Bench {
    folder: TempDir,
}

impl Bench {
    /// An archive with a listener that says this version.
    fn new(version: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let bench = Self { folder };
        for (name, text) in [
            ("tree/run.sh", "#!/bin/sh\necho \"ran in $PWD with $*\"\n".to_owned()),
            ("tree/bin/Runner.Listener", format!("#!/bin/sh\necho {version}\n")),
            ("tree/externals/node", "large".to_owned()),
        ] {
            let path = bench.path(name);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(&path, text).unwrap();
            fs_err::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let tree = bench.path("tree");
        let done =
            Command::new("tar").arg("-czf").arg(bench.path("a.tar.gz")).arg("-C").arg(tree).arg(".").status();
        assert!(done.unwrap().success());
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn digest(&self) -> String {
        use sha2::Digest as _;
        let sum = sha2::Sha256::digest(fs_err::read(self.path("a.tar.gz")).unwrap());
        sum.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Runs the script: whether it went well, and what it said.
    fn install(&self, version: &str, digest: &str) -> (bool, String) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/install-runner.sh");
        let output = Command::new("bash")
            .arg(script)
            .arg(self.path("a.tar.gz"))
            .args([version, digest])
            .arg(self.path("runner"))
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    }

    #[track_caller]
    fn refused(&self, version: &str, digest: &str, words: &str) {
        let (good, said) = self.install(version, digest);
        assert!(!good && said.contains(words), "{said}");
        assert!(!self.path("runner").join("run.sh").exists(), "something was installed");
        let left = fs_err::read_dir(self.folder.path()).unwrap();
        let left: Vec<String> = left.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        assert!(left.iter().all(|name| !name.starts_with(".install-runner")), "left behind: {left:?}");
    }
}

#[test]
fn archive_of_another_digest_is_refused_and_nothing_is_installed() {
    let bench = Bench::new("2.330.0");
    let other = bench.digest().replace(|digit: char| digit.is_ascii_digit(), "0");
    bench.refused("2.330.0", &other, "nothing was installed");
    bench.refused("2.330.0", "abc", "no SHA-256 digest");
    bench.refused("latest", &bench.digest(), "no version");
}

#[test]
fn program_that_says_another_version_is_refused() {
    let bench = Bench::new("2.329.0");
    bench.refused("2.330.0", &bench.digest(), "says that it is 2.329.0");
}

#[test]
fn archive_that_was_named_is_installed_once_and_starts_in_a_folder_of_its_own() {
    let bench = Bench::new("2.330.0");
    let digest = bench.digest();
    let (good, said) = bench.install("2.330.0", &digest.to_uppercase());
    assert!(good, "{said}");
    assert!(bench.install("2.330.0", &digest).1.contains("already"));
    let home = bench.path("home");
    let output = Command::new(bench.path("runner/run.sh"))
        .arg("--once")
        .env("FORGEYARD_RUNNER_HOME", &home)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said.trim(), format!("ran in {} with --once", home.canonicalize().unwrap().display()));
    assert!(fs_err::symlink_metadata(home.join("externals")).unwrap().is_symlink());
}

#[test]
fn folder_that_something_else_made_is_not_replaced() {
    let bench = Bench::new("2.330.0");
    fs_err::create_dir_all(bench.path("runner")).unwrap();
    fs_err::write(bench.path("runner/mine"), "mine").unwrap();
    bench.refused("2.330.0", &bench.digest(), "was not made by this script");
    assert_eq!(fs_err::read_to_string(bench.path("runner/mine")).unwrap(), "mine");
}
