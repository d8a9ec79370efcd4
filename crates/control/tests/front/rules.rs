//! Rules that change while the farm runs.

use crate::plane::{eventually, refused};
use crate::world::World;
use forgeyard_control::rules::{Read, RuleSource};
use forgeyard_forges::twin::RunSpec;
use forgeyard_model::config::FarmConfig;
use forgeyard_model::{Digest, Explanation};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Files of an operator, without a disk.
pub(crate) struct Files {
    now: Mutex<Result<Read, Explanation>>,
    started: Digest,
}

fn bytes(now: &Result<Read, Explanation>) -> Digest {
    match now {
        Ok(read) => Digest::of(format!("{} {:?}", read.config.digest(), read.restart).as_bytes()),
        Err(reason) => Digest::of(reason.to_string().as_bytes()),
    }
}

impl Files {
    pub(crate) fn new(config: FarmConfig) -> Arc<Self> {
        let now = Ok(Read { config, restart: Vec::new() });
        Arc::new(Self { started: bytes(&now), now: Mutex::new(now) })
    }

    pub(crate) fn write(&self, now: Result<Read, Explanation>) {
        *self.now.lock().unwrap() = now;
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut FarmConfig)) {
        change(&mut self.now.lock().unwrap().as_mut().unwrap().config);
    }
}

impl RuleSource for Files {
    fn stamp(&self) -> Digest {
        bytes(&self.now.lock().unwrap())
    }
    fn started_with(&self) -> Digest {
        self.started
    }
    fn read(&self) -> Result<Read, Explanation> {
        self.now.lock().unwrap().clone()
    }
    fn changed_by(&self) -> String {
        "access.toml, of ops".to_owned()
    }
}

/// A job of somebody whom the grant does not name.
async fn held(world: &World) -> u64 {
    let job = world.twin.with(|state| {
        let run = state.start_run(RunSpec::push(world.repository, &world.reader, vec![world.job("build")]));
        state.current_jobs(run)[0].id
    });
    world.twin.advance(Duration::from_secs(2)).await;
    world.until(job, "held").await;
    job
}

#[tokio::test(flavor = "multi_thread")]
async fn grant_that_is_added_while_the_farm_runs_opens_the_gate_for_a_held_job_at_its_next_decision() {
    let world = World::new().await;
    let job = held(&world).await;
    let reader = world.reader.id;
    world.rules.change(|config| config.access.grants[0].users.extend([reader]));
    let done = world.plane.client.reload_config().await.unwrap();
    assert!(done.changed, "{done:?}");
    assert!(done.changes.iter().any(|line| line.starts_with("access.grants `")), "{done:?}");
    world.until(job, "launching").await;
    // It is a version of the history, with who did it and what is different.
    let newest = world.plane.client.config_history().await.unwrap().remove(0);
    assert_eq!((newest.number, newest.by.as_str()), (2, "admin, by `forgeyard config reload`"));
    assert_eq!(newest.changes, done.changes);
    // The same files again are no new version.
    let again = world.plane.client.reload_config().await.unwrap();
    assert_eq!((again.changed, again.version), (false, 2));
    world.plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_files_are_read_by_themselves_and_a_grant_that_is_gone_ends_what_it_opened() {
    let world = World::new().await;
    let (_, jobs) = world.push(vec![world.job("build")]).await;
    world.until(jobs[0], "launching").await;
    world.rules.change(|config| config.access.grants.clear());
    world.until(jobs[0], "refused").await;
    let newest = world.plane.client.config_history().await.unwrap().remove(0);
    assert!(newest.by.contains("changed files (access.toml, of ops)"), "{}", newest.by);
    world.plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_file_changes_nothing_and_is_told_until_it_is_good_again() {
    let world = World::new().await;
    let good = world.rules.read().unwrap();
    let digest = good.config.digest();
    let text = "access.toml, line 3, column 1: unknown key `grnats`; did you mean `grants`?";
    world.rules.write(Err(Explanation::new("config.wrong", text).fix("correct the file")));
    let told = eventually("the alarm is raised", || async {
        let status = world.plane.client.status().await.unwrap();
        status.alarms.into_iter().find(|alarm| alarm.code == "rules.unread")
    })
    .await;
    assert!(told.message.contains("line 3") && told.fix.is_some(), "{told}");
    let error = refused(world.plane.client.reload_config().await);
    assert!(error.code == "rules.unread" && error.message.contains("stays as it was"), "{error:?}");
    assert_eq!(world.plane.app.config().digest(), digest);
    assert_eq!(world.plane.client.rules().await.unwrap().problem, Some(told));
    assert_eq!(world.plane.client.config_history().await.unwrap().len(), 1);
    // A farm whose file is wrong goes on by the rules that it has.
    let (_, jobs) = world.push(vec![world.job("build")]).await;
    world.until(jobs[0], "launching").await;
    world.rules.write(Ok(Read { restart: vec!["listen".to_owned()], ..good }));
    let view = eventually("the file is read", || async {
        Some(world.plane.client.rules().await.unwrap()).filter(|view| view.problem.is_none())
    })
    .await;
    assert_eq!(view.restart, ["listen"], "what cannot change is named");
    let alarms = world.plane.client.status().await.unwrap().alarms;
    assert!(alarms.iter().any(|alarm| alarm.code == "rules.restart" && alarm.message.contains("listen")));
    world.plane.stop().await;
}
