//! `forgeyard forge connect github`: an App of the farm's own, made from a manifest in one click.
//!
//! ```text
//! this command ── page with one button ──► browser ── form with the manifest ──► GitHub
//!      ▲                                                                            │ the person agrees
//!      └── /callback?code&state ◄── browser ◄── redirect ───────────────────────────┘
//!      └── code ──► conversion endpoint ──► key, webhook secret, client secret ──► files of mode 0600
//! ```
//!
//! The page is served by this command and not by the farm, which needs no right to make Apps. Its address holds a ticket
//! that only the operator's terminal shows, so nobody else sees the state; a callback with another state does nothing.
//! The command goes on waiting after a forged or expired answer. It listens on loopback only, unless a proxy with TLS
//! stands in front: the code, which is worth the key, must not cross a network in clear.

use super::files::{Places, Section};
use super::page;
use crate::connect::At;
use crate::output::{Wrong, say, say_json};
use anyhow::{Context as _, Result};
use axum::extract::{Path as UrlPath, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use clap::Args;
use forgeyard_forges::github::needs::{self, Place, Wish};
use forgeyard_forges::github::{Cause, ConvertedApp, Endpoint, HttpOptions, Login, convert_manifest};
use forgeyard_model::{Digest, ForgeName, Secret};
use serde::Deserialize;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, mpsc};

