//! What is there after a restart.

use crate::support::{Backend, Farm, everything, next, sorted, standing};
use forgeyard_db::testing::samples::Samples;
use forgeyard_db::{EventQuery, Keep};
use forgeyard_model::attempt::{Attempt, AttemptState};
use forgeyard_model::commit::Row;
use forgeyard_model::delivery::DeliveryState;
use forgeyard_model::demand::{Demand, DemandState, Repeat};
use forgeyard_model::effect::{Effect, PendingEffect};
use forgeyard_model::environment::EnvironmentState;
use forgeyard_model::job::{Job, JobState};
use forgeyard_model::pipeline::{Pipeline, PipelineState};
use forgeyard_model::runner::{Runner, RunnerState};
use forgeyard_model::verdict::Outcome;
use forgeyard_model::{EffectId, Timestamp};
use rstest::rstest;
use std::collections::BTreeSet;

#[rstest]
#[tokio::test]
async fn what_was_committed_is_there_after_a_crash_and_after_a_restart(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(mut farm) = Farm::open(backend).await else { return };
    let mut written = Vec::new();
    for _ in 0..5 {
        let rows = farm.samples.farm();
        written.extend(rows.clone());
        farm.write(rows).await.unwrap();
    }
    farm.store.set_setting("a", "b").await.unwrap();
    let snapshot = farm.store.load(Keep::since(Timestamp::from_micros(0))).await.unwrap();
    assert_eq!(snapshot.last_seq, 5);
    assert_eq!(snapshot.last_at, farm.samples.at());
    assert_eq!(sorted(snapshot.rows.clone()), sorted(standing(written)));
    let query = EventQuery { subject: None, before: None, limit: 1000 };
    let events = farm.store.events(query.clone()).await.unwrap();

    let (survivor, _folder) = farm.after_crash().await;
    assert_eq!(survivor.load(Keep::since(Timestamp::from_micros(0))).await.unwrap(), snapshot);
    assert_eq!(survivor.events(query.clone()).await.unwrap(), events);
    drop(survivor);

    farm.reopen().await;
    assert_eq!(farm.store.load(Keep::since(Timestamp::from_micros(0))).await.unwrap(), snapshot);
    assert_eq!(farm.store.events(query).await.unwrap(), events);
    assert_eq!(farm.store.setting("a").await.unwrap().as_deref(), Some("b"));
    let rows = farm.samples.farm();
    farm.write(rows).await.unwrap();
}

#[rstest]
#[tokio::test]
async fn empty_store_loads_as_empty(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(farm) = Farm::open(backend).await else { return };
    let snapshot = farm.store.load(Keep::since(Timestamp::from_micros(0))).await.unwrap();
    assert_eq!((snapshot.rows.len(), snapshot.last_seq, snapshot.epoch), (0, 0, 0));
    assert_eq!(snapshot.last_at, Timestamp::from_micros(0));
}

/// A pipeline with an ended job and all that belongs to it.
struct Old {
    rows: Vec<Row>,
    pipeline: Pipeline,
    job: Job,
    runner: Runner,
}

