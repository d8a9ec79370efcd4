//! Plans: what a plan job writes after the conda build engine has rendered a recipe.
//!
//! Layout of `plan.json`, format 1:
//!
//! ```json
//! {"format": 1,
//!  "engine": {"name": "rattler-build", "version": "0.73.0"},
//!  "outputs": [{"recipe": { … the engine's own rendered recipe … },
//!               "variant": {"cuda_compiler_version": "12.9", "target_platform": "linux-64"},
//!               "hash": "b0f4dca"}]}
//! ```
//!
//! `recipe` is the engine's rendering (`package`, `build`, `requirements`, `tests`, `staging_caches`,
//! `inherits_from`), one entry per output and variant. The engine lists an output again for every value of a variant
//! key that it does not use; such repetitions are merged here.
//!
//! Edges are computed here and never taken from the order of the list:
//! - names in build, host and run requirements of the output and of the staging that it inherits;
//! - `pin_subpackage` and `pin_compatible` in any of them, and `pin_subpackage` in run constraints;
//! - staging: the outputs that inherit one are built together, so each names it as `staging/NAME`.
//!
//! Requirements of tests and downstream tests are not edges of the build: they may be cyclic.

use forgeyard_model::plan::{PlannedOutput, RenderedPlan};
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The format that is read.
pub const FORMAT: u64 = 1;
/// Largest file that is read, in bytes.
pub const MAX_BYTES: usize = 32 << 20;
/// Most entries of the list that are read; the engine repeats outputs, so this is above what may be built.
pub const MAX_ENTRIES: usize = 4000;
/// What the name of a staging starts with in `together_with`. A package name cannot hold a slash.
pub const STAGING: &str = "staging/";

/// Why a plan could not be read.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The file is larger than [`MAX_BYTES`].
    #[error("the plan has {0} bytes, at most {MAX_BYTES} are read")]
    TooLarge(usize),
    /// Not the JSON that is described above.
    #[error("cannot read the plan: {0}")]
    Json(#[from] serde_json::Error),
    /// Another version of the format.
    #[error("the plan has format {0}, this farm reads format {FORMAT}")]
    Format(u64),
    /// More than [`MAX_ENTRIES`] entries.
    #[error("the plan lists {0} outputs, at most {MAX_ENTRIES} are read")]
    TooMany(usize),
    /// An output pins one that the recipe does not have. The engine would say so only after the build.
    #[error("output `{output}` pins the output `{pinned}`, which the recipe does not have on this platform")]
    UnknownOutput {
        /// Which pins.
        output: String,
        /// What it pins.
        pinned: String,
    },
    /// A part of one output makes no sense.
    #[error("output {index} of the plan: {what}")]
    Output {
        /// Position in the list, from 0.
        index: usize,
        /// What is wrong.
        what: String,
    },
}

#[derive(Deserialize)]
struct File {
    outputs: Vec<Output>,
}

