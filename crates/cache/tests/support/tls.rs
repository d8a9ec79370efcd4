//! An authority that no system trusts, certificates that it signs, and a service that speaks TLS with them.

use super::{Client, options};
use forgeyard_cache::service::{Options, Running, start};
use forgeyard_cache::store::log::Durability;
use forgeyard_cache::tls::TlsOptions;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An authority, and the folder of its files: `ca.pem`, and `chain.pem` and `key.pem` of the service.
pub struct Authority {
    pub folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn new(folder: &Path) -> Self {
        let folder = folder.to_owned();
        fs_err::create_dir_all(&folder).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority of a test");
        let key = KeyPair::generate().unwrap();
        fs_err::write(folder.join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        let made = Self { folder, issuer: Issuer::new(params, key) };
        made.sign(&["localhost", "127.0.0.1"], "chain.pem", "key.pem");
        made
    }

    /// Writes a new certificate for these names, and its key, each as a whole. Answers with the certificate.
    pub fn sign(&self, names: &[&str], chain: &str, key: &str) -> Vec<u8> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let made = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(names).unwrap().signed_by(&made, &self.issuer).unwrap();
        for (name, text) in [(chain, certificate.pem()), (key, made.serialize_pem())] {
            let beside = self.file("new");
            fs_err::write(&beside, text).unwrap();
            fs_err::rename(&beside, self.file(name)).unwrap();
        }
        certificate.der().to_vec()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub fn ca(&self) -> String {
        self.file("ca.pem").display().to_string()
    }

    /// Of a service that keeps what it has in this folder.
    pub fn options(&self, folder: &Path) -> Options {
        let tls = TlsOptions {
            local: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
            ..TlsOptions::new(self.file("chain.pem"), self.file("key.pem"))
        };
        Options { tls: Some(tls), ..options(folder, Durability::PageCache) }
    }

    pub fn service(&self, folder: &Path) -> Running {
        start(self.options(folder)).unwrap()
    }
}

/// A client that trusts what this file holds, and offers these protocols.
pub fn connection(ca: &Path, protocols: &[&[u8]]) -> rustls::ClientConnection {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = builder.unwrap().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    rustls::ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap()
}

/// How a test speaks to a service.
#[derive(Debug, Clone, Copy)]
pub enum Way {
    Plain,
    Tls,
}

impl Way {
    pub fn service(self, folder: &Path) -> Running {
        match self {
            Self::Plain => super::service(folder),
            Self::Tls => Authority::new(&folder.join("tls")).service(folder),
        }
    }

    /// A client of that service.
    pub fn client(self, folder: &Path, running: &Running) -> Client {
        match self {
            Self::Plain => Client::new(running.address),
            Self::Tls => Client::by(running.address, connection(&folder.join("tls/ca.pem"), &[])),
        }
    }
}