fn old(farm: &mut Farm, name: &str) -> Old {
    let samples = &mut farm.samples;
    let site = samples.site();
    let device = samples.device(&site);
    let mut delivery = samples.delivery();
    let mut pipeline = samples.pipeline(&delivery);
    delivery.state = DeliveryState::Started { pipeline: pipeline.id };
    pipeline.state = PipelineState::Succeeded;
    let mut job = samples.job(&pipeline);
    job.state = JobState::Ended { outcome: Outcome::Succeeded };
    let id = samples.id();
    let mut runner = samples.runner(&site, id);
    runner.state = RunnerState::Deleted;
    let mut attempt: Attempt = samples.attempt(&job, &runner, 1);
    attempt.state = AttemptState::Ended;
    let mut lease = samples.lease(&attempt, vec![device.id]);
    lease.state = forgeyard_model::lease::LeaseState::Ended;
    let mut environment = samples.environment(&pipeline, name);
    environment.state = EnvironmentState::Failed { reason: forgeyard_model::Explanation::new("a", "b") };
    let mut effect = samples.effect(Effect::ReadPlan { job: job.id, artifact: samples.clone().id() });
    effect.done_at = Some(samples.at());
    let mut made = samples.effect(Effect::MakeEnvironment { environment: environment.id });
    made.done_at = Some(samples.at());
    let artifact = samples.artifact(&pipeline);
    let rows: Vec<Row> = vec![
        site.into(),
        device.into(),
        delivery.into(),
        pipeline.clone().into(),
        job.clone().into(),
        runner.clone().into(),
        attempt.into(),
        lease.into(),
        environment.into(),
        effect.into(),
        made.into(),
        artifact.into(),
    ];
    Old { rows, pipeline, job, runner }
}

fn kinds(rows: &[Row]) -> BTreeSet<&'static str> {
    rows.iter().map(Row::kind).collect()
}

#[rstest]
#[tokio::test]
async fn restart_loads_what_lives_with_all_that_belongs_to_it(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(mut farm) = Farm::open(backend).await else { return };
    let first = old(&mut farm, "notebook");
    farm.write(first.rows.clone()).await.unwrap();
    let later = Timestamp::from_micros(first.pipeline.since.as_micros() + 1_000);

    // Everything ended before `later`: only what stands is loaded.
    let loaded = farm.store.load(Keep::since(later)).await.unwrap().rows;
    assert_eq!(kinds(&loaded), BTreeSet::from(["site", "device", "environment"]));
    // At the moment of the end itself it is all there.
    let loaded = farm.store.load(Keep::since(first.pipeline.since)).await.unwrap().rows;
    assert_eq!(sorted(loaded), sorted(first.rows.clone()));

    // A newer environment of the same name takes the place of the old one; another name stands beside it.
    let second = old(&mut farm, "notebook");
    farm.write(second.rows).await.unwrap();
    let loaded =
        farm.store.load(Keep::since(later.plus(std::time::Duration::from_secs(60)))).await.unwrap().rows;
    let environments: Vec<_> = loaded.iter().filter(|row| row.kind() == "environment").collect();
    assert_eq!(environments.len(), 1);
    let Row::Environment(newest) = environments[0] else { panic!("not an environment") };
    assert_eq!(newest.pipeline, second.pipeline.id);

    // One live thing brings back all of its pipeline: in turn a runner, a job, a waiting effect.
    let much_later = later.plus(std::time::Duration::from_secs(3600));
    let waiting = farm
        .samples
        .effect(Effect::InspectPackage { job: first.job.id, artifact: farm.samples.clone().id() });
    let effect: EffectId = waiting.id;
    let revivals: Vec<Row> = vec![
        next!(first.runner, |runner: &mut Runner| runner.state = RunnerState::Deleting).into(),
        next!(first.job, |job: &mut Job| job.state = JobState::Queued).into(),
        waiting.clone().into(),
    ];
    let ends: Vec<Row> = vec![
        next!(first.runner, |runner: &mut Runner| runner.generation = 3).into(),
        next!(first.job, |job: &mut Job| job.generation = 3).into(),
        next!(waiting, |effect: &mut forgeyard_model::effect::PendingEffect| {
            effect.done_at = Some(first.pipeline.since);
        })
        .into(),
    ];
    for (revival, end) in revivals.into_iter().zip(ends) {
        farm.write(vec![revival]).await.unwrap();
        let loaded = farm.store.load(Keep::since(much_later)).await.unwrap().rows;
        for row in &first.rows {
            // The old environment belongs to the pipeline, so it is back as well.
            assert!(loaded.iter().any(|other| other.key() == row.key()), "{} is missing", row.kind());
        }
        farm.write(vec![end]).await.unwrap();
        let loaded = farm.store.load(Keep::since(much_later)).await.unwrap().rows;
        assert_eq!(kinds(&loaded), BTreeSet::from(["site", "device", "environment"]));
    }
    assert!(everything(&*farm.store).await.iter().any(|row| row.key() == effect.to_string()));
}

