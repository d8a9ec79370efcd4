//! A channel over loopback: a copy of the fixtures that a test may change, served by a small server.

#![allow(dead_code, reason = "each test file uses its own part")]

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use forgeyard_envs::{Limits, MakeRequest, VirtualPackage};
use forgeyard_model::{EnvironmentId, Id as _, Timestamp};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use tokio::sync::Notify;

/// A channel that is served until it is dropped.
pub(crate) struct Channel {
    folder: tempfile::TempDir,
    served: Arc<Served>,
    pub(crate) url: String,
    task: tokio::task::JoinHandle<()>,
}

struct Served {
    folder: PathBuf,
    /// Packages are asked for and never answered.
    stall: AtomicBool,
    stalled: Notify,
    downloads: AtomicU32,
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Channel {
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/channel");
        for subdir in ["noarch", "linux-64"] {
            std::fs::create_dir(folder.path().join(subdir)).unwrap();
            for entry in std::fs::read_dir(fixtures.join(subdir)).unwrap() {
                let from = entry.unwrap().path();
                std::fs::copy(&from, folder.path().join(subdir).join(from.file_name().unwrap())).unwrap();
            }
        }
        let served = Arc::new(Served {
            folder: folder.path().to_owned(),
            stall: AtomicBool::new(false),
            stalled: Notify::new(),
            downloads: AtomicU32::new(0),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/channels/main", listener.local_addr().unwrap());
        let router = axum::Router::new().fallback(serve).with_state(served.clone());
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { folder, served, url, task }
    }

    /// Changes the index of a platform folder.
    pub(crate) fn edit_index(&self, subdir: &str, edit: impl FnOnce(&mut serde_json::Value)) {
        let path = self.folder.path().join(subdir).join("repodata.json");
        let mut index = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        edit(&mut index);
        std::fs::write(&path, serde_json::to_vec(&index).unwrap()).unwrap();
    }

    /// Takes a package out of the index and gives back its record.
    pub(crate) fn unpublish(&self, subdir: &str, stem: &str) -> (String, serde_json::Value) {
        let mut taken = None;
        self.edit_index(subdir, |index| {
            let packages = index["packages.conda"].as_object_mut().unwrap();
            let name = packages.keys().find(|name| name.starts_with(stem)).unwrap().clone();
            taken = packages.remove(&name).map(|record| (name, record));
        });
        taken.unwrap()
    }

    pub(crate) fn stall(&self, stall: bool) {
        self.served.stall.store(stall, Ordering::SeqCst);
    }

    /// Waits until a package was asked for in vain.
    pub(crate) async fn stalled(&self) {
        self.served.stalled.notified().await;
    }

    /// How many packages were sent.
    pub(crate) fn downloads(&self) -> u32 {
        self.served.downloads.load(Ordering::SeqCst)
    }
}

async fn serve(State(served): State<Arc<Served>>, request: Request) -> Response {
    let path = request.uri().path().strip_prefix("/channels/main/").unwrap_or_default().to_owned();
    let Ok(bytes) = std::fs::read(served.folder.join(&path)) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    if path.ends_with(".conda") {
        if served.stall.load(Ordering::SeqCst) {
            served.stalled.notify_one();
            std::future::pending::<()>().await;
        }
        served.downloads.fetch_add(1, Ordering::SeqCst);
    }
    // A server that allows a day of caching, as channels on a content network do.
    ([("cache-control", "max-age=86400")], bytes).into_response()
}

/// Folders of environments and packages of one test.
pub(crate) struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::Builder::new().prefix("envs-").tempdir().unwrap() }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.folder.path().join("envs")
    }

    pub(crate) fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    /// Names in the root that are not staging.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.root()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != ".staging").collect()
    }

    /// Names in staging.
    pub(crate) fn staging(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.root().join(".staging")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    pub(crate) fn request(&self, channel_url: &str, specs: &[&str], run: &[&str]) -> MakeRequest {
        let texts = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect();
        MakeRequest {
            id: EnvironmentId::new(Timestamp::from_micros(1_700_000_000_000_000), 1),
            name: "test".parse().unwrap(),
            channel_urls: vec![channel_url.to_owned()],
            specs: texts(specs),
            run: texts(run),
            ca_file: None,
            root_dir: self.root(),
            cache_dir: self.cache(),
            platform: "linux-64".into(),
            virtual_packages: vec![VirtualPackage::new("__unix", "0"), VirtualPackage::new("__linux", "6.1")],
            limits: Limits::default(),
        }
    }
}
