//! What the farm reads from one package.

use super::archive::{Entry, Kind, Limits, Opened, cut};
use super::{PackageError, elf, links};
use forgeyard_model::Digest;
use forgeyard_model::package::{PackageFacts, PackageTest};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Seek};

/// A package that was read from its first to its last byte.
#[derive(Debug, Clone, PartialEq)]
pub struct Package {
    /// The facts that decisions are made on.
    pub facts: PackageFacts,
    /// `info/index.json` as it stands, for the channel's index.
    pub index: Map<String, Value>,
    /// ELF files whose needed libraries could not be read.
    pub unread_elf: Vec<String>,
}

/// Most different names of needed libraries that are kept.
const MAX_LIBRARIES: usize = 4096;
/// Bytes that all paths and link targets of one package may have together.
const MAX_NAME_BYTES: usize = 256 << 20;
/// Kind of the tests that older engines wrote below `info/test`; they run together and have no index of their own.
const LEGACY: &str = "legacy";

/// Reads a package: its metadata, its test list, the names and links of its payload, and the libraries that its
/// ELF files ask for.
///
/// # Errors
/// When the file is not laid out as CEP 35 says, holds anything that could reach outside of it, exceeds a limit, or
/// is named differently than its own metadata says.
pub fn read_package(
    file_name: &str,
    reader: impl Read + Seek,
    limits: &Limits,
) -> Result<Package, PackageError> {
    let mut opened = Opened::open(file_name, reader)?;
    opened.check_format()?;
    let mut tree =
        Tree { entries: BTreeMap::new(), links: BTreeMap::new(), most: limits.entries, name_bytes: 0 };
    let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();

    let info = format!("info-{}.tar.zst", opened.stem());
    opened.entries("info", limits.info_bytes, limits, &mut |entry, content| {
        let path = tree.add(&info, &entry)?;
        let refuse = |what: String| PackageError::Entry { member: info.clone(), entry: cut(&path), what };
        if !path.starts_with("info/") && path != "info" {
            return Err(refuse("it stands outside of `info`".into()));
        }
        if wanted(&path) {
            let Kind::File(size) = entry.kind else { return Err(refuse("it is not a plain file".into())) };
            if size > limits.file_bytes {
                return Err(refuse(format!("it has {size} bytes, at most {} are read", limits.file_bytes)));
            }
            let mut bytes = Vec::new();
            content.read_to_end(&mut bytes).map_err(|error| refuse(error.to_string()))?;
            files.insert(path, bytes);
        }
        Ok(())
    })?;

    let payload = format!("pkg-{}.tar.zst", opened.stem());
    let mut libraries = BTreeSet::new();
    let mut unread_elf = Vec::new();
    opened.entries("pkg", limits.payload_bytes, limits, &mut |entry, content| {
        let path = tree.add(&payload, &entry)?;
        let refuse = |what: String| PackageError::Entry { member: payload.clone(), entry: cut(&path), what };
        if path == "info" || path.starts_with("info/") {
            return Err(refuse("metadata stands in the payload".into()));
        }
        if matches!(entry.kind, Kind::File(_)) {
            match elf::needed(content).map_err(|error| refuse(error.to_string()))? {
                elf::Found::None => {}
                elf::Found::Needed(names) => libraries.extend(names),
                elf::Found::Unread => unread_elf.push(path.clone()),
            }
            if libraries.len() > MAX_LIBRARIES {
                return Err(refuse("the package asks for too many libraries".into()));
            }
        }
        Ok(())
    })?;
    tree.check(&payload)?;
    tree.check_paths(&files)?;

    let stem = opened.stem().to_owned();
    let (facts, index) = facts(&files, &stem, libraries)?;
    Ok(Package { facts, index, unread_elf })
}

/// Metadata files that are read.
fn wanted(path: &str) -> bool {
    matches!(
        path,
        "info/index.json"
            | "info/about.json"
            | "info/paths.json"
            | "info/hash_input.json"
            | "info/tests/tests.yaml"
    ) || path.strip_prefix("info/test/").is_some_and(|name| !name.contains('/'))
}

/// All entries of a package.
struct Tree {
    entries: BTreeMap<String, Kind>,
    links: BTreeMap<String, String>,
    most: usize,
    name_bytes: usize,
}