/// GitHub's limit on the length of an App's name.
const NAME_LIMIT: usize = 34;
/// How long the command waits for the person.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Options of `forge connect github`.
#[derive(Args, Clone)]
pub struct ConnectArgs {
    /// Organisation that is to own the App; your own account when absent.
    #[arg(long, value_name = "LOGIN")]
    organisation: Option<String>,
    /// Address of a GitHub Enterprise Server; github.com when absent.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Name of the forge in the configuration and in the address of its webhooks.
    #[arg(long, default_value = "github", value_name = "NAME")]
    name: ForgeName,
    /// Name of the App, which no other App of that GitHub has; you may still change it on GitHub's page.
    #[arg(long, value_name = "NAME")]
    app_name: Option<String>,
    /// Where GitHub reaches the farm. Without it the App sends no webhooks, and the farm asks for its work.
    #[arg(long, value_name = "URL")]
    farm_url: Option<String>,
    /// Where runners are registered; by default at the organisation if one is named, which needs fewer rights.
    #[arg(long, value_enum)]
    register_at: Option<At>,
    /// Folder for the key and the secrets.
    #[arg(long, default_value = "forgeyard-data/forges", value_name = "FOLDER")]
    folder: PathBuf,
    /// Put files of an earlier App aside, as NAME.old-1 and so on. Nothing is ever overwritten.
    #[arg(long)]
    replace: bool,
    /// Configuration that the new section is added to; it is only printed when absent.
    #[arg(long, env = "FORGEYARD_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where the page with the button is served: an address of this machine.
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// How your browser reaches that page, when a proxy with TLS stands in front of it.
    #[arg(long, value_name = "URL")]
    address: Option<String>,
    /// Further certificate authority to trust, PEM.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Print what GitHub would be asked for, and stop.
    #[arg(long)]
    dry_run: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// What the page and the callback share.
struct Desk {
    endpoint: Endpoint,
    http: HttpOptions,
    places: Places,
    manifest: String,
    action: String,
    /// In the address of the page.
    ticket: String,
    /// Handed to GitHub and back.
    state: Secret,
    /// Taken by the first callback that succeeds.
    done: Mutex<Option<mpsc::Sender<Result<ConvertedApp>>>>,
}

#[derive(Deserialize)]
struct Callback {
    code: Option<String>,
    state: Option<String>,
}

fn random() -> String {
    rand::random::<[u8; 24]>().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl ConnectArgs {
    fn endpoint(&self) -> Result<Endpoint> {
        match &self.url {
            None => Ok(Endpoint::github_com()),
            Some(url) => Endpoint::enterprise(url)
                .with_context(|| Wrong::new(format!("`{url}` cannot be the address of a GitHub"))),
        }
    }

    fn organisation(&self) -> Result<Option<Login>> {
        let read = |login: &String| {
            Login::parse(login)
                .with_context(|| Wrong::new("--organisation").fix("give its name as in its address"))
        };
        self.organisation.as_ref().map(read).transpose()
    }

    fn place(&self) -> Result<Place> {
        match (self.register_at, &self.organisation) {
            (Some(At::Organisation), None) => {
                Err(Wrong::new("runners of an organisation need an organisation")
                    .fix("add --organisation")
                    .into())
            }
            (Some(At::Organisation), _) | (None, Some(_)) => Ok(Place::Organisation),
            (Some(At::Repository), _) | (None, None) => Ok(Place::Repository),
        }
    }

    fn app_name(&self) -> String {
        let default = || format!("forgeyard-{}", self.organisation.as_deref().unwrap_or("farm"));
        self.app_name.clone().unwrap_or_else(default).chars().take(NAME_LIMIT).collect()
    }

    /// Where webhooks go.
    fn hook(&self) -> Result<Option<String>> {
        let Some(farm) = &self.farm_url else { return Ok(None) };
        let url = reqwest::Url::parse(farm).with_context(|| {
            Wrong::new(format!("`{farm}` is no address")).fix("give --farm-url as https://…")
        })?;
        if !matches!(url.scheme(), "https" | "http") {
            return Err(Wrong::new(format!("GitHub cannot send to `{farm}`"))
                .fix("give --farm-url as https://…")
                .into());
        }
        Ok(Some(format!("{}/webhooks/{}", farm.trim_end_matches('/'), self.name)))
    }

    fn checked_listen(&self) -> Result<()> {
        let covered = self.address.as_deref().is_some_and(|address| address.starts_with("https://"));
        if self.listen.ip().is_loopback() || covered {
            return Ok(());
        }
        Err(Wrong::new(format!("the page on {} would hand out the App's code in clear", self.listen))
            .fix("leave --listen out and use `ssh -L` to reach the page, or give the --address of a proxy with TLS")
            .into())
    }
}

/// Makes an App.
pub async fn run(args: ConnectArgs) -> Result<ExitCode> {
    args.checked_listen()?;
    let (endpoint, organisation, place, hook) =
        (args.endpoint()?, args.organisation()?, args.place()?, args.hook()?);
    let listener = tokio::net::TcpListener::bind(args.listen).await.with_context(|| {
        Wrong::new(format!("cannot listen on {}", args.listen)).fix("choose another --listen")
    })?;
    let port = listener.local_addr()?;
    let address = args.address.clone().unwrap_or_else(|| format!("http://{port}"));
    let address = address.trim_end_matches('/').to_owned();
    let wish = Wish {
        name: args.app_name(),
        farm: args.farm_url.clone().unwrap_or_else(|| match &organisation {
            // GitHub wants an address of the App's maker, and a farm without an inbound port has none.
            Some(login) => format!("{}/{login}", endpoint.web()),
            None => endpoint.web().to_owned(),
        }),
        redirect: format!("{address}/callback"),
        hook: hook.clone(),
        place,
    };
    let manifest = needs::manifest(&wish);
    let state = random();
    let action = needs::manifest_page(&endpoint, organisation.as_ref(), &state);
    if args.dry_run {
        let page = action.split('?').next().unwrap_or_default();
        say_json(&json!({ "page": page, "manifest": manifest }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let places = Places::prepare(&args.folder, &args.name, args.replace)?;
    let (done, outcome) = mpsc::channel(1);
    let desk = Arc::new(Desk {
        endpoint: endpoint.clone(),
        http: HttpOptions { ca_file: args.ca.clone(), ..HttpOptions::default() },
        places: places.clone(),
        manifest: manifest.to_string(),
        action,
        ticket: random(),
        state: Secret::new(state),
        done: Mutex::new(Some(done)),
    });
    invite(&desk, &address, port, &args)?;
    let app = served(listener, desk, outcome).await?;
    let section = Section {
        forge: args.name.clone(),
        web: args.url.as_ref().map(|_| endpoint.web().to_owned()),
        register_at: if place == Place::Organisation { "organisation" } else { "repository" },
        client_id: app.client_id.clone(),
        places,
        hook: app.webhook_secret.is_some(),
    };
    report(&args, &app, &section)
}

/// Says which page to open. It goes to standard error when standard output is for programs.
fn invite(desk: &Desk, address: &str, port: SocketAddr, args: &ConnectArgs) -> Result<()> {
    let mut text = format!(
        "open this page in a browser; its address is a secret until the App is made:\n\n  {address}/{}\n\n",
        desk.ticket
    );
    if args.address.is_none() {
        text.push_str(&format!(
            "if the browser is on another machine, let it reach this one first:\n  ssh -N -L {0}:{1} THIS-MACHINE\n\n",
            port.port(),
            port
        ));
    }
    text.push_str("waiting for GitHub; Ctrl-C ends this, and nothing is left behind");
    if args.json {
        eprintln!("{text}");
        return Ok(());
    }
    say(&text)
}

/// Serves page and callback until an App was made.
async fn served(
    listener: tokio::net::TcpListener,
    desk: Arc<Desk>,
    mut outcome: mpsc::Receiver<Result<ConvertedApp>>,
) -> Result<ConvertedApp> {
    let router = axum::Router::new()
        .route("/callback", get(callback))
        .route("/{ticket}", get(button))
        .with_state(desk);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = axum::serve(listener, router).with_graceful_shutdown(async {
        let _ = stopped.await;
    });
    let server = tokio::spawn(std::future::IntoFuture::into_future(server));
    let made = tokio::time::timeout(PATIENCE, outcome.recv()).await;
    // The browser is to see the last page; a connection that it keeps open is not waited for.
    let _ = stop.send(());
    let _ = tokio::time::timeout(Duration::from_secs(2), server).await;
    match made {
        Ok(Some(app)) => app,
        Ok(None) => anyhow::bail!("the page ended without an answer"),
        Err(_) => Err(Wrong::new("nobody made the App within an hour").fix("run the command again").into()),
    }
}

async fn button(State(desk): State<Arc<Desk>>, UrlPath(ticket): UrlPath<String>) -> Response {
    let web = desk.endpoint.web();
    if Digest::of(ticket.as_bytes()) != Digest::of(desk.ticket.as_bytes()) {
        return page::page(
            StatusCode::NOT_FOUND,
            "Not this page",
            "<p>Open the address that the command printed.</p>",
        );
    }
    let asked: Value = serde_json::from_str(&desk.manifest).unwrap_or_default();
    let mut body = format!(
        "<p>GitHub will ask you to confirm an App named <b>{}</b> at <code>{}</code>. It asks for:</p><ul>",
        page::escaped(asked["name"].as_str().unwrap_or_default()),
        page::escaped(web)
    );
    for need in needs::NEEDS.iter().filter(|need| asked["default_permissions"].get(need.permission).is_some())
    {
        body.push_str(&format!(
            "<li><code>{}: {}</code> to {}</li>",
            need.permission,
            need.level,
            page::escaped(need.why)
        ));
    }
    body.push_str("</ul>");
    match asked["hook_attributes"]["url"].as_str() {
        Some(hook) => body.push_str(&format!("<p>Events go to <code>{}</code>.</p>", page::escaped(hook))),
        None => body.push_str("<p>It sends no webhooks: the farm asks for its work.</p>"),
    }
    body.push_str(&page::form(&desk.action, &desk.manifest));
    page::page(StatusCode::OK, "An App for the farm", &body)
}

async fn callback(State(desk): State<Arc<Desk>>, Query(query): Query<Callback>) -> Response {
    let refused = |status, title: &str, text: &str| page::page(status, title, &format!("<p>{text}</p>"));
    let theirs = query.state.as_deref().unwrap_or_default();
    // Compared as digests: how long it takes says nothing of how much was right.
    if Digest::of(theirs.as_bytes()) != Digest::of(desk.state.expose().as_bytes()) {
        eprintln!("refused: an answer whose state is not ours; still waiting");
        let text = "This answer does not belong to the form of the command that waits here. Nothing was done with it.";
        return refused(StatusCode::FORBIDDEN, "Not our answer", text);
    }
    let Some(code) = query.code else {
        return refused(StatusCode::BAD_REQUEST, "No code", "GitHub's answer holds no code.");
    };
    // Held while the code is redeemed: a page that is loaded twice redeems it once.
    let mut done = desk.done.lock().await;
    let Some(sender) = done.clone() else {
        return refused(StatusCode::OK, "Done already", "The App is made. See the terminal.");
    };
    let app = match convert_manifest(&desk.endpoint, &desk.http, &Secret::new(code)).await {
        Ok(app) => app,
        Err(error) => {
            let old = matches!(error.cause(), Some(Cause::NotFound));
            let reason = if old {
                "GitHub does not know this code: it is older than an hour, or was used before".to_owned()
            } else {
                crate::output::chain(&error)
            };
            eprintln!("no App yet: {reason}; still waiting");
            let status = if old { StatusCode::GONE } else { StatusCode::BAD_GATEWAY };
            let text = format!(
                "{}. Go back to the page of the command and press the button again.",
                page::escaped(&reason)
            );
            return refused(status, "No App yet", &text);
        }
    };
    *done = None;
    let written = desk.places.write(&app);
    let link = page::escaped(&format!("{}/installations/new", app.html_url));
    let body = match &written {
        Ok(()) => format!(
            "<p>The key and the secrets are in files of the farm. Now <a href=\"{link}\">install the App</a> on the \
             repositories that may use the farm. The terminal says what comes then.</p>"
        ),
        Err(_) => {
            "<p>The App is made, but its key could not be kept. The terminal says what to do.</p>".to_owned()
        }
    };
    let settings = app.html_url.clone();
    let outcome = written.map(|()| app).with_context(|| {
        Wrong::new("the App is made, but its key could not be written, and GitHub gives it out once").fix(format!(
            "make a new private key and a new webhook secret in the settings of {settings}, or delete the App there and run \
             the command again"
        ))
    });
    let _ = sender.send(outcome).await;
    page::page(StatusCode::OK, "The App is made", &body)
}

/// Says what was made and what comes next.
fn report(args: &ConnectArgs, app: &ConvertedApp, section: &Section) -> Result<ExitCode> {
    let by_hand = match &args.config {
        Some(config) => section.add_to(config)?,
        None => Some("add this to forgeyard.toml".to_owned()),
    };
    let text = section.text(!by_hand.as_deref().is_some_and(|words| words.ends_with("below it")));
    let install = format!("{}/installations/new", app.html_url);
    let places = &section.places;
    if args.json {
        say_json(&json!({
            "app": { "id": app.id, "slug": app.slug, "name": app.name, "client_id": app.client_id, "page": app.html_url },
            "key_file": places.key,
            "webhook_secret_file": section.hook.then_some(&places.webhook),
            "client_secret_file": places.client,
            "section": text,
            "written": by_hand.is_none(),
            "install": install,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = format!("\nthe App {} (id {}) is made: {}\n", app.name, app.id, app.html_url);
    out.push_str(&format!("  key:            {}\n", places.key.display()));
    if section.hook {
        out.push_str(&format!("  webhook secret: {}\n", places.webhook.display()));
    }
    out.push_str(&format!("  client secret:  {} (for the login of people)\n\n", places.client.display()));
    match (&by_hand, &args.config) {
        (None, Some(config)) => out.push_str(&format!("added to {}:\n\n", config.display())),
        (words, _) => out.push_str(&format!("{}:\n\n", words.as_deref().unwrap_or_default())),
    }
    out.push_str(&text);
    out.push_str(&format!(
        "\nnow install the App on the repositories that may use the farm, and on no others:\n  {install}\n\
         then start the farm anew, and prove the connection:\n  forgeyard forge doctor --config {}\n",
        args.config.as_deref().unwrap_or(std::path::Path::new("forgeyard.toml")).display()
    ));
    say(&out)?;
    Ok(ExitCode::SUCCESS)
}
