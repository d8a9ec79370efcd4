//! The real Nix, in two versions: the one of Debian bookworm (2.8) and the one of trixie (2.26), and a store for each of its users.
//! Both are put there by `scripts/install-clients.sh`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A version of Nix that is installed.
#[derive(Clone)]
pub struct Nix {
    program: PathBuf,
    store: PathBuf,
    modern: bool,
}

impl Nix {
    /// By the end of its name: nothing, or `-2.26`. Says so when it is not there.
    pub fn find(version: &str) -> Option<Self> {
        let path = std::env::var("PATH").unwrap_or_default();
        let clients =
            std::env::var("FORGEYARD_CLIENTS").unwrap_or_else(|_| "/opt/forgeyard/clients".to_owned());
        let folders: Vec<PathBuf> =
            std::env::split_paths(&path).chain([Path::new(&clients).join("bin")]).collect();
        let find = |name: &str| {
            let name = format!("{name}{version}");
            folders.iter().map(|folder| folder.join(&name)).find(|path| path.is_file())
        };
        let found = find("nix").zip(find("nix-store"));
        if found.is_none() {
            println!("SKIPPED: nix{version} is not installed (scripts/install-clients.sh)");
        }
        let (program, store) = found?;
        Some(Self { program, store, modern: !version.is_empty() })
    }

    /// A pair of keys, as a secret and as readers trust it.
    pub fn key(&self, folder: &Path, name: &str) -> (PathBuf, String) {
        let place = self.place(folder, "keys", None);
        let made = place.command(&self.program).args(["key", "generate-secret", "--key-name", name]).output();
        let made = made.unwrap();
        good(&made);
        let file = folder.join(format!("{name}.key"));
        fs_err::write(&file, &made.stdout).unwrap();
        let secret = forgeyard_model::Secret::new(String::from_utf8(made.stdout).unwrap());
        (file, forgeyard_cache::signature::Signer::read(&secret).unwrap().public())
    }

    /// A store with this name, whose user has this token.
    pub fn place(&self, folder: &Path, name: &str, token: Option<&str>) -> Place {
        let folder = folder.join(name);
        fs_err::create_dir_all(&folder).unwrap();
        let netrc =
            token.map_or_else(String::new, |token| format!("machine 127.0.0.1 login any password {token}\n"));
        fs_err::write(folder.join("netrc"), netrc).unwrap();
        Place { folder, nix: self.clone(), ca: None }
    }

    /// Whether derivations are built in a sandbox here; says why when they are not.
    pub fn builds(&self, folder: &Path) -> bool {
        let file = folder.join("trial.nix");
        fs_err::write(&file, derivation("trial", "echo trial > $out", "")).unwrap();
        let built = self.place(folder, "trial", None).build(&file, &[]);
        if !built.status.success() {
            println!("SKIPPED: Nix builds nothing in a sandbox here: {}", text(&built).trim());
        }
        built.status.success()
    }
}

/// A derivation that runs this script, as a file of Nix.
pub fn derivation(name: &str, script: &str, more: &str) -> String {
    format!(
        "derivation {{ name = \"{name}\"; system = \"x86_64-linux\"; builder = \"/bin/sh\"; \
         args = [ \"-c\" ''{script}'' ]; {more} }}\n"
    )
}

/// A store, with a home and the token of its user.
pub struct Place {
    pub folder: PathBuf,
    /// An authority that it trusts.
    pub ca: Option<PathBuf>,
    nix: Nix,
}

impl Place {
    fn command(&self, program: &Path) -> Command {
        let sandbox = "sandbox = true\nsandbox-paths = /bin/sh=/bin/busybox\nbuild-hook =";
        let config = format!(
            "experimental-features = nix-command ca-derivations\nbuild-users-group =\nsubstituters =\n{}\nnetrc-file = {}",
            if self.nix.modern { sandbox } else { "sandbox = false" },
            self.folder.join("netrc").display()
        );
        let mut command = Command::new(program);
        let config = match (&self.ca, self.nix.modern) {
            (Some(ca), true) => format!("{config}\nssl-cert-file = {}", ca.display()),
            (Some(ca), false) => {
                command.env("NIX_SSL_CERT_FILE", ca);
                config
            }
            (None, _) => config,
        };
        command.env("NIX_CONFIG", config);
        command.env("HOME", &self.folder).env("XDG_CACHE_HOME", self.folder.join("cache"));
        command
    }

    /// One command, with this store.
    pub fn nix(&self, arguments: &[&str]) -> Output {
        self.command(&self.nix.program).arg("--store").arg(self.root()).args(arguments).output().unwrap()
    }

    /// One command that names its store itself.
    pub fn bare(&self, arguments: &[&str]) -> Output {
        self.command(&self.nix.program).args(arguments).output().unwrap()
    }

    /// Builds what a file says, or takes it from a substituter.
    pub fn build(&self, file: &Path, more: &[&str]) -> Output {
        let file = file.display().to_string();
        let arguments = ["build", "-f", &file, "--no-link", "--print-out-paths", "-L"];
        self.nix(&[&arguments[..], more].concat())
    }

    fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    /// What a file of the store says.
    pub fn read(&self, path: &str) -> String {
        fs_err::read_to_string(self.root().join(path.trim_start_matches('/'))).unwrap()
    }

    /// Brings a path into the store that nobody signed, as an import by root does.
    pub fn import(&self, path: &str, content: &str, references: &[&str]) {
        let mut bytes = 1u64.to_le_bytes().to_vec();
        for part in ["nix-archive-1", "(", "type", "regular", "contents", content, ")"] {
            word(&mut bytes, part);
        }
        bytes.extend_from_slice(&0x4558_494eu64.to_le_bytes());
        word(&mut bytes, path);
        bytes.extend_from_slice(&(references.len() as u64).to_le_bytes());
        for reference in references {
            word(&mut bytes, reference);
        }
        word(&mut bytes, "");
        bytes.extend_from_slice(&[0; 16]);
        let mut command = self.command(&self.nix.store);
        command.arg("--store").arg(self.root()).arg("--import").stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(&bytes).unwrap();
        assert!(child.wait().unwrap().success());
    }
}

/// A text in an archive of Nix: its length, itself, zeros up to eight bytes.
fn word(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
    bytes.resize(bytes.len().next_multiple_of(8), 0);
}

/// All that was said.
pub fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// It went well.
pub fn good(output: &Output) {
    assert!(output.status.success(), "{}", text(output));
}

/// The path that a command printed.
pub fn path_of(output: &Output) -> String {
    good(output);
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
