//! Tokens of the build cache end with their attempts. The cache is *simulated*: it keeps what it is told.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod plane;

use forgeyard_control::cache_tokens::{CacheTokens, Minted, Wanted};
use forgeyard_engine::cache_scopes::Scopes;
use forgeyard_model::forge::Repository as Forge;
use forgeyard_model::{AttemptId, Secret};
use plane::agent::Agent;
use plane::repository::Repository;
use plane::site::Site;
use plane::{Setup, eventually, refused};
use std::io;
use std::sync::{Arc, Mutex};

/// A cache that keeps what it was told.
#[derive(Default)]
struct Simulated {
    /// Every list that was written.
    lists: Mutex<Vec<Vec<AttemptId>>>,
}

impl Simulated {
    fn written(&self) -> usize {
        self.lists.lock().unwrap().len()
    }

    fn lists(&self, attempt: AttemptId) -> bool {
        self.lists.lock().unwrap().last().is_some_and(|live| live.contains(&attempt))
    }
}

impl CacheTokens for Simulated {
    fn scopes(&self, repository: &Forge) -> Scopes {
        Scopes::usual(&repository.forge, repository.id)
    }

    fn mint(&self, wanted: &Wanted) -> io::Result<Minted> {
        let token = Secret::new(format!("token of {}", wanted.attempt));
        Ok(Minted { address: "http://simulated".to_owned(), token, nix_keys: Vec::new(), ca: None })
    }

    fn list(&self, live: &[AttemptId]) -> io::Result<()> {
        self.lists.lock().unwrap().push(live.to_vec());
        Ok(())
    }

    fn close(&self, _: &Forge, _: u64) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn token_of_an_attempt_is_listed_when_it_is_given_and_not_after_the_attempt_ended() {
    let (cache, repository) = (Arc::new(Simulated::default()), Repository::new());
    let mut setup =
        Setup { cache_tokens: Some(cache.clone()), ..Setup::new() }.with_source(&repository.source());
    let plane = setup.start().await;
    let mut site = Site::join(&plane).await;
    plane.begin("push", &repository.pushed(&repository.head())).await;
    let machine = loop {
        match site.turn().await.runners.into_iter().next() {
            Some(machine) => break machine,
            None => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
        }
    };
    let agent = Agent::begin(&plane.url, &machine).await;
    let given = agent.client.cache(&agent.session).await.unwrap();
    assert_eq!(given.token, format!("token of {}", agent.job.attempt));
    assert!(cache.lists(agent.job.attempt), "it is listed before anybody can use it");
    // A farm that starts again lists it from its rows alone.
    plane.stop().await;
    let before = cache.written();
    let plane = setup.start().await;
    eventually("the list is written", || async { (cache.written() > before).then_some(()) }).await;
    assert!(cache.lists(agent.job.attempt));
    agent.finish(1).await.unwrap();
    let gone = || async { (!cache.lists(agent.job.attempt)).then_some(()) };
    eventually("the token of an attempt that ended is void", gone).await;
    assert_eq!(refused(agent.client.cache(&agent.session).await).code, "attempt.superseded");
    assert!(!cache.lists(agent.job.attempt));
    plane.stop().await;
}
