//! Signing in by the *simulated* GitHub: who somebody is, and what that opens.

use crate::lab::Lab;
use crate::world::{Plan, World, login};
use forgeyard_forges::twin::{Setup, Twin};
use forgeyard_model::access::Member;
use forgeyard_model::principal::{PrincipalKind, Role};
use forgeyard_model::who::ForgeId;
use reqwest::header::{COOKIE, LOCATION, SET_COOKIE};
use reqwest::redirect::Policy;
use std::collections::BTreeMap;
use std::time::Duration;

/// A browser that follows nothing by itself, so that a test sees every step.
struct Browser {
    http: reqwest::Client,
    farm: String,
    cookies: BTreeMap<String, String>,
}

struct Shown {
    status: u16,
    to: String,
    text: String,
}

impl Browser {
    fn new(world: &World) -> Self {
        Self::of(&world.plane.url)
    }

    fn of(farm: &str) -> Self {
        let http = reqwest::Client::builder().redirect(Policy::none()).build().unwrap();
        Self { http, farm: farm.to_owned(), cookies: BTreeMap::new() }
    }

    async fn send(&mut self, request: reqwest::RequestBuilder) -> Shown {
        let cookies: Vec<String> =
            self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let request = request.header(COOKIE, cookies.join("; ")).header("accept", "text/html");
        let answer = request.send().await.unwrap();
        for cookie in answer.headers().get_all(SET_COOKIE) {
            let (pair, attributes) = cookie.to_str().unwrap().split_once(';').unwrap();
            assert!(attributes.contains("HttpOnly"), "{attributes}");
            let (name, value) = pair.split_once('=').unwrap();
            self.cookies.insert(name.to_owned(), value.to_owned());
        }
        let to = answer.headers().get(LOCATION).map(|to| to.to_str().unwrap().to_owned()).unwrap_or_default();
        Shown { status: answer.status().as_u16(), to, text: answer.text().await.unwrap() }
    }

    async fn open(&mut self, path: &str) -> Shown {
        let url = if path.starts_with("http") { path.to_owned() } else { format!("{}{path}", self.farm) };
        self.send(self.http.get(url)).await
    }

    /// Begins, and lets the forge send the browser back: the address of the callback.
    async fn at_the_forge(&mut self) -> String {
        self.at("github").await
    }

    async fn at(&mut self, forge: &str) -> String {
        let begun = self.open(&format!("/login/forge/{forge}?next=%2Fqueue")).await;
        assert_eq!(begun.status, 303, "{}", begun.text);
        let forge = self.open(&begun.to).await;
        assert_eq!(forge.status, 302, "{}", forge.text);
        forge.to
    }

    async fn sign_in_with(&mut self, forge: &str) -> Shown {
        let callback = self.at(forge).await;
        self.open(&callback).await
    }

    async fn sign_in(&mut self) -> Shown {
        let callback = self.at_the_forge().await;
        self.open(&callback).await
    }
}

fn member(role: Role, person: u64, repository: Option<u64>) -> Member {
    Member {
        id: "core".to_owned(),
        role,
        users: [person].into(),
        lists: Default::default(),
        teams: Default::default(),
        repositories: repository.into_iter().collect(),
        organisations: Default::default(),
        whole_farm: repository.is_none(),
    }
}

async fn world(rules: impl Fn(u64, u64) -> Vec<Member> + Send + Sync + 'static) -> World {
    World::with(Plan { members: Some(Box::new(rules)), ..Plan::default() }).await
}

