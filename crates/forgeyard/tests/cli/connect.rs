//! `forge connect github` and `forge doctor` against the *simulated* GitHub: the page, the click, the callback, the files; then
//! what the doctor says of what was made.

use crate::rig::{Said, alone, program};
use forgeyard_forges::github::needs;
use forgeyard_forges::twin::{Setup, Twin};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, ChildStderr, ChildStdout, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// The command, waiting for a browser.
struct Waiting {
    child: Child,
    out: BufReader<ChildStdout>,
    err: BufReader<ChildStderr>,
    page: String,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A simulated Enterprise Server with one organisation, and a folder of the farm.
struct World {
    twin: Twin,
    folder: TempDir,
    browser: reqwest::Client,
}

impl World {
    async fn new() -> Self {
        let twin = Twin::start(Setup::enterprise_server()).await.unwrap();
        twin.with(|state| state.add_organization("conda"));
        let _ = rustls::crypto::ring::default_provider().install_default();
        let browser = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
        Self { twin, folder: tempfile::tempdir().unwrap(), browser }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn arguments(&self, more: &[&str]) -> Vec<String> {
        let mut all = ["forge", "connect", "github", "--organisation", "conda"].map(str::to_owned).to_vec();
        all.extend(["--url".to_owned(), self.twin.base().to_owned()]);
        all.extend(["--folder".to_owned(), self.path("secrets")]);
        all.extend(more.iter().map(|text| (*text).to_owned()));
        all
    }

    /// Starts the command and reads the address of its page.
    fn start(&self, more: &[&str]) -> Waiting {
        let arguments = self.arguments(more);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut child = program(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut err = BufReader::new(child.stderr.take().unwrap());
        let mut page = String::new();
        while !page.trim().starts_with("http://127.0.0.1:") {
            page.clear();
            // With --json the invitation is no part of the output.
            let read =
                if more.contains(&"--json") { err.read_line(&mut page) } else { out.read_line(&mut page) };
            assert_ne!(read.unwrap(), 0, "the command ended");
        }
        Waiting { child, out, err, page: page.trim().to_owned() }
    }

    /// Opens the page and presses the button: where the simulated GitHub sends the browser.
    async fn click(&self, page: &str) -> String {
        let html = self.browser.get(page).send().await.unwrap().error_for_status().unwrap();
        assert!(html.headers()["content-security-policy"].to_str().unwrap().contains("default-src 'none'"));
        let html = html.text().await.unwrap();
        let between = |from: &str| {
            let (_, rest) = html.split_once(from).unwrap();
            let text = rest.split_once('"').unwrap().0;
            text.replace("&quot;", "\"")
                .replace("&#39;", "'")
                .replace("&lt;", "<")
                .replace("&gt;", ">")
                .replace("&amp;", "&")
        };
        let (action, manifest) = (between("action=\""), between("name=\"manifest\" value=\""));
        assert!(
            action.starts_with(&format!("{}/organizations/conda/settings/apps/new?state=", self.twin.base()))
        );
        let asked: Value = serde_json::from_str(&manifest).unwrap();
        assert_eq!(
            asked["default_permissions"].as_object().unwrap().len(),
            needs::at(needs::Place::Organisation).count()
        );
        let body = format!("manifest={}", percent(&manifest));
        let form =
            self.browser.post(action).header("content-type", "application/x-www-form-urlencoded").body(body);
        let answer = form.send().await.unwrap();
        assert_eq!(answer.status(), 302);
        answer.headers()["location"].to_str().unwrap().to_owned()
    }

    async fn open(&self, url: &str) -> (u16, String) {
        let answer = self.browser.get(url).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }
}

fn percent(text: &str) -> String {
    text.bytes()
        .map(
            |byte| {
                if byte.is_ascii_alphanumeric() {
                    char::from(byte).to_string()
                } else {
                    format!("%{byte:02X}")
                }
            },
        )
        .collect()
}

impl Waiting {
    /// What the command said until it ended.
    fn end(mut self) -> Said {
        let mut out = String::new();
        std::io::Read::read_to_string(&mut self.out, &mut out).unwrap();
        let mut err = String::new();
        std::io::Read::read_to_string(&mut self.err, &mut err).unwrap();
        let code = self.child.wait().unwrap().code().unwrap();
        Said { code, out, err }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_click_makes_the_app_writes_its_secrets_and_its_section() {
    let world = World::new().await;
    let config = world.path("forgeyard.toml");
    fs_err::write(&config, "max-running = 3\n").unwrap();
    let more = ["--name", "ghes", "--farm-url", "https://farm.example/", "--config", &config];
    let waiting = world.start(&more);
    let back = world.click(&waiting.page).await;
    let (status, page) = world.open(&back).await;
    assert_eq!(status, 200, "{page}");
    assert!(page.contains("installations/new"), "{page}");
    let said = waiting.end().ends(0);
    assert!(said.out.contains("/installations/new") && said.out.contains("forge doctor"), "{}", said.out);

    let key = fs_err::read_to_string(world.path("secrets/ghes.pem")).unwrap();
    assert!(key.contains("PRIVATE KEY"));
    for name in ["ghes.pem", "ghes-webhook.secret", "ghes-client.secret"] {
        let metadata = fs_err::metadata(world.path(&format!("secrets/{name}"))).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600, "{name}");
        let text = fs_err::read_to_string(world.path(&format!("secrets/{name}"))).unwrap();
        assert!(!said.out.contains(text.trim()) && !said.err.contains(text.trim()), "{name} is printed");
    }
    let folder = fs_err::metadata(world.path("secrets")).unwrap();
    assert_eq!(folder.permissions().mode() & 0o777, 0o700);
    let text = fs_err::read_to_string(&config).unwrap();
    assert!(text.starts_with("max-running = 3\n"), "{text}");
    let written =
        ["name = \"ghes\"", "register-at = \"organisation\"", "client-id = \"Iv1.", "webhook-secret-file = "];
    assert!(written.iter().all(|part| text.contains(part)), "{text}");
    // The App that the simulated GitHub has sends its webhooks to this forge's own address, with the secret of the file.
    let secret = fs_err::read_to_string(world.path("secrets/ghes-webhook.secret")).unwrap();
    world.twin.with(|state| {
        let app = state.app(1_001).unwrap().clone();
        let hook = state.hook_mut(app.hook).unwrap();
        assert_eq!(hook.url.as_deref(), Some("https://farm.example/webhooks/ghes"));
        assert_eq!(hook.secret.expose(), secret);
        assert!(!app.permissions.contains_key("administration"), "what is not needed is not asked for");
    });
    // The farm reads what was written.
    alone(&["doctor", "--config", &config, "--json"]);
    let again = world.arguments(&more);
    let again: Vec<&str> = again.iter().map(String::as_str).collect();
    alone(&again).ends(2).names(&["ghes.pem exists already", "--replace"]);
    assert_eq!(fs_err::read_to_string(world.path("secrets/ghes.pem")).unwrap(), key);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_state_and_an_expired_code_make_nothing_and_the_next_click_does() {
    let world = World::new().await;
    let waiting = world.start(&["--json"]);
    let (origin, _) = waiting.page.rsplit_once('/').unwrap();
    assert_eq!(world.open(&format!("{origin}/{}", "0".repeat(48))).await.0, 404);
    // Somebody else's App, with a code that GitHub would redeem.
    let stranger = world.twin.with(|state| {
        let org = state.add_organization("stranger");
        state.accept_manifest(org, &json!({ "name": "trap", "url": "https://x.example" }))
    });
    for state in ["", "&state=", "&state=00"] {
        assert_eq!(world.open(&format!("{origin}/callback?code={stranger}{state}")).await.0, 403);
    }
    let redeemed =
        world.twin.with(|state| state.calls().any(|call| call.request.path.contains("/conversions")));
    assert!(!redeemed, "a forged answer reached GitHub");
    // The person goes for lunch between click and return.
    let late = world.click(&waiting.page).await;
    world.twin.advance(Duration::from_secs(3700)).await;
    let (status, page) = world.open(&late).await;
    assert_eq!((status, page.contains("press the button again")), (410, true), "{page}");
    let (_, state) = late.split_once("&state=").unwrap();
    assert_eq!(world.open(&format!("{origin}/callback?state={state}")).await.0, 400);
    assert!(!std::path::Path::new(&world.path("secrets/github.pem")).exists());
    let good = world.click(&waiting.page).await;
    assert_eq!(world.open(&good).await.0, 200);
    let said = waiting.end().ends(0);
    let told: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((told["written"].as_bool(), told["webhook_secret_file"].is_string()), (Some(false), true));
    assert!(std::path::Path::new(told["key_file"].as_str().unwrap()).exists());
}

#[test]
fn what_cannot_work_is_refused_before_anything_is_asked() {
    let base = ["forge", "connect", "github"];
    let with = |more: &[&str]| alone(&[&base[..], more].concat()).ends(2);
    with(&["--listen", "0.0.0.0:0"]).names(&["in clear", "ssh -L"]);
    with(&["--register-at", "organisation"]).names(&["--organisation"]);
    with(&["--url", "http://git.example.org"]).names(&["only https"]);
    with(&["--organisation", "a/b"]).names(&["not a login"]);
    let asked =
        alone(&[&base[..], &["--dry-run", "--farm-url", "https://farm.example"]].concat()).ends(0).out;
    let asked: Value = serde_json::from_str(&asked).unwrap();
    assert_eq!(asked["page"], "https://github.com/settings/apps/new");
    assert_eq!(asked["manifest"]["default_permissions"]["administration"], "write");
}

/// From nothing to a connection that is proved: an App by one click, installed, and a doctor who finds nothing.
#[tokio::test(flavor = "multi_thread")]
async fn what_connect_makes_is_whole_by_the_doctors_word_and_what_is_missing_ends_with_1() {
    #[allow(clippy::disallowed_methods, reason = "the simulated forge has no clock of its own")]
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros();
    let now = forgeyard_model::Timestamp::from_micros(i64::try_from(now).unwrap());
    let mut twin = Twin::start(Setup { now, ..Setup::enterprise_server() }).await.unwrap();
    twin.run_freely(1);
    twin.with(|state| (state.add_organization("conda"), state.add_repository("conda/feedstock")));
    let world = World { twin, ..World::new().await };
    let config = world.path("forgeyard.toml");
    fs_err::write(
        &config,
        "[[repositories]]\nforge = \"github\"\nid = 500001\nname = \"conda/feedstock\"\n\
         source = \"https://git.example/conda/feedstock.git\"\nprotected = []\nchannel = \"gpu\"\n",
    )
    .unwrap();
    let waiting = world.start(&["--config", &config]);
    let back = world.click(&waiting.page).await;
    assert_eq!(world.open(&back).await.0, 200);
    waiting.end().ends(0);
    let doctor = ["forge", "doctor", "--config", &config, "--json"];
    // The step that a person may forget.
    let told: Value = serde_json::from_str(&alone(&doctor).ends(1).out).unwrap();
    let bad = |told: &Value| -> Vec<String> {
        let findings = told["forges"][0]["findings"].as_array().unwrap();
        let bad = findings.iter().filter(|one| one["verdict"] == "bad");
        bad.map(|one| one["check"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(
        (bad(&told), told["good"].as_bool()),
        (vec!["installation".to_owned()], Some(false)),
        "{told}"
    );
    world.twin.with(|state| {
        let org = state.app(1_001).unwrap().owner;
        state.install(1_001, org, None)
    });
    let told: Value = serde_json::from_str(&alone(&doctor).ends(0).out).unwrap();
    assert_eq!(bad(&told), Vec::<String>::new(), "{told}");
    let said = alone(&["forge", "doctor", "--config", &config]).ends(0).out;
    assert!(said.contains("runner.mint") && said.contains(" good, 0 bad"), "{said}");
    assert_eq!(world.twin.with(|state| state.runners().count()), 0);
    alone(&["forge", "doctor", "ghes", "--config", &config])
        .ends(2)
        .names(&["no forge `ghes`", "forge connect"]);
}
