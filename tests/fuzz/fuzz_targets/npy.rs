//! Arrays of NumPy, bare and as members of .npz.
#![no_main]

use feedline_loader::decode::{npy, npz::NpzReader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut out = Vec::new();
    if let Ok(header) = npy::open(bytes) {
        let _ = header.append_elements(bytes, &mut out);
        // Elements are widened at most from one byte to eight.
        assert!(out.len() <= bytes.len().saturating_mul(8) + 64);
    }
    if let Ok(member) = NpzReader::default().member(bytes, "x", 1 << 20) {
        assert!(member.len() <= 1 << 20);
        let _ = npy::open(member);
    }
});
