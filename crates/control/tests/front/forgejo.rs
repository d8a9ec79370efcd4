//! A job of a *simulated* Forgejo gets a machine that is bound to it, from a real control plane.

use crate::plane::agent::Agent;
use crate::plane::site::Site;
use crate::plane::{Setup, eventually};
use forgeyard_control::demand::forgejo::Poll;
use forgeyard_control::forges::Connections;
use forgeyard_forges::forgejo::{Forgejo, OneJob};
use forgeyard_forges::github::HttpOptions;
use forgeyard_forges::twin::{ForgejoState, ForgejoTwin};
use forgeyard_model::ForgeName;
use forgeyard_model::forge::Person;
use forgeyard_model::resources::RunnerOffer;
use forgeyard_testkit::build::name;

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_a_forgejo_gets_a_machine_that_takes_it_and_no_other() {
    let twin = ForgejoTwin::start(ForgejoState::new("lab/solver", 4711)).await.unwrap();
    let client = Forgejo::new(twin.base(), twin.token(), &HttpOptions::default()).unwrap();
    let (forge, ada): (ForgeName, _) = (name("lab"), Person { id: 2, login: "ada".to_owned() });
    let mut setup = Setup::new();
    let config = &mut setup.config;
    config.repositories[0].forge = forge.clone();
    config.repositories[0].id = 4711;
    config.repositories[0].name = "lab/solver".to_owned();
    config.access.forge = Some(forge.clone());
    let grant = &mut config.access.grants[0];
    grant.repository.id = Some(4711);
    grant.users = [ada.id].into();
    config.pools[0].runners = Some(RunnerOffer {
        labels: ["linux", "gpu"].map(str::to_owned).into(),
        exact: false,
        flavor: name("cpu"),
        program: vec!["/opt/forgejo-runner/run.sh".to_owned()],
    });
    setup.forges = Connections::default().with_forgejo(forge.clone(), client.clone());
    let plane = setup.start().await;
    let mut site = Site::join(&plane).await;
    let mut poll = Poll::default();

    // A stranger's job beside it is refused, and one that no pool serves is none of ours.
    let stranger = Person { id: 9, login: "eve".to_owned() };
    let (job, strangers) = twin.with(|state| {
        state.start(&ada, &["windows"], None);
        (state.start(&ada, &["gpu"], None), state.start(&stranger, &["gpu"], None))
    });
    poll.round(&plane.app, &forge, &client).await;
    let state = |job: u64| {
        let farm = plane.app.core.read();
        farm.demand_of(&forge, job).map(|demand| demand.state.name())
    };
    eventually("the stranger is refused", || async {
        matches!(state(strangers), Some("refused" | "held")).then_some(())
    })
    .await;
    let mut desired = None;
    for _ in 0..500 {
        desired = site.turn().await.runners.into_iter().next();
        if desired.is_some() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let desired = desired.unwrap_or_else(|| {
        let farm = plane.app.core.read();
        panic!("no machine was asked for: {:#?}", farm.demand_of(&forge, job))
    });
    assert_eq!(twin.with(|state| state.runners.len()), 0, "it registers only when the machine is up");
    let agent = Agent::redeem(&plane.url, &desired, "a nonce of tests").await;
    agent.client.heartbeat(&agent.session, None).await.unwrap();
    let word = agent.client.runner_config(&agent.session, 20).await.unwrap().config;
    let one = OneJob::decode(&word).unwrap();
    assert_eq!((one.url.as_str(), one.handle.is_some()), (twin.base(), true));
    agent.client.heartbeat(&agent.session, Some("runner")).await.unwrap();
    // An older job with the same label waits; the handle passes it by.
    let took =
        twin.with(|state| state.one_job(&one.uuid, one.token.expose(), &one.labels, one.handle.as_deref()));
    assert_eq!(took, Ok(job));
    poll.round(&plane.app, &forge, &client).await;
    eventually("it runs", || async { (state(job) == Some("running")).then_some(()) }).await;
    let taker = plane.app.core.read().demand_of(&forge, job).unwrap().taken_by.clone().unwrap();
    assert_eq!(taker.runner, Some(desired.runner), "the machine that has it is known");
    // Both jobs are of one commit: its one status says what is known of both, with the reason, and is not repeated.
    let told =
        eventually("the commit has a status", || async { twin.with(|state| state.statuses.last().cloned()) })
            .await;
    assert_eq!((told.0.as_str(), told.1.as_str()), ("a".repeat(40).as_str(), "forgeyard"));
    assert!(["pending", "failure"].contains(&told.2.as_str()), "{told:?}");
    assert!(told.3.contains("jobs") && told.3.chars().count() <= 255, "{told:?}");
    let texts: Vec<_> = twin.with(|state| state.statuses.clone());
    assert!(texts.windows(2).all(|two| two[0] != two[1]), "{texts:?}");
    twin.with(|state| state.end(job, "success"));
    for _ in 0..2 {
        poll.round(&plane.app, &forge, &client).await;
    }
    eventually("it ended", || async { (state(job) == Some("ended")).then_some(()) }).await;
    let conclusion = plane.app.core.read().demand_of(&forge, job).unwrap().conclusion.clone();
    assert_eq!(conclusion.as_deref(), Some("success"));
    assert_eq!(twin.with(|state| state.runners.len()), 0);
    plane.stop().await;
}
