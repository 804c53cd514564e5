//! LMDB pages: an error, or ranges inside the file.
#![no_main]

use feedline_loader::shard::lmdb_entries;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for inside in [None, Some("a")] {
        if let Ok(entries) = lmdb_entries(bytes, inside) {
            for entry in entries {
                assert!(entry.offset + u64::from(entry.len) <= bytes.len() as u64);
            }
        }
    }
});
