//! The mounts that a reader's files lie on, and which of them are read directly, past the page cache.
//!
//! Three policies. *Never* and *always* say what they do. *When larger* is for `auto`: direct reads win where the page
//! cache cannot help, and only there. A shuffled epoch reads each byte once, in an order that is new each time. While
//! the files fit the memory, all but the first epoch come from the page cache, faster than any disk. Once they are
//! larger than it, at most half of the bytes are still cached when their turn comes again; the rest costs more through
//! the cache (a copy, eviction, smaller requests) than direct. So: through the page cache until the sizes of all files
//! seen so far exceed the memory that can be had, then directly. And never for ranges below [`DIRECT_BYTES_MIN`], which
//! gain little from it and lose the kernel's read-ahead when they are neighbours.
//!
//! Whatever the policy, a mount is read directly only after a real read has succeeded there, and never again after one
//! has failed that then succeeded through the page cache.

use std::collections::HashSet;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::direct::{self, Facts};
use super::refusal::errno_name;
use super::report::{DirectReport, LiveReport, MountReport};
use crate::sys::memory::{Mebibytes, MemoryReport};

/// Shorter ranges go through the page cache under [`DirectPolicy::WhenLarger`].
pub(super) const DIRECT_BYTES_MIN: u32 = 16 << 10;

/// Which files are read directly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DirectPolicy {
    Never,
    Always,
    /// Once the files are larger than the memory that can be had.
    WhenLarger,
}

/// The mounts, numbered as they are first seen.
#[derive(Debug)]
pub(super) struct Mounts {
    policy: DirectPolicy,
    mounts: Vec<Mount>,
    seen: HashSet<(u64, u64)>,
    seen_bytes: u64,
    memory: fn() -> Option<u64>,
    memory_bytes: Option<u64>,
    /// The files are larger than the memory.
    larger: bool,
    report: Arc<LiveReport>,
}

#[derive(Debug)]
struct Mount {
    key: u64,
    name: String,
    decision: Decision,
}

#[derive(Debug, PartialEq, Eq)]
enum Decision {
    Undecided,
    Direct { block_bytes: u32 },
    PageCache { why: String },
}

/// A file's descriptor for direct reads.
#[derive(Debug)]
pub(super) struct DirectFile {
    pub(super) file: Arc<OwnedFd>,
    /// Offsets, lengths and addresses are multiples of this.
    pub(super) block_bytes: u32,
}

impl Mounts {
    pub(super) fn new(policy: DirectPolicy, report: Arc<LiveReport>) -> Self {
        Self::with_memory(policy, report, || MemoryReport::read().free_bytes())
    }

    /// As [`Mounts::new`], with another source for the memory that can be had.
    pub(super) fn with_memory(policy: DirectPolicy, report: Arc<LiveReport>, memory: fn() -> Option<u64>) -> Self {
        let memory_bytes = if policy == DirectPolicy::WhenLarger { memory() } else { None };
        let made = Self {
            policy,
            mounts: Vec::new(),
            seen: HashSet::new(),
            seen_bytes: 0,
            memory,
            memory_bytes,
            larger: false,
            report,
        };
        made.write_report();
        made
    }

    /// How many mounts have been seen.
    pub(super) fn count(&self) -> usize {
        self.mounts.len()
    }

    /// The number of the file's mount. Files that statx knows nothing about share one.
    pub(super) fn number(&mut self, facts: Option<&Facts>) -> usize {
        let key = facts.map_or(u64::MAX, |facts| facts.mount);
        if let Some(number) = self.mounts.iter().position(|mount| mount.key == key) {
            return number;
        }
        let name = match (self.policy, facts) {
            (DirectPolicy::Never, _) => String::new(),
            (_, None) => "elsewhere".to_owned(),
            (_, Some(facts)) => direct::mount_point(facts.mount),
        };
        self.mounts.push(Mount { key, name, decision: Decision::Undecided });
        self.mounts.len() - 1
    }

    /// Counts a file; true when with it the files have become larger than the memory: files that are open already are
    /// then to be opened for direct reads too.
    pub(super) fn count_file(&mut self, facts: &Facts) -> bool {
        if self.policy != DirectPolicy::WhenLarger || self.larger || !self.seen.insert(facts.identity) {
            return false;
        }
        self.seen_bytes = self.seen_bytes.saturating_add(facts.bytes);
        if self.memory_bytes.is_none_or(|bytes| self.seen_bytes <= bytes) {
            return false;
        }
        // What could be had at the start may have changed since.
        self.memory_bytes = (self.memory)();
        self.larger = self.memory_bytes.is_some_and(|bytes| self.seen_bytes > bytes);
        if self.larger {
            // Not needed any more.
            self.seen = HashSet::new();
            tracing::info!("{} of files do not fit the memory: they are read directly", Mebibytes(self.seen_bytes));
        }
        self.write_report();
        self.larger
    }

    /// The file's descriptor for direct reads, where policy, mount and file allow them. The first file of a mount that
    /// has bytes decides for the mount.
    pub(super) fn open_direct(&mut self, number: usize, file: BorrowedFd<'_>, facts: &Facts) -> Option<DirectFile> {
        let wanted = self.policy == DirectPolicy::Always || self.larger;
        if !wanted || facts.bytes == 0 {
            return None;
        }
        let block_bytes = facts.block_bytes;
        let opened = match &self.mounts[number].decision {
            Decision::PageCache { .. } => return None,
            Decision::Direct { .. } if block_bytes == 0 => return None,
            Decision::Direct { .. } => direct::reopen(file).ok()?,
            Decision::Undecided => {
                let (opened, decision) = match direct::try_out(file, block_bytes) {
                    Ok(opened) => (Some(opened), Decision::Direct { block_bytes }),
                    Err(why) => (None, Decision::PageCache { why }),
                };
                self.decide(number, decision);
                opened?
            }
        };
        Some(DirectFile { file: Arc::new(opened), block_bytes })
    }

