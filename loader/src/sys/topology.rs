//! Which memory node a GPU is on, and which cores are near it: a function of the files under a root folder, so that tests
//! can bring their own. And how memory is placed there.
//!
//! Machines tell nonsense about their nodes, and containers allow only some of them; then nothing is bound, and the reason
//! is told.
#![expect(unsafe_code, reason = "asks for a memory policy, for which there is no wrapper")]

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::thread;

/// Largest node number that a memory policy is asked for; the kernel has no more by default.
const NODES_MAX: u32 = 1024;

/// Cores, ascending.
pub type Cores = Vec<u32>;

/// Where what belongs to a device should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placement {
    /// On this node.
    Node {
        /// Its number.
        node: u32,
        /// Its cores that this process may use.
        cores: Cores,
    },
    /// Anywhere, as the machine has one node only.
    OneNode,
    /// Anywhere, for this reason.
    Unknown(String),
}

/// A device on the PCI bus, as the system writes it: domain, bus, device and function in lower-case hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PciId(String);

impl PciId {
    /// Checks and completes `text`, such as `0000:3b:00.0`, `00000000:3B:00.0` or `3b:00.0`.
    pub fn parse(text: &str) -> Option<Self> {
        let (place, function) = text.split_once('.')?;
        let mut parts = place.split(':').rev();
        let (device, bus) = (parts.next()?, parts.next()?);
        let domain = parts.next().unwrap_or("0");
        let number = |digits: &str, max: u32| {
            let is_hex = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_hex.then(|| u32::from_str_radix(digits, 16).ok()).flatten().filter(|&number| number <= max)
        };
        let (domain, bus) = (number(domain, u32::MAX)?, number(bus, 0xff)?);
        let (device, function) = (number(device, 0x1f)?, number(function, 7)?);
        parts.next().is_none().then(|| Self(format!("{domain:04x}:{bus:02x}:{device:02x}.{function}")))
    }
}

impl fmt::Display for PciId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl Placement {
    /// Near `device`, for a process that may use the cores `allowed`. `root` is `/`, or a test's folder.
    pub fn near(root: &Path, device: &PciId, allowed: &[u32]) -> Self {
        let nodes = fs::read_to_string(root.join("sys/devices/system/node/online")).ok();
        let Some(nodes) = nodes.and_then(|text| parse_list(text.trim())) else {
            return Self::Unknown("the system does not list its memory nodes".to_owned());
        };
        if nodes.len() <= 1 {
            return Self::OneNode;
        }
        let path = root.join("sys/bus/pci/devices").join(&device.0).join("numa_node");
        let node = match fs::read_to_string(path).map(|text| text.trim().parse::<i64>()) {
            Ok(Ok(-1)) => return Self::Unknown(format!("the system does not know the memory node of {device}")),
            Ok(Ok(node)) => node,
            Ok(Err(_)) | Err(_) => return Self::Unknown(format!("the system has no memory node for {device}")),
        };
        let Some(node) = u32::try_from(node).ok().filter(|node| nodes.contains(node) && *node < NODES_MAX) else {
            return Self::Unknown(format!(
                "{device} is said to be on memory node {node}, and there is none of that number"
            ));
        };
        let path = root.join(format!("sys/devices/system/node/node{node}/cpulist"));
        let near = fs::read_to_string(path).ok().and_then(|text| parse_list(text.trim())).unwrap_or_default();
        let cores: Cores = near.into_iter().filter(|core| allowed.contains(core)).collect();
        if cores.is_empty() {
            return Self::Unknown(format!("this process may use no core of memory node {node}, where {device} is"));
        }
        Self::Node { node, cores }
    }
}

/// The cores that the calling thread may use.
pub fn allowed_cores() -> io::Result<Cores> {
    let set = rustix::thread::sched_getaffinity(None)?;
    let count = rustix::thread::CpuSet::MAX_CPU;
    Ok((0..count).filter(|&core| set.is_set(core)).filter_map(|core| u32::try_from(core).ok()).collect())
}

