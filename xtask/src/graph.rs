//! Who may depend on whom. The table of the design, kept as data and checked against `cargo metadata`.
//!
//! - A crate of ours may depend on the crates that its row names and on no other. A row that says `api[client]` may
//!   also turn that feature on.
//! - Tests and benches of a crate (`dev-dependencies`) may use `testkit` as well, and features of the row's crates.
//! - A heavy family of libraries belongs to one crate; nobody else names it, not even in tests.
//! - Pure crates name nothing that reaches for the clock, the network, files, threads or randomness.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// One row: a crate without the prefix, and what it may depend on.
struct Row {
    name: &'static str,
    may: &'static [&'static str],
}

/// The table of the design.
const TABLE: &[Row] = &[
    Row { name: "model", may: &[] },
    Row { name: "engine", may: &["model"] },
    Row { name: "formats", may: &["model"] },
    Row { name: "api", may: &["model"] },
    Row { name: "db", may: &["model"] },
    Row { name: "blobs", may: &["model"] },
    Row { name: "providers", may: &["model", "formats"] },
    Row { name: "forges", may: &["model", "formats"] },
    Row { name: "cache", may: &["model", "engine", "formats", "blobs", "api"] },
    Row { name: "envs", may: &["model", "formats", "blobs", "api[client]"] },
    Row { name: "site", may: &["model", "engine", "formats", "blobs", "providers", "api[client]"] },
    Row { name: "agent", may: &["model", "formats", "api[client]"] },
    Row { name: "control", may: &["model", "engine", "formats", "api", "db", "blobs", "forges"] },
    Row { name: "testkit", may: &["model", "engine", "db", "blobs", "providers", "forges", "control"] },
    Row {
        name: "forgeyard",
        may: &[
            "model",
            "engine",
            "formats",
            "api[client]",
            "db",
            "blobs",
            "providers",
            "forges",
            "cache",
            "envs",
            "site",
            "agent",
            "control",
            "testkit",
        ],
    },
    Row { name: "xtask", may: &[] },
];

/// Libraries whose names begin so belong to one crate. Their build cost is paid by nobody else.
const FAMILIES: &[(&str, &str)] =
    &[("rattler", "envs"), ("sqlx", "db"), ("kube", "providers"), ("tonic", "cache")];

/// Crates that decide or translate and reach for nothing.
const PURE: &[&str] = &["model", "engine", "formats"];

/// What a pure crate does not name: a library, or a family with `-` at the end.
const REACHING: &[&str] = &[
    "async-std",
    "axum",
    "axum-",
    "fs-err",
    "hyper",
    "hyper-",
    "nix",
    "rand",
    "reqwest",
    "smol",
    "tempfile",
    "tokio",
    "tokio-",
    "tower",
    "tower-",
];

/// A dependency that a workspace crate declares.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Edge {
    from: String,
    to: String,
    ours: bool,
    dev: bool,
    features: BTreeSet<String>,
}

/// Checks the workspace and prints its graph.
pub(crate) fn check(root: &Path) -> Result<()> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(&cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root)
        .output()
        .with_context(|| format!("cannot start {cargo}"))?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let metadata: Value =
        serde_json::from_slice(&output.stdout).context("cargo metadata did not answer with JSON")?;
    let (crates, edges) = read(&metadata)?;
    print!("{}", draw(&crates, &edges));
    let wrongs = judge(&crates, &edges);
    for wrong in &wrongs {
        println!("wrong: {wrong}");
    }
    if !wrongs.is_empty() {
        bail!("{} dependency(ies) break the table of the design (xtask/src/graph.rs)", wrongs.len());
    }
    println!(
        "{} crates, {} dependencies between them: as the design allows",
        crates.len(),
        edges.iter().filter(|edge| edge.ours && !edge.dev).count()
    );
    Ok(())
}

/// The name without the prefix, as the table writes it.
fn short(name: &str) -> &str {
    name.strip_prefix("forgeyard-").unwrap_or(name)
}