    /// True when a range of `bytes` on this mount is read directly, if its file and its buffer allow it.
    pub(super) fn is_direct(&self, number: usize, bytes: u32) -> bool {
        let direct = matches!(self.mounts[number].decision, Decision::Direct { .. });
        direct && bytes > 0 && (self.policy == DirectPolicy::Always || bytes >= DIRECT_BYTES_MIN)
    }

    /// A direct read has failed there that succeeded through the page cache: no more of them.
    pub(super) fn revoke(&mut self, number: usize, error: &io::Error) {
        if matches!(self.mounts[number].decision, Decision::Direct { .. }) {
            let why = format!("a later read says {}", errno_name(error));
            self.decide(number, Decision::PageCache { why });
        }
    }

    fn decide(&mut self, number: usize, decision: Decision) {
        let mount = &mut self.mounts[number];
        mount.decision = decision;
        if let Decision::PageCache { why } = &mount.decision {
            tracing::warn!("{} is read through the page cache, not directly: {why}", mount.name);
        }
        self.write_report();
    }

    fn write_report(&self) {
        let decided = self.mounts.iter().filter_map(|mount| {
            let how = match &mount.decision {
                Decision::Undecided => return None,
                Decision::Direct { block_bytes } => Ok(*block_bytes),
                Decision::PageCache { why } => Err(why.clone()),
            };
            Some(MountReport { point: mount.name.clone(), how })
        });
        let direct = match self.policy {
            DirectPolicy::Never => return,
            DirectPolicy::WhenLarger if !self.larger => DirectReport::NotYet { memory_bytes: self.memory_bytes },
            DirectPolicy::WhenLarger | DirectPolicy::Always => DirectReport::Mounts(decided.collect()),
        };
        self.report.set_direct(direct);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::read::report::ReaderReport;

    fn mounts(policy: DirectPolicy, memory: fn() -> Option<u64>) -> Mounts {
        let report = ReaderReport::Uring {
            queue: 1,
            task_run: crate::sys::uring::TaskRun::Interrupting,
            registered_files: 0,
            registered_bytes: 0,
            direct: None,
            notes: Vec::new(),
        };
        Mounts::with_memory(policy, Arc::new(LiveReport::new(report)), memory)
    }

    fn facts(inode: u64, bytes: u64) -> Facts {
        Facts { mount: 1, identity: (1, inode), bytes, block_bytes: 512 }
    }

    #[test]
    fn larger_than_memory() {
        let check = |memory, sizes: &[(u64, u64)], turned_at: Option<usize>| {
            let mut mounts = mounts(DirectPolicy::WhenLarger, memory);
            let turns = sizes.iter().map(|&(inode, bytes)| mounts.count_file(&facts(inode, bytes)));
            let turns: Vec<usize> = turns.enumerate().filter(|(_, turned)| *turned).map(|(index, _)| index).collect();
            assert_eq!(turns, turned_at.into_iter().collect::<Vec<_>>(), "{sizes:?}");
        };
        check(|| Some(100), &[(1, 60), (2, 40)], None);
        check(|| Some(100), &[(1, 60), (2, 40), (3, 1), (4, 1000)], Some(2));
        // A file that is closed and opened again counts once.
        check(|| Some(100), &[(1, 60), (1, 60), (1, 60)], None);
        check(|| None, &[(1, u64::MAX), (2, u64::MAX)], None);
        let mut always = mounts(DirectPolicy::Always, || Some(0));
        assert!(!always.count_file(&facts(1, 1)));
    }

    #[test]
    fn short_ranges_keep_the_page_cache_only_by_auto() {
        for (policy, short) in [(DirectPolicy::WhenLarger, false), (DirectPolicy::Always, true)] {
            let mut mounts = mounts(policy, || Some(0));
            let number = mounts.number(Some(&facts(1, 1)));
            assert!(!mounts.is_direct(number, 1 << 20), "undecided");
            mounts.decide(number, Decision::Direct { block_bytes: 512 });
            assert!(mounts.is_direct(number, DIRECT_BYTES_MIN));
            assert_eq!(mounts.is_direct(number, DIRECT_BYTES_MIN - 1), short);
            assert!(!mounts.is_direct(number, 0));
            mounts.revoke(number, &io::Error::from_raw_os_error(5));
            assert!(!mounts.is_direct(number, 1 << 20));
        }
    }

    #[test]
    fn a_mount_is_tried_once() {
        let mut mounts = mounts(DirectPolicy::Always, || None);
        let file = std::fs::File::open("/proc/self/status").expect("open");
        let mut facts = direct::look_at(file.as_fd()).expect("statx");
        let number = mounts.number(Some(&facts));
        assert_eq!((number, mounts.number(Some(&facts)), mounts.count()), (0, 0, 1));
        // Files of procfs say that they have no bytes, and such a file decides nothing.
        assert!(mounts.open_direct(number, file.as_fd(), &facts).is_none());
        assert_eq!(mounts.mounts[number].decision, Decision::Undecided);
        facts = Facts { bytes: 10, block_bytes: 4096, ..facts };
        assert!(mounts.open_direct(number, file.as_fd(), &facts).is_none());
        let words = mounts.report.read().to_string();
        assert!(words.ends_with("; /proc through the page cache (open says EINVAL)"), "{words}");
        assert_eq!(mounts.number(None), 1);
    }
}
