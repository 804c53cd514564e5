//! Index files: refused, or safe to use. The checksum is made right, as damage would stop there otherwise.
#![no_main]

use feedline_loader::shard::probe;
use libfuzzer_sys::fuzz_target;

/// Bytes of the checksum at the end.
const CHECKSUM_BYTES: usize = 32;

fuzz_target!(|bytes: &[u8]| {
    let _ = probe::index_samples(bytes.to_vec());
    let mut bytes = bytes.to_vec();
    if bytes.len() >= 24 {
        let len = (bytes.len() + CHECKSUM_BYTES) as u64;
        bytes[16..24].copy_from_slice(&len.to_le_bytes());
    }
    let checksum = *blake3::hash(&bytes).as_bytes();
    bytes.extend(checksum);
    let _ = probe::index_samples(bytes);
});
