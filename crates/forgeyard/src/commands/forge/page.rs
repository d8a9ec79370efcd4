//! The page that a browser is shown while an App is made: one button, and what came of it. No script, nothing from outside.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

const STYLE: &str = "body{font:1rem/1.5 system-ui,sans-serif;max-width:40rem;margin:3rem auto;padding:0 1rem;color:#1b1f24}\
button{font:inherit;padding:.6rem 1.2rem;border:0;border-radius:.4rem;background:#1f6f43;color:#fff;cursor:pointer}\
button:focus-visible{outline:3px solid #8bd3ae}li code{overflow-wrap:anywhere}";

/// Text that may stand anywhere in HTML.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            letter => out.push(letter),
        }
    }
    out
}

/// A page. Where its form may lead is not bounded by policy: browsers hold redirects after a form against it as well, and
/// where a sign-in at GitHub leads is not known.
pub fn page(status: StatusCode, title: &str, body: &str) -> Response {
    let title = escaped(title);
    let html = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title><style>{STYLE}</style></head>\
         <body><h1>{title}</h1>{body}</body></html>\n"
    );
    let policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'";
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    (status, headers, html).into_response()
}

/// The form: its one button hands the manifest to GitHub.
pub fn form(action: &str, manifest: &str) -> String {
    format!(
        "<form method=\"post\" action=\"{}\"><input type=\"hidden\" name=\"manifest\" value=\"{}\">\
         <p><button type=\"submit\">Make the App at GitHub</button></p></form>",
        escaped(action),
        escaped(manifest)
    )
}