#[derive(Deserialize)]
struct Output {
    recipe: Recipe,
    #[serde(default)]
    variant: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
struct Recipe {
    package: Package,
    #[serde(default)]
    build: Build,
    #[serde(default)]
    requirements: Requirements,
    #[serde(default)]
    staging_caches: Vec<Staging>,
    #[serde(default)]
    inherits_from: Option<Inherits>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: Value,
}

#[derive(Deserialize, Default)]
struct Build {
    #[serde(default)]
    string: Option<String>,
    #[serde(default)]
    noarch: Option<String>,
}

#[derive(Deserialize, Default)]
struct Requirements {
    #[serde(default)]
    build: Vec<Value>,
    #[serde(default)]
    host: Vec<Value>,
    #[serde(default)]
    run: Vec<Value>,
    #[serde(default)]
    run_constraints: Vec<Value>,
}

#[derive(Deserialize)]
struct Staging {
    name: String,
    #[serde(default)]
    requirements: Requirements,
}

#[derive(Deserialize)]
struct Inherits {
    cache_name: String,
}

/// Reads `plan.json`.
///
/// # Errors
/// When the file is too large, is not the described JSON, or names something that is no package.
pub fn read_plan(bytes: &[u8]) -> Result<RenderedPlan, PlanError> {
    if bytes.len() > MAX_BYTES {
        return Err(PlanError::TooLarge(bytes.len()));
    }
    let head: Value = serde_json::from_slice(bytes)?;
    match head.get("format").and_then(Value::as_u64) {
        Some(FORMAT) => {}
        Some(other) => return Err(PlanError::Format(other)),
        None => return Err(PlanError::Format(0)),
    }
    let file: File = serde_json::from_value(head)?;
    if file.outputs.len() > MAX_ENTRIES {
        return Err(PlanError::TooMany(file.outputs.len()));
    }
    let mut outputs: Vec<PlannedOutput> = Vec::new();
    let made: BTreeSet<String> =
        file.outputs.iter().map(|output| output.recipe.package.name.clone()).collect();
    for output in &file.outputs {
        if let Some(pinned) = subpackages(&output.recipe).into_iter().find(|name| !made.contains(*name)) {
            let (output, pinned) = (cut(&output.recipe.package.name), cut(pinned));
            return Err(PlanError::UnknownOutput { output, pinned });
        }
    }
    for (index, output) in file.outputs.into_iter().enumerate() {
        let planned = planned(output).map_err(|what| PlanError::Output { index, what })?;
        if !outputs.contains(&planned) {
            outputs.push(planned);
        }
    }
    Ok(RenderedPlan { outputs })
}

fn planned(output: Output) -> Result<PlannedOutput, String> {
    let Output { recipe, variant } = output;
    let name = recipe.package.name;
    check_name(&name)?;
    let version = scalar(&recipe.package.version).ok_or("its version is not a text")?;
    let variant = variant
        .into_iter()
        .map(|(key, value)| {
            let text = scalar(&value).ok_or_else(|| format!("variant key `{key}` is not a text"))?;
            Ok((key, text))
        })
        .collect::<Result<BTreeMap<_, _>, String>>()?;
    let subdir = if recipe.build.noarch.is_some() {
        "noarch".to_owned()
    } else {
        variant.get("target_platform").cloned().ok_or("it names no target platform")?
    };

    let mut depends = BTreeSet::new();
    let mut together_with = BTreeSet::new();
    names(&recipe.requirements, &mut depends)?;
    for staging in &recipe.staging_caches {
        names(&staging.requirements, &mut depends)?;
        together_with.insert(format!("{STAGING}{}", staging.name));
    }
    if let Some(inherits) = &recipe.inherits_from {
        together_with.insert(format!("{STAGING}{}", inherits.cache_name));
    }
    // A package may ask for an older build of itself, which then comes from a channel.
    depends.remove(&name);
    let build = recipe.build.string.unwrap_or_default();
    for (what, text) in [("version", &version), ("build string", &build), ("platform", &subdir)] {
        if text.len() > 200 || !text.chars().all(|c| name_char(c) || matches!(c, '+' | '!')) {
            return Err(format!("`{}` is not a {what}", cut(text)));
        }
    }
    Ok(PlannedOutput { name, version, build, subdir, depends, together_with, variant })
}

/// Names in the `pin_subpackage` of an output.
fn subpackages(recipe: &Recipe) -> Vec<&str> {
    let staged = recipe.staging_caches.iter().map(|staging| &staging.requirements);
    let all = staged.chain([&recipe.requirements]);
    let values = all.flat_map(|of| of.build.iter().chain(&of.host).chain(&of.run).chain(&of.run_constraints));
    values.filter_map(|value| value.get("pin_subpackage")?.get("name")?.as_str()).collect()
}

/// Adds the package names that requirements ask for.
fn names(requirements: &Requirements, to: &mut BTreeSet<String>) -> Result<(), String> {
    let all = requirements.build.iter().chain(&requirements.host).chain(&requirements.run);
    for value in all {
        to.insert(required(value)?);
    }
    for value in &requirements.run_constraints {
        if let Some(pin) = value.get("pin_subpackage") {
            to.insert(pinned(pin)?);
        }
    }
    Ok(())
}

fn required(value: &Value) -> Result<String, String> {
    match value {
        Value::String(spec) => spec_name(spec),
        Value::Object(map) => {
            match map.get("pin_subpackage").or_else(|| map.get("pin_compatible")) {
                Some(pin) => pinned(pin),
                // A spec that has parts which do not fit into text is written as an object with a name.
                None => pinned(value),
            }
        }
        _ => Err(format!("requirement `{}` is neither a text nor a pin", cut(&value.to_string()))),
    }
}

fn pinned(pin: &Value) -> Result<String, String> {
    let name = pin.get("name").and_then(Value::as_str);
    let name = name.ok_or_else(|| format!("requirement `{}` names no package", cut(&pin.to_string())))?;
    check_name(name)?;
    Ok(name.to_owned())
}

/// The package name of a match spec: what follows the channel and precedes the version and the brackets.
fn spec_name(spec: &str) -> Result<String, String> {
    let wrong = || format!("requirement `{}` names no package", cut(spec));
    let text = spec.trim();
    let head = text.split('[').next().unwrap_or(text);
    let text = match head.rfind("::") {
        Some(at) => text.get(at + 2..).ok_or_else(wrong)?,
        None => text,
    };
    let end = text.find(|c: char| !name_char(c)).unwrap_or(text.len());
    let name = text.get(..end).ok_or_else(wrong)?.to_ascii_lowercase();
    check_name(&name).map_err(|_| wrong())?;
    Ok(name)
}

const fn name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}

fn check_name(name: &str) -> Result<(), String> {
    if (1..=128).contains(&name.len()) && name.chars().all(name_char) && !name.starts_with(['.', '-']) {
        Ok(())
    } else {
        Err(format!("`{}` is not a package name", cut(name)))
    }
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        _ => None,
    }
}

