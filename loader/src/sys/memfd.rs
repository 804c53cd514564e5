//! Sealed, reserved, nameless memory that can be passed to another process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;

/// Seals that fix the size for ever: no mapping can lose its pages to a truncation.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Pages are reserved in pieces of this size: fallocate undoes a whole piece when a signal interrupts it, and would
/// never end if a piece took longer than the time between two signals.
const RESERVE_BYTES: u64 = 64 << 20;

/// Makes a memfd of exactly `bytes`, with every page allocated and the size sealed. `name` is for `/proc` only.
///
/// Fails with the kernel's `ENOSPC` or `ENOMEM` when the pages are not to be had.
pub fn create_reserved(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    let memory = create_growing(name)?;
    rustix::fs::ftruncate(&memory, bytes)?;
    reserve(memory.as_fd(), bytes)?;
    rustix::fs::fcntl_add_seals(&memory, SEALS)?;
    Ok(memory)
}

/// Makes an empty memfd that grows by [`write_at`] until [`seal`].
pub fn create_growing(name: &str) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Hardened systems (vm.memfd_noexec = 2) want it said that nothing will be executed; before Linux 6.3 nobody knew.
    match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => Ok(rustix::fs::memfd_create(name, flags)?),
        created => Ok(created?),
    }
}

/// Writes all of `bytes` at `offset`; pages come with it, so that no mapping of them can lack one.
pub fn write_at(memory: BorrowedFd<'_>, bytes: &[u8], offset: u64) -> io::Result<()> {
    let mut written = 0;
    while written < bytes.len() {
        let place = offset + written as u64;
        written += rustix::io::retry_on_intr(|| rustix::io::pwrite(memory, &bytes[written..], place))?;
    }
    Ok(())
}

/// Makes a memfd's size `bytes` for ever, with every page allocated.
pub fn seal(memory: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    rustix::fs::ftruncate(memory, bytes)?;
    reserve(memory, bytes)?;
    rustix::fs::fcntl_add_seals(memory, SEALS)?;
    Ok(())
}

/// Makes a memfd that holds `bytes`, for a list that is too long for a message.
pub fn with_contents(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let memory = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?;
    write_at(memory.as_fd(), bytes, 0)?;
    Ok(memory)
}

/// Copies the first `bytes` of memory that another process made, and may still change, into private memory.
///
/// It must be memory, as another kind of file could make the reading wait for ever, and all there: a hole costs nobody
/// anything until it is read.
pub fn read_contents(memory: &OwnedFd, bytes: u64) -> io::Result<Vec<u8>> {
    /// Unit of `st_blocks`, whatever the file system.
    const BLOCK_BYTES: u64 = 512;
    rustix::fs::fcntl_get_seals(memory)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "it is no memory but another kind of file"))?;
    let stat = rustix::fs::fstat(memory)?;
    let found = u64::try_from(stat.st_size).unwrap_or(0);
    let allocated = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(BLOCK_BYTES);
    if found < bytes || allocated < bytes {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("{found} bytes, of which {allocated} have pages, where {bytes} were announced"),
        ));
    }
    let mut contents = vec![0; usize::try_from(bytes).map_err(io::Error::other)?];
    let mut read = 0;
    while read < contents.len() {
        match rustix::io::retry_on_intr(|| rustix::io::pread(memory, &mut contents[read..], read as u64))? {
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            count => read += count,
        }
    }
    Ok(contents)
}

/// Allocates the first `bytes` of a file now, so that no later write to a mapping of it can fail for want of memory.
pub fn reserve(memory: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    let mut offset = 0;
    while offset < bytes {
        let piece = RESERVE_BYTES.min(bytes - offset);
        rustix::io::retry_on_intr(|| rustix::fs::fallocate(memory, FallocateFlags::KEEP_SIZE, offset, piece))?;
        offset += piece;
    }
    Ok(())
}

/// Checks that memory received from another process has at least `bytes`, now.
pub fn check_size(memory: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    let found = rustix::fs::fstat(memory)?.st_size;
    if u64::try_from(found).is_ok_and(|found| found >= bytes) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("the shared memory has {found} bytes, needs {bytes}")))
}

/// Checks that a memfd received from another process has exactly `bytes` and can never change its size.
pub fn check_sealed(memory: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    let seals = rustix::fs::fcntl_get_seals(memory)?;
    if !seals.contains(SEALS) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("the shared memory is not sealed: has {seals:?}, needs {SEALS:?}"),
        ));
    }
    // The size is read after the seals: before them it could still change.
    let found = rustix::fs::fstat(memory)?.st_size;
    if u64::try_from(found) != Ok(bytes) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("the shared memory has {found} bytes, needs {bytes}"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_at_its_size() {
        let memory = create_reserved("feedline-test", 3 << 20).expect("memfd");
        check_sealed(memory.as_fd(), 3 << 20).expect("as made");
        assert_eq!(rustix::fs::fstat(&memory).expect("stat").st_blocks * 512, 3 << 20, "pages are allocated");
        assert!(rustix::fs::ftruncate(&memory, 0).is_err(), "shrunk in spite of the seal");
        assert!(rustix::fs::ftruncate(&memory, 4 << 20).is_err(), "grown in spite of the seal");
        let wrong = check_sealed(memory.as_fd(), 4 << 20).expect_err("another size");
        assert!(wrong.to_string().contains("3145728 bytes, needs 4194304"), "{wrong}");
    }

    #[test]
    fn only_memory_that_is_there_is_read() {
        let list = with_contents("feedline-test", &[7; 5000]).expect("memfd");
        assert_eq!(read_contents(&list, 5000).expect("whole"), [7; 5000]);
        assert_eq!(read_contents(&list, 10).expect("its start"), [7; 10]);
        let check = |memory: &OwnedFd, bytes: u64, words: &str| {
            let refused = read_contents(memory, bytes).expect_err(words).to_string();
            assert!(refused.contains(words), "{refused}");
        };
        check(&list, 5001, "5000 bytes, of which 8192 have pages, where 5001 were announced");
        rustix::fs::ftruncate(&list, 8 << 30).expect("a hole");
        check(&list, 8 << 30, "of which 8192 have pages");
        let file = OwnedFd::from(tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).expect("file"));
        rustix::fs::ftruncate(&file, 5000).expect("size");
        check(&file, 10, "another kind of file");
        let (reader, _writer) = std::io::pipe().expect("pipe");
        check(&OwnedFd::from(reader), 0, "another kind of file");
    }

    #[test]
    fn unsealed_is_refused() {
        let memory =
            rustix::fs::memfd_create("feedline-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
        rustix::fs::ftruncate(&memory, 4096).expect("size");
        let unsealed = check_sealed(memory.as_fd(), 4096).expect_err("no seals");
        assert!(unsealed.to_string().contains("not sealed"), "{unsealed}");
    }
}