#[rstest]
#[tokio::test]
async fn restart_loads_demand_that_is_not_over_with_its_launches_and_what_is_asked_of_its_forge(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(mut farm) = Farm::open(backend).await else { return };
    let samples = &mut farm.samples;
    let site = samples.site();
    let mut demand = samples.demand();
    (demand.state, demand.repeat) = (DemandState::Ended, None);
    let mut launch = samples.job_of(demand.id);
    launch.state = JobState::Ended { outcome: Outcome::Succeeded };
    let id = samples.id();
    let mut runner = samples.runner(&site, id);
    runner.state = RunnerState::Deleted;
    let mut attempt: Attempt = samples.attempt(&launch, &runner, 1);
    attempt.state = AttemptState::Ended;
    let forget = |done_at| forgeyard_model::effect::PendingEffect {
        done_at,
        ..Samples::new().effect(Effect::Deregister {
            demand: demand.id,
            runner: runner.id,
            repository: demand.repository.clone(),
            installation: None,
            scale_set: None,
            name: "forgeyard-x".to_owned(),
            forge_runner: Some(u64::MAX),
        })
    };
    let done = forget(Some(samples.at()));
    let over: Vec<Row> = vec![
        demand.clone().into(),
        launch.clone().into(),
        runner.clone().into(),
        attempt.into(),
        done.clone().into(),
    ];
    let mut all = over.clone();
    all.push(site.into());
    farm.write(all).await.unwrap();
    let later = demand.since.plus(std::time::Duration::from_secs(3600));
    let loaded = farm.store.load(Keep::since(later)).await.unwrap().rows;
    assert_eq!(kinds(&loaded), BTreeSet::from(["site"]));
    let loaded = farm.store.load(Keep::since(demand.since)).await.unwrap().rows;
    assert_eq!(loaded.len(), 6);

    // One live thing brings back all of it: the demand itself, a launch, a machine, a question to the forge.
    let revivals: Vec<(Row, Row)> = vec![
        (
            next!(demand, |row: &mut Demand| row.state = DemandState::Running).into(),
            next!(demand, |row: &mut Demand| row.generation = 3).into(),
        ),
        (
            next!(launch, |row: &mut Job| row.state = JobState::Queued).into(),
            next!(launch, |row: &mut Job| row.generation = 3).into(),
        ),
        (
            next!(runner, |row: &mut Runner| row.state = RunnerState::Leaving).into(),
            next!(runner, |row: &mut Runner| row.generation = 3).into(),
        ),
        (
            next!(done, |row: &mut PendingEffect| row.done_at = None).into(),
            next!(done, |row: &mut PendingEffect| row.generation = 3).into(),
        ),
    ];
    for (revival, end) in revivals {
        farm.write(vec![revival]).await.unwrap();
        let loaded = farm.store.load(Keep::since(later)).await.unwrap().rows;
        for row in &over {
            assert!(loaded.iter().any(|other| other.key() == row.key()), "{} is missing", row.kind());
        }
        farm.write(vec![end]).await.unwrap();
        assert_eq!(kinds(&farm.store.load(Keep::since(later)).await.unwrap().rows), BTreeSet::from(["site"]));
    }
}