fn cut(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STAGED: &[u8] = include_bytes!("../tests/fixtures/plan/staging.plan.json");
    const SINGLE: &[u8] = include_bytes!("../tests/fixtures/plan/single.plan.json");
    const VARIANTS: &[u8] = include_bytes!("../tests/fixtures/plan/variants.plan.json");

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn output_listed_once_per_unused_variant_value_is_one_output() {
        let plan = read_plan(STAGED).unwrap();
        let names: Vec<_> = plan.outputs.iter().map(|o| (o.name.as_str(), o.subdir.as_str())).collect();
        let expected = [
            ("libfy", "linux-64"),
            ("fy-python", "linux-64"),
            ("fy-extra", "noarch"),
            ("fy-extra", "noarch"),
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn requirements_of_staging_are_edges_of_the_outputs_that_inherit_it() {
        // rattler-build#2492: requirements of stagings were left out of the build order.
        let plan = read_plan(STAGED).unwrap();
        assert_eq!(plan.outputs[0].depends, set(&["fy-tool"]));
        assert_eq!(plan.outputs[0].together_with, set(&["staging/fy-compile"]));
        assert_eq!(plan.outputs[1].depends, set(&["fy-tool", "libfy", "python"]));
    }

    #[test]
    fn tests_and_downstream_tests_are_no_edges() {
        // rattler-build#1142: test requirements may be cyclic.
        let plan = read_plan(STAGED).unwrap();
        assert_eq!(plan.outputs[2].depends, set(&["fy-python"]));
    }

    #[test]
    fn specs_pins_and_virtual_packages_give_names() {
        let plan = read_plan(SINGLE).unwrap();
        let one = &plan.outputs[0];
        assert_eq!(one.depends, set(&["__cuda", "gcc_linux-64", "numpy", "python", "zlib"]));
        assert!(one.together_with.is_empty());
        assert!(one.build.ends_with("_0"), "{}", one.build);
    }

    #[test]
    fn exact_pin_is_part_of_the_consumers_variant() {
        let plan = read_plan(VARIANTS).unwrap();
        assert_eq!(plan.outputs.len(), 4);
        for consumer in plan.outputs.iter().filter(|output| output.name == "fy-solver") {
            let pin = &consumer.variant["fy-kernels"];
            assert!(plan.outputs.iter().any(|o| *pin == format!("{} {}", o.version, o.build)), "{pin}");
        }
    }

    #[test]
    fn pin_on_an_output_that_the_recipe_does_not_have_is_refused_and_named() {
        let plan = |pinned: &str| {
            serde_json::json!({"format": 1, "outputs": [{
                "recipe": {
                    "package": {"name": "known", "version": "1"},
                    "build": {"noarch": "generic"},
                    "requirements": {"run": [{"pin_subpackage": {"name": pinned, "lower_bound": "x"}}]},
                },
            }]})
            .to_string()
        };
        let error = read_plan(plan("unknown").as_bytes()).unwrap_err();
        assert!(matches!(error, PlanError::UnknownOutput { .. }), "{error}");
        assert!(error.to_string().contains("`unknown`"), "{error}");
        assert!(read_plan(plan("known").as_bytes()).is_ok());
    }

    #[test]
    fn match_specs_give_their_name() {
        let cases = [
            ("python", "python"),
            ("Python >=3.9", "python"),
            ("conda-forge::zlib>=1.2,<2", "zlib"),
            ("conda-forge/linux-64::zlib 1.2 h1_0", "zlib"),
            ("numpy[version='>=1', build=\"a::b\"]", "numpy"),
            (" libfy=1.2.* ", "libfy"),
        ];
        for (spec, name) in cases {
            assert_eq!(spec_name(spec).as_deref(), Ok(name), "{spec}");
        }
        for spec in ["", " ", "::", "chan::", ">=1", "*", "../x"] {
            assert!(spec_name(spec).is_err(), "{spec}");
        }
    }

    #[test]
    fn other_format_is_refused_by_number() {
        let error = read_plan(br#"{"format": 2, "outputs": []}"#).unwrap_err();
        assert_eq!(error.to_string(), "the plan has format 2, this farm reads format 1");
        assert!(matches!(read_plan(b"{}"), Err(PlanError::Format(0))));
    }

    #[test]
    fn name_that_leaves_its_folder_is_refused() {
        let text = r#"{"format":1,"outputs":[{"recipe":{"package":{"name":"../x","version":"1"}},"variant":{"target_platform":"linux-64"}}]}"#;
        assert!(read_plan(text.as_bytes()).unwrap_err().to_string().contains("is not a package name"));
    }

    proptest! {
        #[test]
        fn changed_plans_are_read_or_refused(at in 0..SINGLE.len(), byte: u8) {
            let mut bytes = SINGLE.to_vec();
            bytes[at] = byte;
            let _ = read_plan(&bytes);
        }

        #[test]
        fn any_spec_is_refused_or_gives_a_safe_name(spec in ".{0,40}") {
            if let Ok(name) = spec_name(&spec) {
                prop_assert!(!name.contains('/') && !name.is_empty() && !name.starts_with('.'));
            }
        }
    }
}
