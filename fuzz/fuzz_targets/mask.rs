//! Masking of secrets in a log: in whatever pieces the bytes come, the secret never gets through, and nothing else is
//! changed when there is none.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, reason = "its tests are left out here")]
#[path = "../../crates/agent/src/mask.rs"]
mod mask;

const SECRET: &str = "hunter2-and-more";

fuzz_target!(|data: (u8, Vec<&[u8]>)| {
    let (_, pieces) = data;
    let masker = mask::Masker::new([SECRET]);
    let (mut held, mut out) = (mask::Held::default(), Vec::new());
    for piece in &pieces {
        masker.push(&mut held, piece, &mut out);
        masker.push(&mut held, SECRET.as_bytes(), &mut out);
    }
    masker.finish(&mut held, &mut out);
    assert!(!out.windows(SECRET.len()).any(|window| window == SECRET.as_bytes()), "the secret got through");
    let nobody = mask::Masker::new(std::iter::empty::<&str>());
    let (mut held, mut out) = (mask::Held::default(), Vec::new());
    pieces.iter().for_each(|piece| nobody.push(&mut held, piece, &mut out));
    nobody.finish(&mut held, &mut out);
    assert_eq!(out, pieces.concat());
});
