use super::*;

#[test]
fn job_goes_to_any_idle_runner_whose_labels_cover_it() {
    // actions/runner #2147, TF-AWS #3013: the runner that was made for a job may get another one.
    let mut takers = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let mut world = World::with(Setup { seed, ..Setup::default() });
        world.runner("small", &["self-hosted", "linux"], Behaviour::default());
        world.runner("large", &["Self-Hosted", "Linux", "gpu"], Behaviour::default());
        world.runner("other", &["self-hosted", "windows"], Behaviour::default());
        let (_, jobs) = world.run(vec![JobSpec::new("build", &["SELF-HOSTED", "linux"])]);
        world.state.advance(MINUTE);
        takers.insert(world.taken_by(jobs[0]).unwrap());
    }
    assert_eq!(takers.into_iter().collect::<Vec<_>>(), ["large", "small"]);
}

#[test]
fn a_test_can_steer_a_job_to_a_runner() {
    let mut world = World::new();
    let (_, jobs) = world.run(vec![JobSpec::new("one", &["gpu"]), JobSpec::new("two", &["gpu"])]);
    world.state.steer(jobs[0], "for-two");
    world.state.steer(jobs[1], "for-one");
    world.runner("for-one", &["gpu"], Behaviour::default());
    world.runner("for-two", &["gpu"], Behaviour::default());
    world.state.advance(MINUTE);
    assert_eq!(world.taken_by(jobs[0]).unwrap(), "for-two");
    assert_eq!(world.taken_by(jobs[1]).unwrap(), "for-one");
}

#[test]
fn equal_seeds_give_equal_histories() {
    let history = |seed: u64| {
        let mut world = World::with(Setup { seed, ..Setup::default() });
        for name in ["a", "b", "c"] {
            world.runner(name, &["gpu"], Behaviour::default());
        }
        let jobs: Vec<JobSpec> = (0..3).map(|n| JobSpec::new(&format!("job {n}"), &["gpu"])).collect();
        let (_, jobs) = world.run(jobs);
        world.state.advance(MINUTE * 5);
        jobs.iter().map(|job| world.taken_by(*job)).collect::<Vec<_>>()
    };
    assert_eq!(history(7), history(7));
    assert!((0..10).any(|seed| history(seed) != history(7)));
}

#[test]
fn arc_4148_a_jit_configuration_connects_once() {
    let mut world = World::new();
    let encoded = world.mint("once", &["gpu"]);
    assert!(world.state.connect(&encoded).is_ok());
    assert_eq!(world.state.connect(&encoded), Err(ConnectError::UsedBefore));
    assert_eq!(world.state.connect("bm90IGEgY29uZmlndXJhdGlvbg=="), Err(ConnectError::Unreadable));
}

#[test]
fn a_jit_configuration_that_comes_late_is_refused() {
    let mut world = World::new();
    let encoded = world.mint("late", &["gpu"]);
    world.state.advance(MINUTE * 6);
    assert_eq!(world.state.connect(&encoded), Err(ConnectError::Gone));
}

#[test]
fn a_runner_of_one_use_is_gone_after_its_job_and_one_that_never_came_after_a_day() {
    let mut world = World::new();
    let (_, jobs) = world.run(vec![JobSpec::new("build", &["gpu"])]);
    let stand_in = world.runner("used", &["gpu"], Behaviour::default());
    world.mint("never", &["gpu"]);
    world.state.advance(MINUTE * 2);
    assert_eq!(world.status(jobs[0]), JobStatus::Completed);
    assert_eq!(world.state.stand_in_phase(stand_in), Some(&Phase::Exited(0)));
    let names: Vec<&str> = world.state.runners().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["never"]);
    world.state.advance(MINUTE * 60 * 24);
    assert_eq!(world.state.runners().count(), 0);
}

#[test]
fn runner_that_is_too_old_exits_with_seven_and_takes_nothing() {
    let mut world = World::new();
    let (_, jobs) = world.run(vec![JobSpec::new("build", &["gpu"])]);
    let old = world.runner("old", &["gpu"], Behaviour { too_old: true, ..Behaviour::default() });
    assert_eq!(world.state.stand_in_phase(old), Some(&Phase::Exited(EXIT_TOO_OLD)));
    assert_eq!(world.status(jobs[0]), JobStatus::Queued);
}

