//! The site dies at chosen points, again and again, and starts again. The simulated host and the simulated farm go
//! on. Nothing is doubled, nothing is lost, and the net is shown to catch a planted violation.

use crate::farm::Farm;
use crate::protocol::options;
use crate::sim::{Crash, Host, releasing, runner, wanted};
use forgeyard_model::runner::ObservedState;
use forgeyard_model::site::{ObservedLease, SiteReport};
use forgeyard_site::CancellationToken;
use std::time::Duration;

/// A small generator, so that a seed names one run.
struct Seed(u64);

impl Seed {
    fn next(&mut self, below: i64) -> i64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        i64::try_from((self.0 >> 33) % below.unsigned_abs()).unwrap()
    }
}

/// The farm's side of one runner's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Waiting,
    Wanted,
    Releasing,
    Over,
}

const RUNNERS: u32 = 6;
const DEVICES: u32 = 2;

/// Moves lives on by what the last report says. Two devices, so two machines at a time; each runs, then is released.
fn decide(farm: &Farm, lives: &mut [Life], report: &SiteReport) {
    let before = lives.to_vec();
    for n in 0..RUNNERS {
        let seen = report.runners.iter().find(|row| row.runner == runner(n)).map(|row| &row.state);
        let at = n as usize;
        lives[at] = match lives[at] {
            Life::Waiting => {
                let free = (0..RUNNERS).all(|other| {
                    other % DEVICES != n % DEVICES || matches!(lives[other as usize], Life::Waiting | Life::Over)
                });
                if free { Life::Wanted } else { Life::Waiting }
            }
            Life::Wanted if seen == Some(&ObservedState::Running) => Life::Releasing,
            Life::Releasing => {
                let told = report.leases.iter().any(
                    |told| matches!(told, ObservedLease::Released { lease, .. } if *lease == crate::sim::lease(n)),
                );
                if told { Life::Over } else { Life::Releasing }
            }
            other => other,
        };
    }
    if lives != before {
        farm.change(|set| {
            let lives = &*lives;
            let of = |life: Life| (0..RUNNERS).filter(move |n| lives[*n as usize] == life);
            set.runners = of(Life::Wanted).map(|n| wanted(n, &[n % DEVICES])).collect();
            set.releasing = of(Life::Releasing).map(|n| releasing(n, &[n % DEVICES])).collect();
        });
    }
}

async fn life_with_crashes(seed: u64) {
    let mut random = Seed(seed);
    let folder = tempfile::tempdir().unwrap();
    let crash = Crash::never();
    let farm = Farm::start(crash.clone()).await;
    let host = Host::new(folder.path().join("state"), DEVICES, crash.clone());
    let mut lives = vec![Life::Waiting; RUNNERS as usize];
    let mut crashes = 0;
    let done = async {
        while lives.iter().any(|life| *life != Life::Over) || !host.journal().leases.is_empty() {
            // Many short lives first, then one that may go on to the end.
            crash.arm(if crashes < 25 { 1 + random.next(12) } else { 0 });
            let mut options = options(&farm, &host);
            options.observe_every = Duration::from_millis(10);
            let site = forgeyard_site::run(options, CancellationToken::new());
            let life = async {
                while lives.iter().any(|life| *life != Life::Over) || !host.journal().leases.is_empty() {
                    if let Some(report) = farm.last() {
                        decide(&farm, &mut lives, &report);
                    }
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            };
            tokio::select! {
                ended = site => panic!("the site ended: {ended:?}"),
                () = crash.happens() => crashes += 1,
                () = life => {}
            }
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(120), done).await;
    assert!(in_time.is_ok(), "seed {seed}: it does not come to an end: {lives:?} {:?} {:?}", host.journal(), farm.last());
    host.with(|world| {
        assert_eq!(world.violations, Vec::<String>::new(), "seed {seed}");
        assert!(world.machines.is_empty(), "seed {seed}: {:?}", world.machines.keys());
        for n in 0..RUNNERS {
            assert_eq!(world.made.get(&runner(n)), Some(&1), "seed {seed}: machine {n} is made once");
        }
        assert!(world.resets.values().sum::<u32>() >= RUNNERS, "seed {seed}: every lease ends with a reset");
    });
    assert!(crashes > 5, "seed {seed}: only {crashes} crashes");
}

#[tokio::test]
async fn a_site_that_dies_anywhere_and_starts_again_doubles_nothing_and_loses_nothing() {
    for seed in 0..6 {
        life_with_crashes(seed).await;
    }
}
