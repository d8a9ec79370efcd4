//! What the schema refuses, whoever writes.

use crate::support::{Backend, Farm, constraint, next};
use bytes::Bytes;
use forgeyard_db::Batch;
use forgeyard_model::attempt::{Attempt, AttemptState};
use forgeyard_model::commit::Row;
use forgeyard_model::device::Device;
use forgeyard_model::job::Job;
use forgeyard_model::lease::{Lease, LeaseState};
use forgeyard_model::pipeline::Pipeline;
use forgeyard_model::runner::Runner;
use forgeyard_model::site::Site;
use forgeyard_model::verdict::Outcome;
use rstest::rstest;

/// A farm with one job that has one placed attempt.
struct Scene {
    site: Site,
    device: Device,
    pipeline: Pipeline,
    job: Job,
    attempt: Attempt,
}

async fn scene(farm: &mut Farm) -> Scene {
    let samples = &mut farm.samples;
    let site = samples.site();
    let device = samples.device(&site);
    let delivery = samples.delivery();
    let pipeline = samples.pipeline(&delivery);
    let job = samples.job(&pipeline);
    let id = samples.id();
    let runner = samples.runner(&site, id);
    let attempt = samples.attempt(&job, &runner, 1);
    let rows: Vec<Row> = vec![
        site.clone().into(),
        device.clone().into(),
        delivery.into(),
        pipeline.clone().into(),
        job.clone().into(),
        runner.into(),
        attempt.clone().into(),
    ];
    farm.write(rows).await.unwrap();
    Scene { site, device, pipeline, job, attempt }
}

fn another_attempt(farm: &mut Farm, scene: &Scene, fence: u32) -> (Runner, Attempt) {
    let id = farm.samples.id();
    let runner = farm.samples.runner(&scene.site, id);
    let attempt = farm.samples.attempt(&scene.job, &runner, fence);
    (runner, attempt)
}

fn ended(attempt: &Attempt) -> Attempt {
    next!(attempt, |attempt: &mut Attempt| {
        attempt.state = AttemptState::Ended;
        attempt.outcome = Some(Outcome::Lost);
    })
}

#[rstest]
#[tokio::test]
async fn job_has_at_most_one_live_attempt(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(mut farm) = Farm::open(backend).await else { return };
    let scene = scene(&mut farm).await;
    let (runner, second) = another_attempt(&mut farm, &scene, 2);
    let rows: Vec<Row> = vec![runner.into(), second.into()];
    assert_eq!(constraint(&farm.refused(rows.clone()).await), "attempt_one_live_per_job");

    // The first ends and the second comes in the same batch, in this order of time or the other in the batch.
    let mut both = rows;
    both.push(ended(&scene.attempt).into());
    farm.write(both).await.unwrap();
}

#[rstest]
#[tokio::test]
async fn fence_is_unique_in_its_job_and_grows(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(mut farm) = Farm::open(backend).await else { return };
    let scene = scene(&mut farm).await;
    let (runner, third) = another_attempt(&mut farm, &scene, 3);
    let third_ended = ended(&third);
    farm.write(vec![ended(&scene.attempt).into(), runner.into(), third.into()]).await.unwrap();
    farm.write(vec![third_ended.into()]).await.unwrap();

    let (runner, equal) = another_attempt(&mut farm, &scene, 3);
    let error = farm.refused(vec![runner.into(), equal.into()]).await;
    assert_eq!(constraint(&error), "attempt_job_fence_unique");

    let (runner, smaller) = another_attempt(&mut farm, &scene, 2);
    let error = farm.refused(vec![runner.into(), smaller.into()]).await;
    assert_eq!(constraint(&error), "attempt_fence_grows");

    // Within one batch, too.
    let (runner_a, five) = another_attempt(&mut farm, &scene, 5);
    let (runner_b, four) = another_attempt(&mut farm, &scene, 4);
    let mut five = five;
    five.state = AttemptState::Ended;
    let error = farm.refused(vec![runner_a.into(), runner_b.into(), five.into(), four.into()]).await;
    assert_eq!(constraint(&error), "attempt_fence_grows");
}

#[rstest]
#[tokio::test]
async fn runner_serves_one_attempt(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(mut farm) = Farm::open(backend).await else { return };
    let scene = scene(&mut farm).await;
    let (_, mut second) = another_attempt(&mut farm, &scene, 2);
    second.runner = scene.attempt.runner;
    let error = farm.refused(vec![ended(&scene.attempt).into(), second.into()]).await;
    assert_eq!(constraint(&error), "attempt_runner_unique");
}

#[rstest]
#[tokio::test]
async fn device_has_at_most_one_live_lease(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(mut farm) = Farm::open(backend).await else { return };
    let scene = scene(&mut farm).await;
    let first = farm.samples.lease(&scene.attempt, vec![scene.device.id]);
    farm.write(vec![first.clone().into()]).await.unwrap();

    let second = farm.samples.lease(&scene.attempt, vec![scene.device.id]);
    for state in [LeaseState::Held, LeaseState::Releasing] {
        // A lease that is being released still holds its devices.
        let error = farm.refused(vec![second.clone().into()]).await;
        assert_eq!(constraint(&error), "lease_device_one_live");
        let stored = farm.store.row("lease", &first.id.to_string()).await.unwrap();
        let Some(Row::Lease(stored)) = stored else { panic!("no lease") };
        farm.write(vec![next!(stored, |lease: &mut Lease| lease.state = state).into()]).await.unwrap();
    }

    // Handed over within one batch: the old one ends, the new one comes, whatever the order of the rows.
    let last = next!(first, |lease: &mut Lease| {
        lease.generation = 4;
        lease.state = LeaseState::Ended;
    });
    farm.write(vec![second.clone().into(), last.into()]).await.unwrap();

    let third = farm.samples.lease(&scene.attempt, vec![scene.device.id]);
    let error = farm.refused(vec![third.clone().into()]).await;
    assert_eq!(constraint(&error), "lease_device_one_live");
    let written_off = next!(second, |lease: &mut Lease| lease.state = LeaseState::WrittenOff);
    farm.write(vec![written_off.into()]).await.unwrap();
    farm.write(vec![third.into()]).await.unwrap();
}

