//! The console in a real browser: headless Chromium, driven through ChromeDriver, against a real control plane.
//!
//! One browser, one story. Where there is no Chromium the story is visibly skipped; with
//! `FORGEYARD_REQUIRE_BROWSER=1` that is a failure. With `FORGEYARD_SCREENSHOTS=FOLDER` it leaves pictures there.

use crate::rig::Rig;
use forgeyard_control::auth;
use forgeyard_model::job::JobState;
use forgeyard_model::principal::Role;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use thirtyfour::prelude::*;

/// The program that drives the browser, ended with this value.
struct Chromedriver {
    process: Child,
    address: String,
}

impl Drop for Chromedriver {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Chromedriver {
    /// Starts it on a port of its own choice; none when it is not installed.
    fn start() -> Option<Self> {
        let installed = |name: &str| {
            let folders = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
        };
        installed("chromium")?;
        let mut process = Command::new(installed("chromedriver")?)
            .args(["--port=0", "--log-level=SEVERE"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver starts");
        let mut lines =
            BufReader::new(process.stdout.take().expect("its output")).lines().map_while(Result::ok);
        let mut started = Self { process, address: String::new() };
        let port = lines.find_map(|line| {
            let (_, port) = line.split_once("started successfully on port ")?;
            Some(port.trim_end_matches('.').to_owned())
        });
        started.address = format!("http://127.0.0.1:{}", port.expect("chromedriver says its port"));
        Some(started)
    }

    async fn browser(&self, profile: &std::path::Path) -> WebDriver {
        // The client is built with TLS although nothing here speaks it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut chrome = DesiredCapabilities::chrome();
        for flag in [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            "--window-size=1280,900",
        ] {
            chrome.add_arg(flag).expect("a flag");
        }
        chrome.add_arg(&format!("--user-data-dir={}", profile.display())).expect("a flag");
        WebDriver::new(&self.address, chrome).await.expect("chromium starts")
    }
}

/// The browser with the words of this story.
struct Page {
    driver: WebDriver,
    farm: String,
}

impl Page {
    async fn open(&self, path: &str) {
        self.driver.goto(format!("{}{path}", self.farm)).await.unwrap();
    }

    async fn path(&self) -> String {
        let url = self.driver.current_url().await.unwrap();
        url.as_str().trim_start_matches(&self.farm).to_owned()
    }

    async fn run(&self, script: &str) -> serde_json::Value {
        self.driver.execute(script, Vec::new()).await.unwrap().json().clone()
    }

    /// Text of the page, as a person sees it.
    async fn text(&self) -> String {
        let text = self.run("return document.body ? document.body.innerText : ''").await;
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until the script is true. Never a fixed pause: the page decides when.
    async fn until(&self, what: &str, script: &str) {
        for _ in 0..150 {
            // A page that is just being replaced answers with an error; the next one is asked.
            let seen = self.driver.execute(format!("return !!({script})"), Vec::new()).await;
            if seen.is_ok_and(|seen| seen.json() == &serde_json::Value::Bool(true)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("never came: {what}\n{}\n{}", self.path().await, self.text().await);
    }

    async fn shows(&self, text: &str) {
        self.until(text, &format!("document.body.innerText.includes({})", serde_json::json!(text))).await;
    }

    async fn press(&self, button: &str) {
        let found = format!("//button[normalize-space()='{button}' and not(@disabled)]");
        self.driver.find(By::XPath(found)).await.unwrap().click().await.unwrap();
    }

    async fn sign_in(&self, token: &str) {
        self.driver.find(By::Name("token")).await.unwrap().send_keys(token).await.unwrap();
        self.press("Sign in").await;
    }

    async fn size(&self, width: u32, height: u32) {
        self.driver.set_window_rect(0, 0, width, height).await.unwrap();
    }

    async fn picture(&self, name: &str) {
        if let Some(folder) = std::env::var_os("FORGEYARD_SCREENSHOTS") {
            let file = std::path::Path::new(&folder).join(format!("{name}.png"));
            self.driver.screenshot(&file).await.unwrap();
        }
    }
}

const LONG_LOG: u64 = 3000;
const DECISIVE: u64 = 1412;

fn long_log() -> String {
    let line = |number| match number {
        DECISIVE => "src/solve.cu(53): error: identifier \"fy_stride\" is undefined\n".to_owned(),
        number => format!("[{number}/{LONG_LOG}] compiling kernel {number}\n"),
    };
    (1..=LONG_LOG).map(line).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_follow_a_pipeline_from_sign_in_to_the_decisive_line() {
    let Some(chromedriver) = Chromedriver::start() else {
        assert!(
            std::env::var_os("FORGEYARD_REQUIRE_BROWSER").is_none(),
            "chromium or chromedriver is missing"
        );
        println!("SKIPPED: chromium or chromedriver is not installed");
        return;
    };
    let profile = tempfile::tempdir().unwrap();
    let driver = chromedriver.browser(profile.path()).await;
    let rig = Rig::start().await;
    let page = Page { driver: driver.clone(), farm: rig.address.clone() };
    // The story panics where it goes wrong; the browser must not stay behind.
    let story = tokio::spawn(async move {
        first_steps(&page, &rig).await;
        follow(&page, &rig).await;
        look(&page, &rig).await;
        forged(&page, &rig).await;
        only_read(&page, &rig).await;
        // The page still listens for events; the farm must not wait for it.
        rig.end().await;
    });
    let told = story.await;
    let _ = driver.quit().await;
    told.unwrap();
}

/// Signing in, and what an empty farm says.
async fn first_steps(page: &Page, rig: &Rig) {
    page.open("/pipelines?state=all").await;
    assert_eq!(page.path().await, "/login?next=%2Fpipelines%3Fstate%3Dall");
    page.picture("login").await;
    page.sign_in("fy_wrong").await;
    page.shows("the token is unknown, revoked or over").await;
    page.sign_in(&rig.admin).await;
    page.shows("No pipeline yet").await;
    page.shows("forgeyard tour").await;
    assert_eq!(page.path().await, "/pipelines?state=all");
    page.picture("empty").await;
    // The script cannot reach the cookie.
    assert_eq!(page.run("return document.cookie").await, "");
}

/// A pipeline that moves while somebody watches, stops, runs again and fails.
async fn follow(page: &Page, rig: &Rig) {
    let site = rig.join().await;
    rig.report(site).await;
    let pipeline = rig.run("kestrel").await;
    let job = rig.plan_of(pipeline);
    let attempt = rig.begin(site, job).await;
    page.open(&format!("/pipelines/{pipeline}")).await;
    page.run("window.same = true").await;
    page.until(
        "plan is not running yet",
        "!document.querySelector('#live').innerText.includes('running since')",
    )
    .await;
    rig.step(attempt, "render").await;
    page.until(
        "the pipeline moves by itself",
        "/plan\\s+running/.test(document.querySelector('#live').innerText)",
    )
    .await;
    assert_eq!(page.run("return window.same === true").await, true, "without loading the page again");
    page.picture("pipeline-running").await;

    // The log of a running job follows what is written.
    page.open(&format!("/jobs/{job}")).await;
    rig.write(attempt, "resolving the recipe\n<b>not markup</b>\n").await;
    page.shows("<b>not markup</b>").await;
    rig.write(attempt, "second piece\n").await;
    page.shows("second piece").await;
    page.picture("job-running").await;

    // Cancel asks back, then the job stops, and the page says so.
    page.press("Cancel").await;
    page.driver.accept_alert().await.unwrap();
    page.shows("Stopping…").await;
    rig.finish(attempt, "render", 0, true).await;
    page.until("the job is canceled", "document.querySelector('.title-row').innerText.includes('canceled')")
        .await;
    assert!(matches!(rig.job(job).state, JobState::Ended { .. }));

    // Rerun makes a second attempt, which fails in the middle of a long log.
    page.press("Rerun").await;
    page.until("it runs again", "!document.querySelector('.title-row').innerText.includes('canceled')").await;
    let attempt = rig.begin(site, job).await;
    rig.step(attempt, "render").await;
    rig.write(attempt, &long_log()).await;
    rig.finish(attempt, "render", 1, false).await;
    page.open(&format!("/jobs/{job}")).await;
    page.shows("build.compile").await;
    let line = format!("document.getElementById('L{DECISIVE}')");
    page.until(
        "the decisive line is in sight of the log",
        &format!(
            "(() => {{ const box = document.querySelector('div.log'), at = {line}.offsetTop - box.scrollTop; \
             return {line}.classList.contains('decisive') && at >= 0 && at < box.clientHeight; }})()"
        ),
    )
    .await;
    page.until(
        "the lines behind it come by themselves",
        &format!("document.getElementById('L{LONG_LOG}') && document.getElementById('L{DECISIVE}')"),
    )
    .await;
    page.picture("job-failed").await;
    page.open(&format!("/pipelines/{pipeline}")).await;
    page.shows("Why it failed").await;
    page.picture("pipeline-failed").await;
}

/// Narrow and dark.
async fn look(page: &Page, rig: &Rig) {
    let (pipeline, job, artifact) = {
        let farm = rig.app.core.read();
        let pipeline = *farm.pipelines.keys().next().unwrap();
        let artifact = *farm.artifacts.keys().next().unwrap();
        (pipeline, farm.jobs_of(pipeline).next().unwrap().id, artifact)
    };
    let pages = [
        ("pipelines", "/pipelines".to_owned()),
        ("pipeline", format!("/pipelines/{pipeline}")),
        ("job", format!("/jobs/{job}")),
        ("devices", "/devices".to_owned()),
        ("sites", "/sites".to_owned()),
        ("artifacts", "/artifacts".to_owned()),
        ("artifact", format!("/artifacts/{artifact}")),
        ("channels", "/channel".to_owned()),
        ("access", "/access?repository=9000000001&person=7000000001&event=push&resource=local".to_owned()),
        ("deliveries", "/deliveries".to_owned()),
        ("audit", "/audit".to_owned()),
        ("status", "/status".to_owned()),
    ];
    page.size(390, 844).await;
    for (name, path) in &pages {
        page.open(path).await;
        page.picture(&format!("phone-{name}")).await;
        let wide = page.run("return [document.documentElement.scrollWidth, window.innerWidth]").await;
        assert!(wide[0].as_u64() <= wide[1].as_u64(), "{path} scrolls sideways: {wide}");
        assert!(wide[1].as_u64() < Some(600), "the window is not that of a phone: {wide}");
    }
    page.size(1280, 900).await;
    let ground = "return getComputedStyle(document.body).backgroundColor";
    page.open("/pipelines").await;
    let light = page.run(ground).await;
    // system, light, dark
    for _ in 0..2 {
        page.driver.find(By::Css("button.theme")).await.unwrap().click().await.unwrap();
    }
    page.until("dark is chosen", "document.documentElement.dataset.theme === 'dark'").await;
    assert_ne!(page.run(ground).await, light);
    for (name, path) in &pages {
        page.open(path).await;
        page.picture(&format!("dark-{name}")).await;
        assert_eq!(page.run("return document.documentElement.dataset.theme").await, "dark", "{path}");
    }
    page.driver.find(By::Css("button.theme")).await.unwrap().click().await.unwrap();
}

/// A form without the token of the session is refused, although the browser sends the cookie.
async fn forged(page: &Page, rig: &Rig) {
    let site = *rig.app.core.read().sites.keys().next().unwrap();
    page.open("/sites").await;
    page.run("document.querySelector('form[action$=drain] input[name=csrf]').value = 'forged'").await;
    page.press("Drain").await;
    page.shows("auth.csrf").await;
    assert!(rig.app.core.read().sites[&site].draining_since.is_none());
    page.open("/sites").await;
    page.press("Drain").await;
    page.shows("draining").await;
    assert!(rig.app.core.read().sites[&site].draining_since.is_some());
    // Another site leads here: its browser sends no strict cookie at first, and still no second sign-in is asked for.
    let elsewhere = rig.address.replace("127.0.0.1", "localhost");
    page.driver.goto(format!("{elsewhere}/status")).await.unwrap();
    page.run(&format!("location.href = '{}/sites'", rig.address)).await;
    page.until(
        "the sites, signed in",
        "location.pathname === '/sites' && document.body.innerText.includes('Sign out')",
    )
    .await;
}

/// Whoever only reads gets nothing to press.
async fn only_read(page: &Page, rig: &Rig) {
    page.open("/pipelines").await;
    page.press("Sign out").await;
    page.until("signed out", "location.pathname === '/login'").await;
    assert!(page.driver.get_named_cookie(auth::COOKIE).await.is_err());
    let viewer = rig.token("reader", Role::Viewer).await;
    page.sign_in(&viewer).await;
    page.shows("kestrel").await;
    let job = *rig.app.core.read().jobs.keys().next().unwrap();
    for path in [format!("/jobs/{job}"), "/devices".to_owned(), "/sites".to_owned()] {
        page.open(&path).await;
        let forms = page.run("return document.querySelectorAll('main form[method=post]').length").await;
        assert_eq!(forms, 0, "{path}");
        let pressed = "return document.querySelectorAll('main button.primary:not([disabled]), main button.danger:not([disabled])').length";
        assert_eq!(page.run(pressed).await, 0, "{path}");
    }
}