/// Numbers in a list such as `0-3,8`; `None` for an odd one.
pub(super) fn parse_list(list: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        // No machine has a million cores; a list that says so is odd.
        if last < first || last >= 1 << 20 {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// Does `work`, in which memory comes from `node` while there is some; on a thread of its own, so that nobody else's policy
/// changes. The error, beside the outcome, says why memory comes from anywhere.
pub fn with_memory_of<T: Send>(node: u32, work: impl FnOnce() -> T + Send) -> (T, Option<io::Error>) {
    thread::scope(|scope| {
        let prefer = move || {
            let refused = prefer_node(node).err();
            (work(), refused)
        };
        match scope.spawn(prefer).join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// The calling thread's memory comes from `node` while there is some.
fn prefer_node(node: u32) -> io::Result<()> {
    /// Bits of a word of the kernel's mask.
    const WORD_BITS: u32 = u64::BITS;
    /// `MPOL_PREFERRED` of set_mempolicy(2).
    const PREFERRED: libc::c_long = 1;
    let mut mask = [0_u64; (NODES_MAX / WORD_BITS) as usize];
    let word = mask.get_mut((node / WORD_BITS) as usize).ok_or(io::ErrorKind::InvalidInput)?;
    *word |= 1 << (node % WORD_BITS);
    // SAFETY: the kernel reads so many bits of the mask, less one, and keeps nothing of it.
    match unsafe { libc::syscall(libc::SYS_set_mempolicy, PREFERRED, mask.as_ptr(), libc::c_ulong::from(NODES_MAX)) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::cgroup::tests::root_with;

    const DEVICE: &str = "sys/bus/pci/devices/0000:3b:00.0/numa_node";

    fn check(files: &[(&str, &str)], allowed: &[u32], expected: Placement) {
        let root = root_with(files);
        let device = PciId::parse("00000000:3B:00.0").expect("an id");
        assert_eq!(Placement::near(root.path(), &device, allowed), expected);
    }

    #[test]
    fn near_a_device() {
        let online = ("sys/devices/system/node/online", "0-1\n");
        let nodes = [
            ("sys/devices/system/node/node0/cpulist", "0-3,8-11\n"),
            ("sys/devices/system/node/node1/cpulist", "4-7,12-15\n"),
        ];
        let on = |node| [online, nodes[0], nodes[1], (DEVICE, node)];
        let all: Vec<u32> = (0..16).collect();
        check(&on("1\n"), &all, Placement::Node { node: 1, cores: vec![4, 5, 6, 7, 12, 13, 14, 15] });
        check(&on("0\n"), &[2, 3, 4, 5], Placement::Node { node: 0, cores: vec![2, 3] });
        let unknown = |words: &str| Placement::Unknown(words.to_owned());
        check(&on("-1\n"), &all, unknown("the system does not know the memory node of 0000:3b:00.0"));
        check(
            &on("7\n"),
            &all,
            unknown("0000:3b:00.0 is said to be on memory node 7, and there is none of that number"),
        );
        check(&on("x\n"), &all, unknown("the system has no memory node for 0000:3b:00.0"));
        check(&[online, nodes[0], nodes[1]], &all, unknown("the system has no memory node for 0000:3b:00.0"));
        check(&on("1\n"), &[0, 1], unknown("this process may use no core of memory node 1, where 0000:3b:00.0 is"));
        check(&[("sys/devices/system/node/online", "0\n"), (DEVICE, "0\n")], &all, Placement::OneNode);
        check(&[(DEVICE, "0\n")], &all, unknown("the system does not list its memory nodes"));
    }

    #[test]
    fn names_of_devices() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(PciId::parse(text).map(|id| id.to_string()).as_deref(), expected, "{text:?}");
        };
        check("0000:3b:00.0", Some("0000:3b:00.0"));
        check("00000000:3B:1F.7", Some("0000:3b:1f.7"));
        check("3b:00.0", Some("0000:3b:00.0"));
        check("10000:01:00.0", Some("10000:01:00.0"));
        for wrong in ["", ".", "3b:00", "../../x:00.0", "0:0:3b:00.0", "3b:20.0", "3b:00.8", "+3:00.0", "3b:00.0/.."] {
            check(wrong, None);
        }
    }

    #[test]
    fn lists() {
        let check =
            |list: &str, expected: Option<&[u32]>| assert_eq!(parse_list(list).as_deref(), expected, "{list:?}");
        check("0", Some(&[0]));
        check("0-2,8,10-11", Some(&[0, 1, 2, 8, 10, 11]));
        for odd in ["", "3-1", "0-", "a", "0-4294967295"] {
            check(odd, None);
        }
    }

    #[test]
    fn on_this_machine() {
        let allowed = allowed_cores().expect("a mask");
        assert!(!allowed.is_empty());
        let (sum, refused) = with_memory_of(0, || vec![1_u64; 1 << 16].iter().sum::<u64>());
        assert_eq!(sum, 1 << 16);
        if let Some(error) = refused {
            // Containers may forbid it; then memory comes from anywhere.
            assert!(matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)), "{error}");
        }
        let (_, refused) = with_memory_of(NODES_MAX, || ());
        assert_eq!(refused.expect("no such node").kind(), io::ErrorKind::InvalidInput);
    }
}