impl Tree {
    /// Adds an entry; gives its cleaned path.
    fn add(&mut self, member: &str, entry: &Entry) -> Result<String, PackageError> {
        let refuse = |what: &str| PackageError::Entry {
            member: member.to_owned(),
            entry: cut(&entry.path),
            what: what.to_owned(),
        };
        let path = links::clean(&entry.path).map_err(refuse)?;
        let target = match &entry.kind {
            Kind::Symlink(target) | Kind::Hardlink(target) => target.len(),
            Kind::File(_) | Kind::Folder => 0,
        };
        self.name_bytes += path.len() + target;
        if self.entries.len() >= self.most || self.name_bytes > MAX_NAME_BYTES {
            return Err(refuse("the package has too many entries"));
        }
        match &entry.kind {
            Kind::Symlink(target) => {
                self.links.insert(path.clone(), target.clone());
            }
            Kind::Hardlink(target) => {
                let target =
                    links::clean(target).map_err(|_| refuse("the hard link leads out of the package"))?;
                if !matches!(self.entries.get(&target), Some(Kind::File(_))) {
                    return Err(refuse("the hard link leads to no file before it"));
                }
            }
            Kind::File(_) | Kind::Folder => {}
        }
        let before = self.entries.insert(path.clone(), entry.kind.clone());
        match before {
            None => Ok(path),
            Some(Kind::Folder) if entry.kind == Kind::Folder => Ok(path),
            Some(_) => Err(refuse("the path stands twice")),
        }
    }

    /// Checks what needs all entries: links stay inside, and nothing is written through a link or below a file.
    fn check(&self, member: &str) -> Result<(), PackageError> {
        let refuse = |path: &str, what: String| PackageError::Entry {
            member: member.to_owned(),
            entry: cut(path),
            what,
        };
        for (path, target) in &self.links {
            links::follow(&self.links, path, target).map_err(|what| refuse(path, what.to_owned()))?;
        }
        for path in self.entries.keys() {
            if let Some(parent) = links::linked_parent(&self.links, path) {
                return Err(refuse(path, format!("it stands below the link `{}`", cut(parent))));
            }
            let parent = path.rsplit_once('/').and_then(|(parent, _)| self.entries.get(parent));
            if matches!(parent, Some(Kind::File(_) | Kind::Hardlink(_))) {
                return Err(refuse(path, "it stands below a file".to_owned()));
            }
        }
        Ok(())
    }

    /// Checks that `info/paths.json` lists only what the payload has.
    fn check_paths(&self, files: &BTreeMap<String, Vec<u8>>) -> Result<(), PackageError> {
        let name = "info/paths.json";
        let wrong = |what: String| PackageError::Metadata { file: name.to_owned(), what };
        let json = json(files, name)?.ok_or_else(|| wrong("it is missing".into()))?;
        let paths =
            json.get("paths").and_then(Value::as_array).ok_or_else(|| wrong("it has no list".into()))?;
        let mut seen = BTreeSet::new();
        for entry in paths {
            let text = entry.get("_path").and_then(Value::as_str);
            let text = text.ok_or_else(|| wrong("an entry has no `_path`".into()))?;
            let path = links::clean(text).map_err(|what| wrong(format!("entry `{}`: {what}", cut(text))))?;
            let Some(kind) = self.entries.get(&path) else {
                // Archives need not hold folders of their own.
                if entry.get("path_type").and_then(Value::as_str) == Some("directory") {
                    continue;
                }
                return Err(wrong(format!("entry `{}` is not in the payload", cut(text))));
            };
            let stated = entry.get("size_in_bytes").and_then(Value::as_u64);
            if let (Kind::File(size), Some(stated)) = (kind, stated)
                && *size != stated
            {
                return Err(wrong(format!("entry `{}` has {size} bytes, {stated} are stated", cut(text))));
            }
            if !seen.insert(path) {
                return Err(wrong(format!("entry `{}` stands twice", cut(text))));
            }
        }
        Ok(())
    }
}

fn json(files: &BTreeMap<String, Vec<u8>>, name: &str) -> Result<Option<Value>, PackageError> {
    let wrong =
        |error: serde_json::Error| PackageError::Metadata { file: name.into(), what: error.to_string() };
    files.get(name).map(|bytes| serde_json::from_slice(bytes)).transpose().map_err(wrong)
}

