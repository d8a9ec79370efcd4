//! What differs from client to client, by what each says of itself (`RequestMetadata`). Pure.
//!
//! - *Updates*: Bazel before 6.0 stops with an error when a server says that results cannot be stored, so it is told that they
//!   can, and what it stores is thrown away (bazel#16724, bb-deployments#51). Others are told the truth and upload nothing.
//! - *Committed size* of a compressed upload (bazel#14654, bazel#30000): all take the number of compressed bytes that arrived,
//!   but Siso, which takes the size of the content. When a content is here already, an upload may be cut short; then Bazel from
//!   5.1 on and buck2 take -1, Siso again the size. For all others the upload is read to its end, so that there is a number
//!   to give: Bazel 5.0 takes nothing else.

use super::wire::RequestMetadata;
use prost::Message as _;

/// A client as it calls itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientTool {
    /// Name in lower case.
    pub name: String,
    /// Major and minor version, when they can be read.
    pub version: Option<(u32, u32)>,
    /// Both, as sent and shortened, for provenance.
    pub shown: String,
}

impl ClientTool {
    /// From the bytes of the header; unknown for bytes that are none.
    pub fn read(header: &[u8]) -> Self {
        let details = RequestMetadata::decode(header).ok().and_then(|metadata| metadata.tool_details);
        let Some(details) = details else { return Self::default() };
        let text = format!("{}/{}", details.tool_name, details.tool_version);
        Self {
            name: details.tool_name.to_ascii_lowercase(),
            version: version(&details.tool_version),
            shown: text.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').take(64).collect(),
        }
    }

    /// What a caller who may not write is told about updates.
    pub fn reader_is_told_updates(&self) -> bool {
        self.name == "bazel" && self.version.is_none_or(|version| version < (6, 0))
    }

    /// Committed size of a compressed upload that was read to its end.
    pub fn committed(&self, received: u64, size: u64) -> i64 {
        let committed = if self.name == "siso" { size } else { received };
        i64::try_from(committed).unwrap_or(i64::MAX)
    }

    /// Committed size of a compressed upload that is cut short, when this client takes one.
    pub fn committed_early(&self, size: u64) -> Option<i64> {
        match self.name.as_str() {
            "siso" => i64::try_from(size).ok(),
            "buck2" => Some(-1),
            "bazel" if self.version.is_some_and(|version| version >= (5, 1)) => Some(-1),
            _ => None,
        }
    }
}

fn version(text: &str) -> Option<(u32, u32)> {
    let digits = |text: &str| {
        let end = text.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
        text.get(..end)?.parse().ok()
    };
    let (major, rest) = text.split_once('.')?;
    Some((major.parse().ok()?, digits(rest)?))
}

#[cfg(test)]
mod tests {
    use super::super::wire::ToolDetails;
    use super::*;
    use proptest::prelude::*;

    fn tool(name: &str, version: &str) -> ClientTool {
        let details = ToolDetails { tool_name: name.to_owned(), tool_version: version.to_owned() };
        ClientTool::read(&RequestMetadata { tool_details: Some(details) }.encode_to_vec())
    }

    #[test]
    fn bazel_16724_reader_with_an_old_bazel_is_told_that_updates_are_taken() {
        for (version, told) in [
            ("4.2.3", true),
            ("5.4.1", true),
            ("6.0.0", false),
            ("7.4.0-pre.1", false),
            ("development version", true),
        ] {
            assert_eq!(tool("bazel", version).reader_is_told_updates(), told, "{version}");
        }
        assert!(!tool("buck2", "2024").reader_is_told_updates());
        assert!(!ClientTool::default().reader_is_told_updates());
    }

    #[test]
    fn bazel_14654_bazel_30000_committed_size_is_what_each_client_takes() {
        assert_eq!(tool("bazel", "5.0.0").committed_early(10), None);
        assert_eq!(tool("bazel", "4.2.3").committed_early(10), None);
        assert_eq!(tool("bazel", "5.1.0").committed_early(10), Some(-1));
        assert_eq!(tool("buck2", "x").committed_early(10), Some(-1));
        assert_eq!(tool("siso", "1.0").committed_early(10), Some(10));
        assert_eq!(tool("recc", "1.0").committed_early(10), None);
        assert_eq!(tool("bazel", "8.0.0").committed(7, 10), 7);
        assert_eq!(tool("siso", "1.0").committed(7, 10), 10);
    }

    proptest! {
        #[test]
        fn any_header_is_a_client_or_an_unknown_one(bytes: Vec<u8>, name in "\\PC{0,90}", version in "[0-9.a-z]{0,12}") {
            let _ = ClientTool::read(&bytes);
            prop_assert!(tool(&name, &version).shown.len() <= 64);
        }
    }
}
