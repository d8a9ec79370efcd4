//! Reads the log that `conmon` writes: one record per line, `TIME STREAM TAG TEXT`.
//!
//! Tag `F` is a full line, `P` a piece without line end. Both streams go into one log in the order of writing. A record
//! is taken only when its line end is there, so a position is always between records.

/// Longer than any record that the monitor writes; without a line end in so many bytes, the file is not what it
/// should be and is passed on as it is.
const LONGEST: usize = 64 << 10;

/// Decodes the records at the beginning of `bytes` into `out`; returns how many bytes were taken.
pub(crate) fn decode(bytes: &[u8], out: &mut Vec<u8>) -> usize {
    let mut at = 0;
    while let Some(length) = bytes[at..].iter().position(|byte| *byte == b'\n') {
        let record = &bytes[at..at + length];
        match fields(record) {
            Some((full, text)) => {
                out.extend_from_slice(text);
                if full {
                    out.push(b'\n');
                }
            }
            None => {
                out.extend_from_slice(record);
                out.push(b'\n');
            }
        }
        at += length + 1;
    }
    if at == 0 && bytes.len() >= LONGEST {
        out.extend_from_slice(bytes);
        at = bytes.len();
    }
    at
}

fn fields(record: &[u8]) -> Option<(bool, &[u8])> {
    let mut parts = record.splitn(4, |byte| *byte == b' ');
    let _time = parts.next()?;
    if !matches!(parts.next()?, b"stdout" | b"stderr") {
        return None;
    }
    let full = match parts.next()? {
        b"F" => true,
        b"P" => false,
        _ => return None,
    };
    Some((full, parts.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(bytes: &[u8]) -> (usize, Vec<u8>) {
        let mut out = Vec::new();
        (decode(bytes, &mut out), out)
    }

    #[test]
    fn full_and_partial_records_are_joined() {
        let spool = b"2026-11-29T14:53:10.5+00:00 stdout F a b\n2026-11-29T14:53:10.5+00:00 stderr P c\nT stdout F \nT std";
        let (taken, out) = all(spool);
        assert_eq!(out, b"a b\nc\n");
        assert_eq!(&spool[taken..], b"T std");
    }

    #[test]
    fn a_line_that_is_no_record_is_kept() {
        assert_eq!(all(b"oops\n"), (5, b"oops\n".to_vec()));
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_without_panic(bytes: Vec<u8>) {
            let (taken, _) = all(&bytes);
            prop_assert!(taken <= bytes.len());
        }

        #[test]
        fn text_reads_back_wherever_the_file_ends(lines in prop::collection::vec(("[ a-zé]{0,12}", any::<bool>()), 0..8), cut in 0usize..400) {
            let (mut spool, mut text) = (String::new(), String::new());
            for (line, full) in &lines {
                spool += &format!("T stdout {} {line}\n", if *full { "F" } else { "P" });
                text += line;
                if *full {
                    text.push('\n');
                }
            }
            let cut = cut.min(spool.len());
            let mut out = Vec::new();
            let taken = decode(&spool.as_bytes()[..cut], &mut out);
            decode(&spool.as_bytes()[taken..], &mut out);
            prop_assert_eq!(out, text.into_bytes());
        }
    }
}
