//! TLS by files: a certificate chain and its key, read again when they change.
//!
//! - The files are read whole every [`LOOK`], since they are small, and a renewal may swap links that no stamp of a file
//!   shows. What is new is used from the next handshake on; connections that are open go on as they are.
//! - A file that cannot be used leaves the last good pair in force, and its reason is logged once. A renewal that writes one file
//!   after the other is such a state for a moment.
//! - HTTP/1.1 comes first in what is negotiated (ALPN): curl, Nix and others offer both, and HTTP/2 is served to clients of the Remote
//!   Execution API alone, which offer nothing else.
//! - Sessions are resumed by tickets, whose keys change by themselves and end with the process.

use forgeyard_model::Digest;
use rustls::crypto::ring::{Ticketer, default_provider};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, ServerConfig};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
use tokio_rustls::TlsAcceptor;

/// How often the files are looked at.
pub(crate) const LOOK: Duration = Duration::from_secs(3);
/// How long a client may take until it speaks TLS.
pub const HANDSHAKE: Duration = Duration::from_secs(10);

/// How a service speaks TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsOptions {
    /// Certificate chain, PEM.
    pub certificate: PathBuf,
    /// Its key, PEM.
    pub key: PathBuf,
    /// Where programs of this host reach the service without TLS: a certificate does not name the loopback address.
    pub local: Option<SocketAddr>,
    /// How long a client may take for the handshake; [`HANDSHAKE`] is usual.
    pub handshake: Duration,
}

impl TlsOptions {
    /// With these files.
    pub fn new(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        Self { certificate: certificate.into(), key: key.into(), local: None, handshake: HANDSHAKE }
    }
}