#[rstest]
#[tokio::test]
async fn two_new_leases_of_one_batch_cannot_share_a_device(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(mut farm) = Farm::open(backend).await else { return };
    let scene = scene(&mut farm).await;
    let one = farm.samples.lease(&scene.attempt, vec![scene.device.id]);
    let other = farm.samples.lease(&scene.attempt, vec![scene.device.id]);
    let error = farm.refused(vec![one.into(), other.into()]).await;
    assert_eq!(constraint(&error), "lease_device_one_live");
}

#[rstest]
#[tokio::test]
async fn names_are_unique_where_they_name_one_thing(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(mut farm) = Farm::open(backend).await else { return };
    let scene = scene(&mut farm).await;
    let mut site = farm.samples.site();
    site.name = scene.site.name.clone();
    assert_eq!(constraint(&farm.refused(vec![site.into()]).await), "site_name_unique");

    let mut job = farm.samples.job(&scene.pipeline);
    job.key = scene.job.key.clone();
    assert_eq!(constraint(&farm.refused(vec![job.clone().into()]).await), "job_name_unique");

    // In another pipeline the same name is another job.
    let delivery = farm.samples.delivery();
    let pipeline = farm.samples.pipeline(&delivery);
    job.owner = pipeline.id.into();
    farm.write(vec![delivery.into(), pipeline.into(), job.clone().into()]).await.unwrap();

    // And so it is for a demand.
    let demand = farm.samples.demand();
    let mut launch = farm.samples.job_of(demand.id);
    launch.key = job.key;
    farm.write(vec![demand.clone().into(), launch.clone().into()]).await.unwrap();
    let mut second = farm.samples.job_of(demand.id);
    second.key = launch.key;
    assert_eq!(constraint(&farm.refused(vec![second.into()]).await), "job_demand_name_unique");
}

#[rstest]
#[tokio::test]
async fn a_job_of_a_forge_is_one_demand_whoever_reports_it(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(mut farm) = Farm::open(backend).await else { return };
    let demand = farm.samples.demand();
    farm.write(vec![demand.clone().into()]).await.unwrap();
    let mut again = farm.samples.demand();
    again.job = demand.job;
    assert_eq!(constraint(&farm.refused(vec![again.clone().into()]).await), "demand_job_unique");
    // The same number at another forge is another job.
    again.repository.forge = "codeberg".parse().unwrap();
    farm.write(vec![again.into()]).await.unwrap();
}

#[rstest]
#[tokio::test]
async fn what_is_referred_to_exists(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(mut farm) = Farm::open(backend).await else { return };
    let scene = scene(&mut farm).await;
    let nowhere = farm.samples.site();
    let delivery = farm.samples.delivery();
    let nothing = farm.samples.pipeline(&delivery);
    let (unknown_runner, attempt) = another_attempt(&mut farm, &scene, 2);
    let elsewhere = farm.samples.device(&scene.site);

    let device = farm.samples.device(&nowhere);
    let job = farm.samples.job(&nothing);
    let no_demand = farm.samples.demand();
    let launch = farm.samples.job_of(no_demand.id);
    let artifact = farm.samples.artifact(&nothing);
    let environment = farm.samples.environment(&nothing, "x");
    let runner = farm.samples.runner(&nowhere, attempt.id);
    let no_attempt = farm.samples.lease(&attempt, Vec::new());
    let no_device = farm.samples.lease(&scene.attempt, vec![elsewhere.id]);
    let mut no_job = attempt.clone();
    no_job.job = job.id;
    let cases: Vec<(&str, Vec<Row>)> = vec![
        ("device_site_exists", vec![device.into()]),
        ("job_pipeline_exists", vec![job.into()]),
        ("job_demand_exists", vec![launch.into()]),
        ("artifact_pipeline_exists", vec![artifact.into()]),
        ("environment_pipeline_exists", vec![environment.into()]),
        ("runner_site_exists", vec![runner.into()]),
        ("attempt_runner_exists", vec![ended(&scene.attempt).into(), attempt.into()]),
        ("attempt_job_exists", vec![unknown_runner.into(), no_job.into()]),
        ("lease_attempt_exists", vec![no_attempt.into()]),
        ("lease_device_exists", vec![no_device.into()]),
    ];
    for (name, rows) in cases {
        assert_eq!(constraint(&farm.refused(rows).await), name);
    }

    let bodies = vec![("nobody".to_owned(), Bytes::new())];
    let error = farm.store.commit(&Batch { epoch: 0, commits: Vec::new(), bodies }).await.unwrap_err();
    assert_eq!(constraint(&error), "delivery_body_delivery_exists");
}

#[rstest]
#[tokio::test]
async fn delivery_of_a_known_guid_is_not_stored_again(
    #[values(Backend::Sqlite, Backend::Postgres, Backend::Twin)] backend: Backend,
) {
    let Some(mut farm) = Farm::open(backend).await else { return };
    let delivery = farm.samples.delivery();
    farm.write(vec![delivery.clone().into()]).await.unwrap();
    let mut again = farm.samples.delivery();
    again.guid = delivery.guid.clone();
    let error = farm.refused(vec![again.into()]).await;
    assert!(matches!(error, forgeyard_db::Error::Conflict { kind: "delivery", key } if key == delivery.guid));
}
