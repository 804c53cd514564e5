//! How much memory can still be had: the machine's and the control group's word, whichever is less.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use super::cgroup::{self, Version};

/// The tightest control group's limit and what is used of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupMemory {
    /// The group's folder.
    pub folder: PathBuf,
    /// Its limit, in bytes.
    pub limit_bytes: u64,
    /// What counts against the limit and cannot simply be dropped: usage less the page cache of ordinary files.
    pub used_bytes: u64,
}

impl GroupMemory {
    /// What is left.
    pub fn free_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes)
    }
}

/// What the system says about memory; an absent source does not limit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MemoryReport {
    /// The kernel's estimate of what can be had without swapping (`MemAvailable`).
    pub machine_free_bytes: Option<u64>,
    /// The control group, own or ancestor, with the least left.
    pub group: Option<GroupMemory>,
}

impl MemoryReport {
    /// Asks the system.
    pub fn read() -> Self {
        Self::under(Path::new("/"))
    }

    /// As the files under `root` tell it.
    pub fn under(root: &Path) -> Self {
        let meminfo = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
        Self {
            machine_free_bytes: value(&meminfo, "MemAvailable:").and_then(|kib| kib.checked_mul(1024)),
            group: tightest_group(root),
        }
    }

    /// What can be had; `None` when nobody knows.
    pub fn free_bytes(&self) -> Option<u64> {
        [self.machine_free_bytes, self.group.as_ref().map(GroupMemory::free_bytes)].into_iter().flatten().min()
    }
}

impl fmt::Display for MemoryReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.machine_free_bytes {
            Some(bytes) => write!(formatter, "the machine has {} available", Mebibytes(bytes))?,
            None => formatter.write_str("the machine does not say what is available")?,
        }
        match &self.group {
            Some(group) => write!(
                formatter,
                ", the control group {} allows {} and uses {}",
                group.folder.display(),
                Mebibytes(group.limit_bytes),
                Mebibytes(group.used_bytes)
            ),
            None => formatter.write_str(", no control group limits it"),
        }
    }
}

/// A number of bytes as people say it.
#[derive(Debug, Clone, Copy)]
pub struct Mebibytes(pub u64);

impl fmt::Display for Mebibytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:.1} MiB", self.0 as f64 / f64::from(1 << 20))
    }
}

/// The number after `name` at the start of a line.
fn value(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

fn tightest_group(root: &Path) -> Option<GroupMemory> {
    let groups = cgroup::groups(root, "memory")?;
    groups.folders.iter().filter_map(|folder| group_memory(folder, groups.version)).min_by_key(GroupMemory::free_bytes)
}

/// `None` without a limit.
fn group_memory(folder: &Path, version: Version) -> Option<GroupMemory> {
    /// Version 1 writes "no limit" as the largest multiple of a page; nothing near it is a limit.
    const UNLIMITED_BYTES: u64 = 1 << 60;
    let (limit, usage, file_parts) = match version {
        Version::V1 => {
            ("memory.limit_in_bytes", "memory.usage_in_bytes", ["total_inactive_file ", "total_active_file "])
        }
        Version::V2 => ("memory.max", "memory.current", ["inactive_file ", "active_file "]),
    };
    let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    let limit_bytes = number(limit).filter(|&bytes| bytes < UNLIMITED_BYTES)?;
    // Shared memory is on the anonymous lists, so what these lists hold can be dropped or written back.
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let droppable: u64 = file_parts.iter().filter_map(|name| value(&stat, name)).sum();
    let used_bytes = number(usage)?.saturating_sub(droppable);
    Some(GroupMemory { folder: folder.to_owned(), limit_bytes, used_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::cgroup::tests::root_with;

    const V2: (&str, &str) = ("proc/self/mountinfo", "30 24 0:26 / /cg rw - cgroup2 cgroup2 rw\n");
    const HERE: (&str, &str) = ("proc/self/cgroup", "0::/pod/task\n");
    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:  4096 kB\nMemAvailable:   2048 kB\n");

    fn check(files: &[(&str, &str)], free_bytes: Option<u64>) {
        let root = root_with(files);
        let report = MemoryReport::under(root.path());
        assert_eq!(report.free_bytes(), free_bytes, "{report}");
    }

    #[test]
    fn the_least_of_machine_and_groups() {
        check(&[], None);
        check(&[MEMINFO], Some(2 << 20));
        let task = ("cg/pod/task/memory.max", "1048576\n");
        check(&[MEMINFO, V2, HERE, task, ("cg/pod/task/memory.current", "48576\n")], Some(1_000_000));
        // Page cache of files does not count; shared memory does.
        let stat =
            ("cg/pod/task/memory.stat", "anon 5\nfile 40000\nshmem 10000\ninactive_file 20000\nactive_file 10000\n");
        check(&[MEMINFO, V2, HERE, task, stat, ("cg/pod/task/memory.current", "48576\n")], Some(1_030_000));
        // The parent has less left.
        let parent = [("cg/pod/memory.max", "2000000\n"), ("cg/pod/memory.current", "1999000\n")];
        check(&[MEMINFO, V2, HERE, task, ("cg/pod/task/memory.current", "0\n"), parent[0], parent[1]], Some(1_000));
        check(&[MEMINFO, V2, HERE, ("cg/pod/task/memory.max", "max\n")], Some(2 << 20));
        // Over the limit already (it was lowered).
        check(&[MEMINFO, V2, HERE, task, ("cg/pod/task/memory.current", "2000000\n")], Some(0));
    }

    #[test]
    fn version_1() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "4:memory:/job\n"),
            ("proc/self/mountinfo", "1 0 0:1 / /cg/memory rw - cgroup cgroup rw,memory\n"),
            ("cg/memory/job/memory.limit_in_bytes", "1000000\n"),
            ("cg/memory/job/memory.usage_in_bytes", "500000\n"),
            ("cg/memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 100000\ntotal_active_file 0\n"),
            ("cg/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("cg/memory/memory.usage_in_bytes", "900000\n"),
        ];
        check(&files, Some(600_000));
    }

    #[test]
    fn this_machine() {
        let report = MemoryReport::read();
        assert!(report.free_bytes().is_some_and(|bytes| bytes > 0), "{report}");
    }
}
