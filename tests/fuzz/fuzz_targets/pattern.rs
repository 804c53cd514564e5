//! Patterns: braces end, and give no more texts than they may; globs end.
#![no_main]

use feedline_loader::shard::probe;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    // Twenty doubled braces are a million texts, which is allowed and slow.
    if text.len() < 60 {
        let _ = probe::braces(text);
    }
    if let Some((pattern, name)) = text.split_once('\n') {
        let _ = probe::fits(pattern, name);
    }
});
