//! Patterns: braces end, and give no more texts than they may; globs end.
#![no_main]

use feedline_loader::shard::probe;
use libfuzzer_sys::fuzz_target;

const MOST: usize = 1000;

fuzz_target!(|text: &str| {
    if let Ok(texts) = probe::braces(text, MOST) {
        assert!((1..=MOST).contains(&texts.len()), "{} texts", texts.len());
    }
    if let Some((pattern, name)) = text.split_once('\n') {
        let _ = probe::fits(pattern, name);
    }
});
