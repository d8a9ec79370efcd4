//! The root folder of a machine: an empty skeleton, into which an allow-list of the host is shown read-only, or a tree
//! by digest under an overlay that goes with the machine.
//!
//! The skeleton is made by the provider as root and shown read-only, so the job changes nothing of it. It lies outside
//! the machine's folder, which only root may enter: the runtime enters it as the machine's own first user.

use crate::Error;
use crate::sandbox::oci::Shown;
use forgeyard_model::machine::{INSIDE_HOOK, INSIDE_INIT, INSIDE_STATUS, INSIDE_TAKEN};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

/// Folders of a skeleton.
const FOLDERS: [&str; 12] = [
    "dev",
    "etc",
    "in",
    "out",
    "proc",
    "run",
    "sys/devices/system",
    "tmp",
    "usr",
    "var",
    "work",
    ".forgeyard/status",
];
/// System folders of the host, shown if they are folders and repeated if they are links.
const SYSTEM: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// Parts of `/etc` that programs need to start and to trust; none holds a secret.
const ETC: [&str; 12] = [
    "alternatives",
    "ca-certificates.conf",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "pki/ca-trust/extracted",
    "pki/tls/certs",
    "protocols",
    "services",
    "ssl/certs",
];
/// OpenCL drivers; shown only to a machine that leased a device, so that a build cannot use one by accident.
const OPENCL: &str = "OpenCL/vendors";
/// Parts of `/sys` that count CPUs and memory nodes, which OpenCL on the CPU needs.
const SYS: [&str; 2] = ["/sys/devices/system/cpu", "/sys/devices/system/node"];
/// Places that an image may never show, nor anything below or above them.
const FORBIDDEN: [&str; 6] = ["/root", "/home", "/proc", "/sys", "/dev", "/run"];
/// Places that belong to the machine itself; its `/var/tmp` is its `/tmp`.
const OWN: [&str; 10] =
    ["/in", "/out", "/work", "/tmp", "/var/tmp", "/proc", "/sys", "/dev", "/run", "/.forgeyard"];

/// What the root is made for.
pub(crate) struct Wanted<'a> {
    pub(crate) allow: &'a [PathBuf],
    pub(crate) devices: bool,
    pub(crate) network: bool,
    pub(crate) hostname: &'a str,
    pub(crate) job: u32,
}

/// Checks the further paths of a `host` image; refuses by name. Gives them without links.
pub(crate) fn check_allowed(allow: &[String], ours: &[&Path]) -> Result<Vec<PathBuf>, String> {
    allow.iter().map(|text| check_one(text, ours)).collect()
}

fn check_one(text: &str, ours: &[&Path]) -> Result<PathBuf, String> {
    let path = Path::new(text);
    if !path.is_absolute() || path.components().any(|part| matches!(part, Component::ParentDir)) {
        return Err(format!("`{text}` is not an absolute path"));
    }
    let real = std::fs::canonicalize(path).map_err(|error| format!("`{text}`: {error}"))?;
    for candidate in [path, real.as_path()] {
        for forbidden in FORBIDDEN.iter().map(Path::new).chain(ours.iter().copied()) {
            let real_forbidden = std::fs::canonicalize(forbidden).unwrap_or_else(|_| forbidden.to_owned());
            for forbidden in [forbidden, real_forbidden.as_path()] {
                if candidate.starts_with(forbidden) || forbidden.starts_with(candidate) {
                    return Err(format!("`{text}` would show {}", forbidden.display()));
                }
            }
        }
        if OWN.iter().any(|own| candidate.starts_with(own)) || candidate == Path::new("/etc") {
            return Err(format!("`{text}` is a place of the machine itself"));
        }
    }
    Ok(path.to_owned())
}

/// Makes the skeleton of a `host` image and says what is to be shown in it.
pub(crate) fn host(root: &Path, wanted: &Wanted<'_>) -> Result<Vec<Shown>, Error> {
    let mut shown = vec![show("/usr")];
    frame(root, wanted)?;
    for name in SYSTEM {
        let path = Path::new("/").join(name);
        let Ok(meta) = path.symlink_metadata() else { continue };
        if meta.is_symlink() {
            let to = std::fs::read_link(&path).map_err(|source| failed("read", &path, source))?;
            link(&to, &root.join(name))?;
        } else if meta.is_dir() {
            folder(&root.join(name))?;
            shown.push(Shown { source: path.clone(), target: path });
        }
    }
    for name in ETC.iter().copied().chain(wanted.devices.then_some(OPENCL)) {
        let path = Path::new("/etc").join(name);
        let Ok(real) = std::fs::canonicalize(&path) else { continue };
        let is_link = path.symlink_metadata().is_ok_and(|meta| meta.is_symlink());
        if is_link && real.starts_with("/usr") {
            parent(root, &path)?;
            link(&real, &below(root, &path))?;
        } else {
            point(root, &path, real.is_dir())?;
            shown.push(Shown { source: real, target: path });
        }
    }
    for path in wanted.allow {
        let real = std::fs::canonicalize(path).map_err(|source| failed("look at", path, source))?;
        if shown.iter().any(|shown| path.starts_with(&shown.target)) {
            continue;
        }
        point(root, path, real.is_dir())?;
        shown.push(Shown { source: real, target: path.clone() });
    }
    shown.extend(system(root)?);
    Ok(shown)
}

/// Adds to a tree what a machine needs, and says what is to be shown in it.
pub(crate) fn tree(root: &Path, wanted: &Wanted<'_>) -> Result<Vec<Shown>, Error> {
    // A link in the tree would be followed on the host, by us, as root.
    let paths =
        FOLDERS.iter().map(Path::new).chain(SYS.iter().map(|path| Path::new(path.trim_start_matches('/'))));
    for path in paths.flat_map(Path::ancestors) {
        let path = root.join(path);
        if path.symlink_metadata().is_ok_and(|meta| !meta.is_dir()) {
            return Err(failed("use", &path, std::io::Error::other("not a folder in this image")));
        }
    }
    frame(root, wanted)?;
    system(root)
}

