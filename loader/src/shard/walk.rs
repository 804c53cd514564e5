//! A tar's members, found by hopping from header to header. Bodies of members are never read.

use std::io;
use std::path::Path;

use super::findings::{Finding, FindingCount, Findings};
use super::name;
use super::pax::Overrides;
use super::tar::{self, BLOCK_BYTES, Block, Header, Kind};
use super::window::{ReadAt, Window};
use crate::error::{Error, Result};

/// Longest body of a GNU long name or link.
const LONG_NAME_BYTES_MAX: u64 = 64 << 10;

/// Longest body of PAX records.
const PAX_BYTES_MAX: u64 = 1 << 20;

/// Zero blocks that end an archive; a single one may be a header that was lost.
const END_BLOCKS_MIN: u64 = 2;

/// How often a run of zeros is asked for its end, in bytes: a hole in the file is passed over at once.
const HOLE_LOOK_BYTES: u64 = 1 << 20;

/// How far junk after the end is searched for members, in bytes.
const JUNK_BYTES_MAX: u64 = 16 << 20;

/// A plain file in the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    /// Its name as stored, odd bytes escaped.
    pub(super) name: String,
    /// Where its own header is.
    pub(super) header_offset: u64,
    /// Where its body starts.
    pub(super) body_offset: u64,
    /// Length of its body.
    pub(super) size: u64,
    /// The length stands in a PAX record, which the header's own gives way to.
    pub(super) has_size_record: bool,
}

/// The walk over one archive.
#[derive(Debug)]
pub(super) struct Walk<'a, S: ?Sized> {
    path: &'a Path,
    window: Window<'a, S>,
    file_bytes: u64,
    next_offset: u64,
    global: Overrides,
    last_header: Option<u64>,
    /// The member that the shard is cut off in, if it is.
    pub(super) cut_member: Option<String>,
    /// The archive has come to its end: nothing that follows belongs to its last sample.
    pub(super) has_ended: bool,
    /// What was skipped, refused or odd.
    pub(super) findings: Findings,
}

impl<'a, S: ReadAt + ?Sized> Walk<'a, S> {
    /// Starts at the first header of `source`, which has `file_bytes` bytes; `path` is for messages.
    pub(super) fn new(path: &'a Path, source: &'a S, file_bytes: u64) -> Self {
        Self {
            path,
            window: Window::new(source),
            file_bytes,
            next_offset: 0,
            global: Overrides::default(),
            last_header: None,
            cut_member: None,
            has_ended: false,
            findings: Findings::default(),
        }
    }

    /// Where the last header that was read is.
    pub(super) fn last_header(&self) -> Option<u64> {
        self.last_header
    }

    /// What was found on the way, in a shard of `samples` samples.
    pub(super) fn finish(mut self, samples: u64) -> Vec<FindingCount> {
        if samples == 0 {
            self.findings.add(Finding::NoSamples, 0, String::new);
        }
        self.findings.into_counts()
    }

    /// The next plain file. Other members are counted among the findings and passed over.
    pub(super) fn next_member(&mut self) -> Result<Option<Member>> {
        let mut local = Overrides::default();
        let mut long_name: Option<Vec<u8>> = None;
        let mut extended = false;
        loop {
            let Some((offset, header)) = self.next_header(extended)? else { return Ok(None) };
            let body_offset = self.body_offset(offset, &header)?;
            let kind = header.kind;
            match kind {
                Kind::LongName => {
                    let body = self.small_body(body_offset, header.size, LONG_NAME_BYTES_MAX)?;
                    long_name = Some(tar::until_nul(&body).to_vec());
                }
                Kind::LongLink => drop(self.small_body(body_offset, header.size, LONG_NAME_BYTES_MAX)?),
                Kind::PaxLocal | Kind::PaxGlobal => {
                    let body = self.small_body(body_offset, header.size, PAX_BYTES_MAX)?;
                    let overrides = if kind == Kind::PaxLocal { &mut local } else { &mut self.global };
                    overrides.apply(&body).map_err(|message| Error::shard(self.path, body_offset, message))?;
                }
                _ => {
                    let member = self.resolve(offset, body_offset, header, &local, long_name.take())?;
                    if member.is_some() {
                        return Ok(member);
                    }
                    local = Overrides::default();
                }
            }
            extended = matches!(kind, Kind::LongName | Kind::LongLink | Kind::PaxLocal);
        }
    }

