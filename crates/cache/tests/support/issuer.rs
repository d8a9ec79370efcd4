//! A *simulated issuer*: a local HTTP server with RSA keys of its own that makes tokens as GitHub and GitLab document them.

use super::NOW;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use forgeyard_cache::identity::policy::{Issuer, IssuerKind, Project};
use ring::signature::{KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

pub const AUDIENCE: &str = "https://cache.example";

pub fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The simulated issuer.
pub struct Simulated {
    pub url: String,
    pub published: Arc<Mutex<Vec<&'static str>>>,
    pub fetches: Arc<AtomicUsize>,
    pub up: Arc<Mutex<bool>>,
}

pub fn pair(id: &str) -> RsaKeyPair {
    let der: &[u8] = match id {
        "first" => include_bytes!("../issuer/first.der"),
        _ => include_bytes!("../issuer/second.der"),
    };
    RsaKeyPair::from_pkcs8(der).unwrap()
}

pub fn modulus(id: &str) -> Vec<u8> {
    let public: ring::rsa::PublicKeyComponents<Vec<u8>> = pair(id).public_key().into();
    public.n
}

impl Simulated {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let published = Arc::new(Mutex::new(vec!["first"]));
        let (fetches, up) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(true)));
        let (keys, counted, alive) = (Arc::clone(&published), Arc::clone(&fetches), Arc::clone(&up));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 4096]);
                counted.fetch_add(1, Ordering::SeqCst);
                let all: Vec<Value> = keys.lock().unwrap().iter().map(|id| {
                    json!({"kty": "RSA", "kid": id, "use": "sig", "alg": "RS256", "e": "AQAB", "n": encode(modulus(id))})
                }).collect();
                let body = json!({ "keys": all }).to_string();
                let status = if *alive.lock().unwrap() { "200 OK" } else { "500 Internal Server Error" };
                let head = format!(
                    "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                let _ = stream.write_all((head + &body).as_bytes());
            }
        });
        Self { url, published, fetches, up }
    }

    pub fn sign(&self, kid: &str, with: &str, claims: &Value) -> String {
        let head = encode(json!({"alg": "RS256", "typ": "JWT", "kid": kid}).to_string());
        let signed = format!("{head}.{}", encode(claims.to_string()));
        let pair = pair(with);
        let mut made = vec![0; pair.public().modulus_len()];
        pair.sign(&RSA_PKCS1_SHA256, &ring::rand::SystemRandom::new(), signed.as_bytes(), &mut made).unwrap();
        format!("{signed}.{}", encode(made))
    }

    /// Claims of a push to the protected default branch; `id` is the token's.
    pub fn push(&self, id: &str) -> Value {
        let now = NOW / 1_000_000;
        json!({
            "iss": self.url, "aud": AUDIENCE, "jti": id, "iat": now, "nbf": now - 5, "exp": now + 300,
            "sub": "repo:octo/p:ref:refs/heads/main", "repository": "octo/p", "repository_id": "100",
            "repository_owner_id": "7", "event_name": "push", "ref": "refs/heads/main", "ref_protected": "true",
            "run_id": "4711", "run_attempt": "1",
        })
    }
}

pub fn issuer(kind: IssuerKind, simulated: &Simulated) -> Issuer {
    let project = Project {
        id: 100,
        owner: 7,
        main: "p/main".parse().unwrap(),
        pulls: "p/pr".parse().unwrap(),
        default_branch: "main".to_owned(),
    };
    Issuer {
        kind,
        issuer: simulated.url.clone(),
        keys: None,
        audience: (kind != IssuerKind::GithubRuntime).then(|| AUDIENCE.to_owned()),
        hours: 2,
        projects: vec![project],
    }
}

pub fn with(mut claims: Value, changes: Value) -> Value {
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => claims.as_object_mut().unwrap().remove(name),
            value => claims.as_object_mut().unwrap().insert(name.clone(), value.clone()),
        };
    }
    claims
}
