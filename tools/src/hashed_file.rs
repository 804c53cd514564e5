//! A file that is hashed while it is written.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use feedline_loader::{Error, Result};

/// Below it writes gather in memory; larger ones pass by.
const BUFFER_BYTES: usize = 1 << 18;

/// A file that is being written.
#[derive(Debug)]
pub struct HashedFile {
    path: PathBuf,
    file: BufWriter<File>,
    hasher: blake3::Hasher,
    bytes: u64,
}

/// A file that is complete, but not yet on the disk for certain.
#[derive(Debug)]
pub struct WrittenFile {
    /// Its path.
    pub path: PathBuf,
    /// Open still, for the sync.
    file: File,
    /// Its size.
    pub bytes: u64,
    /// BLAKE3 of the whole file, in hexadecimal.
    pub blake3: String,
}

impl HashedFile {
    /// Starts a file at `path`, replacing what a broken run left there.
    pub fn create(path: PathBuf) -> Result<Self> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .map_err(|error| Error::io("create", &path, error))?;
        Ok(Self { path, file: BufWriter::with_capacity(BUFFER_BYTES, file), hasher: blake3::Hasher::new(), bytes: 0 })
    }

    /// Bytes so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends `data`.
    pub fn write(&mut self, data: &[u8]) -> Result<()> {
        self.file.write_all(data).map_err(|error| Error::io("write", &self.path, error))?;
        self.hasher.update(data);
        self.bytes += data.len() as u64;
        Ok(())
    }

    /// Ends the file.
    pub fn finish(self) -> Result<WrittenFile> {
        let file = self.file.into_inner().map_err(|error| Error::io("write", &self.path, error.into_error()))?;
        let blake3 = self.hasher.finalize().to_hex().to_string();
        Ok(WrittenFile { path: self.path, file, bytes: self.bytes, blake3 })
    }
}

impl WrittenFile {
    /// Waits until it is on the disk.
    pub fn sync(&self) -> Result<()> {
        self.file.sync_all().map_err(|error| Error::io("sync", &self.path, error))
    }
}