    /// Applies the extended headers to a member's own, hops over its body, and sorts out what is no plain file.
    fn resolve(
        &mut self,
        offset: u64,
        body_offset: u64,
        header: Header,
        local: &Overrides,
        long_name: Option<Vec<u8>>,
    ) -> Result<Option<Member>> {
        let global = &self.global;
        let sparse = header.kind == Kind::Sparse || local.sparse || global.sparse;
        let sparse_name = local.sparse_name.as_ref().or(global.sparse_name.as_ref());
        let path = sparse_name.or(local.path.as_ref()).or(long_name.as_ref()).or(global.path.as_ref());
        let stored = path.unwrap_or(&header.name);
        let is_folder = header.kind == Kind::File && stored.ends_with(b"/");
        let (name, escaped) = name::decode(stored);
        let size_record = local.size.or(global.size);
        let size = size_record.unwrap_or(header.size);
        let size = if header.kind.has_body() { size } else { 0 };
        self.hop(body_offset, size, &name)?;
        if escaped {
            self.findings.add(Finding::NotUtf8, offset, || name.clone());
        }
        let refused = match header.kind {
            Kind::File if is_folder => Finding::Directory,
            Kind::File | Kind::Sparse if sparse => Finding::Sparse,
            Kind::File if u32::try_from(size).is_err() => Finding::TooLong,
            Kind::File => {
                let has_size_record = size_record.is_some();
                return Ok(Some(Member { name, header_offset: offset, body_offset, size, has_size_record }));
            }
            // GNU's incremental dumps store a directory's listing as a body.
            Kind::Directory | Kind::Other(b'D') => Finding::Directory,
            Kind::HardLink => Finding::HardLink,
            Kind::SymbolicLink => Finding::SymbolicLink,
            Kind::Device => Finding::Device,
            Kind::Fifo => Finding::Fifo,
            Kind::Label => Finding::Meta,
            _ => Finding::UnknownType,
        };
        self.findings.add(refused, offset, || name);
        Ok(None)
    }

    /// The next header and its offset; `None` at the end. `extended`: one must follow, because an extended header
    /// announced it.
    fn next_header(&mut self, extended: bool) -> Result<Option<(u64, Header)>> {
        let offset = self.next_offset;
        let have = self.block_len(offset)?;
        if self.file_bytes == 0 {
            return Err(self.error(
                0,
                "the file is empty (0 bytes), as a failed download leaves it; fetch it again or leave it out",
            ));
        }
        if have == 0 {
            return self.end_without_marker(extended);
        }
        let Some(block) = self.block(offset)? else {
            let zero = self.read(offset)?.iter().all(|&byte| byte == 0);
            if zero && !extended && self.last_header.is_some() {
                return self.end_without_marker(extended);
            }
            if self.last_header.is_none() {
                return Err(self.no_tar(offset, &format!("{have} bytes, a header has {BLOCK_BYTES}"))?);
            }
            return Err(self.error(
                offset,
                format!("the shard is cut off inside a header: {have} of {BLOCK_BYTES} bytes are there"),
            ));
        };
        if block.iter().all(|&byte| byte == 0) {
            return if extended {
                Err(self.error(offset, "an extended header is followed by the end of the archive"))
            } else {
                self.after_end(offset)
            };
        }
        match tar::parse(&block) {
            Ok(header) => {
                self.last_header = Some(offset);
                Ok(Some((offset, header)))
            }
            Err(fault) if self.last_header.is_none() => Err(self.no_tar(offset, &fault.to_string())?),
            Err(fault) => Err(self.error(offset, format!("damaged header: {fault}; copy or pack the shard again"))),
        }
    }

