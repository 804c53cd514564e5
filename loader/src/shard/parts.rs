//! A tar in parts, in the order of its bytes, for tools that write it anew: members that are wanted come whole, everything
//! else (other members, extended headers, the end) as bytes to be passed on.
//!
//! The headers are judged by [`super::walk`], as for an index.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};

use super::compressed::Forwards;
use super::identity::FileState;
use super::kind::ShardKind;
use super::tar::{self, BLOCK_BYTES, Block};
use super::walk::{Member, Walk};
use super::window::{ReadAt, UntilStopped};
use crate::error::{Error, Result};

/// Most bytes that are passed on at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Bytes of a member's body by which it is judged.
const START_BYTES: u64 = 64;

/// Far behind any end of an unpacked shard; what lies behind the real one is told by the reader.
const UNPACKED_BYTES_MAX: u64 = u64::MAX >> 1;

/// The state that a shard's file was in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardState {
    /// Its size.
    pub bytes: u64,
    /// Seconds and nanoseconds of its last change.
    pub modified: (i64, i64),
}

impl ShardState {
    /// Of the file at `path`, now.
    pub fn of(path: &Path) -> Result<Self> {
        let metadata = path.metadata().map_err(|source| Error::io("find", path, source))?;
        Ok(Self::from(FileState::of(&metadata)))
    }
}

impl From<FileState> for ShardState {
    fn from(FileState { bytes, modified, .. }: FileState) -> Self {
        Self { bytes, modified }
    }
}

/// What is known of a plain file in a shard before it is read.
#[derive(Debug)]
pub struct MemberHead<'a> {
    /// Its name as stored, odd bytes escaped.
    pub name: &'a str,
    /// Where its header is, in bytes of the unpacked shard.
    pub offset: u64,
    /// Length of its body.
    pub size: u64,
    /// Its length stands in an extended record too, so that it cannot be changed in the header alone.
    pub has_size_record: bool,
    /// The first bytes of its body.
    pub start: &'a [u8],
}

/// A plain file in a shard, with its header.
#[derive(Debug)]
pub struct WholeMember {
    /// Its name as stored, odd bytes escaped.
    pub name: String,
    /// Header, body, and padding to the next block.
    bytes: Vec<u8>,
    size: usize,
}

impl WholeMember {
    /// Its body.
    pub fn body(&self) -> &[u8] {
        &self.bytes[BLOCK_BYTES as usize..][..self.size]
    }

    /// As it is in the shard: header, body and padding.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Header, body and padding with `body` in place of its own.
    pub fn with_body(&self, body: &[u8]) -> Vec<u8> {
        let header: &Block = self.bytes.first_chunk().expect("a member has a header");
        let length = BLOCK_BYTES as usize + body.len().next_multiple_of(BLOCK_BYTES as usize);
        let mut bytes = Vec::with_capacity(length);
        match body.len() == self.size {
            true => bytes.extend_from_slice(header),
            false => bytes.extend_from_slice(&tar::resized(header, body.len() as u64)),
        }
        bytes.extend_from_slice(body);
        bytes.resize(length, 0);
        bytes
    }
}

/// A part of a shard.
#[derive(Debug)]
pub enum Part {
    /// Bytes to be passed on as they are, at most a MiB of them.
    Bytes(Vec<u8>),
    /// A plain file that was wanted.
    Member(WholeMember),
}

/// The compression of the tar at `path`, if there is one. What is no tar is refused.
pub fn tar_compression(path: &Path) -> Result<Option<&'static str>> {
    match ShardKind::of(path)? {
        ShardKind::Tar => Ok(None),
        ShardKind::CompressedTar(compression) => Ok(Some(compression.name())),
        ShardKind::Lmdb => Err(Error::config(format!(
            "{}: an LMDB database; only shards (tars) are written anew, so write it as shards first",
            path.display()
        ))),
        ShardKind::Tree => Err(Error::config(format!(
            "{}: a folder without shards; to pack images that lie in one folder a class, use feedline convert",
            path.display()
        ))),
    }
}