fn facts(
    files: &BTreeMap<String, Vec<u8>>,
    stem: &str,
    libraries: BTreeSet<String>,
) -> Result<(PackageFacts, Map<String, Value>), PackageError> {
    let file = "info/index.json";
    let wrong = |what: String| PackageError::Metadata { file: file.to_owned(), what };
    let Some(Value::Object(index)) = json(files, file)? else {
        return Err(wrong("it is missing or is no object".into()));
    };
    let text = |key: &str| {
        let value = index.get(key).and_then(Value::as_str);
        value.map(str::to_owned).ok_or_else(|| wrong(format!("`{key}` is missing or is no text")))
    };
    let depends = match index.get("depends") {
        None => Vec::new(),
        Some(list) => strings(list).ok_or_else(|| wrong("`depends` is no list of texts".into()))?,
    };
    let about = json(files, "info/about.json")?;
    let license = index.get("license").or_else(|| about.as_ref()?.get("license"));
    let build_number = index.get("build_number").and_then(Value::as_u64);
    let (tests, tests_digest) = tests(files)?;
    let facts = PackageFacts {
        name: text("name")?,
        version: text("version")?,
        build: text("build")?,
        build_number: build_number.ok_or_else(|| wrong("`build_number` is no number".into()))?,
        subdir: text("subdir")?,
        depends,
        license: license.and_then(Value::as_str).map(str::to_owned),
        variant: variant(files)?,
        tests,
        tests_digest,
        needed_libraries: libraries.into_iter().collect(),
    };
    if facts.stem() != stem {
        let what = format!("it describes `{}`, the file is named `{stem}`", cut(&facts.stem()));
        return Err(wrong(what));
    }
    let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if facts.subdir.is_empty() || facts.subdir.len() > 32 || !facts.subdir.chars().all(fine) {
        return Err(wrong(format!("`{}` is not a platform folder", cut(&facts.subdir))));
    }
    Ok((facts, index))
}

fn strings(list: &Value) -> Option<Vec<String>> {
    list.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
}

fn variant(files: &BTreeMap<String, Vec<u8>>) -> Result<BTreeMap<String, String>, PackageError> {
    let Some(Value::Object(input)) = json(files, "info/hash_input.json")? else { return Ok(BTreeMap::new()) };
    let text = |value: Value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    Ok(input.into_iter().map(|(key, value)| (key, text(value))).collect())
}

/// The package's own test list and the digest of it.
fn tests(files: &BTreeMap<String, Vec<u8>>) -> Result<(Vec<PackageTest>, Option<Digest>), PackageError> {
    let file = "info/tests/tests.yaml";
    let wrong = |what: String| PackageError::Metadata { file: file.to_owned(), what };
    let mut tests = Vec::new();
    let mut digests = Vec::new();
    if let Some(bytes) = files.get(file) {
        let list: Vec<Map<String, Value>> =
            serde_norway::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
        if list.len() > 1000 {
            return Err(wrong(format!("it lists {} tests, at most 1000 are run", list.len())));
        }
        for (index, test) in (0u32..).zip(&list) {
            let mut text = Vec::new();
            test.values().for_each(|value| texts(value, &mut text));
            tests.push(PackageTest { index, kind: kind(test), text: text.join("\n") });
        }
        digests.push(Digest::of(bytes));
    }
    let legacy: Vec<_> = files.iter().filter(|(name, _)| name.starts_with("info/test/")).collect();
    if !legacy.is_empty() {
        let index = u32::try_from(tests.len()).unwrap_or(u32::MAX);
        let text =
            legacy.iter().map(|(_, bytes)| String::from_utf8_lossy(bytes)).collect::<Vec<_>>().join("\n");
        tests.push(PackageTest { index, kind: LEGACY.to_owned(), text });
        let lines = legacy.iter().map(|(name, bytes)| format!("{} {name}\n", Digest::of(bytes).hex()));
        digests.push(Digest::of(lines.collect::<String>().as_bytes()));
    }
    let digest = match digests.as_slice() {
        [] => None,
        [one] => Some(*one),
        all => Some(Digest::of(all.iter().map(|one| format!("{one}\n")).collect::<String>().as_bytes())),
    };
    Ok((tests, digest))
}

fn kind(test: &Map<String, Value>) -> String {
    let known = ["python", "r", "perl", "ruby", "downstream", "package_contents"];
    let found = known.into_iter().find(|key| test.contains_key(*key));
    found.unwrap_or(if test.contains_key("script") { "commands" } else { "unknown" }).to_owned()
}

/// All texts of a value, in order, with keys: a key can be the hint (`imports: [torch.cuda]`).
fn texts(value: &Value, to: &mut Vec<String>) {
    match value {
        Value::String(text) => to.push(text.clone()),
        Value::Array(list) => list.iter().for_each(|item| texts(item, to)),
        Value::Object(map) => map.values().for_each(|item| texts(item, to)),
        _ => {}
    }
}
