//! The tree of C that `cargo xtask bench cache-clients` builds: the sources of zstd, as this workspace's own lock file pins them.

use anyhow::{Context, Result, bail};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Whether only a part of each tree is built, for a look in a few minutes.
pub(crate) fn small() -> bool {
    std::env::var_os("FORGEYARD_BENCH_SMALL").is_some()
}

/// Where cargo keeps the sources of a package of the lock file.
fn sources(root: &Path, package: &str) -> Result<PathBuf> {
    let arguments = ["metadata", "--format-version", "1", "--offline"];
    let output = crate::cargo::command(root, &arguments).stderr(Stdio::inherit()).output()?;
    let all: serde_json::Value = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    let found = all["packages"].as_array().into_iter().flatten().find(|one| one["name"] == package);
    let manifest = found.and_then(|one| one["manifest_path"].as_str());
    let manifest = manifest.with_context(|| format!("{package} is not in the lock file"))?;
    Ok(Path::new(manifest).parent().unwrap_or(root).to_owned())
}

/// Copies the sources of zstd, and writes a file for make: every object as it is, and with -fPIC, as for a library.
pub(crate) fn c_tree(root: &Path, folder: &Path) -> Result<()> {
    let zstd = sources(root, "zstd-sys")?.join("zstd/lib");
    let (mut objects, mut rules) = (Vec::new(), String::new());
    // the same for Bazel, which wants its sources below its workspace, and for Nix, which brings them into its store
    let (mut genrules, mut derivations) = (String::new(), String::new());
    let workspace = folder.join("workspace");
    copy(&zstd, &workspace.join("zstd"))?;
    std::fs::write(workspace.join("WORKSPACE"), "")?;
    let parts = ["common", "decompress", "dictBuilder", "deprecated", "compress", "legacy"];
    for part in if small() { &parts[..4] } else { &parts[..] } {
        let Ok(entries) = std::fs::read_dir(zstd.join(part)) else { continue };
        for path in entries.flatten().map(|entry| entry.path()) {
            let (Some(name), true) = (path.file_stem(), path.extension().is_some_and(|end| end == "c"))
            else {
                continue;
            };
            for (kind, flag) in
                [("static", ""), ("shared", "-fPIC")].into_iter().take(if small() { 1 } else { 2 })
            {
                let object = format!("$(OUT)/{part}-{}.{kind}.o", name.to_string_lossy());
                let _ = writeln!(
                    rules,
                    "{object}:\n\t$(CC) -O3 {flag} -DZSTD_LEGACY_SUPPORT=1 -DZSTD_MULTITHREAD -DZSTD_DISABLE_ASM \
                     -I{0} -I{0}/common -c {1} -o $@",
                    zstd.display(),
                    path.display()
                );
                objects.push(object);
                let file = format!("zstd/{part}/{}.c", name.to_string_lossy());
                let flags =
                    format!("-O3 {flag} -DZSTD_LEGACY_SUPPORT=1 -DZSTD_MULTITHREAD -DZSTD_DISABLE_ASM");
                let object = format!("{part}-{}.{kind}.o", name.to_string_lossy());
                let _ = writeln!(
                    genrules,
                    "genrule(name = \"{object}-rule\", srcs = [\"{file}\", \":headers\"], outs = [\"{object}\"], \
                     cmd = \"gcc {flags} -Izstd -Izstd/common -c $(location {file}) -o $@\")"
                );
                let _ = writeln!(derivations, "  (object \"{object}\" \"{flags}\" \"{file}\")");
            }
        }
    }
    if objects.len() < 10 {
        bail!("{} holds no sources of zstd", zstd.display());
    }
    let text = format!("all: {}\n{rules}", objects.join(" "));
    std::fs::write(folder.join("zstd.mk"), text)?;
    let headers = "filegroup(name = \"headers\", srcs = glob([\"zstd/**/*.h\"]))\n";
    std::fs::write(workspace.join("BUILD"), format!("{headers}{genrules}"))?;
    let nix = format!(
        "let\n  source = builtins.path {{ path = {}; name = \"zstd\"; }};\n  object = name: flags: file: derivation {{\n    \
         inherit name; system = \"x86_64-linux\"; builder = \"/bin/sh\";\n    args = [ \"-c\" \
         \"export PATH=/usr/bin; cd ${{source}}/..; gcc ${{flags}} -I${{source}} -I${{source}}/common \
         -c ${{source}}/${{builtins.substring 5 1000 file}} -o $out\" ];\n  }};\nin [\n{derivations}]\n",
        workspace.join("zstd").display()
    );
    Ok(std::fs::write(folder.join("zstd.nix"), nix)?)
}

/// Copies a folder of sources.
fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)?.flatten() {
        let (path, place) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &place)?;
        } else if path.extension().is_some_and(|end| end == "c" || end == "h") {
            std::fs::copy(&path, &place)?;
        }
    }
    Ok(())
}
