//! Why io_uring cannot be had: the true reason, and what helps.

use std::fs;
use std::io;

use crate::sys::uring::Refusal;

/// What the system says about itself that tells one reason from another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Circumstances {
    /// `kernel.io_uring_disabled`: 0, 1 or 2; `None` where the kernel has no such setting (before Linux 6.6).
    disabled: Option<u32>,
    /// A seccomp filter is in force for this process.
    filtered: bool,
    /// The setting 1 lets this process pass: it is an administrator, or of the group `kernel.io_uring_group`.
    exempt: bool,
}

impl Circumstances {
    fn read() -> Self {
        let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<i64>().ok();
        let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let seccomp = status.lines().find_map(|line| line.strip_prefix("Seccomp:")).map(str::trim);
        Self {
            disabled: number("/proc/sys/kernel/io_uring_disabled").and_then(|value| u32::try_from(value).ok()),
            filtered: seccomp == Some("2"),
            exempt: is_administrator() || number("/proc/sys/kernel/io_uring_group").is_some_and(is_in_group),
        }
    }
}

fn is_administrator() -> bool {
    rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(rustix::thread::CapabilitySet::SYS_ADMIN))
}

fn is_in_group(group: i64) -> bool {
    let is = |candidate: rustix::process::Gid| i64::from(candidate.as_raw()) == group;
    is(rustix::process::getegid()) || rustix::process::getgroups().is_ok_and(|groups| groups.into_iter().any(is))
}

/// The reason in words.
pub(super) fn explain(refusal: &Refusal) -> String {
    explain_in(refusal, &Circumstances::read())
}

fn explain_in(refusal: &Refusal, circumstances: &Circumstances) -> String {
    let Refusal { call, source } = refusal;
    let said = format!("{call} says {}", errno_name(source));
    let Circumstances { disabled, filtered, exempt } = circumstances;
    match source.raw_os_error() {
        Some(libc::EPERM) => match disabled {
            Some(2) => format!("{said}: the sysctl kernel.io_uring_disabled is 2, for every process; 0 allows it"),
            Some(1) if !exempt => format!(
                "{said}: the sysctl kernel.io_uring_disabled is 1, for all but administrators and the group \
                 kernel.io_uring_group; 0 allows it"
            ),
            _ => {
                let sysctl = disabled.map_or("there is no sysctl for it".to_owned(), |value| {
                    format!("the sysctl kernel.io_uring_disabled is {value}, which allows it")
                });
                let filter = if *filtered { "a seccomp filter is in force" } else { "no seccomp filter is seen" };
                format!(
                    "{said}: a sandbox forbids it ({filter}, {sysctl}); allow io_uring_setup, io_uring_enter and \
                     io_uring_register in the container's seccomp profile"
                )
            }
        },
        Some(libc::EACCES) => format!("{said}: a security module (SELinux, AppArmor) forbids it"),
        Some(libc::ENOSYS) => match (disabled, filtered) {
            (Some(_), true) => {
                format!("{said}: the kernel has it, but a sandbox (a seccomp filter is in force) hides it")
            }
            (None, true) => {
                format!("{said}: the kernel has none, or a sandbox (a seccomp filter is in force) hides it")
            }
            (_, false) => format!("{said}: the kernel has none; Linux 5.11 or later with CONFIG_IO_URING has"),
        },
        Some(libc::EINVAL | libc::EOPNOTSUPP) => {
            format!("{said}: the kernel is too old; Linux 5.11 or later is needed")
        }
        Some(libc::ENOMEM) => {
            format!("{said}: too many rings, or the limit on locked memory (ulimit -l) is too low")
        }
        Some(libc::EMFILE | libc::ENFILE) => {
            format!("{said}: no descriptor is left; raise the limit on open files (ulimit -n)")
        }
        _ => said,
    }
}

/// `EPERM (Operation not permitted)` for the common ones, the system's words for the others.
pub(super) fn errno_name(error: &io::Error) -> String {
    const NAMES: [(i32, &str); 10] = [
        (libc::EPERM, "EPERM"),
        (libc::EACCES, "EACCES"),
        (libc::ENOSYS, "ENOSYS"),
        (libc::EINVAL, "EINVAL"),
        (libc::EOPNOTSUPP, "EOPNOTSUPP"),
        (libc::ENOMEM, "ENOMEM"),
        (libc::EMFILE, "EMFILE"),
        (libc::ENFILE, "ENFILE"),
        (libc::EFAULT, "EFAULT"),
        (libc::EAGAIN, "EAGAIN"),
    ];
    let name = NAMES.into_iter().find(|(number, _)| error.raw_os_error() == Some(*number));
    name.map_or_else(|| error.to_string(), |(_, name)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(errno: i32, disabled: Option<u32>, filtered: bool, exempt: bool, expected: &[&str]) {
        let refusal = Refusal { call: "io_uring_setup", source: io::Error::from_raw_os_error(errno) };
        let words = explain_in(&refusal, &Circumstances { disabled, filtered, exempt });
        for part in expected {
            assert!(words.contains(part), "{words:?} has not {part:?}");
        }
    }

    #[test]
    fn the_true_reason() {
        check(libc::EPERM, Some(2), true, true, &["io_uring_setup says EPERM", "kernel.io_uring_disabled is 2"]);
        check(libc::EPERM, Some(1), true, false, &["kernel.io_uring_disabled is 1"]);
        check(
            libc::EPERM,
            Some(1),
            true,
            true,
            &["sandbox", "seccomp filter is in force", "disabled is 1, which allows"],
        );
        check(
            libc::EPERM,
            Some(0),
            true,
            false,
            &["sandbox", "seccomp filter is in force", "disabled is 0, which allows"],
        );
        check(libc::EPERM, None, false, false, &["sandbox", "no seccomp filter is seen", "there is no sysctl"]);
        check(libc::EACCES, Some(0), false, false, &["security module"]);
        check(libc::ENOSYS, None, false, false, &["the kernel has none; Linux 5.11"]);
        check(libc::ENOSYS, Some(0), true, false, &["the kernel has it", "hides it"]);
        check(libc::ENOSYS, None, true, false, &["the kernel has none, or a sandbox"]);
        check(libc::EINVAL, None, false, false, &["too old"]);
        check(libc::ENOMEM, Some(0), false, false, &["ENOMEM", "ulimit -l"]);
        check(libc::EMFILE, Some(0), false, false, &["ulimit -n"]);
        check(libc::EIO, Some(0), false, false, &["io_uring_setup says Input/output error"]);
    }
}
