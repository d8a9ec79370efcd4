//! `cargo xtask fuzz [SECONDS] [NAME…]`: builds every fuzz target, or those that are named, and runs each for so long.
//!
//! The targets are those of cargo-fuzz (`cargo +nightly fuzz run NAME` works as well); this needs only a nightly
//! toolchain, so that a machine without cargo-fuzz can run them. The corpus grows in `fuzz/corpus/NAME`, from what is in
//! `fuzz/seeds/NAME`; an input that breaks something is written to `fuzz/artifacts/NAME`, and its path is printed.

use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

/// What cargo-fuzz passes as well: coverage for the fuzzer, and the address sanitizer.
const FLAGS: [&str; 8] = [
    "--cfg fuzzing",
    "-Zsanitizer=address",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cdebug-assertions",
];

/// Builds and runs. All targets are run, also after one that found something.
pub(crate) fn run(root: &Path, seconds: u64, names: &[String]) -> Result<()> {
    let folder = root.join("fuzz");
    let targets = targets(&folder)?;
    if let Some(wrong) = names.iter().find(|name| !targets.contains(name)) {
        bail!("there is no target `{wrong}`: the targets are {}", targets.join(", "));
    }
    let host = crate::dist::host_triple()?;
    let mut build = Command::new("rustup");
    build.args(["run", "nightly", "cargo", "build", "--release", "--target", &host]).current_dir(&folder);
    build.args(names.iter().flat_map(|name| ["--bin", name]));
    // What cargo sets for the chore itself is about another toolchain.
    for variable in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN", "CARGO_TARGET_DIR", "CARGO_ENCODED_RUSTFLAGS"] {
        build.env_remove(variable);
    }
    let status = build.env("RUSTFLAGS", FLAGS.join(" ")).status().context("cannot start rustup")?;
    if !status.success() {
        bail!(
            "the fuzz targets do not build; they need a nightly toolchain: `rustup toolchain install nightly`"
        );
    }
    let mut broken = Vec::new();
    for name in targets.iter().filter(|name| names.is_empty() || names.contains(name)) {
        let (corpus, artifacts) = (folder.join("corpus").join(name), folder.join("artifacts").join(name));
        for folder in [&corpus, &artifacts] {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let program = folder.join("target").join(&host).join("release").join(name);
        let mut command = Command::new(&program);
        // Only the first folder is written to.
        let seeds = folder.join("seeds").join(name);
        command.arg(&corpus).args(seeds.is_dir().then_some(&seeds));
        command.arg(format!("-artifact_prefix={}/", artifacts.display()));
        command.args([&format!("-max_total_time={seconds}"), "-timeout=10", "-rss_limit_mb=2048"]);
        let output = command.output().with_context(|| format!("cannot start {}", program.display()))?;
        let text = String::from_utf8_lossy(&output.stderr);
        println!("{name:<14} {}", last_of_interest(&text));
        if !output.status.success() {
            let end: Vec<&str> = text.lines().rev().take(40).collect();
            eprintln!("{}", end.into_iter().rev().collect::<Vec<_>>().join("\n"));
            broken.push(name.as_str());
        }
    }
    if broken.is_empty() { Ok(()) } else { bail!("something was found by: {}", broken.join(", ")) }
}

/// The names of the targets: the files that are there.
fn targets(folder: &Path) -> Result<Vec<String>> {
    let folder = folder.join("fuzz_targets");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "rs") {
            names.extend(path.file_stem().and_then(|name| name.to_str()).map(str::to_owned));
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// The last line that says how far it came: `#1234 DONE cov: 56 …`.
fn last_of_interest(text: &str) -> &str {
    let done = |line: &&str| line.starts_with('#') && line.contains("cov:");
    text.lines().rfind(done).or_else(|| text.lines().last()).unwrap_or("said nothing").trim()
}
