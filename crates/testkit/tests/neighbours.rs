//! What a job must not do to others: stop the queue behind it, or undo what its successor led to.

mod desk;

use desk::Desk;
use forgeyard_model::Digest;
use forgeyard_model::artifact::ArtifactKind;
use forgeyard_model::effect::{Effect, EffectResult};
use forgeyard_model::input::Input;
use forgeyard_model::job::JobState;
use forgeyard_model::package::{PackageFacts, PackageTest};
use forgeyard_model::plan::{PlannedOutput, RenderedPlan};
use forgeyard_testkit::build;
use std::collections::{BTreeMap, BTreeSet};

#[test]
fn job_that_no_pool_may_run_does_not_stop_jobs_of_the_same_flavor_behind_it() {
    let mut config = build::config();
    // Without a word of the operator, work from forks needs a machine of its own, which the only pool cannot give.
    config.access.grants[0].isolation = None;
    let mut desk = Desk::new(config);
    let fork = desk.event("guid-1", build::pull_request(&"a".repeat(40), 1, true));
    assert_eq!(fork, JobState::Queued);
    let waits: Vec<String> =
        desk.farm.jobs.values().filter_map(|job| Some(job.waiting.as_ref()?.code.clone())).collect();
    assert_eq!(waits, ["queue.isolation"]);
    let push = desk.event("guid-2", build::push(&"b".repeat(40)));
    assert!(matches!(push, JobState::Placed { .. }), "{push:?}");
}

#[test]
fn package_of_a_superseded_build_does_not_reopen_tests_that_were_decided_for_its_successor() {
    let mut desk = Desk::new(build::config());
    desk.event("guid-1", build::push(&"a".repeat(40)));
    desk.work("plan", ArtifactKind::Plan, "plan.json", b"plan");
    let plan = RenderedPlan { outputs: vec![output("a")] };
    desk.settle(|effect| matches!(effect, Effect::ReadPlan { .. }), EffectResult::Plan { plan });
    desk.work("build/a", ArtifactKind::CondaPackage, "a.conda", b"first");
    // Somebody runs the build again before its package was read; the reading of the second one is faster.
    let job = desk.job("build/a").id;
    desk.give(Input::RerunJob { job });
    desk.work("build/a", ArtifactKind::CondaPackage, "a.conda", b"second");
    let artifacts = &desk.farm.artifacts;
    let of = |bytes: &[u8]| artifacts.values().find(|row| row.digest == Digest::of(bytes)).unwrap().id;
    let (first, second) = (of(b"first"), of(b"second"));
    let inspects = |wanted| move |effect: &Effect| matches!(effect, Effect::InspectPackage { artifact, .. } if *artifact == wanted);
    let package = || EffectResult::Package { facts: Box::new(facts("a")) };
    desk.settle(inspects(second), package());
    assert!(matches!(desk.job("test/a").state, JobState::Placed { .. }), "{:?}", desk.job("test/a").state);
    desk.settle(inspects(first), package());
    let test = desk.job("test/a");
    assert!(matches!(test.state, JobState::Placed { .. }), "{:?}", test.state);
    assert_eq!(test.test.as_ref().unwrap().package, Some(second));
}

fn output(name: &str) -> PlannedOutput {
    PlannedOutput {
        name: name.to_owned(),
        version: "1".to_owned(),
        build: "0".to_owned(),
        subdir: "linux-64".to_owned(),
        depends: BTreeSet::new(),
        together_with: BTreeSet::new(),
        variant: BTreeMap::new(),
    }
}

fn facts(name: &str) -> PackageFacts {
    PackageFacts {
        name: name.to_owned(),
        version: "1".to_owned(),
        build: "0".to_owned(),
        build_number: 0,
        subdir: "linux-64".to_owned(),
        depends: Vec::new(),
        license: None,
        variant: BTreeMap::new(),
        tests: vec![PackageTest { index: 0, kind: "commands".to_owned(), text: "true".to_owned() }],
        tests_digest: None,
        needed_libraries: Vec::new(),
    }
}
