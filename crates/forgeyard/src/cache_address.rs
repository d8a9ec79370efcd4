//! Where the build cache listens, and by which address each of its users reaches it.
//!
//! With TLS it listens twice, as the farm does: where it is configured, by TLS; and on a loopback address without it, for the farm's
//! own pages, for commands, and for jobs of the same host, since a certificate names neither that address nor a port.

use crate::config::CacheConfig;
use crate::output::Wrong;
use anyhow::Result;
use forgeyard_cache::tls::TlsOptions;
use std::net::SocketAddr;

/// Where the cache listens when nothing else is said.
const ADDRESS: &str = "127.0.0.1:8420";

/// Where it listens.
pub fn listen(config: &CacheConfig) -> Result<SocketAddr> {
    Ok(match config.listen {
        Some(listen) => listen,
        None => ADDRESS.parse()?,
    })
}

/// How it speaks TLS there, when it does.
pub fn tls(config: &CacheConfig) -> Result<Option<TlsOptions>> {
    let Some(tls) = &config.tls else { return Ok(None) };
    let local = Some(local(config)?);
    Ok(Some(TlsOptions { local, ..TlsOptions::new(&tls.certificate, &tls.key) }))
}

/// Where a cache that speaks TLS listens without it: as configured, else one port further. Any port when it is any port for TLS.
fn local(config: &CacheConfig) -> Result<SocketAddr> {
    let listen = listen(config)?;
    match (config.local_listen, listen.port()) {
        (None, 0) => Ok(SocketAddr::from(([127, 0, 0, 1], 0))),
        (configured, _) => crate::farm::beside(configured, listen),
    }
}

/// How programs of this host reach it.
pub fn of_this_host(config: &CacheConfig) -> Result<String> {
    let place = if config.tls.is_some() { local(config)? } else { crate::farm::loopback(listen(config)?) };
    Ok(format!("http://{place}"))
}

/// How jobs reach it: as configured. Else by the address that it listens on, or as programs of this host do when that is one of
/// this host alone, or all of them.
pub fn of_jobs(config: &CacheConfig) -> Result<String> {
    let listen = listen(config)?;
    let Some(address) = &config.address else {
        let outside = config.tls.is_some() && !listen.ip().is_unspecified() && !listen.ip().is_loopback();
        return if outside { Ok(format!("https://{listen}")) } else { of_this_host(config) };
    };
    let wrong = |what: &str, fix: &str| {
        Err(Wrong::new(format!("`address` of [cache] is `{address}`, {what}")).fix(fix).into())
    };
    if !address.starts_with("http://") && !address.starts_with("https://") {
        return wrong(
            "which is no http or https address",
            "write for example \"http://cache.example.org:8420\"",
        );
    }
    let bare = address.trim_end_matches('/');
    if config.tls.is_some() && bare.starts_with("http://") && bare != of_this_host(config)? {
        let fix = "write https, and a name that the certificate has";
        return wrong("and the cache speaks TLS", fix);
    }
    Ok(address.clone())
}

/// What to say of a cache whose tokens go over the network in the clear; a proxy in front may speak TLS.
pub fn warning(config: &CacheConfig) -> Result<Option<String>> {
    let listen = listen(config)?;
    let proxied = config.address.as_ref().is_some_and(|address| address.starts_with("https://"));
    if listen.ip().is_loopback() || config.tls.is_some() || proxied {
        return Ok(None);
    }
    Ok(Some(format!(
        "the cache listens on {listen} without TLS: whoever is on the way reads tokens and changes what is built from; add \
         [cache.tls], or the https `address` of a proxy in front, or listen on 127.0.0.1"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Tls;

    fn config(listen: &str, secure: bool, address: Option<&str>) -> CacheConfig {
        let tls = Tls { certificate: "c".into(), key: "k".into() };
        CacheConfig {
            listen: Some(listen.parse().unwrap()),
            tls: secure.then_some(tls),
            address: address.map(str::to_owned),
            ..CacheConfig::default()
        }
    }

    #[test]
    fn jobs_and_programs_of_the_host_get_an_address_that_they_can_use() {
        for (listen, secure, address, of_host, jobs) in [
            ("127.0.0.1:8420", false, None, "http://127.0.0.1:8420", "http://127.0.0.1:8420"),
            ("0.0.0.0:8420", false, None, "http://127.0.0.1:8420", "http://127.0.0.1:8420"),
            ("0.0.0.0:8420", true, None, "http://127.0.0.1:8421", "http://127.0.0.1:8421"),
            ("192.0.2.1:8420", true, None, "http://127.0.0.1:8421", "https://192.0.2.1:8420"),
            (
                "0.0.0.0:443",
                true,
                Some("https://cache.example.org"),
                "http://127.0.0.1:444",
                "https://cache.example.org",
            ),
            (
                "0.0.0.0:443",
                true,
                Some("http://127.0.0.1:444/"),
                "http://127.0.0.1:444",
                "http://127.0.0.1:444/",
            ),
            ("127.0.0.1:8420", false, Some("https://proxy"), "http://127.0.0.1:8420", "https://proxy"),
        ] {
            let config = config(listen, secure, address);
            assert_eq!(of_this_host(&config).unwrap(), of_host, "{listen} {secure}");
            assert_eq!(of_jobs(&config).unwrap(), jobs, "{listen} {secure} {address:?}");
        }
        let own = CacheConfig {
            local_listen: Some("127.0.0.1:9".parse().unwrap()),
            ..config("0.0.0.0:1", true, None)
        };
        assert_eq!(of_jobs(&own).unwrap(), "http://127.0.0.1:9");
        assert_eq!(tls(&own).unwrap().unwrap().local, own.local_listen);
    }

    #[test]
    fn address_that_nobody_can_use_is_refused() {
        let plain = of_jobs(&config("0.0.0.0:1", true, Some("http://cache:1"))).unwrap_err();
        assert!(plain.to_string().contains("speaks TLS"), "{plain}");
        assert!(of_jobs(&config("0.0.0.0:1", false, Some("cache:1"))).is_err());
        let open = CacheConfig {
            local_listen: Some("0.0.0.0:9".parse().unwrap()),
            ..config("0.0.0.0:1", true, None)
        };
        assert!(tls(&open).unwrap_err().to_string().contains("local-listen"));
    }

    #[test]
    fn tokens_in_the_clear_are_warned_of() {
        let said = |listen, secure, address| warning(&config(listen, secure, address)).unwrap().is_some();
        assert!(
            said("0.0.0.0:8420", false, None) && said("192.0.2.1:8420", false, Some("http://cache:8420"))
        );
        assert!(!said("127.0.0.1:8420", false, None) && !said("0.0.0.0:8420", true, None));
        assert!(!said("0.0.0.0:8420", false, Some("https://cache.example.org")));
    }
}
