//! The list by which a block upload is committed: Azure's XML, read without entities.
//!
//! ```xml
//! <?xml version="1.0" encoding="utf-8"?><BlockList><Latest>aWQ=</Latest>…</BlockList>
//! ```
//!
//! A block id is opaque: its text is compared, never decoded, since clients make them in many shapes (caches.md §3.8).
//! What is no such list is refused: a document type, an entity, an attribute, another element. So nothing is expanded,
//! and reading takes as long as the text is.

/// Most blocks of one upload, as in Azure.
pub const MOST_BLOCKS: usize = 50_000;
/// Longest id: 64 bytes in base64, with room.
const LONGEST_ID: usize = 128;

/// Why a list is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// Not such a document.
    #[error("the block list is not the XML that Azure describes")]
    Form,
    /// Too many blocks.
    #[error("the block list names more than {MOST_BLOCKS} blocks")]
    Long,
}

/// The ids, in order.
pub fn read(bytes: &[u8]) -> Result<Vec<String>, ListError> {
    let text = std::str::from_utf8(bytes).map_err(|_| ListError::Form)?;
    let mut rest = text.trim_start_matches('\u{feff}').trim_start();
    if let Some(after) = rest.strip_prefix("<?xml") {
        rest = after.split_once("?>").ok_or(ListError::Form)?.1.trim_start();
    }
    let mut ids = Vec::new();
    if let Some(rest) = rest.strip_prefix("<BlockList/>") {
        return if rest.trim().is_empty() { Ok(ids) } else { Err(ListError::Form) };
    }
    rest = rest.strip_prefix("<BlockList>").ok_or(ListError::Form)?.trim_start();
    loop {
        if let Some(rest) = rest.strip_prefix("</BlockList>") {
            return if rest.trim().is_empty() { Ok(ids) } else { Err(ListError::Form) };
        }
        let (id, after) = element(rest).ok_or(ListError::Form)?;
        if ids.len() == MOST_BLOCKS {
            return Err(ListError::Long);
        }
        ids.push(id.to_owned());
        rest = after.trim_start();
    }
}

/// One element. All three kinds mean the block that was put under this id: nothing is committed before the list.
fn element(text: &str) -> Option<(&str, &str)> {
    for (open, close) in
        [("<Latest>", "</Latest>"), ("<Uncommitted>", "</Uncommitted>"), ("<Committed>", "</Committed>")]
    {
        let Some(rest) = text.strip_prefix(open) else { continue };
        let (id, after) = rest.split_once(close)?;
        return is_id(id.trim()).then_some((id.trim(), after));
    }
    None
}

/// Whether a text can be the id of a block: base64 of either alphabet.
pub fn is_id(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'=' | b'-' | b'_');
    !text.is_empty() && text.len() <= LONGEST_ID && text.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn list_keeps_its_order() {
        let xml = "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<BlockList>\n <Latest>Yg==</Latest><Latest>YQ==</Latest>\n</BlockList>\n";
        assert_eq!(read(xml.as_bytes()).unwrap(), ["Yg==", "YQ=="]);
        assert_eq!(read(b"<BlockList/>").unwrap().len(), 0);
    }

    #[test]
    fn document_types_entities_and_other_elements_are_refused() {
        for wrong in [
            "<!DOCTYPE a [<!ENTITY b \"c\">]><BlockList><Latest>&b;</Latest></BlockList>",
            "<BlockList><Latest>&#65;</Latest></BlockList>",
            "<BlockList><Latest><![CDATA[YQ==]]></Latest></BlockList>",
            "<BlockList a=\"b\"></BlockList>",
            "<BlockList><Other>YQ==</Other></BlockList>",
            "<BlockList><Latest></Latest></BlockList>",
            "<BlockList><Latest>YQ==</BlockList>",
            "<BlockList></BlockList><BlockList></BlockList>",
            "<BlockList>",
            "",
        ] {
            assert_eq!(read(wrong.as_bytes()), Err(ListError::Form), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_list_or_refused(bytes: Vec<u8>, inner in "(<Latest>|</Latest>|[A-Za-z=&;!]){0,20}") {
            let _ = read(&bytes);
            if let Ok(ids) = read(format!("<BlockList>{inner}</BlockList>").as_bytes()) {
                prop_assert!(ids.iter().all(|id| is_id(id)));
            }
        }

        #[test]
        fn written_list_reads_back(ids in prop::collection::vec("[A-Za-z0-9+/]{1,86}={0,2}", 0..20)) {
            let inner: String = ids.iter().map(|id| format!("<Latest>{id}</Latest>")).collect();
            prop_assert_eq!(read(format!("<BlockList>{inner}</BlockList>").as_bytes()).unwrap(), ids);
        }
    }
}
