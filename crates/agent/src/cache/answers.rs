//! What each client is told when the cache cannot be asked, so that its build stays green: what an empty cache says that
//! throws away what is written. Pure.
//!
//! Where somebody counts on a write (`nix copy`, files by key), a write is refused instead: a cache that only said that it
//! stored a package would break whoever fetches it.

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) kind: &'static str,
    pub(crate) body: String,
}

fn answer(status: u16, kind: &'static str, body: impl Into<String>) -> Answer {
    Answer { status, kind, body: body.into() }
}

/// What Nix reads first; the same as every cache of this farm says.
const NIX: &str = "StoreDir: /nix/store\nWantMassQuery: 1\nPriority: 50\n";

/// The word after `/-/` and what follows it.
pub(crate) fn surface(path: &str) -> Option<(&str, &str)> {
    let rest = path.strip_prefix("/-/").or_else(|| path.split_once("/-/").map(|(_, rest)| rest))?;
    Some(rest.split_once('/').unwrap_or((rest, "")))
}

/// Whether somebody counts on a write, so that it is worth waiting for a cache that is started anew.
pub(crate) fn counted_on(method: &str, path: &str) -> bool {
    method == "PUT" && matches!(surface(path), Some(("nix" | "kv", _)))
}

/// The answer for a request that the cache is not asked about.
pub(crate) fn without(method: &str, path: &str, protobuf: bool) -> Answer {
    const TEXT: &str = "text/plain";
    if path.starts_with("/twirp/") {
        // A miss, and for a new entry "somebody else makes it".
        return if protobuf {
            answer(200, "application/protobuf", "")
        } else {
            answer(200, "application/json", "{\"ok\":false}")
        };
    }
    let reads = matches!(method, "GET" | "HEAD");
    match surface(path) {
        Some(("nix", "nix-cache-info")) if reads => answer(200, "text/x-nix-cache-info", NIX),
        Some(("s3", _)) if reads => answer(
            404,
            "application/xml",
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>NoSuchKey</Code><Message>no entry</Message></Error>\n",
        ),
        Some(("dav", _)) if method == "PROPFIND" => answer(207, "application/xml", folder(path)),
        Some(("dav", _)) if method == "MKCOL" => answer(201, TEXT, ""),
        Some(("turbo", "v8/artifacts/status")) if reads => {
            answer(200, "application/json", "{\"status\":\"enabled\"}")
        }
        Some(("turbo", _)) if matches!(method, "POST" | "OPTIONS") => answer(200, "application/json", "{}"),
        Some(("dav" | "ccache" | "bazel" | "turbo" | "gradle" | "nix" | "kv", _)) if reads => {
            answer(404, TEXT, "no entry\n")
        }
        Some(("dav" | "s3" | "ccache" | "bazel" | "turbo" | "gradle", _)) if method == "PUT" => {
            answer(200, TEXT, "")
        }
        Some(("dav" | "s3" | "ccache" | "bazel" | "turbo" | "gradle", _)) if method == "DELETE" => {
            answer(204, TEXT, "")
        }
        // nix#15023: after any 5xx it tries again without a body, and 2.8 waits for 300 s each time
        Some(("nix", _)) => answer(424, TEXT, "the build cache does not answer; nothing was stored\n"),
        _ => answer(503, TEXT, "the build cache does not answer now\n"),
    }
}

/// Any path is a folder that exists. sccache wants the time of a folder as well.
fn folder(path: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'-' | b'_' | b'.' | b'%');
    let href: String = path.bytes().filter(|b| plain(*b)).map(char::from).collect();
    format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:multistatus xmlns:D=\"DAV:\"><D:response><D:href>{href}</D:href>\
         <D:propstat><D:prop><D:resourcetype><D:collection/></D:resourcetype>\
         <D:getlastmodified>Thu, 01 Jan 1970 00:00:00 GMT</D:getlastmodified></D:prop>\
         <D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response></D:multistatus>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_miss_and_writes_that_nobody_counts_on_are_thrown_away() {
        for surface in ["dav", "s3", "ccache", "bazel", "turbo", "gradle"] {
            for path in [format!("/-/{surface}/a/b"), format!("/github/1/main/-/{surface}/a/b")] {
                assert_eq!(without("GET", &path, false).status, 404, "{path}");
                assert_eq!(without("PUT", &path, false).status, 200, "{path}");
            }
        }
        assert_eq!(without("GET", "/-/dav//.sccache_check", false).status, 404);
        assert_eq!(without("GET", "/-/turbo/v8/artifacts/status", false).status, 200);
        assert_eq!(without("POST", "/-/turbo/v8/artifacts/events", false).status, 200);
        assert_eq!(without("PROPFIND", "/-/dav/a/", false).status, 207);
    }

    #[test]
    fn writes_that_somebody_counts_on_are_refused() {
        for path in ["/-/nix/nar/x.nar", "/p/main/-/nix/x.narinfo"] {
            assert_eq!(without("PUT", path, false).status, 424, "{path}");
            assert!(counted_on("PUT", path) && !counted_on("GET", path), "{path}");
        }
        for path in ["/-/kv/x", "/-/github/x", "/", "/-/admin/stat"] {
            assert_eq!(without("PUT", path, false).status, 503, "{path}");
        }
        assert!(counted_on("PUT", "/-/kv/x") && !counted_on("PUT", "/-/dav/x"));
    }

    #[test]
    fn services_of_github_are_told_of_a_miss_in_their_own_form() {
        let path = "/twirp/github.actions.results.api.v1.CacheService/GetCacheEntryDownloadURL";
        assert_eq!(without("POST", path, false).body, "{\"ok\":false}");
        assert_eq!(without("POST", path, true).body, "");
    }
}