/// Why files are of no use for TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// One cannot be read.
    #[error("reading the {what} of TLS, {}: {source}", path.display())]
    File {
        /// Which one.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// One is no PEM.
    #[error("the {what} of TLS, {}, is no PEM: {source}", path.display())]
    Pem {
        /// Which one.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: rustls::pki_types::pem::Error,
    },
    /// One holds something else.
    #[error("{} holds no {what}", path.display())]
    Empty {
        /// What it should hold.
        what: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// The key is encrypted.
    #[error("the key of TLS, {}, is encrypted, and nobody is asked for its password", path.display())]
    Encrypted {
        /// The file.
        path: PathBuf,
    },
    /// The key is that of another certificate.
    #[error("the key {} does not belong to the first certificate of {}", key.display(), certificate.display())]
    Mismatch {
        /// File of the certificate.
        certificate: PathBuf,
        /// File of the key.
        key: PathBuf,
    },
    /// One of them is not understood.
    #[error("the certificate {} and the key {}: {source}", certificate.display(), key.display())]
    Unusable {
        /// File of the certificate.
        certificate: PathBuf,
        /// File of the key.
        key: PathBuf,
        /// The cause.
        source: rustls::Error,
    },
    /// TLS cannot be set up here at all.
    #[error("setting up TLS: {0}")]
    Setup(#[source] rustls::Error),
    /// The address for programs of this host is for others as well.
    #[error("{0} is to be without TLS, and others can reach it")]
    Local(SocketAddr),
}

impl TlsError {
    /// What to do about it.
    pub fn fix(&self) -> &'static str {
        match self {
            Self::File { .. } => "name a file that is there and that this user may read",
            Self::Pem { .. } => "write it anew: a line was cut off or changed",
            Self::Empty { what: "certificate", .. } => {
                "name the file with the chain, for example fullchain.pem of certbot, which begins with BEGIN CERTIFICATE"
            }
            Self::Empty { .. } => {
                "name the file with the key, for example privkey.pem of certbot, which begins with BEGIN PRIVATE KEY"
            }
            Self::Encrypted { .. } => {
                "write it without a password, readable by this user alone: `openssl pkey -in KEY -out PLAIN`, `chmod 600 PLAIN`"
            }
            Self::Mismatch { .. } => {
                "name the key that the certificate was asked for with; the server's own certificate comes first in its file"
            }
            Self::Unusable { .. } => "use RSA of 2048 bits or more, ECDSA of P-256 or P-384, or Ed25519",
            Self::Setup(_) => "report this, with the text above",
            Self::Local(_) => "choose an address of 127.0.0.0/8 or ::1",
        }
    }
}

/// The pair in force.
#[derive(Debug)]
struct Pair(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for Pair {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// What was seen of the files.
#[derive(Debug)]
struct Seen {
    digest: Digest,
    /// Why they could not be used when they were looked at last.
    failed: Option<String>,
}

/// See the module.
pub(crate) struct Tls {
    pub(crate) acceptor: TlsAcceptor,
    pub(crate) handshake: Duration,
    certificate: PathBuf,
    key: PathBuf,
    pair: Arc<Pair>,
    seen: Mutex<Seen>,
}

impl Tls {
    /// Reads the files.
    pub(crate) fn open(options: &TlsOptions) -> Result<Self, TlsError> {
        if let Some(local) = options.local.filter(|local| !local.ip().is_loopback()) {
            return Err(TlsError::Local(local));
        }
        let TlsOptions { certificate, key, handshake, .. } = options.clone();
        let (read, digest) = read(&certificate, &key)?;
        let pair = Arc::new(Pair(RwLock::new(Arc::new(read))));
        let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(TlsError::Setup)?;
        let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::clone(&pair) as _);
        config.ticketer = Ticketer::new().map_err(TlsError::Setup)?;
        config.alpn_protocols.push(b"http/1.1".to_vec());
        #[cfg(feature = "grpc")]
        config.alpn_protocols.push(b"h2".to_vec());
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let seen = Mutex::new(Seen { digest, failed: None });
        Ok(Self { acceptor, handshake, certificate, key, pair, seen })
    }

    /// Looks whether the files changed, and takes them over.
    pub(crate) fn refresh(&self) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match read(&self.certificate, &self.key) {
            Ok((read, digest)) => {
                seen.failed = None;
                if digest != seen.digest {
                    seen.digest = digest;
                    *self.pair.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(read);
                    tracing::info!(certificate = %self.certificate.display(), "took over a new certificate");
                }
            }
            Err(error) => {
                let reason = error.to_string();
                if seen.failed.as_ref() != Some(&reason) {
                    tracing::warn!("keeping the last good certificate: {reason}; {}", error.fix());
                    seen.failed = Some(reason);
                }
            }
        }
    }
}

/// The pair of these files, and the digest of their bytes.
fn read(certificate: &Path, key: &Path) -> Result<(CertifiedKey, Digest), TlsError> {
    const CERTIFICATE: &str = "certificate";
    const KEY: &str = "private key";
    let bytes = |what, path: &Path| {
        std::fs::read(path).map_err(|source| TlsError::File { what, path: path.to_owned(), source })
    };
    let wrong = |what, path: &Path, source| match source {
        rustls::pki_types::pem::Error::NoItemsFound => TlsError::Empty { what, path: path.to_owned() },
        source => TlsError::Pem { what, path: path.to_owned(), source },
    };
    let (of_certificate, of_key) = (bytes(CERTIFICATE, certificate)?, bytes(KEY, key)?);
    let chain = CertificateDer::pem_slice_iter(&of_certificate)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|source| wrong(CERTIFICATE, certificate, source))?;
    if chain.is_empty() {
        return Err(TlsError::Empty { what: CERTIFICATE, path: certificate.to_owned() });
    }
    let text = String::from_utf8_lossy(&of_key);
    if text.contains("-----BEGIN ENCRYPTED PRIVATE KEY-----") || text.contains("Proc-Type: 4,ENCRYPTED") {
        return Err(TlsError::Encrypted { path: key.to_owned() });
    }
    let secret = PrivateKeyDer::from_pem_slice(&of_key).map_err(|source| wrong(KEY, key, source))?;
    let pair = CertifiedKey::from_der(chain, secret, &default_provider()).map_err(|source| match source {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            TlsError::Mismatch { certificate: certificate.to_owned(), key: key.to_owned() }
        }
        source => TlsError::Unusable { certificate: certificate.to_owned(), key: key.to_owned(), source },
    })?;
    Ok((pair, Digest::of(&[of_certificate, of_key].concat())))
}

#[cfg(test)]
#[path = "tls_tests.rs"]
mod tests;
