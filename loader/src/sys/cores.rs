//! How many cores this process may really use: the least of three limits that know nothing of each other.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use super::cgroup::{self, Version};

/// The three limits; an absent one does not limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoreReport {
    /// Cores in the scheduler's mask of this process.
    pub affinity: u32,
    /// Cores in the control group's cpuset.
    pub cpuset: Option<u32>,
    /// The control group's CPU bandwidth in thousandths of a core: the least of its own and its ancestors'.
    pub quota_millicores: Option<u64>,
}

impl CoreReport {
    /// Reads the limits of this process.
    pub fn read() -> io::Result<Self> {
        Ok(Self::under(Path::new("/"), affinity()?))
    }

    /// The limits as the files under `root` tell them.
    pub fn under(root: &Path, affinity: u32) -> Self {
        Self { affinity, cpuset: cpuset(root), quota_millicores: quota(root) }
    }

    /// The least of the three, the quota rounded down, at least 1.
    pub fn usable(&self) -> u32 {
        let quota = self.quota_millicores.map(|milli| u32::try_from(milli / 1000).unwrap_or(u32::MAX));
        [Some(self.affinity), self.cpuset, quota].into_iter().flatten().min().unwrap_or(1).max(1)
    }
}

impl fmt::Display for CoreReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} usable cores (affinity {}, cpuset ", self.usable(), self.affinity)?;
        match self.cpuset {
            Some(cores) => write!(formatter, "{cores}")?,
            None => formatter.write_str("none")?,
        }
        match self.quota_millicores {
            Some(milli) => write!(formatter, ", quota {}.{:03})", milli / 1000, milli % 1000),
            None => formatter.write_str(", quota none)"),
        }
    }
}

fn affinity() -> io::Result<u32> {
    // The calling thread's mask; with more than 1024 CPUs the call fails, and the standard library knows a way.
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => Ok(set.count()),
        Err(_) => Ok(u32::try_from(std::thread::available_parallelism()?.get()).unwrap_or(u32::MAX)),
    }
}

fn cpuset(root: &Path) -> Option<u32> {
    let groups = cgroup::groups(root, "cpuset")?;
    let names: &[&str] = match groups.version {
        Version::V1 => &["cpuset.effective_cpus", "cpuset.cpus"],
        Version::V2 => &["cpuset.cpus.effective"],
    };
    // Effective sets include the ancestors' limits; a group without the controller has no file, its ancestor may.
    groups
        .folders
        .iter()
        .flat_map(|folder| names.iter().map(move |name| folder.join(name)))
        .find_map(|path| count_list(fs::read_to_string(path).ok()?.trim()))
}

/// Cores in a list such as `0-3,8,10-11`; `None` for an empty or odd one.
fn count_list(list: &str) -> Option<u32> {
    list.split(',').try_fold(0_u32, |count, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        count.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

fn quota(root: &Path) -> Option<u64> {
    let groups = cgroup::groups(root, "cpu")?;
    let read = |path: &Path| fs::read_to_string(path).ok();
    groups
        .folders
        .iter()
        .filter_map(|folder| match groups.version {
            Version::V1 => {
                let quota = read(&folder.join("cpu.cfs_quota_us"))?;
                millicores(&quota, &read(&folder.join("cpu.cfs_period_us"))?)
            }
            Version::V2 => {
                let line = read(&folder.join("cpu.max"))?;
                let (quota, period) = line.split_once(' ')?;
                millicores(quota, period)
            }
        })
        .min()
}

/// `None` for no limit: `max` in version 2, -1 in version 1.
fn millicores(quota_us: &str, period_us: &str) -> Option<u64> {
    let quota = quota_us.trim().parse::<u64>().ok()?;
    quota.checked_mul(1000)?.checked_div(period_us.trim().parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::cgroup::tests::root_with;

    fn check(files: &[(&str, &str)], affinity: u32, usable: u32, text: &str) {
        let root = root_with(files);
        let report = CoreReport::under(root.path(), affinity);
        assert_eq!(report.usable(), usable, "{report:?}");
        assert_eq!(report.to_string(), text);
    }

    #[test]
    fn the_least_of_three() {
        let v2 = ("proc/self/mountinfo", "30 24 0:26 / /cg rw - cgroup2 cgroup2 rw\n");
        let here = ("proc/self/cgroup", "0::/pod/task\n");
        let task = ("cg/pod/task/cgroup.procs", "1\n");
        check(&[], 8, 8, "8 usable cores (affinity 8, cpuset none, quota none)");
        check(
            &[v2, here, task, ("cg/pod/task/cpu.max", "150000 100000\n")],
            8,
            1,
            "1 usable cores (affinity 8, cpuset none, quota 1.500)",
        );
        check(
            &[v2, here, task, ("cg/pod/task/cpu.max", "max 100000\n"), ("cg/pod/cpu.max", "350000 100000\n")],
            8,
            3,
            "3 usable cores (affinity 8, cpuset none, quota 3.500)",
        );
        check(
            &[v2, here, task, ("cg/pod/task/cpu.max", "20000 100000\n")],
            8,
            1,
            "1 usable cores (affinity 8, cpuset none, quota 0.200)",
        );
        check(
            &[v2, here, task, ("cg/pod/cpuset.cpus.effective", "0-3,8,10-11\n")],
            16,
            7,
            "7 usable cores (affinity 16, cpuset 7, quota none)",
        );
        check(
            &[
                v2,
                here,
                task,
                ("cg/pod/task/cpuset.cpus.effective", "0-3\n"),
                ("cg/pod/task/cpu.max", "800000 100000\n"),
            ],
            2,
            2,
            "2 usable cores (affinity 2, cpuset 4, quota 8.000)",
        );
    }

    #[test]
    fn version_1() {
        let files = [
            ("proc/self/cgroup", "3:cpuset:/\n1:cpu,cpuacct:/job\n"),
            (
                "proc/self/mountinfo",
                "1 0 0:1 / /cg/cpu rw - cgroup cgroup rw,cpu,cpuacct\n2 0 0:2 / /cg/cpuset rw - cgroup cgroup rw,cpuset\n",
            ),
            ("cg/cpu/job/cpu.cfs_quota_us", "250000\n"),
            ("cg/cpu/job/cpu.cfs_period_us", "100000\n"),
            ("cg/cpu/cpu.cfs_quota_us", "-1\n"),
            ("cg/cpu/cpu.cfs_period_us", "100000\n"),
            ("cg/cpuset/cpuset.cpus", "0-5\n"),
        ];
        check(&files, 8, 2, "2 usable cores (affinity 8, cpuset 6, quota 2.500)");
    }

    #[test]
    fn odd_lists_do_not_limit() {
        for (list, expected) in [
            ("", None),
            ("0", Some(1)),
            ("3-1", None),
            ("0-", None),
            ("a", None),
            ("0-4294967295", None),
            ("1,2,3", Some(3)),
        ] {
            assert_eq!(count_list(list), expected, "{list:?}");
        }
    }

    #[test]
    fn this_machine() {
        let report = CoreReport::read().expect("limits");
        assert!(report.usable() >= 1 && report.usable() <= report.affinity, "{report}");
    }
}