/// Reads crates and declared dependencies from the answer of `cargo metadata --no-deps`.
fn read(metadata: &Value) -> Result<(BTreeSet<String>, Vec<Edge>)> {
    let packages = metadata["packages"].as_array().context("cargo metadata names no packages")?;
    let text = |value: &Value, what: &str| -> Result<String> {
        value.as_str().map(str::to_owned).with_context(|| format!("cargo metadata lacks {what}"))
    };
    let mut crates = BTreeSet::new();
    for package in packages {
        crates.insert(short(&text(&package["name"], "a package's name")?).to_owned());
    }
    let mut edges = Vec::new();
    for package in packages {
        let from = short(&text(&package["name"], "a package's name")?).to_owned();
        let declared = package["dependencies"].as_array().context("a package lacks its dependencies")?;
        for dependency in declared {
            let name = text(&dependency["name"], "a dependency's name")?;
            let ours = dependency["path"].is_string() && crates.contains(short(&name));
            let features = dependency["features"].as_array().map_or_else(BTreeSet::new, |features| {
                features.iter().filter_map(Value::as_str).map(str::to_owned).collect()
            });
            edges.push(Edge {
                from: from.clone(),
                to: if ours { short(&name).to_owned() } else { name },
                ours,
                dev: dependency["kind"].as_str() == Some("dev"),
                features,
            });
        }
    }
    Ok((crates, edges))
}

/// Everything that breaks the rules, one line each.
fn judge(crates: &BTreeSet<String>, edges: &[Edge]) -> Vec<String> {
    let rows: BTreeMap<&str, &[&str]> = TABLE.iter().map(|row| (row.name, row.may)).collect();
    let mut wrongs = Vec::new();
    for name in crates {
        if !rows.contains_key(name.as_str()) {
            wrongs.push(format!("{name} is not in the table: give it a row, or take the crate away"));
        }
    }
    for edge in edges {
        let may = rows.get(edge.from.as_str()).copied().unwrap_or_default();
        wrongs.extend(if edge.ours { own(edge, may) } else { foreign(edge) });
    }
    wrongs
}

/// What is wrong with a dependency on a crate of ours.
fn own(edge: &Edge, may: &[&str]) -> Option<String> {
    let Edge { from, to, dev, features, .. } = edge;
    let row = may.iter().find(|allowed| allowed.split('[').next() == Some(to));
    let Some(row) = row else {
        // The sandbox provider and the agent meet in real machines: their tests need each other.
        let peers = ["agent", "providers", "api"];
        let machines = peers.contains(&from.as_str()) && peers.contains(&to.as_str());
        // A runner of a forge needs a forge to be run against, and that is simulated there.
        let forge = from == "agent" && to == "forges";
        if *dev && (to == "testkit" || to == from || machines || forge) {
            return None;
        }
        let kind = if *dev { " in its tests" } else { "" };
        return Some(format!("{from} may not depend on {to}{kind}"));
    };
    let client = to == "api" && features.contains("client");
    if client && !*dev && !row.ends_with("[client]") {
        return Some(format!("{from} may not turn on the feature `client` of api"));
    }
    None
}

/// What is wrong with a dependency on somebody else's library.
fn foreign(edge: &Edge) -> Option<String> {
    let Edge { from, to, dev, .. } = edge;
    for (family, owner) in FAMILIES {
        let member =
            to == family || to.starts_with(&format!("{family}_")) || to.starts_with(&format!("{family}-"));
        if member && from != owner {
            return Some(format!("{from} may not depend on {to}: the family {family} belongs to {owner}"));
        }
    }
    let reaching =
        REACHING.iter().any(|name| if name.ends_with('-') { to.starts_with(name) } else { to == name });
    if reaching && !*dev && PURE.contains(&from.as_str()) {
        return Some(format!("{from} is pure and may not depend on {to}"));
    }
    None
}

/// The graph as text: a crate per line, those that stand on nothing of ours first.
fn draw(crates: &BTreeSet<String>, edges: &[Edge]) -> String {
    let mut below: BTreeMap<&str, BTreeSet<&str>> =
        crates.iter().map(|name| (name.as_str(), BTreeSet::new())).collect();
    for edge in edges.iter().filter(|edge| edge.ours && !edge.dev) {
        below.entry(&edge.from).or_default().insert(&edge.to);
    }
    let width = crates.iter().map(String::len).max().unwrap_or(0);
    let mut text = String::new();
    let mut placed: BTreeSet<&str> = BTreeSet::new();
    while placed.len() < below.len() {
        let mut layer: Vec<&str> = below
            .iter()
            .filter(|(name, on)| !placed.contains(*name) && on.is_subset(&placed))
            .map(|(name, _)| *name)
            .collect();
        if layer.is_empty() {
            // cargo refuses cycles itself; a fixture may hold one
            layer = below.keys().copied().filter(|name| !placed.contains(name)).collect();
        }
        for name in &layer {
            let on: Vec<&str> = below.get(name).into_iter().flatten().copied().collect();
            let on = if on.is_empty() { "-".to_owned() } else { on.join(", ") };
            let _ = writeln!(text, "{name:<width$}  {on}");
        }
        placed.extend(layer);
    }
    text
}

#[cfg(test)]
#[path = "graph_tests.rs"]
mod tests;
