//! Where this process's control groups are: the folders of a controller, from its own group up to the root that it
//! can see, for version 1 and version 2.
//!
//! A function of the files under a root folder, so that tests can bring their own.

use std::fs;
use std::path::{Path, PathBuf};

/// Version of the control group interface; the file names differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// One hierarchy a controller.
    V1,
    /// The unified hierarchy.
    V2,
}

/// The folders whose limits apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Groups {
    /// How to read them.
    pub version: Version,
    /// From the process's own group to the uppermost that is visible; every one of them limits.
    pub folders: Vec<PathBuf>,
}

/// Finds the groups of `controller` (`memory`, `cpu`, `cpuset`) for this process. `root` is `/`, or a test's folder.
pub fn groups(root: &Path, controller: &str) -> Option<Groups> {
    let memberships = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).ok()?;
    // Version 1 first: where both are mounted, a controller that has a hierarchy of its own is not in the unified one.
    for version in [Version::V1, Version::V2] {
        let Some(group) = memberships.lines().find_map(|line| membership(line, controller, version)) else { continue };
        let Some(mount) = mounts.lines().find_map(|line| mount(line, controller, version)) else { continue };
        return Some(Groups { version, folders: folders(root, group, &mount) });
    }
    None
}

/// The group's path in `hierarchy-ID:controller-list:cgroup-path`.
fn membership<'a>(line: &'a str, controller: &str, version: Version) -> Option<&'a str> {
    let mut parts = line.splitn(3, ':');
    let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let fits = match version {
        Version::V1 => controllers.split(',').any(|name| name == controller),
        Version::V2 => number == "0" && controllers.is_empty(),
    };
    fits.then_some(path)
}

struct Mount {
    /// The group that is at the mount point.
    group: String,
    point: PathBuf,
}

/// `36 35 98:0 /group /mount/point options - type source super-options`, see proc_pid_mountinfo(5).
fn mount(line: &str, controller: &str, version: Version) -> Option<Mount> {
    let (place, kind) = line.split_once(" - ")?;
    let mut kind = kind.split(' ');
    let (kind, super_options) = (kind.next()?, kind.nth(1).unwrap_or(""));
    let fits = match version {
        Version::V1 => kind == "cgroup" && super_options.split(',').any(|name| name == controller),
        Version::V2 => kind == "cgroup2",
    };
    let mut place = place.split(' ').skip(3);
    let (group, point) = (place.next()?, place.next()?);
    fits.then(|| Mount { group: unescape(group), point: PathBuf::from(unescape(point)) })
}

/// The kernel writes blanks, tabs, newlines and backslashes in octal.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

fn folders(root: &Path, group: &str, mount: &Mount) -> Vec<PathBuf> {
    let point = root.join(mount.point.strip_prefix("/").unwrap_or(&mount.point));
    // In a container without a namespace for groups, the mount shows a subtree of the host's and the path is the host's.
    let below = Path::new(group).strip_prefix(&mount.group).unwrap_or(Path::new(""));
    let leaf = point.join(below);
    // `/..` in the path (the process was moved out of the namespace's root) or a group that is gone: the mount's top.
    let leaf =
        if below.components().any(|part| part.as_os_str() == "..") || !leaf.is_dir() { point.clone() } else { leaf };
    leaf.ancestors().take_while(|folder| folder.starts_with(&point)).map(Path::to_owned).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A root folder with these files in it.
    pub(crate) fn root_with(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("temporary folder");
        for (name, text) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().expect("has one")).expect("folder");
            fs::write(path, text).expect("file");
        }
        root
    }

    fn check(cgroup: &str, mountinfo: &str, present: &[&str], expected: Option<(Version, &[&str])>) {
        let root = root_with(&[("proc/self/cgroup", cgroup), ("proc/self/mountinfo", mountinfo)]);
        for folder in present {
            fs::create_dir_all(root.path().join(folder)).expect("folder");
        }
        let found = groups(root.path(), "memory");
        let expected = expected.map(|(version, folders)| Groups {
            version,
            folders: folders.iter().map(|folder| root.path().join(folder)).collect(),
        });
        assert_eq!(found, expected, "{cgroup} in {mountinfo}");
    }

    const V2: &str = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1: &str = "31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      32 24 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";

    #[test]
    fn own_group_up_to_the_visible_root() {
        let both = format!("{V1}{V2}");
        check(
            "0::/a/b\n",
            V2,
            &["sys/fs/cgroup/a/b"],
            Some((Version::V2, &["sys/fs/cgroup/a/b", "sys/fs/cgroup/a", "sys/fs/cgroup"])),
        );
        check("0::/\n", V2, &["sys/fs/cgroup"], Some((Version::V2, &["sys/fs/cgroup"])));
        check(
            "4:memory:/job\n2:cpu,cpuacct:/\n0::/other\n",
            &both,
            &["sys/fs/cgroup/memory/job"],
            Some((Version::V1, &["sys/fs/cgroup/memory/job", "sys/fs/cgroup/memory"])),
        );
        // Docker, version 1, no namespace: the host's path is mounted at the top.
        check(
            "4:memory:/docker/abc\n",
            "31 24 0:27 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
            &["sys/fs/cgroup/memory"],
            Some((Version::V1, &["sys/fs/cgroup/memory"])),
        );
        // The path cannot be seen from here.
        check("0::/../other\n", V2, &["sys/fs/cgroup"], Some((Version::V2, &["sys/fs/cgroup"])));
        check("0::/gone\n", V2, &["sys/fs/cgroup"], Some((Version::V2, &["sys/fs/cgroup"])));
        check("0::/a\n", "", &[], None);
        check("", V2, &[], None);
    }
}