#[test]
fn arc_3953_dead_runner_holds_its_job_until_it_is_lost() {
    let mut world = World::new();
    let (_, jobs) = world.run(vec![JobSpec::new("build", &["gpu"])]);
    let dies = Behaviour { dies_after: Some(Duration::from_secs(10)), ..Behaviour::default() };
    world.runner("dies", &["gpu"], dies);
    world.state.advance(MINUTE);
    let runner = world.state.runners().next().unwrap();
    assert!(!runner.online && runner.job == Some(jobs[0]));
    let id = runner.id;
    assert!(matches!(world.state.remove_runner(id), Err(RemoveError::JobStillRunning { .. })));
    world.state.advance(MINUTE * 10);
    assert_eq!(world.state.job(jobs[0]).unwrap().view().conclusion, Some(Conclusion::Failure));
    assert_eq!(world.state.runners().count(), 0);
}

#[test]
fn a_job_that_was_handed_out_and_not_begun_goes_back_to_the_queue() {
    let mut world = World::new();
    let (_, jobs) = world.run(vec![JobSpec::new("build", &["gpu"])]);
    let slow = world.runner("slow", &["gpu"], Behaviour { pickup: MINUTE, ..Behaviour::default() });
    assert_eq!(world.state.stand_in_phase(slow), Some(&Phase::Given(jobs[0])));
    world.state.kill_stand_in(slow);
    world.runner("next", &["gpu"], Behaviour::default());
    world.state.advance(MINUTE);
    assert_eq!(world.taken_by(jobs[0]).unwrap(), "next");
}

#[test]
fn a_group_keeps_its_runners_from_other_repositories() {
    let mut world = World::new();
    let other = world.state.add_repository("lab/other");
    let group = world.state.add_group(world.org, "gpus", Some(vec![other]));
    let spec = RunnerSpec {
        scope: Scope::Organization(world.org),
        name: "grouped".to_owned(),
        group,
        labels: vec!["gpu".to_owned()],
        work_folder: "_work".to_owned(),
        set: None,
    };
    let (_, encoded) = world.state.mint_jit(spec).unwrap();
    world.state.connect(&encoded).unwrap();
    let (_, mine) = world.run(vec![JobSpec::new("build", &["gpu"])]);
    assert_eq!(world.state.job(mine[0]).unwrap().assigned, None);
    let run = world.state.start_run(RunSpec::push(
        other,
        &world.person.clone(),
        vec![JobSpec::new("build", &["gpu"])],
    ));
    assert!(world.state.current_jobs(run)[0].assigned.is_some());
}

#[test]
fn arc_3953_runner_that_lost_power_can_still_be_given_a_job() {
    let mut world = World::new();
    let dark = world.runner("dark", &["gpu"], Behaviour::default());
    world.state.lose_power(dark);
    let (_, jobs) = world.run(vec![JobSpec::new("build", &["gpu"])]);
    assert!(world.state.job(jobs[0]).unwrap().assigned.is_some());
    world.runner("next", &["gpu"], Behaviour::default());
    world.state.advance(MINUTE);
    assert_eq!(world.taken_by(jobs[0]), None);
    world.state.advance(MINUTE * 2);
    assert_eq!(world.taken_by(jobs[0]).unwrap(), "next");
}

#[test]
fn a_job_that_the_hook_refuses_fails_before_its_first_step() {
    let mut world = World::new();
    let asks = Behaviour { asks: true, ..Behaviour::default() };
    let (_, jobs) = world.run(vec![JobSpec::new("build", &["gpu"]), JobSpec::new("test", &["gpu"])]);
    let first = world.runner("first", &["gpu"], asks.clone());
    let second = world.runner("second", &["gpu"], asks);
    world.state.advance(MINUTE);
    assert_eq!(world.state.stand_in_phase(first), Some(&Phase::Asking(jobs[0])));
    world.state.answer_hook(first, false);
    world.state.answer_hook(second, true);
    assert_eq!(world.state.job(jobs[0]).unwrap().view().conclusion, Some(Conclusion::Failure));
    assert_eq!(world.state.stand_in_phase(second), Some(&Phase::Working(jobs[1])));
    world.state.advance(MINUTE);
    assert_eq!(world.state.job(jobs[1]).unwrap().view().conclusion, Some(Conclusion::Success));
}
