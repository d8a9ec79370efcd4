//! RS256 for `jsonwebtoken` by `ring`, the one cryptographic library that TLS already brings.
//!
//! The library takes its cryptography from one provider per process. [`install`] sets this one; if another part of
//! the process was first, its provider stays, which changes nothing as long as that one knows RS256.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind, new_error};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::rand::SystemRandom;
use ring::signature::{
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256, RsaKeyPair, RsaPublicKeyComponents, UnparsedPublicKey,
};
use signature::{Signer, Verifier};

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: signer,
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes `jsonwebtoken` use `ring` in this process, unless something else was chosen before.
pub fn install() {
    // Whoever was first stays; see above.
    let _ = PROVIDER.install_default();
}

/// Reads a private RSA key in DER: what GitHub gives (PKCS#1), or what `openssl pkcs8` makes of it.
pub(crate) fn key_pair(der: &[u8]) -> Result<RsaKeyPair, String> {
    RsaKeyPair::from_der(der)
        .or_else(|first| RsaKeyPair::from_pkcs8(der).map_err(|_| first))
        .map_err(|rejected| rejected.to_string())
}

struct RingSigner(RsaKeyPair);

impl Signer<Vec<u8>> for RingSigner {
    fn try_sign(&self, message: &[u8]) -> Result<Vec<u8>, signature::Error> {
        let mut made = vec![0; self.0.public().modulus_len()];
        self.0
            .sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut made)
            .map_err(|_| signature::Error::new())?;
        Ok(made)
    }
}

impl JwtSigner for RingSigner {
    fn algorithm(&self) -> Algorithm {
        Algorithm::RS256
    }
}

struct RingVerifier(DecodingKey);

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], made: &Vec<u8>) -> Result<(), signature::Error> {
        let verdict = match self.0.kind() {
            DecodingKeyKind::SecretOrDer(der) => {
                UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, der).verify(message, made)
            }
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                RsaPublicKeyComponents { n, e }.verify(&RSA_PKCS1_2048_8192_SHA256, message, made)
            }
        };
        verdict.map_err(|_| signature::Error::new())
    }
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        Algorithm::RS256
    }
}

fn signer(algorithm: &Algorithm, key: &EncodingKey) -> Result<Box<dyn JwtSigner>, Error> {
    if *algorithm != Algorithm::RS256 || key.family() != AlgorithmFamily::Rsa {
        return Err(new_error(ErrorKind::UnsupportedAlgorithm));
    }
    let pair = key_pair(key.as_bytes()).map_err(|reason| new_error(ErrorKind::InvalidRsaKey(reason)))?;
    Ok(Box::new(RingSigner(pair)))
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    if *algorithm != Algorithm::RS256 || key.family() != AlgorithmFamily::Rsa {
        return Err(new_error(ErrorKind::UnsupportedAlgorithm));
    }
    Ok(Box::new(RingVerifier(key.clone())))
}
