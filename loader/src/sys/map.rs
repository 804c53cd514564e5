//! Read-only maps of files that only this user writes, and never in place.
#![expect(unsafe_code, reason = "a map is only as constant as its file; see the argument at the call")]

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::unix::fs::MetadataExt;

use memmap2::Mmap;

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
