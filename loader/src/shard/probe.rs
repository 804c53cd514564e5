//! The parsers of foreign bytes, over bytes in memory: for fuzzers and other tools. Whatever the bytes, the result is an
//! error or what lies within them.

use std::path::Path;

use super::findings::Findings;
use super::index::{IndexBytes, ShardIndex};
use super::regroup;
use super::table::Table;
use super::walk::Walk;
use crate::error::Result;
use crate::spec::{DatasetRules, Unsorted};

/// Members of a tar, as name and the range of its body, by the walk behind an index.
pub fn tar_members(bytes: &[u8]) -> Result<Vec<(String, std::ops::Range<u64>)>> {
    let mut walk = Walk::new(Path::new("(memory)"), bytes, bytes.len() as u64);
    let mut members = Vec::new();
    while let Some(member) = walk.next_member()? {
        members.push((member.name, member.body_offset..member.body_offset + member.size));
    }
    Ok(members)
}

/// Samples of a tar, counted, under `rules`.
pub fn tar_samples(bytes: &[u8], rules: &DatasetRules) -> Result<u64> {
    let path = Path::new("(memory)");
    let mut walk = Walk::new(path, bytes, bytes.len() as u64);
    let mut members = Vec::new();
    while let Some(member) = walk.next_member()? {
        members.push(member);
    }
    let mut findings = Findings::default();
    if rules.unsorted == Unsorted::Regroup {
        members = regroup::by_key(members, rules.key_rule, &mut findings);
    }
    let mut table = Table::new(rules);
    for member in &members {
        table.add(path, member, &mut findings)?;
    }
    table.close(path, &mut findings)?;
    debug_assert!(table.sample_count() <= members.len() as u64);
    Ok(table.sample_count())
}

/// Reads every key and every place of an index file, if the bytes are one; its samples.
pub fn index_samples(bytes: Vec<u8>) -> Result<u32, String> {
    let index = ShardIndex::new(IndexBytes::Owned(bytes))?;
    for sample in 0..index.sample_count() {
        let members = index.meta.schemas[index.schema(sample) as usize].len();
        debug_assert!(index.key(sample).len() <= index.key_bytes_max() as usize);
        for place in 0..members {
            let (origin, range) = index.member(sample, u32::try_from(place).expect("members of a sample"));
            if origin == super::Origin::Index {
                debug_assert_eq!(index.stored(range).len(), range.len as usize);
            }
        }
        let _ = index.file(sample);
    }
    Ok(index.sample_count())
}

/// What the braces of a pattern give, if it is no more than `most` texts.
pub fn braces(pattern: &str, most: usize) -> Result<Vec<String>, String> {
    super::pattern::expand_braces(pattern, most)
}

/// Whether `name` fits a shell pattern.
pub fn fits(pattern: &str, name: &str) -> bool {
    super::glob::matches(pattern, name)
}
