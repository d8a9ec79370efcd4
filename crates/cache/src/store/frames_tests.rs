//! Frames and their table: what is made is read, by us and by any decoder; what is damaged or made up is refused.

use super::*;
use proptest::prelude::*;

fn text(length: usize) -> Vec<u8> {
    (0..length).map(|at| b"void launch(int block, float *out);\n"[(at * at / 97) % 36]).collect()
}

#[rstest::rstest]
fn body_reads_back_and_is_a_plain_stream(#[values(1000, 262_143, 262_144, 262_145, 1 << 20)] size: usize) {
    let content = text(size);
    let body = Encoder::new(3).unwrap().whole(&content).unwrap().unwrap();
    let frames = Frames::of(&body, size as u64).unwrap();
    assert_eq!(frames.count(), size.div_ceil(FRAME as usize) as u64);
    let mut back = Vec::new();
    frames.decode_all(&body, &mut back).unwrap();
    assert!(back == content);
    // the table is skipped by a decoder that knows nothing of it
    assert!(zstd::stream::decode_all(&body[..]).unwrap() == content);
    assert!(zstd::stream::decode_all(&body[..frames.stored() as usize]).unwrap() == content);
    for number in 0..frames.count() {
        let place = frames.place(number);
        frames.decode(number, &body[place.start as usize..place.end as usize], &mut back).unwrap();
        assert!(back == content[number as usize * FRAME as usize..][..back.len()]);
    }
    assert_eq!(Frames::of(&body, size as u64 + 1), None, "another size than the record says");
}

#[test]
fn what_hardly_shrinks_is_left() {
    let mut state = 7u64;
    let noise: Vec<u8> = (0..100_000)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u8
        })
        .collect();
    let mut encoder = Encoder::new(3).unwrap();
    assert_eq!(encoder.whole(&noise).unwrap(), None);
    assert!(!promising(encoder.permille(&noise[..SAMPLE])));
    assert!(promising(encoder.permille(&text(SAMPLE))));
    assert!(
        packed(&zstd::bulk::compress(&noise, 1).unwrap()) && packed(b"PK\x03\x04rest") && !packed(b"\x7fELF")
    );
}

/// A frame that says another size than the table, or holds more than it says, fills no memory.
#[test]
fn bomb_is_refused() {
    let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 3).unwrap();
    let mut body = bomb.clone();
    body.extend_from_slice(&table(&[bomb.len() as u32], 1000));
    let frames = Frames::of(&body, 1000).unwrap();
    let mut content = Vec::new();
    assert_eq!(frames.decode_all(&body, &mut content), None);
    assert!(content.capacity() < 10_000);
    // two frames where one should be
    let half = zstd::bulk::compress(&[7; 500], 3).unwrap();
    let two = [&half[..], &half].concat();
    let body = [&two[..], &table(&[two.len() as u32], 1000)].concat();
    assert_eq!(Frames::of(&body, 1000).unwrap().decode_all(&body, &mut content), None);
}

proptest! {
    #[test]
    fn any_body_is_read_or_refused(mut body: Vec<u8>, size in 0u64..2_000_000, like: bool, length: u32) {
        if like {
            let lengths = vec![length % 1000; size.div_ceil(FRAME) as usize];
            body.extend_from_slice(&table(&lengths, size));
        }
        if let Some(frames) = Frames::of(&body, size) {
            let mut content = Vec::new();
            let _ = frames.decode_all(&body, &mut content);
            prop_assert!(content.len() as u64 <= size);
        }
    }

    #[test]
    fn one_changed_byte_is_refused_or_harmless(at: prop::sample::Index, bit in 0u8..8) {
        let content = text(3000);
        let mut body = Encoder::new(3).unwrap().whole(&content).unwrap().unwrap();
        let at = at.index(body.len());
        body[at] ^= 1 << bit;
        let mut back = Vec::new();
        if let Some(frames) = Frames::of(&body, 3000) && frames.decode_all(&body, &mut back).is_some() {
            prop_assert!(back == content);
        }
    }
}
