//! What became of the JPEGs of a shard, or of all.

use std::collections::BTreeMap;

use feedline_loader::transcode::{Reason, Refusal};
use serde::{Deserialize, Serialize};

/// Most members of one shard and one reason that are named; all are counted.
const NAMED_MAX: usize = 1000;

/// Counts and sizes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// JPEGs, by their first bytes.
    pub jpegs: u64,
    /// Those that were written anew.
    pub optimized: u64,
    /// Those among them that did not become smaller.
    pub not_smaller: u64,
    /// Bytes of the JPEGs that were written anew, before.
    pub optimized_bytes_before: u64,
    /// And after.
    pub optimized_bytes_after: u64,
    /// JPEGs that were copied as they are, by reason.
    pub copied: BTreeMap<Reason, Copied>,
}

/// JPEGs that were copied for one reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    /// How many.
    pub count: u64,
    /// The first of them, with what was found.
    pub members: Vec<CopiedMember>,
}

/// A JPEG that was copied as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedMember {
    /// Its shard, where that does not go without saying.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub shard: String,
    /// Its name, or its path.
    pub name: String,
    /// What was found.
    pub message: String,
}

impl Tally {
    /// Counts a JPEG of `before` bytes that was written anew in `after`.
    pub fn add_optimized(&mut self, before: u64, after: u64) {
        self.jpegs += 1;
        self.optimized += 1;
        self.not_smaller += u64::from(after >= before);
        self.optimized_bytes_before += before;
        self.optimized_bytes_after += after;
    }

    /// Counts a JPEG that was copied.
    pub fn add_copied(&mut self, name: String, refusal: Refusal) {
        self.jpegs += 1;
        let copied = self.copied.entry(refusal.reason).or_default();
        copied.count += 1;
        if copied.members.len() < NAMED_MAX {
            copied.members.push(CopiedMember { shard: String::new(), name, message: refusal.message });
        }
    }

    /// Adds `other`, that of `shard`, and names `named_max` copied members of each reason at most.
    pub fn add(&mut self, other: &Self, shard: &str, named_max: usize) {
        self.jpegs += other.jpegs;
        self.optimized += other.optimized;
        self.not_smaller += other.not_smaller;
        self.optimized_bytes_before += other.optimized_bytes_before;
        self.optimized_bytes_after += other.optimized_bytes_after;
        for (&reason, more) in &other.copied {
            let copied = self.copied.entry(reason).or_default();
            copied.count += more.count;
            let room = named_max.saturating_sub(copied.members.len());
            let members = more.members.iter().take(room);
            copied.members.extend(members.map(|member| CopiedMember { shard: shard.to_owned(), ..member.clone() }));
        }
    }

    /// With `named_max` copied members of each reason at most.
    pub fn shortened(mut self, named_max: usize) -> Self {
        self.copied.values_mut().for_each(|copied| copied.members.truncate(named_max));
        self
    }

    /// The lines of a report in words: what was written anew, then what was not and why.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.optimized > 0 {
            let change = self.optimized_bytes_after as f64 / self.optimized_bytes_before as f64 - 1.0;
            lines.push(format!(
                "{} of {} JPEGs written anew and verified: {} before, {} after ({:+.2} %); {} not smaller",
                self.optimized,
                self.jpegs,
                crate::output::Bytes(self.optimized_bytes_before),
                crate::output::Bytes(self.optimized_bytes_after),
                100.0 * change,
                self.not_smaller
            ));
        }
        lines.extend(self.copied.iter().map(|(reason, copied)| {
            let first = copied.members.first().map_or_else(String::new, |CopiedMember { shard, name, message }| {
                let within = if shard.is_empty() { "" } else { ": " };
                format!(" (first: {shard}{within}{name}: {message})")
            });
            format!("copied as they are: {} {reason}{first}", copied.count)
        }));
        lines
    }

    /// A notice where a file that was written was not the same: that is a fault of ours.
    pub fn notice(&self) -> Option<String> {
        let count = self.copied.get(&Reason::Unverified)?.count;
        Some(format!(
            "{count} JPEGs were not the same when read again, and were copied as they are; please report this"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tallies_add_up_and_name_the_first() {
        let mut shard = Tally::default();
        shard.add_optimized(100, 97);
        shard.add_optimized(100, 100);
        for number in 0..NAMED_MAX + 5 {
            shard.add_copied(format!("{number}.jpg"), Refusal::new(Reason::Damaged, "byte 7"));
        }
        assert_eq!(shard.copied[&Reason::Damaged].members.len(), NAMED_MAX);
        let mut sum = Tally::default();
        sum.add(&shard, "a.tar", 3);
        sum.add(&shard, "b.tar", 3);
        let copied = &sum.copied[&Reason::Damaged];
        assert_eq!((copied.count, copied.members.len()), (2 * (NAMED_MAX as u64 + 5), 3));
        assert_eq!((&*copied.members[2].shard, &*copied.members[2].name), ("a.tar", "2.jpg"));
        assert_eq!((sum.optimized, sum.not_smaller, sum.optimized_bytes_after), (4, 2, 394));
        let lines = sum.lines();
        assert!(lines[0].contains("(-1.50 %); 2 not smaller"), "{lines:?}");
        assert!(lines[1].contains("2010 damaged (first: a.tar: 0.jpg: byte 7)"), "{lines:?}");
        assert_eq!(sum.notice(), None);
        sum.add_copied("x".into(), Refusal::new(Reason::Unverified, "differs"));
        assert!(sum.notice().expect("a fault").contains("please report"));
    }
}
