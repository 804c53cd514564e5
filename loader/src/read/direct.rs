//! Can a file be read directly, past the page cache? What statx says, a second descriptor, and a real read.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};

use super::refusal::errno_name;
use crate::sys::arena::Arena;

/// Blocks where the kernel does not say (before Linux 6.1): no disk that is in use has larger ones.
const BLOCK_BYTES_USUAL: u32 = 4096;

/// What statx says about an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Facts {
    /// Its mount; where the kernel does not number them (before Linux 5.8), its device.
    pub(super) mount: u64,
    /// Device and inode.
    pub(super) identity: (u64, u64),
    /// Its size.
    pub(super) bytes: u64,
    /// Offsets, lengths and addresses of direct reads are multiples of this; 0 where it cannot be read directly.
    pub(super) block_bytes: u32,
}

/// Asks statx.
pub(super) fn look_at(file: BorrowedFd<'_>) -> io::Result<Facts> {
    let wanted = StatxFlags::INO | StatxFlags::SIZE | StatxFlags::MNT_ID | StatxFlags::DIOALIGN;
    let found = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, wanted)?;
    let known = StatxFlags::from_bits_retain(found.stx_mask);
    let device = rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor);
    Ok(Facts {
        mount: if known.contains(StatxFlags::MNT_ID) { found.stx_mnt_id } else { device },
        identity: (device, found.stx_ino),
        bytes: found.stx_size,
        block_bytes: if known.contains(StatxFlags::DIOALIGN) {
            found.stx_dio_mem_align.max(found.stx_dio_offset_align)
        } else {
            BLOCK_BYTES_USUAL
        },
    })
}

/// A second descriptor of the same file, for direct reads. The first one stays as it is.
pub(super) fn reopen(file: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens `file` for direct reads and reads its first block so, as nothing else tells whether that works.
pub(super) fn try_out(file: BorrowedFd<'_>, block_bytes: u32) -> Result<OwnedFd, String> {
    if block_bytes == 0 {
        return Err("statx says that the file system has none".to_owned());
    }
    let page_bytes = rustix::param::page_size();
    if !block_bytes.is_power_of_two() || block_bytes as usize > page_bytes {
        return Err(format!("its blocks of {block_bytes} bytes are no part of a page of {page_bytes}"));
    }
    let direct = reopen(file).map_err(|error| format!("open says {}", errno_name(&error)))?;
    let block = |file: BorrowedFd<'_>| -> Result<Vec<u8>, String> {
        let mut arena = Arena::new(page_bytes).map_err(|error| error.to_string())?;
        let buffer = arena.allocate_at(0, u64::from(block_bytes)).map_err(|error| error.to_string())?;
        let mut buffer = buffer.expect("the arena is empty");
        let bytes = rustix::io::retry_on_intr(|| rustix::io::pread(file, buffer.as_mut_slice(), 0));
        let bytes = bytes.map_err(|error| format!("a read says {}", errno_name(&error.into())))?;
        Ok(buffer.as_slice()[..bytes].to_vec())
    };
    if block(direct.as_fd())? == block(file)? {
        Ok(direct)
    } else {
        Err("a read gives other bytes than the page cache".to_owned())
    }
}

/// Where a mount is, for people.
pub(super) fn mount_point(mount: u64) -> String {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    point_of(&table, mount).unwrap_or_else(|| format!("mount {mount}"))
}

/// The fifth column of the line that begins with the mount's number.
fn point_of(table: &str, mount: u64) -> Option<String> {
    let mut lines = table.lines().map(str::split_ascii_whitespace);
    let mut columns = lines.find_map(|mut columns| (columns.next()?.parse() == Ok(mount)).then_some(columns))?;
    columns.nth(3).map(|point| point.replace("\\040", " "))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;

    use super::*;

    #[test]
    fn what_this_disk_says() {
        let mut file = tempfile::tempfile().expect("temporary file");
        file.write_all(&[7; 5000]).expect("write");
        let facts = look_at(file.as_fd()).expect("statx");
        assert_eq!(facts.bytes, 5000);
        assert_eq!(look_at(file.as_fd()).expect("statx"), facts);
        assert!(facts.block_bytes == 0 || facts.block_bytes.is_power_of_two(), "{facts:?}");
        match try_out(file.as_fd(), facts.block_bytes) {
            Ok(direct) => assert_eq!(look_at(direct.as_fd()).expect("statx").identity, facts.identity),
            Err(reason) => eprintln!("skipped: no direct reads of temporary files: {reason}"),
        }
    }

    #[test]
    fn refusals_have_reasons() {
        // procfs has no direct reads, and says so at open.
        let file = File::open("/proc/self/status").expect("open");
        assert_eq!(try_out(file.as_fd(), 4096).expect_err("refused"), "open says EINVAL");
        let check = |block_bytes, words: &str| {
            let error = try_out(file.as_fd(), block_bytes).expect_err("impossible");
            assert!(error.contains(words), "{error}");
        };
        check(0, "statx says");
        check(768, "blocks of 768 bytes are no part of a page");
        check(1 << 20, "blocks of 1048576 bytes are no part of a page");
        let folder = File::open("/").expect("open");
        assert!(try_out(folder.as_fd(), 4096).is_err());
    }

    #[test]
    fn mount_points() {
        let table = "22 1 254:0 / / rw - ext4 /dev/vda rw\n31 22 0:27 /a /mnt/my\\040data ro shared:1 - nfs x:/y rw\n";
        assert_eq!(point_of(table, 22).as_deref(), Some("/"));
        assert_eq!(point_of(table, 31).as_deref(), Some("/mnt/my data"));
        assert_eq!(point_of(table, 2), None);
        let root = look_at(File::open("/").expect("open").as_fd()).expect("statx");
        assert_eq!(mount_point(root.mount), "/");
        assert_eq!(mount_point(u64::MAX), format!("mount {}", u64::MAX));
    }
}
