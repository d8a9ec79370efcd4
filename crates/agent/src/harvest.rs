//! What is taken from the machine when the steps are over and all its processes are gone: metrics, digests of installed
//! packages, outputs. All of it was written by the job, so all of it is bounded and none of it is believed further than
//! its field says.

use crate::inside;
use forgeyard_model::job::OutputRule;
use forgeyard_model::verdict::Metric;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const METRICS_BYTES: u64 = 1 << 20;
const METRICS: usize = 256;
const METRIC_NAME: usize = 128;
const METRIC_UNIT: usize = 32;
const PACKAGES: usize = 5000;
const PACKAGE_BYTES: u64 = 32 << 20;
const OUTPUTS: usize = 1000;
const NAMES: usize = 100_000;

#[derive(Deserialize)]
struct RawMetric {
    value: serde_json::Value,
    #[serde(default)]
    unit: String,
}

/// Metrics of `/out/metrics.json`: objects by name, in one JSON object or in several, one after another.
pub(crate) fn metrics(out: &Path) -> BTreeMap<String, Metric> {
    let bytes = inside::read(out, Path::new("metrics.json"), METRICS_BYTES).unwrap_or_default();
    parse_metrics(&bytes)
}

fn parse_metrics(bytes: &[u8]) -> BTreeMap<String, Metric> {
    let mut found = BTreeMap::new();
    let objects =
        serde_json::Deserializer::from_slice(bytes).into_iter::<BTreeMap<String, serde_json::Value>>();
    for (name, value) in objects.map_while(Result::ok).flatten() {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
        let Ok(raw) = serde_json::from_value::<RawMetric>(value) else { continue };
        let name_fits = !name.is_empty() && name.len() <= METRIC_NAME && name.chars().all(plain);
        let unit_fits = raw.unit.len() <= METRIC_UNIT && !raw.unit.chars().any(char::is_control);
        let Some(value) = figure(&raw.value) else { continue };
        if name_fits && unit_fits && found.len() < METRICS {
            found.insert(name, Metric { value, unit: raw.unit });
        }
    }
    found
}

/// A figure, written as a number or as text that is one.
fn figure(value: &serde_json::Value) -> Option<String> {
    let text = match value {
        serde_json::Value::Number(number) => number.to_string(),
        serde_json::Value::String(text) => text.clone(),
        _ => return None,
    };
    let finite = text.len() <= 64 && text.parse::<f64>().is_ok_and(f64::is_finite);
    finite.then_some(text)
}

#[derive(Deserialize)]
struct Installed {
    #[serde(rename = "fn")]
    file_name: String,
    sha256: String,
}

/// Digests of the packages that `/work/prefix*/conda-meta` says are installed, by file name.
pub(crate) fn installed(work: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for prefix in inside::list(work, Path::new(""), NAMES).unwrap_or_default() {
        if !prefix.to_str().is_some_and(|name| name.starts_with("prefix")) {
            continue;
        }
        let folder = Path::new(&prefix).join("conda-meta");
        for name in inside::list(work, &folder, NAMES).unwrap_or_default() {
            let path = folder.join(&name);
            if found.len() >= PACKAGES || path.extension().is_none_or(|ending| ending != "json") {
                continue;
            }
            let Ok(bytes) = inside::read(work, &path, PACKAGE_BYTES) else { continue };
            if let Some((file_name, digest)) = parse_installed(&bytes) {
                found.insert(file_name, digest);
            }
        }
    }
    found
}

fn parse_installed(bytes: &[u8]) -> Option<(String, String)> {
    let record: Installed = serde_json::from_slice(bytes).ok()?;
    let digest = forgeyard_model::Digest::from_hex(&record.sha256).ok()?;
    (record.file_name.len() <= 255).then(|| (record.file_name, digest.to_string()))
}

/// A file to upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Output {
    pub(crate) kind: forgeyard_model::artifact::ArtifactKind,
    pub(crate) name: String,
    /// Path below `/out`.
    pub(crate) path: PathBuf,
}