fn csrf(page: &str) -> String {
    let (_, rest) = page.split_once("name=\"csrf\" value=\"").unwrap();
    rest.split('"').next().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn person_signs_in_with_the_forge_and_may_what_the_access_file_says_where_it_says_so() {
    let world = world(|person, repository| vec![member(Role::Maintainer, person, Some(repository))]).await;
    world.twin.with(|state| state.sign_in(Some(world.person.id)));
    let stranger = world.twin.with(|state| state.add_user("stranger"));
    let spec = forgeyard_forges::twin::RunSpec::push(world.repository, &stranger, vec![world.job("build")]);
    let job = world.twin.with(|state| {
        let run = state.start_run(spec);
        state.current_jobs(run)[0].id
    });
    world.twin.advance(Duration::from_secs(2)).await;
    let demand = world.until(job, "held").await;

    let mut browser = Browser::new(&world);
    let shown = browser.sign_in().await;
    assert!(shown.status == 200 && shown.text.contains("url=/queue"), "{}", shown.text);
    let queue = browser.open("/queue").await;
    assert!(
        queue.text.contains("maintainer") && queue.text.contains("Approve this commit"),
        "{}",
        queue.text
    );
    let session =
        world.plane.app.core.read().tokens.values().find(|row| row.expires_at.is_some()).cloned().unwrap();
    assert_eq!(
        session.principal.kind,
        PrincipalKind::Person { id: world.person.id, forge: Some("github".parse().unwrap()) }
    );
    // The whole farm is not this person's.
    assert_eq!(browser.open("/audit").await.status, 403);

    // A form of another session, and one that names another commit, are refused.
    let url = format!("{}/demands/{}/approve", world.plane.url, demand.id);
    let form = |csrf: &str, head: &str| format!("csrf={csrf}&head={head}&back=%2Fqueue");
    let kind = "application/x-www-form-urlencoded";
    let post =
        |browser: &Browser, body: String| browser.http.post(&url).header("content-type", kind).body(body);
    let token = csrf(&queue.text);
    let request = post(&browser, form("forged", demand.head()));
    assert_eq!(browser.send(request).await.status, 403);
    let request = post(&browser, form(&token, &"d".repeat(40)));
    assert_eq!(browser.send(request).await.status, 409);
    let request = post(&browser, form(&token, ""));
    assert_eq!(browser.send(request).await.status, 400);
    let request = post(&browser, form(&token, demand.head()));
    let answer = browser.send(request).await;
    assert_eq!((answer.status, answer.to.as_str()), (303, "/queue"), "{}", answer.text);
    world.until(job, "launching").await;
    let said = world.plane.client.approvals().await.unwrap();
    let judged = said[0].judged.as_ref().unwrap();
    assert_eq!((judged.by.person.id, judged.how), (world.person.id, forgeyard_model::approval::Way::Console));

    // Signed out, the session is over, wherever its cookie is.
    let request = browser
        .http
        .post(format!("{}/logout", world.plane.url))
        .header("content-type", kind)
        .body(format!("csrf={token}"));
    let kept = browser.cookies.clone();
    browser.send(request).await;
    browser.cookies = kept;
    assert!(browser.open("/queue").await.to.starts_with("/login"));
    world.plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn viewer_cannot_approve_and_maintainer_of_another_repository_sees_nothing() {
    for (role, elsewhere) in [(Role::Viewer, false), (Role::Maintainer, true)] {
        let other = move |_: u64, repository: u64| {
            // Not the person whom the grant names: that one may approve by the grant.
            vec![member(role, 0, Some(repository + u64::from(elsewhere) * 1000))]
        };
        let world = world(other).await;
        let stranger = world.twin.with(|state| state.add_user("stranger"));
        let reader = world.reader.clone();
        world.twin.with(|state| state.sign_in(Some(reader.id)));
        let job = world.twin.with(|state| {
            let spec =
                forgeyard_forges::twin::RunSpec::push(world.repository, &stranger, vec![world.job("build")]);
            let run = state.start_run(spec);
            state.current_jobs(run)[0].id
        });
        world.twin.advance(Duration::from_secs(2)).await;
        let demand = world.until(job, "held").await;
        let mut browser = Browser::new(&world);
        let shown = browser.sign_in().await;
        if elsewhere {
            // The farm has no such repository, so the rule counts nowhere.
            assert!(shown.status == 403 && shown.text.contains("login.nobody"), "{}", shown.text);
            world.plane.stop().await;
            continue;
        }
        let queue = browser.open("/queue").await;
        assert!(
            queue.text.contains("may not approve") && !queue.text.contains("Approve this commit"),
            "{}",
            queue.text
        );
        let url = format!("{}/demands/{}/approve", world.plane.url, demand.id);
        let body = format!("csrf={}&head={}", csrf(&queue.text), demand.head());
        let request =
            browser.http.post(url).header("content-type", "application/x-www-form-urlencoded").body(body);
        let answer = browser.send(request).await;
        assert!(answer.status == 403 && answer.text.contains("approval.not_authorised"), "{}", answer.text);
        assert_eq!(world.demand(job).unwrap().state.name(), "held");
        world.plane.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn state_that_is_forged_replayed_or_of_another_browser_signs_nobody_in() {
    let world = world(|person, _| vec![member(Role::Admin, person, None)]).await;
    world.twin.with(|state| state.sign_in(Some(world.person.id)));
    let mut browser = Browser::new(&world);
    let forged = browser.open("/login/callback?state=forged&code=x").await;
    assert!(forged.status == 403 && forged.text.contains("login.state"), "{}", forged.text);
    // Somebody makes another browser finish what was begun in theirs.
    let callback = browser.at_the_forge().await;
    let mut victim = Browser::new(&world);
    let shown = victim.open(&callback).await;
    assert!(shown.status == 403 && shown.text.contains("login.browser"), "{}", shown.text);
    assert!(!victim.cookies.contains_key("forgeyard"));
    // And it is used up by that.
    assert!(browser.open(&callback).await.text.contains("login.state"));
    // A whole answer again, and its code under a new state.
    let callback = browser.at_the_forge().await;
    assert_eq!(browser.open(&callback).await.status, 200);
    assert!(browser.open(&callback).await.text.contains("login.state"));
    let code = callback.split_once("code=").unwrap().1.split('&').next().unwrap().to_owned();
    let fresh = browser.open("/login/forge/github").await;
    let state = fresh.to.split_once("state=").unwrap().1.split('&').next().unwrap().to_owned();
    let replayed = browser.open(&format!("/login/callback?state={state}&code={code}")).await;
    assert!(replayed.status == 403 && replayed.text.contains("login.refused"), "{}", replayed.text);
    world.plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn login_that_changed_hands_opens_nothing_and_a_renamed_person_stays_who_they_are() {
    let world = world(|person, _| vec![member(Role::Admin, person, None)]).await;
    let squatter = world.twin.with(|state| {
        state.rename_account(world.person.id, "renamed");
        let squatter = state.add_user("maintainer");
        state.sign_in(Some(squatter.id));
        squatter
    });
    assert_ne!(squatter.id, world.person.id);
    let shown = Browser::new(&world).sign_in().await;
    assert!(shown.status == 403 && shown.text.contains("login.nobody"), "{}", shown.text);
    assert!(shown.text.contains(&squatter.id.to_string()), "{}", shown.text);
    world.twin.with(|state| state.sign_in(Some(world.person.id)));
    let mut browser = Browser::new(&world);
    assert_eq!(browser.sign_in().await.status, 200);
    assert!(browser.open("/queue").await.text.contains("renamed"));
    world.plane.stop().await;
}

/// Two forges with one number: who signs in with the one is nobody whom the rules of the other name.
#[tokio::test(flavor = "multi_thread")]
async fn people_of_two_forges_sign_in_and_one_number_is_two_people() {
    let other = Twin::start(Setup::default()).await.unwrap();
    // The same things in the same order have the same numbers.
    let (app, namesake) = other.with(|state| {
        let org = state.add_organization("conda");
        state.add_repository("conda/feedstock");
        let app = state.add_app(org, "forgeyard", None, crate::plane::webhook_secret());
        (app, state.add_user("maintainer"))
    });
    let world = World::with(Plan {
        members: Some(Box::new(|person, _| vec![member(Role::Admin, person, None)])),
        logins: vec![("ghes".parse().unwrap(), login(&other, app))],
        ..Plan::default()
    })
    .await;
    assert_eq!(namesake.id, world.person.id);
    other.with(|state| state.sign_in(Some(namesake.id)));
    world.twin.with(|state| state.sign_in(Some(world.person.id)));
    let page = Browser::new(&world).open("/login").await.text;
    assert!(page.contains("Sign in with ghes") && page.contains("Sign in with github"), "{page}");

    let mut browser = Browser::new(&world);
    let shown = browser.sign_in_with("ghes").await;
    assert!(shown.status == 403 && shown.text.contains("login.nobody"), "{}", shown.text);
    assert!(shown.text.contains(&format!("ghes:{}", namesake.id)), "{}", shown.text);
    let mut own = Browser::new(&world);
    assert_eq!(own.sign_in().await.status, 200);
    assert_eq!(own.open("/audit").await.status, 200);

    // Named with the forge, the namesake may what that rule says, and is another principal.
    let ghes = "ghes".parse().unwrap();
    world.rules.change(|config| {
        let mut rule = member(Role::Viewer, 0, None);
        (rule.id, rule.users) = ("ghes".to_owned(), [ForgeId::at(&ghes, namesake.id)].into());
        config.access.members.push(rule);
        config.access.terms_version = 1;
    });
    world.plane.client.reload_config().await.unwrap();
    let mut browser = Browser::new(&world);
    assert_eq!(browser.sign_in_with("ghes").await.status, 200);
    let page = browser.open("/queue").await.text;
    assert!(page.contains("viewer"), "{page}");
    let sessions: std::collections::BTreeSet<_> = {
        let farm = world.plane.app.core.read();
        let people = farm.tokens.values().filter(|row| row.expires_at.is_some());
        people.map(|row| row.principal.id).collect()
    };
    assert_eq!(sessions.len(), 2);
    // The terms that one accepts are not accepted by the other.
    let terms = browser.open("/terms").await.text;
    let request = browser
        .http
        .post(format!("{}/terms", world.plane.url))
        .header("content-type", "application/x-www-form-urlencoded")
        .body(format!("csrf={}&version=1", csrf(&terms)));
    let answer = browser.send(request).await;
    assert_eq!(answer.status, 303, "{}", answer.text);
    let accepted: Vec<_> = world.plane.app.core.read().acceptances.keys().cloned().collect();
    assert_eq!(accepted, [ForgeId::at(&ghes, namesake.id)]);
    world.plane.stop().await;
}

/// The other protocol: an OAuth 2 application of a *simulated* Forgejo, with PKCE, by the word of the RFCs.
#[tokio::test(flavor = "multi_thread")]
async fn person_signs_in_with_a_forgejo_and_a_code_of_another_browser_opens_nothing() {
    let lab = Lab::with(|config| config.access.members = vec![member(Role::Operator, 2, None)]).await;
    let mut browser = Browser::of(&lab.plane.url);
    let begun = browser.open("/login/forge/lab?next=%2Fqueue").await;
    assert!(begun.to.contains("response_type=code") && begun.to.contains("code_challenge_method=S256"));
    assert_eq!(browser.open(&begun.to).await.status, 401, "nobody is signed in there");

    lab.twin.with(|state| state.sign_in(Some(&lab.ada)));
    // A code that somebody else got, brought back by this browser, opens nothing: state and verifier are another's.
    let mut thief = Browser::of(&lab.plane.url);
    let stolen = thief.at("lab").await;
    assert_ne!(browser.open(&stolen).await.status, 200);
    assert!(browser.open("/queue").await.to.starts_with("/login"));

    let shown = browser.sign_in_with("lab").await;
    assert!(shown.status == 200 && shown.text.contains("url=/queue"), "{}", shown.text);
    let queue = browser.open("/queue").await;
    assert!(queue.status == 200 && queue.text.contains("operator"), "{}", queue.text);
    let session = {
        let farm = lab.plane.app.core.read();
        farm.tokens.values().find(|row| row.expires_at.is_some()).cloned().unwrap()
    };
    assert_eq!(session.principal.kind, PrincipalKind::Person { id: 2, forge: Some(lab.forge.clone()) });
    // The same code again, and a person whom no rule names.
    let used = browser.at("lab").await;
    assert_eq!(browser.open(&used).await.status, 200);
    assert_ne!(browser.open(&used).await.status, 200, "a code works once");
    lab.twin.with(|state| state.sign_in(Some(&lab.eve)));
    let mut stranger = Browser::of(&lab.plane.url);
    stranger.sign_in_with("lab").await;
    assert_ne!(stranger.open("/queue").await.status, 200);
    lab.plane.stop().await;
}