/// A demand that ended then, with its launch, the attempt at it and its machine.
fn past(farm: &mut Farm, ended: Timestamp) -> (Demand, Vec<Row>) {
    let samples = &mut farm.samples;
    let site = samples.site();
    let mut demand = samples.demand();
    (demand.state, demand.ended_at, demand.repeat) = (DemandState::Ended, Some(ended), None);
    let mut launch = samples.job_of(demand.id);
    (launch.state, launch.ended_at) = (JobState::Ended { outcome: Outcome::Succeeded }, Some(ended));
    demand.launch = Some(launch.id);
    let id = samples.id();
    let mut runner = samples.runner(&site, id);
    runner.state = RunnerState::Deleted;
    let mut attempt: Attempt = samples.attempt(&launch, &runner, 1);
    (attempt.state, attempt.ended_at) = (AttemptState::Ended, Some(ended));
    let mut looked = samples.effect(Effect::ReadJob {
        demand: demand.id,
        repository: demand.repository.clone(),
        installation: None,
        job: demand.job,
    });
    looked.done_at = Some(ended);
    let rows =
        vec![site.into(), demand.clone().into(), launch.into(), runner.into(), attempt.into(), looked.into()];
    (demand, rows)
}

#[rstest]
#[tokio::test]
async fn restart_loads_of_demands_that_rest_for_long_only_the_numbers(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(mut farm) = Farm::open(backend).await else { return };
    let start = farm.samples.at();
    let hours = |hours: u64| start.plus(std::time::Duration::from_secs(hours * 3600));
    let keep = Keep { since: hours(10), demands_since: hours(20), numbers: 100 };
    let mut all = Vec::new();
    let mut made = Vec::new();
    // The rows of a demand are loaded all or not at all, although those of its machine are younger than `since`.
    for ended in [9, 11, 12, 15, 19, 20, 25] {
        let (demand, rows) = past(&mut farm, hours(ended));
        all.push((demand.clone(), rows.clone()));
        made.extend(rows);
    }
    farm.write(made).await.unwrap();
    let job = |place: usize| (all[place].0.repository.forge.clone(), all[place].0.job);
    let demands = |rows: &[Row]| -> BTreeSet<String> {
        rows.iter().filter(|row| row.kind() == "demand").map(Row::key).collect()
    };
    let ids = |places: &[usize]| -> BTreeSet<String> {
        places.iter().map(|place| all[*place].0.id.to_string()).collect()
    };
    let loaded = farm.store.load(keep).await.unwrap();
    assert_eq!(demands(&loaded.rows), ids(&[5, 6]));
    assert_eq!(loaded.numbers, [1, 2, 3, 4].map(job), "the newest last");
    let machines = |rows: &[Row]| rows.iter().filter(|row| row.kind() == "runner").count();
    let asked = |rows: &[Row]| rows.iter().filter(|row| row.kind() == "effect").count();
    assert_eq!((machines(&loaded.rows), asked(&loaded.rows)), (2, 2));
    // No more numbers than asked for, and those are the newest.
    let loaded = farm.store.load(Keep { numbers: 2, ..keep }).await.unwrap();
    assert_eq!(loaded.numbers, [3, 4].map(job));

    // A job that is still to be run again, one that was asked to be lately, and one whose launch serves another demand now.
    let (waits, lately, lends) = (all[1].0.clone(), all[2].0.clone(), all[3].0.clone());
    let mut open = farm.samples.demand();
    (open.state, open.launch, open.ended_at) = (DemandState::Launching, lends.launch, None);
    let rows: Vec<Row> = vec![
        next!(waits, |row: &mut Demand| row.repeat = Some(Repeat::Wanted { cause: "x".to_owned() })).into(),
        next!(lately, |row: &mut Demand| row.repeat = Some(Repeat::Done { at: hours(21) })).into(),
        open.clone().into(),
    ];
    farm.write(rows).await.unwrap();
    let loaded = farm.store.load(keep).await.unwrap();
    let mut wanted = ids(&[1, 2, 3, 5, 6]);
    wanted.insert(open.id.to_string());
    assert_eq!(demands(&loaded.rows), wanted);
    assert_eq!(loaded.numbers, [job(4)]);
    assert_eq!((machines(&loaded.rows), asked(&loaded.rows)), (5, 5));
}