/// Files that the rules name, and the rules that required a file and found none.
pub(crate) fn outputs(out: &Path, rules: &[OutputRule]) -> (Vec<Output>, Vec<String>) {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for rule in rules {
        let before = found.len();
        if let Some(folder) = inside::relative(&rule.folder) {
            for path in files(out, &folder) {
                let name = path.file_name().and_then(|name| name.to_str());
                let Some(name) = name.filter(|name| name.ends_with(&rule.ending)) else { continue };
                if found.len() < OUTPUTS && inside::open(out, &path).is_ok() {
                    found.push(Output { kind: rule.kind, name: name.to_owned(), path });
                }
            }
        }
        if rule.required && found.len() == before {
            let slash = if rule.folder.is_empty() { "" } else { "/" };
            missing.push(format!("{}{slash}*{}", rule.folder, rule.ending));
        }
    }
    (found, missing)
}

/// Entries of a folder and of its own folders, one level deep: a conda build writes `packages/PLATFORM/FILE`.
fn files(out: &Path, folder: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for name in inside::list(out, folder, NAMES).unwrap_or_default() {
        let path = folder.join(&name);
        // The root of the outputs is taken as it is: a rule for it names single files.
        let below = if folder.as_os_str().is_empty() {
            Err(())
        } else {
            inside::list(out, &path, NAMES).map_err(|_| ())
        };
        match below {
            Ok(names) => paths.extend(names.into_iter().map(|name| path.join(name))),
            Err(()) => paths.push(path),
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;
    use forgeyard_model::artifact::ArtifactKind;
    use proptest::prelude::*;

    #[test]
    fn good_metrics_are_taken_and_bad_ones_left() {
        let text =
            br#"{"triad": {"value": 12.5, "unit": "GB/s"}, "copy": {"value": "9.75", "unit": "GB/s"}, "bad name!": {"value": 1}, "text": {"value": "x"}}
            {"later": {"value": 3}} rubbish {"never": {"value": 1}}"#;
        let found = parse_metrics(text);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["copy", "later", "triad"]);
        assert_eq!(found["triad"], Metric { value: "12.5".to_owned(), unit: "GB/s".to_owned() });
    }

    #[test]
    fn installed_digests_are_read_from_the_prefix_only() {
        let work = tempfile::tempdir().unwrap();
        let hex = "a".repeat(64);
        for folder in ["prefix/conda-meta", "other/conda-meta"] {
            std::fs::create_dir_all(work.path().join(folder)).unwrap();
        }
        let record = format!(r#"{{"fn": "a-1-0.conda", "sha256": "{hex}", "name": "a"}}"#);
        std::fs::write(work.path().join("prefix/conda-meta/a.json"), &record).unwrap();
        std::fs::write(work.path().join("prefix/conda-meta/broken.json"), "{").unwrap();
        std::fs::write(work.path().join("prefix/conda-meta/history"), "x").unwrap();
        std::fs::write(work.path().join("other/conda-meta/b.json"), record.replace("a-1", "b-1")).unwrap();
        let found = installed(work.path());
        assert_eq!(found, [("a-1-0.conda".to_owned(), format!("sha256:{hex}"))].into());
    }

    #[test]
    fn outputs_follow_no_link_and_missing_ones_are_named() {
        let out = tempfile::tempdir().unwrap();
        std::fs::create_dir(out.path().join("linux-64")).unwrap();
        std::fs::write(out.path().join("linux-64/a.conda"), "x").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", out.path().join("linux-64/b.conda")).unwrap();
        let rule = |folder: &str, ending: &str, required| OutputRule {
            folder: folder.to_owned(),
            ending: ending.to_owned(),
            kind: ArtifactKind::CondaPackage,
            required,
        };
        std::fs::create_dir_all(out.path().join("packages/noarch")).unwrap();
        std::fs::write(out.path().join("packages/noarch/c.conda"), "x").unwrap();
        let (below, _) = outputs(out.path(), &[rule("packages", ".conda", true)]);
        assert_eq!(below.iter().map(|o| o.name.as_str()).collect::<Vec<_>>(), ["c.conda"]);
        let (found, missing) = outputs(
            out.path(),
            &[
                rule("linux-64", ".conda", true),
                rule("noarch", ".conda", false),
                rule("", ".json", true),
                rule("../x", "", true),
            ],
        );
        assert_eq!(found.iter().map(|o| o.name.as_str()).collect::<Vec<_>>(), ["a.conda"]);
        assert_eq!(missing, ["*.json", "../x/*"]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>, text in "\\PC*") {
            parse_metrics(&bytes);
            parse_metrics(text.as_bytes());
            parse_installed(&bytes);
            parse_installed(text.as_bytes());
        }
    }
}