/// Who takes a shard's parts.
pub trait PartTaker {
    /// Whether this plain file shall come whole.
    fn wants(&mut self, head: &MemberHead<'_>) -> bool;

    /// Takes the next part. An error ends the reading.
    fn take(&mut self, part: Part) -> Result<()>;
}

/// Hands the tar at `path`, compressed or not, to `taker` part by part; joined, unchanged parts are the unpacked shard.
/// Reading ends with an error once `stop` is set. Of a compressed shard, no more than a MiB of zeros or junk may lie behind the
/// end of the archive.
///
/// Returns the state of the file, which is the same before and after.
pub fn parts(path: &Path, stop: &AtomicBool, taker: &mut dyn PartTaker) -> Result<ShardState> {
    let kind = ShardKind::of(path)?;
    let file = File::open(path).map_err(|source| Error::io("open", path, source))?;
    let state = || file.metadata().map(|found| FileState::of(&found)).map_err(|source| Error::io("find", path, source));
    let before = state()?;
    match kind {
        ShardKind::CompressedTar(compression) => {
            let again = file.try_clone().map_err(|source| Error::io("unpack", path, source))?;
            let unpacked = Forwards::new(again, compression, stop);
            Cutter::new(path, &unpacked, UNPACKED_BYTES_MAX).cut(taker)?;
        }
        _ => {
            let source = UntilStopped { source: &file, stop };
            Cutter::new(path, &source, before.bytes).cut(taker)?;
        }
    }
    let after = ShardState::from(state()?);
    if after != ShardState::from(before) {
        return Err(Error::shard(
            path,
            0,
            "the shard was changed while it was read; try again when its writer is done",
        ));
    }
    Ok(after)
}

struct Cutter<'a, S: ?Sized> {
    path: &'a Path,
    source: &'a S,
    file_bytes: u64,
    /// Up to here everything was taken, or is in `passed_on`.
    offset: u64,
    passed_on: Vec<u8>,
}

impl<'a, S: ReadAt + ?Sized> Cutter<'a, S> {
    fn new(path: &'a Path, source: &'a S, file_bytes: u64) -> Self {
        Self { path, source, file_bytes, offset: 0, passed_on: Vec::new() }
    }

    fn cut(mut self, taker: &mut dyn PartTaker) -> Result<()> {
        let mut walk = Walk::new(self.path, self.source, self.file_bytes);
        while let Some(member) = walk.next_member()? {
            let start = self.bytes(member.body_offset, member.size.min(START_BYTES))?;
            let Member { ref name, header_offset, body_offset, size, has_size_record } = member;
            let end = body_offset + size.next_multiple_of(BLOCK_BYTES);
            if !taker.wants(&MemberHead { name, offset: header_offset, size, has_size_record, start: &start }) {
                self.pass_on(end, taker)?;
                continue;
            }
            self.pass_on(header_offset, taker)?;
            self.flush(taker)?;
            self.offset = end;
            let bytes = self.bytes(header_offset, end - header_offset)?;
            let size = usize::try_from(size).expect("it is in memory");
            taker.take(Part::Member(WholeMember { name: member.name, bytes, size }))?;
        }
        self.pass_on(self.file_bytes, taker)?;
        self.flush(taker)
    }

    /// Passes on what lies before `end`, or before the end of the file.
    fn pass_on(&mut self, end: u64, taker: &mut dyn PartTaker) -> Result<()> {
        while self.offset < end {
            let room = CHUNK_BYTES - self.passed_on.len();
            let wanted = usize::try_from(end - self.offset).map_or(room, |rest| rest.min(room));
            let found = self.read(self.offset, wanted)?;
            self.passed_on.extend_from_slice(&found);
            self.offset += found.len() as u64;
            if self.passed_on.len() == CHUNK_BYTES {
                self.flush(taker)?;
            }
            if found.len() < wanted {
                return Ok(());
            }
        }
        Ok(())
    }

    fn flush(&mut self, taker: &mut dyn PartTaker) -> Result<()> {
        match std::mem::take(&mut self.passed_on) {
            bytes if bytes.is_empty() => Ok(()),
            bytes => taker.take(Part::Bytes(bytes)),
        }
    }

    /// `count` bytes at `offset`, which must be there.
    fn bytes(&self, offset: u64, count: u64) -> Result<Vec<u8>> {
        let wanted = usize::try_from(count).expect("what is wanted whole fits in memory");
        let bytes = self.read(offset, wanted)?;
        if bytes.len() < wanted {
            let message = format!("the shard ended early: {} of {wanted} bytes are there", bytes.len());
            return Err(Error::shard(self.path, offset, message));
        }
        Ok(bytes)
    }

