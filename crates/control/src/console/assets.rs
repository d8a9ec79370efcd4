//! Files that pages refer to, compiled in. The address of each holds a digest of its bytes, so it may be cached for
//! ever and a new program never meets an old script.

use forgeyard_model::Digest;
use std::sync::LazyLock;

/// Policy that every page keeps: nothing inline, nothing from elsewhere.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// How long an asset may be cached: for ever, because its address names its bytes.
pub const CACHE_CONTROL: &str = "public, max-age=31536000, immutable";

/// One file.
#[derive(Debug, Clone)]
pub struct Asset {
    /// Where it is served: `/assets/console-0123456789ab.css`.
    pub path: String,
    /// Media type.
    pub content_type: &'static str,
    /// Bytes.
    pub body: &'static [u8],
}

impl Asset {
    fn new(stem: &str, ending: &str, content_type: &'static str, body: &'static str) -> Self {
        let digest = Digest::of(body.as_bytes()).hex();
        let path = format!("/assets/{stem}-{}.{ending}", &digest[..12]);
        Self { path, content_type, body: body.as_bytes() }
    }
}

/// The style sheet.
pub static STYLE: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new("console", "css", "text/css; charset=utf-8", include_str!("assets/console.css"))
});

/// The script of live parts, log and copy buttons; loaded late.
pub static SCRIPT: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new("console", "js", "text/javascript; charset=utf-8", include_str!("assets/console.js"))
});

/// The small script that puts the remembered theme in place before anything is painted.
pub static THEME: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new("theme", "js", "text/javascript; charset=utf-8", include_str!("assets/theme.js"))
});

/// The icon of the browser tab.
pub static ICON: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("icon", "svg", "image/svg+xml", include_str!("assets/icon.svg")));

/// Every asset.
pub fn all() -> [&'static Asset; 4] {
    [&STYLE, &SCRIPT, &THEME, &ICON]
}

/// The asset at this path, if there is one.
pub fn find(path: &str) -> Option<&'static Asset> {
    all().into_iter().find(|asset| asset.path == path)
}
