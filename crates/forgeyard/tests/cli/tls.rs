//! TLS by files, end to end: a whole farm behind a certificate that names it, as a proxy-less operator runs it.

use crate::rig::{alone, program};
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A whole farm that speaks TLS, under a certificate for the name `localhost` and for no address.
struct SecureFarm {
    folder: TempDir,
    url: String,
    process: Child,
}

impl SecureFarm {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (certificate, key) = (folder.path().join("farm.pem"), folder.path().join("farm.key"));
        fs_err::write(&certificate, made.cert.pem()).unwrap();
        fs_err::write(&key, made.signing_key.serialize_pem()).unwrap();
        let config = folder.path().join("forgeyard.toml");
        let text = format!(
            "farm = \"secure\"\nlisten = \"127.0.0.1:0\"\nlocal-listen = \"127.0.0.1:0\"\n\n[tls]\ncertificate = {certificate:?}\nkey = {key:?}\n"
        );
        fs_err::write(&config, text).unwrap();
        let (config, data) = (config.display().to_string(), folder.path().join("data").display().to_string());
        let mut process = program(&["up", "--config", &config, "--data", &data])
            .env("FORGEYARD_LOG", "error")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let line = lines.next().expect("it says where it listens").unwrap();
        let port = line.rsplit(':').next().expect("a port").trim().to_owned();
        assert!(line.contains("https://"), "{line}");
        // Nobody reads the rest; the pipe stays open until the farm ends.
        std::thread::spawn(move || lines.for_each(drop));
        Self { folder, url: format!("https://localhost:{port}"), process }
    }

    fn certificate(&self) -> PathBuf {
        self.folder.path().join("farm.pem")
    }

    fn call(&self, arguments: &[&str]) -> Command {
        let mut command = program(arguments);
        command.env("FORGEYARD_URL", &self.url);
        command.env("FORGEYARD_TOKEN_FILE", self.folder.path().join("data/admin.token"));
        command
    }
}

impl Drop for SecureFarm {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn farm_behind_a_certificate_of_its_name_has_its_own_site_and_people_reach_it() {
    let farm = SecureFarm::start();
    let ca = farm.certificate().display().to_string();
    // Its own site does not know the certificate's name, and joins all the same.
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let said = farm.call(&["site", "list", "--json", "--ca", &ca]).output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        let sites: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
        if sites.as_array().is_some_and(|sites| sites.iter().any(|site| site["name"] == "local")) {
            break;
        }
        assert!(Instant::now() < deadline, "the site did not join: {sites}");
        std::thread::sleep(Duration::from_millis(200));
    }
    // Who does not trust the certificate is not connected.
    let said = farm.call(&["site", "list"]).output().unwrap();
    assert!(!said.status.success());
    assert!(String::from_utf8_lossy(&said.stderr).contains("certificate"), "{said:?}");
}

#[tokio::test]
async fn session_cookie_of_a_farm_with_tls_is_never_sent_in_the_clear() {
    let farm = SecureFarm::start();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let pem = fs_err::read(farm.certificate()).unwrap();
    let client = reqwest::Client::builder()
        .tls_certs_merge(reqwest::Certificate::from_pem_bundle(&pem).unwrap())
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .unwrap();
    let token = fs_err::read_to_string(farm.folder.path().join("data/admin.token")).unwrap();
    let answer = client
        .post(format!("{}/login", farm.url))
        .header("content-type", "application/x-www-form-urlencoded")
        .header("origin", &farm.url)
        .header("sec-fetch-site", "same-origin")
        .body(format!("token={}", token.trim()))
        .send()
        .await
        .unwrap();
    let cookie = answer.headers().get("set-cookie").and_then(|value| value.to_str().ok()).unwrap_or_default();
    assert!(answer.status().is_redirection(), "{answer:?}");
    for part in ["; Secure", "; HttpOnly", "; SameSite=Strict"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    // The same port answers nobody who speaks without TLS.
    let plain = farm.url.replacen("https", "http", 1);
    assert!(client.get(format!("{plain}/healthz")).send().await.is_err());
}

#[test]
fn certificate_that_is_none_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (pem, config) = (folder.path().join("farm.pem"), folder.path().join("forgeyard.toml"));
    fs_err::write(&pem, "not a certificate\n").unwrap();
    fs_err::write(
        &config,
        format!("listen = \"127.0.0.1:0\"\n[tls]\ncertificate = {pem:?}\nkey = {pem:?}\n"),
    )
    .unwrap();
    let data = folder.path().join("data").display().to_string();
    let said = alone(&["serve", "--config", &config.display().to_string(), "--data", &data]);
    assert_ne!(said.code, 0);
    said.names(&["farm.pem"]);
}

#[test]
fn local_address_that_others_reach_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("forgeyard.toml");
    let text =
        "listen = \"127.0.0.1:0\"\nlocal-listen = \"0.0.0.0:0\"\n[tls]\ncertificate = \"c\"\nkey = \"k\"\n";
    fs_err::write(&config, text).unwrap();
    let data = folder.path().join("data").display().to_string();
    let said = alone(&["serve", "--config", &config.display().to_string(), "--data", &data]).ends(2);
    said.names(&["local-listen", "127.0.0.0/8"]);
}
