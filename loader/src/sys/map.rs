//! Read-only maps of files: of those that only this user writes, and never in place ([`MappedFile`], seen as bytes), and
//! of any others ([`GuardedMap`], copied from under a guard).
#![expect(unsafe_code, reason = "a map is only as constant as its file; see the argument at the call")]

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

use memmap2::{Mmap, MmapOptions, MmapRaw};
use rustix::mm::{Advice, madvise};

use super::sigbus::Guard;

/// A file's bytes, mapped.
#[derive(Debug)]
pub struct MappedFile {
    map: Mmap,
}

impl MappedFile {
    /// Maps `file`, which its program must only ever replace by rename. `None` when it is not this user's own, or when
    /// others may write it: such a file is to be read instead.
    pub fn open(file: &File) -> io::Result<Option<Self>> {
        const WRITABLE_BY_OTHERS: u32 = 0o022;
        let metadata = file.metadata()?;
        let own = metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & WRITABLE_BY_OTHERS == 0;
        if !own || !metadata.is_file() || metadata.len() == 0 {
            return Ok(None);
        }
        // SAFETY:
        // - no other user can write or shorten the file: its owner is this user, and its mode, both read from the open
        //   descriptor, lets nobody else write;
        // - this user's programs write it once, under another name, and put it in place by rename (this function's
        //   contract), so that the inode mapped here never changes again.
        let map = unsafe { Mmap::map(file)? };
        Ok(Some(Self { map }))
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

/// A map of a file that others may change or cut off at any time. Its bytes are only ever copied, and a copy counts only
/// when the file was as long before and after it and no page was lost meanwhile.
#[derive(Debug)]
pub struct GuardedMap {
    /// Before the map, which it must not outlive.
    guard: Guard,
    map: MmapRaw,
}

impl GuardedMap {
    /// Maps the file at its present length; `None` when it has none.
    pub fn open(file: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        let bytes = file_bytes(file)?;
        let Some(bytes) = usize::try_from(bytes).ok().filter(|&bytes| bytes > 0) else { return Ok(None) };
        let map = MmapOptions::new().len(bytes).map_raw_read_only(file.as_raw_fd())?;
        let start = map.as_ptr().addr();
        let guard = Guard::new(start..start + bytes.next_multiple_of(rustix::param::page_size()))?;
        Ok(Some(Self { guard, map }))
    }

    /// Copies the bytes at `offset` of the file, whose descriptor `file` is, into all of `target`. False when the map
    /// does not have them, or no longer: the file itself then says why.
    pub fn copy_into(&self, file: BorrowedFd<'_>, offset: u64, target: &mut [u8]) -> bool {
        let Some(end) = offset.checked_add(target.len() as u64) else { return false };
        // One page that was lost shows that the file was cut off; another part of it may have grown again since.
        if end > self.map.len() as u64 || self.guard.faults() > 0 {
            return false;
        }
        let start = usize::try_from(offset).expect("less than the map's length");
        self.fetch(start, target.len());
        // SAFETY: `start` is within the map.
        let source = unsafe { self.map.as_ptr().add(start) };
        // SAFETY:
        // - the map holds `target.len()` bytes from there, as was just seen;
        // - pages that are lost meanwhile are replaced by the guard, so that every load succeeds;
        // - what others write into the file meanwhile may be copied or not: any bytes are valid ones;
        // - `target` is private memory, so the two ranges cannot overlap.
        unsafe { std::ptr::copy_nonoverlapping(source, target.as_mut_ptr(), target.len()) };
        // A cut within a page loses no page, but leaves zeros: only the length tells.
        self.guard.faults() == 0 && file_bytes(file).is_ok_and(|bytes| end <= bytes)
    }

    /// Has the kernel read the whole range at once rather than page after page.
    fn fetch(&self, start: usize, bytes: usize) {
        let page_bytes = rustix::param::page_size();
        let first = start - start % page_bytes;
        // SAFETY: `first` is at most `start`, which is within the map.
        let address = unsafe { self.map.as_mut_ptr().add(first) };
        // Only a wish; where it fails the copy still succeeds.
        // SAFETY: the advice changes no contents, and the range lies within the map's pages.
        let _ = unsafe { madvise(address.cast(), start + bytes - first, Advice::WillNeed) };
    }
}

fn file_bytes(file: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(u64::try_from(rustix::fs::fstat(file.as_fd())?.st_size).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::sys::testing::in_child;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().expect("temporary file");
        file.write_all(bytes).expect("write");
        file
    }

    #[test]
    fn copies_what_is_there() {
        let bytes: Vec<u8> = (0..100_001_u32).map(|index| ((index * 7) >> 3) as u8).collect();
        let file = file(&bytes);
        let map = GuardedMap::open(file.as_fd()).expect("map").expect("not empty");
        let check = |offset: u64, len: usize, there: bool| {
            let mut target = vec![0; len];
            assert_eq!(map.copy_into(file.as_fd(), offset, &mut target), there, "{len} bytes at {offset}");
            assert!(!there || target == bytes[offset as usize..][..len]);
        };
        check(0, 100_001, true);
        check(4095, 2, true);
        check(100_000, 1, true);
        check(100_001, 0, true);
        check(100_000, 2, false);
        check(200_000, 1, false);
        check(u64::MAX, 1, false);
        assert!(GuardedMap::open(self::file(&[]).as_fd()).expect("allowed").is_none());
    }

    #[test]
    fn a_file_that_is_cut_off_under_its_map() {
        // The handler is the whole process's, and the model checker's coroutines put another in its place.
        if !in_child("sys::map::tests::a_file_that_is_cut_off_under_its_map") {
            return;
        }
        let page = rustix::param::page_size();
        let mut target = vec![0; page];
        // Within the last page, and whole pages with every touch of them.
        for cut in [2 * page as u64 + 10, page as u64 + 10, 0] {
            let file = file(&vec![5; 3 * page]);
            let map = GuardedMap::open(file.as_fd()).expect("map").expect("not empty");
            assert!(map.copy_into(file.as_fd(), 2 * page as u64, &mut target));
            file.set_len(cut).expect("cut");
            assert!(!map.copy_into(file.as_fd(), 2 * page as u64, &mut target), "cut at {cut}");
        }
    }
}