    fn end_without_marker<T>(&mut self, extended: bool) -> Result<Option<T>> {
        let offset = self.next_offset;
        if extended {
            return Err(self.error(offset, "the shard is cut off after an extended header: its member is missing"));
        }
        if self.last_header.is_some() {
            self.findings.add(Finding::NoEndMarker, offset, String::new);
        }
        self.next_offset = self.file_bytes;
        Ok(None)
    }

    /// Goes over zero blocks; another archive after them is read on, anything else is noted.
    fn after_end(&mut self, end: u64) -> Result<Option<(u64, Header)>> {
        let mut offset = end + BLOCK_BYTES;
        let mut look = offset;
        loop {
            if offset >= look {
                let data = self.window.next_data(offset).min(self.file_bytes);
                offset = offset.max(data - data % BLOCK_BYTES);
                look = offset + HOLE_LOOK_BYTES;
            }
            let rest = self.read(offset)?;
            if rest.iter().any(|&byte| byte != 0) {
                break;
            }
            if (rest.len() as u64) < BLOCK_BYTES {
                self.next_offset = self.file_bytes;
                return Ok(None);
            }
            offset += BLOCK_BYTES;
            self.has_ended = true;
        }
        let parsed = self.block(offset)?.and_then(|block| tar::parse(&block).ok());
        if let Some(header) = parsed {
            let name = || name::decode(&header.name).0;
            self.findings.add(Finding::Concatenated, offset, name);
            self.has_ended = false;
            // Global records belong to the archive that has them.
            self.global = Overrides::default();
            self.last_header = Some(offset);
            return Ok(Some((offset, header)));
        }
        if offset - end < END_BLOCKS_MIN * BLOCK_BYTES {
            return Err(self.error(
                end,
                "one zero block, then bytes that are no header: a header was lost here; copy or pack the shard again",
            ));
        }
        if let Some(header) = self.header_beyond(offset)? {
            let zeros = offset - end;
            self.has_ended = false;
            return Err(self.error(
                end,
                format!(
                    "{zeros} bytes of zeros, bytes that are no header, then members again at byte {header}: a part of the shard \
                     was overwritten; copy or pack it again"
                ),
            ));
        }
        let bytes = self.read(offset)?;
        let shown = hex(&bytes[..bytes.len().min(16)]);
        self.findings.add(Finding::TrailingJunk, offset, || shown);
        self.next_offset = self.file_bytes;
        Ok(None)
    }

    /// The first header with a magic number from `start` on, within [`JUNK_BYTES_MAX`].
    fn header_beyond(&mut self, start: u64) -> Result<Option<u64>> {
        let mut offset = start;
        while offset < start.saturating_add(JUNK_BYTES_MAX) {
            let Some(block) = self.block(offset)? else { break };
            if &block[257..262] == b"ustar" && tar::parse(&block).is_ok() {
                return Ok(Some(offset));
            }
            offset += BLOCK_BYTES;
        }
        Ok(None)
    }

    /// Where the body of a header at `offset` starts: after it, and after the rest of a sparse file's map.
    fn body_offset(&mut self, offset: u64, header: &Header) -> Result<u64> {
        let mut body_offset = offset + BLOCK_BYTES;
        let mut continues = header.sparse_continues;
        while continues {
            let Some(block) = self.block(body_offset)? else {
                return Err(self.error(body_offset, "the shard is cut off inside the map of a sparse file"));
            };
            continues = tar::sparse_continues(&block);
            body_offset += BLOCK_BYTES;
        }
        Ok(body_offset)
    }

