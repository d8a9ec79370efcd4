use super::*;

fn names(world: &World, run: u64) -> Vec<(String, &'static str, Option<&'static str>)> {
    let jobs = world.state.current_jobs(run);
    let line = |job: &&Job| {
        let view = job.view();
        (job.spec.name.clone(), view.status.name(), view.conclusion.map(Conclusion::name))
    };
    jobs.iter().map(line).collect()
}

#[test]
fn ids_of_jobs_and_runs_are_wider_than_32_bits() {
    let mut world = World::new();
    let (run, jobs) = world.run(vec![JobSpec::new("build", &["gpu"])]);
    assert!(run > u64::from(u32::MAX) && jobs[0] > u64::from(u32::MAX));
}

#[test]
fn a_job_waits_for_its_needs_and_is_skipped_when_they_fail() {
    let mut world = World::new();
    let mut build = JobSpec::new("build", &["gpu"]);
    build.outcome = Conclusion::Failure;
    let mut test = JobSpec::new("test", &["gpu"]);
    test.needs = vec!["build".to_owned()];
    let (run, _) = world.run(vec![build, test]);
    assert_eq!(names(&world, run)[1].1, "pending");
    world.runner("one", &["gpu"], Behaviour::default());
    world.state.advance(MINUTE * 2);
    assert_eq!(
        names(&world, run),
        [
            ("build".to_owned(), "completed", Some("failure")),
            ("test".to_owned(), "completed", Some("skipped")),
        ]
    );
}

#[test]
fn a_run_again_has_new_job_ids_under_the_same_run_and_is_refused_while_it_runs() {
    // runs-on #259.
    let mut world = World::new();
    let (run, first) = world.run(vec![JobSpec::new("build", &["gpu"])]);
    let person = world.person.clone();
    assert!(!world.state.rerun(run, Rerun::All, &person));
    world.runner("one", &["gpu"], Behaviour::default());
    world.state.advance(MINUTE * 2);
    assert!(world.state.rerun(run, Rerun::All, &person));
    let again = world.state.current_jobs(run);
    assert_eq!((again.len(), again[0].attempt), (1, 2));
    assert_ne!(again[0].id, first[0]);
}

#[test]
fn only_failed_jobs_run_again_and_their_needs_count_as_done() {
    let mut world = World::new();
    let mut test = JobSpec::new("test", &["gpu"]);
    test.needs = vec!["build".to_owned()];
    test.outcome = Conclusion::Failure;
    let (run, _) = world.run(vec![JobSpec::new("build", &["gpu"]), test]);
    world.runner("one", &["gpu"], Behaviour::default());
    world.runner("two", &["gpu"], Behaviour::default());
    world.state.advance(MINUTE * 3);
    let person = world.person.clone();
    assert!(world.state.rerun(run, Rerun::Failed, &person));
    assert_eq!(names(&world, run), [("test".to_owned(), "queued", None)]);
}

#[test]
fn an_environment_holds_a_job_until_somebody_approves() {
    let mut world = World::new();
    world.state.add_environment(world.repository, "gpu-lab", EnvironmentRule::Reviewers);
    let mut deploy = JobSpec::new("deploy", &["gpu"]);
    deploy.environment = Some("gpu-lab".to_owned());
    let (_, jobs) = world.run(vec![deploy]);
    assert_eq!(world.status(jobs[0]), JobStatus::Waiting);
    assert!(world.state.approve_job(jobs[0]));
    assert_eq!(world.status(jobs[0]), JobStatus::Queued);
    let actions: Vec<_> = world.state.deliveries().filter_map(|one| one.action.clone()).collect();
    assert_eq!(actions, ["created", "waiting", "queued"]);
}

#[test]
fn cancelling_ends_what_waits_at_once_and_what_runs_soon() {
    let mut world = World::new();
    let mut long = JobSpec::new("long", &["gpu"]);
    long.duration = MINUTE * 60;
    let (run, jobs) = world.run(vec![long, JobSpec::new("waits", &["windows"])]);
    world.runner("one", &["gpu"], Behaviour::default());
    world.state.advance(MINUTE);
    assert!(world.state.cancel_run(run));
    let waits = world.state.job(jobs[1]).unwrap().view();
    assert_eq!((waits.conclusion, waits.runner), (Some(Conclusion::Cancelled), None));
    assert_eq!(world.status(jobs[0]), JobStatus::InProgress);
    world.state.advance(MINUTE);
    assert_eq!(world.state.job(jobs[0]).unwrap().view().conclusion, Some(Conclusion::Cancelled));
    assert!(!world.state.cancel_run(run));
}

#[test]
fn a_job_for_hosted_runners_never_comes_to_ours() {
    let mut world = World::new();
    world.runner("ours", &["ubuntu-latest", "gpu"], Behaviour::default());
    let (_, jobs) = world.run(vec![JobSpec::new("lint", &["ubuntu-latest"])]);
    world.state.advance(MINUTE * 2);
    assert!(world.taken_by(jobs[0]).unwrap().starts_with("GitHub Actions"));
    assert_eq!(world.status(jobs[0]), JobStatus::Completed);
}

#[test]
fn a_job_that_nobody_takes_is_cancelled_after_a_day() {
    let mut world = World::new();
    let (_, jobs) = world.run(vec![JobSpec::new("build", &["nobody-has-this"])]);
    world.state.advance(MINUTE * 60 * 25);
    assert_eq!(world.state.job(jobs[0]).unwrap().view().conclusion, Some(Conclusion::Cancelled));
}

#[test]
fn a_run_that_needs_approval_has_no_jobs_until_somebody_approves() {
    let mut world = World::new();
    let person = world.person.clone();
    let mut spec = RunSpec::push(world.repository, &person, vec![JobSpec::new("build", &["gpu"])]);
    spec.needs_approval = true;
    let run = world.state.start_run(spec);
    let path = format!("/repos/lab/solver/actions/runs/{run}");
    assert_eq!(world.rest("GET", &path, &json!({})).value()["conclusion"], "action_required");
    assert_eq!(world.rest("POST", &format!("{path}/approve"), &json!({})).status, 201);
    assert_eq!(world.rest("GET", &path, &json!({})).value()["status"], "queued");
    assert_eq!(world.rest("POST", &format!("{path}/approve"), &json!({})).status, 403);
}
