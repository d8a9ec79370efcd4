//! Runner definitions of `.cirun.global.yml`. The farm's pools say more and other things, so these are kept beside the
//! access as they are, for whoever writes the pools.
//!
//! Where `instance_type`, `machine_image`, `region` or `preemptible` is a list, the lists are zipped into choices, tried
//! in order; a single value belongs to every choice.

use super::ImportError;
use super::yaml::{self, Mapping, Notes, Texts};
use serde::{Deserialize, Serialize};
use serde_norway::Value;

/// One choice of a runner definition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunnerChoice {
    /// Shape at the cloud.
    pub instance_type: Option<String>,
    /// Image at the cloud.
    pub machine_image: Option<String>,
    /// Region of the cloud.
    pub region: Option<String>,
    /// Whether the cloud may take it back.
    pub preemptible: Option<String>,
}

/// A runner definition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImportedRunner {
    /// Its name.
    pub name: String,
    /// The cloud.
    pub cloud: String,
    /// Labels.
    pub labels: Vec<String>,
    /// GPU, where it is written.
    pub gpu: Option<String>,
    /// Choices in order.
    pub choices: Vec<RunnerChoice>,
    /// Rules on idle runners, as written.
    pub idle: Option<serde_json::Value>,
    /// Further settings of the cloud, as written.
    pub extra_config: Option<serde_json::Value>,
}

const CHOICES: [&str; 4] = ["instance_type", "machine_image", "region", "preemptible"];

pub(super) fn read(file: &str, text: &str, notes: &mut Notes) -> Result<Vec<ImportedRunner>, ImportError> {
    let value: Value = serde_norway::from_str(text)
        .map_err(|error| ImportError::Yaml { file: file.to_owned(), message: error.to_string() })?;
    let Some(root) = Mapping::new(format!("{file}:"), &value, notes) else { return Ok(Vec::new()) };
    root.note_unknown(&["runners"], notes);
    let definitions = root.mappings("runners", notes);
    Ok(definitions.iter().filter_map(|definition| runner(definition, notes)).collect())
}

fn runner(definition: &Mapping<'_>, notes: &mut Notes) -> Option<ImportedRunner> {
    let known = ["name", "cloud", "labels", "gpu", "idle", "extra_config"];
    definition.note_unknown(&[&known[..], &CHOICES[..]].concat(), notes);
    let Some(name) = definition.text("name", notes) else {
        notes.add(&definition.place, "has no name; left out");
        return None;
    };
    let labels = match definition.texts("labels", notes) {
        Texts::Given(labels) => labels,
        Texts::Absent | Texts::Unreadable => Vec::new(),
    };
    Some(ImportedRunner {
        name,
        cloud: definition.text("cloud", notes).unwrap_or_default(),
        labels,
        gpu: definition.text("gpu", notes),
        choices: choices(definition, notes),
        idle: definition.get("idle").map(yaml::json),
        extra_config: definition.get("extra_config").map(yaml::json),
    })
}

fn choices(definition: &Mapping<'_>, notes: &mut Notes) -> Vec<RunnerChoice> {
    let columns = CHOICES.map(|key| match definition.get(key) {
        None => Column::Absent,
        Some(value) if value.is_sequence() => match definition.texts(key, notes) {
            Texts::Given(texts) => Column::List(texts),
            Texts::Absent | Texts::Unreadable => Column::Absent,
        },
        Some(_) => definition.text(key, notes).map_or(Column::Absent, Column::One),
    });
    let lengths: Vec<usize> = columns.iter().filter_map(Column::length).collect();
    let longest = lengths.iter().copied().max().unwrap_or(1);
    if lengths.iter().any(|length| *length != longest) {
        notes.add(
            &definition.place,
            format!("lists of choices differ in length: {lengths:?}; short ones end early"),
        );
    }
    (0..longest)
        .map(|place| {
            let [instance_type, machine_image, region, preemptible] =
                columns.each_ref().map(|column| column.at(place));
            RunnerChoice { instance_type, machine_image, region, preemptible }
        })
        .collect()
}

enum Column {
    Absent,
    One(String),
    List(Vec<String>),
}

impl Column {
    fn length(&self) -> Option<usize> {
        match self {
            Column::List(items) => Some(items.len()),
            Column::Absent | Column::One(_) => None,
        }
    }

    fn at(&self, place: usize) -> Option<String> {
        match self {
            Column::Absent => None,
            Column::One(text) => Some(text.clone()),
            Column::List(items) => items.get(place).cloned(),
        }
    }
}
