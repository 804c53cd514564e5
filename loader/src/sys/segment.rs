//! Named segments of POSIX shared memory: made with all their pages, found again, taken away.
//!
//! The `shared_memory` crate creates a segment (exclusively, never somebody else's), maps it, and unlinks it at the end.
//! It does not hand out its descriptor, so further ones are opened by name and compared.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags};
use shared_memory::{Shmem, ShmemConf, ShmemError};

use super::memfd;

/// Where the system keeps named segments, as files.
pub const FOLDER: &str = "/dev/shm";

/// Owner may read and write, nobody else anything.
const PRIVATE_MODE: u32 = 0o600;

/// Makes a segment of `bytes` under `name` (with its leading slash), with every page allocated, mapped, for this user only.
///
/// Fails with `EEXIST` where the name is taken, with `ENOSPC` or `ENOMEM` where the pages are not to be had; nothing stays
/// behind then.
pub fn create_reserved(name: &str, bytes: usize) -> io::Result<Shmem> {
    let segment = ShmemConf::new().os_id(name).size(bytes).create().map_err(to_io)?;
    let memory = open(name)?;
    // The mode given at creation is less what the umask takes, never more.
    rustix::fs::fchmod(&memory, Mode::from_raw_mode(PRIVATE_MODE))?;
    memfd::reserve(memory.as_fd(), bytes as u64)?;
    Ok(segment)
}

/// Opens the segment `name` for reading and writing; it must be an ordinary file of this user that no other may open.
pub fn open(name: &str) -> io::Result<OwnedFd> {
    let path = Path::new(FOLDER).join(name.trim_start_matches('/'));
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let memory = rustix::fs::open(path, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&memory)?;
    let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
    if !is_file || stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is not this user's own file alone"));
    }
    Ok(memory)
}

/// Marks a segment as alive for as long as the descriptor is open, whatever way its process ends; false where another
/// descriptor marks it already.
pub fn mark_alive(memory: &OwnedFd) -> io::Result<bool> {
    match rustix::fs::flock(memory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Takes the name `name` away; those who have the segment mapped keep it.
pub fn unlink(name: &str) -> io::Result<()> {
    let name = CString::new(name).map_err(io::Error::other)?;
    Ok(rustix::shm::unlink(name)?)
}

/// Bytes that segments may still take; `None` where the system does not limit them.
pub fn free_bytes() -> io::Result<Option<u64>> {
    let folder = File::open(FOLDER)?;
    let stat = rustix::fs::fstatvfs(&folder)?;
    // A tmpfs without a limit says that it has no blocks.
    Ok((stat.f_blocks > 0).then(|| stat.f_bavail.saturating_mul(stat.f_frsize)))
}

fn to_io(error: ShmemError) -> io::Error {
    match error {
        ShmemError::MappingIdExists => io::Error::from(rustix::io::Errno::EXIST),
        ShmemError::MapCreateFailed(code) | ShmemError::UnknownOsError(code) => {
            io::Error::from_raw_os_error(i32::try_from(code).unwrap_or(libc::EIO))
        }
        other => io::Error::other(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::shared::{OnFork, SharedMapping};

    fn name(test: &str) -> String {
        format!("/feedline-test.{test}.{}", std::process::id())
    }

    #[test]
    fn a_segment_is_private_whole_and_gone_in_the_end() {
        let name = name("segment");
        let segment = create_reserved(&name, 3 << 16).expect("create");
        let stat = rustix::fs::fstat(open(&name).expect("open")).expect("stat");
        assert_eq!((stat.st_mode & 0o777, stat.st_size, stat.st_blocks * 512), (0o600, 3 << 16, 3 << 16));
        assert_eq!(
            create_reserved(&name, 1 << 16).map(drop).map_err(|error| error.raw_os_error()),
            Err(Some(libc::EEXIST))
        );
        drop(SharedMapping::of_segment(segment, OnFork::Leave).expect("map"));
        assert_eq!(open(&name).expect_err("unlinked").kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_others_may_open_is_refused() {
        let name = name("open-to-others");
        let segment = create_reserved(&name, 1 << 16).expect("create");
        let memory = open(&name).expect("open");
        rustix::fs::fchmod(&memory, Mode::from_raw_mode(0o644)).expect("mode");
        assert_eq!(open(&name).expect_err("readable by all").kind(), io::ErrorKind::PermissionDenied);
        drop(segment);
    }

    #[test]
    fn a_mark_ends_with_its_descriptor() {
        let name = name("mark");
        let _segment = create_reserved(&name, 1 << 16).expect("create");
        let (first, second) = (open(&name).expect("open"), open(&name).expect("open"));
        assert!(mark_alive(&first).expect("mark"));
        assert!(!mark_alive(&second).expect("mark"));
        drop(first);
        assert!(mark_alive(&second).expect("mark"));
    }
}