fn system(root: &Path) -> Result<Vec<Shown>, Error> {
    let mut shown = Vec::new();
    for path in SYS.iter().map(Path::new).filter(|path| path.is_dir()) {
        point(root, path, true)?;
        shown.push(Shown { source: path.to_owned(), target: path.to_owned() });
    }
    Ok(shown)
}

/// Folders, users and names of any machine.
fn frame(root: &Path, wanted: &Wanted<'_>) -> Result<(), Error> {
    for name in FOLDERS {
        folder(&root.join(name))?;
    }
    // The runtime gives its own memory file system the mode of the folder below it.
    let run = root.join("run");
    std::fs::set_permissions(&run, Permissions::from_mode(0o1777))
        .map_err(|source| failed("open up", &run, source))?;
    file(&below(root, Path::new(INSIDE_INIT)), None)?;
    for inside in [INSIDE_STATUS, INSIDE_HOOK, INSIDE_TAKEN] {
        folder(&below(root, Path::new(inside)))?;
    }
    link(Path::new("/tmp"), &root.join("var/tmp"))?;
    let job = wanted.job;
    let etc = root.join("etc");
    let passwd = format!(
        "root:x:0:0:root:/root:/usr/sbin/nologin\njob:x:{job}:{job}:job:/work/home:/bin/sh\n\
         nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    );
    let hosts = format!("127.0.0.1 localhost {}\n::1 localhost\n", wanted.hostname);
    let names: &str = if wanted.network { "hosts: files dns\n" } else { "hosts: files\n" };
    file(&etc.join("passwd"), Some(&passwd))?;
    file(&etc.join("group"), Some(&format!("root:x:0:\njob:x:{job}:\nnogroup:x:65534:\n")))?;
    file(&etc.join("hosts"), Some(&hosts))?;
    file(&etc.join("hostname"), Some(&format!("{}\n", wanted.hostname)))?;
    file(&etc.join("nsswitch.conf"), Some(&format!("passwd: files\ngroup: files\n{names}")))?;
    let resolve = match wanted.network {
        true => std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default(),
        false => String::new(),
    };
    file(&etc.join("resolv.conf"), Some(&resolve))
}

fn show(path: &str) -> Shown {
    Shown { source: path.into(), target: path.into() }
}

fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Makes the place where something is to be shown.
fn point(root: &Path, path: &Path, is_folder: bool) -> Result<(), Error> {
    if is_folder {
        return folder(&below(root, path));
    }
    parent(root, path)?;
    file(&below(root, path), None)
}

fn parent(root: &Path, path: &Path) -> Result<(), Error> {
    match below(root, path).parent() {
        Some(parent) => folder(parent),
        None => Ok(()),
    }
}

fn folder(path: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(path).map_err(|source| failed("make", path, source))
}

fn file(path: &Path, text: Option<&str>) -> Result<(), Error> {
    let made = match text {
        Some(text) => {
            // In a tree it may be a link, which must not be written through.
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
                _ => std::fs::write(path, text),
            }
        }
        None => std::fs::File::options().create(true).append(true).open(path).map(drop),
    };
    made.map_err(|source| failed("make", path, source))
}

fn link(to: &Path, path: &Path) -> Result<(), Error> {
    match std::os::unix::fs::symlink(to, path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        made => made.map_err(|source| failed("make", path, source)),
    }
}

fn failed(action: &'static str, path: &Path, source: std::io::Error) -> Error {
    Error::Failed { action, object: path.display().to_string(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_and_our_own_folders_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        std::fs::create_dir_all(state.join("x")).unwrap();
        std::os::unix::fs::symlink("/root", dir.path().join("link")).unwrap();
        std::fs::create_dir(dir.path().join("fine")).unwrap();
        let text = |path: &Path| path.display().to_string();
        let ours = [state.as_path()];
        let bad = [
            "/".to_owned(),
            "/root".to_owned(),
            "/home".to_owned(),
            "/etc".to_owned(),
            "/proc/self".to_owned(),
            "relative".to_owned(),
            "/does/not/exist".to_owned(),
            "/usr/../root".to_owned(),
            "/var/tmp".to_owned(),
            text(&state),
            text(&state.join("x")),
            text(&dir.path().join("link")),
        ];
        for path in bad {
            let error = check_allowed(std::slice::from_ref(&path), &ours).unwrap_err();
            assert!(error.contains(&path), "{error}");
        }
    }

    #[test]
    fn skeleton_shows_an_allow_list_and_drivers_only_with_a_device() {
        let dir = tempfile::tempdir().unwrap();
        let wanted = |devices| Wanted { allow: &[], devices, network: false, hostname: "job", job: 1000 };
        let shown = host(dir.path(), &wanted(false)).unwrap();
        let targets: Vec<&Path> = shown.iter().map(|shown| shown.target.as_path()).collect();
        assert!(targets.contains(&Path::new("/usr")));
        for never in ["/root", "/home", "/etc", "/etc/shadow", "/etc/OpenCL/vendors", "/var", "/opt"] {
            assert!(!targets.contains(&Path::new(never)), "{never}");
        }
        // A second time changes nothing.
        assert_eq!(host(dir.path(), &wanted(false)).unwrap(), shown);
        assert!(std::fs::read_to_string(dir.path().join("etc/passwd")).unwrap().contains("job:x:1000:1000"));
        assert_eq!(std::fs::read_to_string(dir.path().join("etc/resolv.conf")).unwrap(), "");
    }
}
