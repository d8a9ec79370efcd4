//! A certificate for `localhost`, signed by an authority that no system trusts.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use std::path::Path;

/// Writes `ca.pem`, `chain.pem` and `key.pem` into this folder.
pub(crate) fn write(folder: &Path) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "authority of a test");
    let key = KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let names = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let certificate = names.signed_by(&key, &issuer).unwrap().pem();
    for (name, text) in [("ca.pem", authority), ("chain.pem", certificate), ("key.pem", key.serialize_pem())]
    {
        std::fs::write(folder.join(name), text).unwrap();
    }
}
