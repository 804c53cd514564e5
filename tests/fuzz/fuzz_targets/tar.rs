//! Tar headers: every body that the walk finds lies inside the archive, and grouping never panics.
#![no_main]

use feedline_loader::shard::probe;
use feedline_loader::spec::{DatasetRules, Duplicates, KeyRule, Unsorted};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(members) = probe::tar_members(bytes) {
        for (_, range) in members {
            assert!(range.start <= range.end && range.end <= bytes.len() as u64);
        }
    }
    for duplicates in [Duplicates::Error, Duplicates::First, Duplicates::Last, Duplicates::DropSample] {
        let rules = DatasetRules {
            duplicates,
            unsorted: Unsorted::Regroup,
            key_rule: if bytes.len() % 2 == 0 { KeyRule::FirstDot } else { KeyRule::LastDot },
            ..DatasetRules::default()
        };
        let _ = probe::tar_samples(bytes, &rules);
    }
});
