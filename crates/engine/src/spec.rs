//! What machines are told to do: the specs of plan, build and test jobs.
//!
//! The conda build engine is a program in the machine (`engine-path`), driven by three small scripts that are put in
//! under `/in/steps`. The farm's part is data: which scripts, which inputs by digest, which outputs to take.

use forgeyard_model::artifact::{Artifact, ArtifactKind};
use forgeyard_model::config::FarmConfig;
use forgeyard_model::job::{Job, JobFile, JobInput, JobSpec, OutputRule, Step, Subject};
use forgeyard_model::name::FlavorName;
use forgeyard_model::package::GpuNeed;
use forgeyard_model::pipeline::Pipeline;
use forgeyard_model::resources::Limit;
use std::collections::{BTreeMap, BTreeSet};

const STEPS: [(&str, &str); 7] = [
    ("steps/plan.py", include_str!("../steps/plan.py")),
    ("steps/build.py", include_str!("../steps/build.py")),
    ("steps/test.py", include_str!("../steps/test.py")),
    ("steps/channel.py", include_str!("../steps/channel.py")),
    ("steps/recipe.py", include_str!("../steps/recipe.py")),
    ("steps/engine_log.py", include_str!("../steps/engine_log.py")),
    ("steps/outcome.py", include_str!("../steps/outcome.py")),
];

/// The scripts that drive the engine in a machine, put in beside the files of a spec.
pub fn step_files() -> Vec<JobFile> {
    STEPS.into_iter().map(|(path, text)| JobFile { path: path.to_owned(), text: text.to_owned() }).collect()
}

/// Limits that every job of ours needs.
pub(crate) fn needs(network: bool) -> BTreeSet<Limit> {
    let mut needs: BTreeSet<Limit> =
        [Limit::Memory, Limit::Cpu, Limit::Processes, Limit::Wall, Limit::Disk].into();
    if !network {
        needs.insert(Limit::Network);
    }
    needs
}

fn step(config: &FarmConfig, name: &str, args: impl IntoIterator<Item = String>) -> Step {
    let python = format!("{}/bin/python", config.engine_path);
    let script = format!("/in/steps/{name}.py");
    let argv = [python, script].into_iter().chain(args).collect();
    Step { name: name.to_owned(), argv, env: BTreeMap::new() }
}

fn blank(config: &FarmConfig, pipeline: &Pipeline, flavor: &FlavorName) -> JobSpec {
    let network = config.flavor(flavor).is_some_and(|flavor| flavor.network);
    let commit = pipeline.source.as_ref().map(|source| source.commit.clone()).unwrap_or_default();
    let env = [
        ("FORGEYARD_SHA", commit),
        ("FORGEYARD_REMOTE_URL", pipeline.event.repository.name.clone()),
        ("FORGEYARD_FLOW_RUN_ID", format!("forgeyard_{}", pipeline.id)),
    ];
    JobSpec {
        flavor: flavor.clone(),
        gpu: config.flavor(flavor).and_then(|flavor| flavor.gpu.clone()),
        needs: needs(network),
        inputs: Vec::new(),
        // Put in when an agent redeems its token: rows stay small, and every job of one program runs the same steps.
        files: Vec::new(),
        steps: Vec::new(),
        outputs: Vec::new(),
        env: env.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
        subject: None,
        pools: Vec::new(),
        forge_runner: None,
    }
}

fn source_input(pipeline: &Pipeline) -> Option<JobInput> {
    let source = pipeline.source.as_ref()?;
    Some(JobInput { digest: source.digest, path: "source".to_owned(), unpack: true })
}

fn recipe(pipeline: &Pipeline) -> String {
    let path = pipeline.file.as_ref().map(|file| file.recipe.clone()).unwrap_or_default();
    format!("/in/source/{path}")
}

fn channel_inputs(packages: &[Artifact]) -> impl Iterator<Item = JobInput> + '_ {
    packages.iter().filter_map(|artifact| {
        let facts = artifact.package.as_ref()?;
        let path = format!("channel/{}/{}", facts.subdir, artifact.name);
        Some(JobInput { digest: artifact.digest, path, unpack: false })
    })
}

/// The plan job: render the recipe.
pub fn plan(config: &FarmConfig, pipeline: &Pipeline) -> JobSpec {
    let mut spec = blank(config, pipeline, &config.use_flavors.plan);
    spec.inputs.extend(source_input(pipeline));
    let args = ["--recipe".to_owned(), recipe(pipeline), "--out".to_owned(), "/out/plan.json".to_owned()];
    spec.steps.push(step(config, "plan", args));
    spec.outputs.push(OutputRule {
        folder: String::new(),
        ending: "plan.json".to_owned(),
        kind: ArtifactKind::Plan,
        required: true,
    });
    spec
}

/// A build job: make the packages of one component, without tests and without a device.
pub fn build(config: &FarmConfig, pipeline: &Pipeline, job: &Job, packages: &[Artifact]) -> JobSpec {
    let mut spec = blank(config, pipeline, &config.use_flavors.build);
    spec.inputs.extend(source_input(pipeline));
    spec.inputs.extend(channel_inputs(packages));
    let mut args = vec!["--recipe".to_owned(), recipe(pipeline)];
    args.extend(job.outputs.iter().flat_map(|output| ["--output".to_owned(), output.clone()]));
    args.extend(["--channel", "/in/channel", "--out", "/out/packages"].map(str::to_owned));
    spec.steps.push(step(config, "build", args));
    spec.outputs.push(OutputRule {
        folder: "packages".to_owned(),
        ending: ".conda".to_owned(),
        kind: ArtifactKind::CondaPackage,
        required: true,
    });
    spec
}

/// A test job: the package's own tests, by index, on the bytes that would ship.
pub fn test(config: &FarmConfig, pipeline: &Pipeline, job: &Job, packages: &[Artifact]) -> Option<JobSpec> {
    let detail = job.test.as_ref()?;
    let selection = detail.selection.as_ref()?;
    let subject = packages.iter().find(|artifact| Some(artifact.id) == detail.package)?;
    let gpu = selection.gpu == GpuNeed::Required;
    let flavor = if gpu { &config.use_flavors.gpu_test } else { &config.use_flavors.test };
    let mut spec = blank(config, pipeline, flavor);
    if !gpu {
        spec.gpu = None;
    }
    if let (Some(request), Some(file)) = (spec.gpu.as_mut(), pipeline.file.as_ref()) {
        let asked = file.tests.iter().filter(|rule| {
            rule.gpu == GpuNeed::Required && rule.package.as_ref().is_none_or(|name| *name == detail.output)
        });
        let most = asked.map(|rule| rule.min_memory_mib).max().unwrap_or(0);
        request.min_memory_mib = request.min_memory_mib.max(most);
    }
    spec.inputs.push(JobInput {
        digest: subject.digest,
        path: format!("subject/{}", subject.name),
        unpack: false,
    });
    spec.inputs.extend(channel_inputs(packages));
    let mut args = vec![
        "--package".to_owned(),
        format!("/in/subject/{}", subject.name),
        "--channel".to_owned(),
        "/in/channel".to_owned(),
    ];
    args.extend(selection.indexes.iter().flat_map(|index| ["--index".to_owned(), index.to_string()]));
    spec.steps.push(step(config, "test", args));
    spec.outputs.push(OutputRule {
        folder: String::new(),
        ending: "lock.json".to_owned(),
        kind: ArtifactKind::EnvironmentLock,
        required: true,
    });
    spec.subject = Some(Subject { file_name: subject.name.clone(), digest: subject.digest });
    Some(spec)
}