    /// `count` bytes at `offset`, fewer only at the end.
    fn read(&self, offset: u64, count: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        let mut filled = 0;
        while filled < count {
            match self.source.read_at(&mut bytes[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(self.explain(offset + filled as u64, source)),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    fn explain(&self, offset: u64, source: io::Error) -> Error {
        match source.kind() {
            // What a compressed shard unpacks to; the system has no such errors.
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
                Error::shard(self.path, offset, source.to_string())
            }
            _ => Error::io("read", self.path, source),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::compressed::{Compression, tests::packed};
    use super::*;

    /// A tar with a long name, a folder, bodies of all sorts of lengths, and padding behind its end.
    fn example() -> Vec<u8> {
        let mut builder = ::tar::Builder::new(Vec::new());
        let mut add = |name: &str, kind, body: &[u8]| {
            let mut header = ::tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(body.len() as u64);
            header.set_mode(0o640);
            header.set_mtime(1_234_567);
            builder.append_data(&mut header, name, body).expect("in memory");
        };
        add("folder/", ::tar::EntryType::Directory, b"");
        for (number, length) in [0, 1, 511, 512, 513, 100_000, 3_000_000].into_iter().enumerate() {
            add(&format!("folder/{number}.jpg"), ::tar::EntryType::Regular, &vec![number as u8; length]);
            add(&format!("{}/{number}.cls", "long".repeat(50)), ::tar::EntryType::Regular, b"7");
        }
        let mut bytes = builder.into_inner().expect("in memory");
        bytes.resize(bytes.len() + 5000, 0);
        bytes
    }

    struct Joiner<'a> {
        bytes: Vec<u8>,
        change: &'a dyn Fn(WholeMember) -> Vec<u8>,
    }

    impl PartTaker for Joiner<'_> {
        fn wants(&mut self, head: &MemberHead<'_>) -> bool {
            assert!(head.start.len() as u64 == head.size.min(64) && !head.has_size_record);
            head.name.ends_with(".jpg")
        }

        fn take(&mut self, part: Part) -> Result<()> {
            self.bytes.extend(match part {
                Part::Bytes(more) => more,
                Part::Member(member) => (self.change)(member),
            });
            Ok(())
        }
    }

    fn joined(path: &Path, change: &dyn Fn(WholeMember) -> Vec<u8>) -> Result<Vec<u8>> {
        let mut joiner = Joiner { bytes: Vec::new(), change };
        parts(path, &AtomicBool::new(false), &mut joiner)?;
        Ok(joiner.bytes)
    }

    #[test]
    fn joined_parts_are_the_shard() {
        let folder = tempfile::tempdir().expect("a folder");
        let bytes = example();
        let path = folder.path().join("s.tar");
        fs::write(&path, &bytes).expect("written");
        assert!(joined(&path, &WholeMember::into_bytes).expect("sound") == bytes);
        let same = |member: WholeMember| member.with_body(member.body());
        assert!(joined(&path, &same).expect("sound") == bytes);
        for compression in [Compression::Gzip, Compression::Zstd, Compression::Xz] {
            fs::write(&path, packed(compression, &bytes)).expect("written");
            assert!(joined(&path, &same).expect("sound") == bytes, "{compression:?}");
            fs::write(&path, &packed(compression, &bytes)[..500]).expect("written");
            joined(&path, &same).expect_err("cut off");
        }
    }

    #[test]
    fn changed_bodies_leave_the_rest_as_it_was() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s.tar");
        fs::write(&path, example()).expect("written");
        let changed = joined(&path, &|member| member.with_body(&[member.body(), b"and more"].concat())).expect("sound");
        let entries = |bytes: &[u8]| {
            let mut archive = ::tar::Archive::new(bytes);
            let entries = archive.entries().expect("an archive").map(|entry| {
                let mut entry = entry.expect("sound");
                let name = String::from_utf8(entry.path_bytes().into_owned()).expect("text");
                let mut body = Vec::new();
                io::Read::read_to_end(&mut entry, &mut body).expect("in memory");
                (name, entry.header().mtime().expect("a number"), entry.header().mode().expect("a number"), body)
            });
            entries.collect::<Vec<_>>()
        };
        let expected: Vec<_> = entries(&example())
            .into_iter()
            .map(|(name, mtime, mode, body)| {
                let body = if name.ends_with(".jpg") { [&body[..], b"and more"].concat() } else { body };
                (name, mtime, mode, body)
            })
            .collect();
        assert!(entries(&changed) == expected);
    }

    #[test]
    fn what_is_no_tar_or_damaged_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s.tar");
        let bytes = example();
        let check = |bytes: &[u8], part: &str| {
            fs::write(&path, bytes).expect("written");
            let refusal = joined(&path, &WholeMember::into_bytes).expect_err(part).to_string();
            assert!(refusal.contains(part), "{refusal}");
        };
        check(b"", "empty");
        check(b"no tar at all", "not a tar");
        check(&bytes[..200_000], "cut off");
        assert!(tar_compression(folder.path()).expect_err("a folder").to_string().contains("feedline convert"));
        fs::write(folder.path().join("data.mdb"), b"").expect("written");
        assert!(tar_compression(folder.path()).expect_err("a database").to_string().contains("LMDB"));
        fs::write(&path, &bytes).expect("written");
        let mut joiner = Joiner { bytes: Vec::new(), change: &WholeMember::into_bytes };
        parts(&path, &AtomicBool::new(true), &mut joiner).expect_err("stopped");
    }
}
