use super::*;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P384_SHA384, PKCS_ED25519};
use tempfile::TempDir;

fn pair(name: &str) -> (String, String) {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

/// Files with these texts, and options that name them.
fn files(certificate: &str, key: &str) -> (TempDir, TlsOptions) {
    let folder = tempfile::tempdir().unwrap();
    let options = TlsOptions::new(folder.path().join("chain.pem"), folder.path().join("key.pem"));
    fs_err::write(&options.certificate, certificate).unwrap();
    fs_err::write(&options.key, key).unwrap();
    (folder, options)
}

fn served(tls: &Tls) -> Vec<u8> {
    tls.pair.0.read().unwrap().cert[0].to_vec()
}

#[test]
fn what_is_wrong_with_files_is_said_with_the_file_and_what_to_do() {
    let (certificate, key) = pair("cache");
    let (_, other) = pair("cache");
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAo=\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let old = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: x\n\nMAo=\n-----END RSA PRIVATE KEY-----\n";
    let torn = key.replace("-----END", "-----");
    for (certificate, key, file, says, fix) in [
        (certificate.as_str(), encrypted, "key.pem", "encrypted", "openssl pkey"),
        (&certificate, old, "key.pem", "encrypted", "openssl pkey"),
        (&certificate, &other, "key.pem does not belong", "chain.pem", "asked for with"),
        (&key, &key, "chain.pem", "no certificate", "fullchain.pem"),
        (&certificate, &certificate, "key.pem", "no private key", "privkey.pem"),
        ("", &key, "chain.pem", "no certificate", "fullchain.pem"),
        (&certificate, &torn, "key.pem", "no PEM", "write it anew"),
        (
            "-----BEGIN CERTIFICATE-----\nMAo=\n-----END CERTIFICATE-----\n",
            &key,
            "chain.pem",
            "certificate",
            "RSA",
        ),
    ] {
        let (_folder, options) = files(certificate, key);
        let error = Tls::open(&options).err().unwrap();
        let text = error.to_string();
        assert!(
            text.contains(file) && text.contains(says) && error.fix().contains(fix),
            "{text}; {}",
            error.fix()
        );
    }
    let (folder, options) = files(&certificate, &key);
    fs_err::remove_file(folder.path().join("key.pem")).unwrap();
    let error = Tls::open(&options).err().unwrap();
    assert!(error.to_string().contains("key.pem") && error.fix().contains("may read"), "{error}");
    let open = TlsOptions { local: Some("0.0.0.0:1".parse().unwrap()), ..options };
    assert!(matches!(Tls::open(&open), Err(TlsError::Local(_))));
}

#[test]
fn new_files_are_taken_over_and_broken_ones_leave_the_old_pair_in_force() {
    let (certificate, key) = pair("cache");
    let (_folder, options) = files(&certificate, &key);
    let tls = Tls::open(&options).unwrap();
    let first = served(&tls);
    // a renewal that has written one of two files
    let (certificate, key) = pair("cache");
    fs_err::write(&options.certificate, &certificate).unwrap();
    tls.refresh();
    assert_eq!(served(&tls), first);
    assert!(tls.seen.lock().unwrap().failed.as_ref().unwrap().contains("does not belong"));
    fs_err::write(&options.key, &key).unwrap();
    tls.refresh();
    let second = served(&tls);
    assert_ne!(second, first);
    assert_eq!(tls.seen.lock().unwrap().failed, None);
    fs_err::remove_file(&options.certificate).unwrap();
    tls.refresh();
    assert_eq!(served(&tls), second);
}

#[test]
fn each_usual_kind_of_key_and_a_chain_are_taken() {
    let authority = KeyPair::generate().unwrap();
    let of_authority = CertificateParams::new(Vec::new()).unwrap().self_signed(&authority).unwrap();
    for kind in [&PKCS_ED25519, &PKCS_ECDSA_P384_SHA384] {
        let key = KeyPair::generate_for(kind).unwrap();
        let own = CertificateParams::new(["cache".to_owned()]).unwrap().self_signed(&key).unwrap();
        let (_folder, options) = files(&(own.pem() + &of_authority.pem()), &key.serialize_pem());
        assert_eq!(Tls::open(&options).unwrap().pair.0.read().unwrap().cert.len(), 2);
    }
}

mod any {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn bytes_are_read_or_refused(certificate: Vec<u8>, body in "[A-Za-z0-9+/=\n-]{0,200}") {
            let folder = tempfile::tempdir().unwrap();
            let (one, other) = (folder.path().join("c"), folder.path().join("k"));
            let text = format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n");
            fs_err::write(&one, [certificate, text.into_bytes()].concat()).unwrap();
            fs_err::write(&other, format!("-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\n")).unwrap();
            prop_assert!(read(&one, &other).is_err());
        }
    }
}
