//! The `Link` header, by which GitHub names the next page.
//!
//! Only the value of one query parameter is taken out of it; the address of the next page is built from our own
//! base, so an answer cannot send a token elsewhere.

use reqwest::Url;

/// Value of the parameter `key` in the address of the page that follows.
pub(crate) fn next(header: &str, key: &str) -> Option<String> {
    header.split(",").find_map(|part| {
        let (address, attributes) = part.trim().strip_prefix('<')?.split_once('>')?;
        let is_next = attributes.split(';').any(|attribute| {
            attribute.trim().strip_prefix("rel=").is_some_and(|rel| rel.trim_matches('"') == "next")
        });
        if !is_next {
            return None;
        }
        let url = Url::parse(address).ok()?;
        url.query_pairs().find(|(name, _)| name == key).map(|(_, value)| value.into_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_next_page_is_found_among_others() {
        let header = "<https://api.github.com/app/hook/deliveries?per_page=100&cursor=v1_12%3D>; rel=\"next\", \
                      <https://api.github.com/x?page=1>; rel=\"prev\"";
        assert_eq!(next(header, "cursor").as_deref(), Some("v1_12="));
        assert_eq!(next(header, "page"), None);
        assert_eq!(next("<https://api.github.com/x?page=3>; rel=\"last\"", "page"), None);
        assert_eq!(next("<https://api.github.com/x?page=2>; rel=next", "page").as_deref(), Some("2"));
    }

    proptest! {
        #[test]
        fn any_header_is_read(header in ".{0,200}") {
            let _ = next(&header, "page");
        }
    }
}