    /// Moves on to the header after a body, which must be there with its padding.
    fn hop(&mut self, body_offset: u64, size: u64, name: &str) -> Result<()> {
        let padded = size.checked_next_multiple_of(BLOCK_BYTES).and_then(|padded| body_offset.checked_add(padded));
        match padded {
            Some(end) if end <= self.file_bytes => {
                self.next_offset = end;
                Ok(())
            }
            _ => {
                let have = self.file_bytes.saturating_sub(body_offset);
                let message = if have >= size {
                    format!("the shard is cut off in the padding after member {name:?}; copy or pack it again")
                } else {
                    format!(
                        "the shard is cut off inside member {name:?}: {have} of {size} bytes are there; copy or pack it again"
                    )
                };
                self.cut_member = Some(name.to_owned());
                Err(self.error(body_offset, message))
            }
        }
    }

    /// The body of an extended header.
    fn small_body(&mut self, body_offset: u64, size: u64, bytes_max: u64) -> Result<Vec<u8>> {
        if size > bytes_max {
            return Err(
                self.error(body_offset, format!("an extended header of {size} bytes; at most {bytes_max} are read"))
            );
        }
        self.hop(body_offset, size, "(extended header)")?;
        let count = usize::try_from(size).expect("at most a MiB");
        let path = self.path;
        let body = self.window.bytes(body_offset, count).map_err(|source| Error::io("read", path, source))?.to_vec();
        if body.len() < count {
            return Err(self.error(body_offset, format!("the shard ended early: {} of {count} bytes", body.len())));
        }
        Ok(body)
    }

    fn block_len(&mut self, offset: u64) -> Result<usize> {
        self.read(offset).map(<[u8]>::len)
    }

    fn block(&mut self, offset: u64) -> Result<Option<Block>> {
        Ok(self.read(offset)?.try_into().ok())
    }

    /// The block at `offset`, shorter only at the end. What a writer appends meanwhile is not looked at.
    fn read(&mut self, offset: u64) -> Result<&[u8]> {
        let (path, rest) = (self.path, self.file_bytes.saturating_sub(offset));
        let block = self.window.block(offset).map_err(|source| match source.kind() {
            // What a compressed shard unpacks to; the system has no such errors.
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => Error::shard(path, offset, source.to_string()),
            _ => Error::io("read", path, source),
        })?;
        Ok(&block[..usize::try_from(rest).map_or(block.len(), |rest| rest.min(block.len()))])
    }

    fn error(&self, offset: u64, message: impl Into<String>) -> Error {
        Error::shard(self.path, offset, message)
    }

    /// Why a file that does not start with a header is none of ours.
    fn no_tar(&mut self, offset: u64, reason: &str) -> Result<Error> {
        let path = self.path.display().to_string();
        let bytes = self.read(offset)?;
        let message = match compression(bytes) {
            Some((format, command)) => format!(
                "compressed with {format}, which allows no random access; decompress it first: {command} < {path} > shard.tar"
            ),
            None => format!("not a tar: it starts with {}; {reason}", hex(&bytes[..bytes.len().min(16)])),
        };
        Ok(self.error(offset, message))
    }
}

/// The format whose magic `bytes` start with, and the command that undoes it.
fn compression(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    const FORMATS: [(&[u8], &str, &str); 5] = [
        (b"\x1f\x8b", "gzip", "gzip -dc"),
        (b"\x28\xb5\x2f\xfd", "zstd", "zstd -dc"),
        (b"\xfd7zXZ\0", "xz", "xz -dc"),
        (b"BZh", "bzip2", "bzip2 -dc"),
        (b"\x04\x22\x4d\x18", "lz4", "lz4 -dc"),
    ];
    FORMATS.iter().find(|(magic, ..)| bytes.starts_with(magic)).map(|&(_, format, command)| (format, command))
}

fn hex(bytes: &[u8]) -> String {
    let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{} (\"{}\")", hex.join(" "), bytes.escape_ascii())
}

#[cfg(test)]
mod tests;
