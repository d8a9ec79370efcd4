//! The `Range` header of RFC 9110 §14: `bytes=a-b`, `bytes=a-`, `bytes=-n`.
//!
//! Several ranges, and units other than bytes, may be answered with the whole, which is what a reader of this does.

use std::ops::Range;

/// The range is not within the bytes, or makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outside;

/// What a `Range` header asks of `size` bytes; `None` = the whole.
pub fn parse(text: &str, size: u64) -> Result<Option<Range<u64>>, Outside> {
    let Some(spec) = text.trim().strip_prefix("bytes=") else { return Ok(None) };
    // Several ranges may be answered with the whole.
    if spec.contains(',') {
        return Ok(None);
    }
    let (first, last) = spec.trim().split_once('-').ok_or(Outside)?;
    let range = match (first.trim(), last.trim()) {
        ("", "") => return Err(Outside),
        ("", count) => {
            let count: u64 = count.parse().map_err(|_| Outside)?;
            size.saturating_sub(count)..size
        }
        (first, "") => first.parse().map_err(|_| Outside)?..size,
        (first, last) => {
            let (first, last): (u64, u64) =
                (first.parse().map_err(|_| Outside)?, last.parse().map_err(|_| Outside)?);
            if last < first {
                return Err(Outside);
            }
            first..last.saturating_add(1).min(size)
        }
    };
    if range.start >= range.end { Err(Outside) } else { Ok(Some(range)) }
}

#[cfg(test)]
mod tests {
    use super::{Outside, parse};
    use proptest::prelude::*;

    #[test]
    fn ranges_of_the_standard_are_understood() {
        assert_eq!(parse("bytes=0-499", 1000), Ok(Some(0..500)));
        assert_eq!(parse("bytes=-500", 1000), Ok(Some(500..1000)));
        assert_eq!(parse("bytes=500-", 1000), Ok(Some(500..1000)));
        assert_eq!(parse("bytes=0-9999", 1000), Ok(Some(0..1000)));
        assert_eq!(parse("bytes=1000-", 1000), Err(Outside));
        assert_eq!(parse("bytes=5-2", 1000), Err(Outside));
        assert_eq!(parse("bytes=0-1,5-6", 1000), Ok(None));
        assert_eq!(parse("lines=1-2", 1000), Ok(None));
    }

    proptest! {
        #[test]
        fn any_range_stays_inside(text in "bytes=.{0,20}", size in 0u64..10_000) {
            if let Ok(Some(range)) = parse(&text, size) {
                prop_assert!(range.start < range.end && range.end <= size);
            }
        }
    }
}
