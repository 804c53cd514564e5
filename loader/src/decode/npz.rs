//! One member of a `.npz`: a zip of `.npy` files, stored or deflated, with 64-bit sizes where NumPy writes them.
//!
//! Only the central directory is believed; every offset is checked against the bytes, the size against a limit before
//! memory is taken, and the contents against their checksum.

use flate2::{Decompress, FlushDecompress, Status};

use crate::error::{FaultClass, SampleFault};

/// Names that a message lists.
const NAMES_MAX: usize = 20;

/// Marks a 32-bit size or offset whose true value lies in the 64-bit extra field.
const IN_EXTRA: u64 = u32::MAX as u64;

const STORED: u16 = 0;
const DEFLATED: u16 = 8;

/// A worker's memory for compressed members.
pub struct NpzReader {
    inflater: Decompress,
    member: Vec<u8>,
}

impl Default for NpzReader {
    fn default() -> Self {
        Self { inflater: Decompress::new(false), member: Vec::new() }
    }
}

/// A file of the directory.
struct Entry {
    flags: u16,
    method: u16,
    crc: u32,
    packed: u64,
    size: u64,
    local: u64,
}

impl NpzReader {
    /// The bytes of array `member` of the archive `bytes`; larger ones than `limit` bytes are refused.
    pub fn member<'a>(&'a mut self, bytes: &'a [u8], member: &str, limit: u64) -> Result<&'a [u8], SampleFault> {
        if bytes.is_empty() {
            return Err(SampleFault::new(FaultClass::Empty, "the archive has no bytes"));
        }
        let entry = find(bytes, member)?;
        if entry.flags & 1 != 0 {
            return Err(SampleFault::new(FaultClass::Unsupported, format!("member {member:?} is encrypted")));
        }
        if entry.size > limit {
            let message = format!("member {member:?} has {} bytes, the limit is {limit}", entry.size);
            return Err(SampleFault::new(FaultClass::TooLarge, message));
        }
        let packed = packed(bytes, &entry).ok_or_else(|| broken("a member lies outside the file"))?;
        let unpacked = match entry.method {
            STORED if entry.packed == entry.size => packed,
            STORED => return Err(broken("a stored member has two sizes")),
            DEFLATED => self.inflate(packed, entry.size)?,
            other => {
                let message = format!("member {member:?} is compressed by method {other}, only deflate is read");
                return Err(SampleFault::new(FaultClass::Unsupported, message));
            }
        };
        let crc = crc32fast::hash(unpacked);
        if crc != entry.crc {
            return Err(broken(&format!("member {member:?} has checksum {crc:#010x}, not {:#010x}", entry.crc)));
        }
        Ok(unpacked)
    }

    fn inflate(&mut self, packed: &[u8], size: u64) -> Result<&[u8], SampleFault> {
        self.inflater.reset(false);
        self.member.clear();
        // Below the caller's limit.
        self.member.resize(usize::try_from(size).expect("a size below the limit"), 0);
        let status = self.inflater.decompress(packed, &mut self.member, FlushDecompress::Finish);
        let complete = self.inflater.total_out() == size && self.inflater.total_in() == packed.len() as u64;
        match status {
            Ok(Status::StreamEnd) if complete => Ok(&self.member),
            Ok(_) => Err(broken("a compressed member is shorter or longer than the directory says")),
            Err(error) => Err(broken(&format!("a compressed member is damaged: {error}"))),
        }
    }
}

fn broken(what: &str) -> SampleFault {
    SampleFault::new(FaultClass::Corrupt, format!(".npz: {what}"))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u32::from_le_bytes(bytes.get(at..)?.first_chunk().copied()?).into())
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

fn tail(bytes: &[u8], at: u64) -> Option<&[u8]> {
    bytes.get(usize::try_from(at).ok()?..)
}

/// The entry of `member`, as NumPy names it (with `.npy`) or as it is.
fn find(bytes: &[u8], member: &str) -> Result<Entry, SampleFault> {
    let (offset, count) = directory(bytes)?;
    let mut rest = tail(bytes, offset).ok_or_else(|| broken("its directory lies outside the file"))?;
    let mut names = Vec::new();
    for _ in 0..count {
        let (name, entry, next) = entry(rest).ok_or_else(|| broken("its directory is damaged"))?;
        if name == member.as_bytes() || name.strip_suffix(b".npy") == Some(member.as_bytes()) {
            return Ok(entry);
        }
        if names.len() < NAMES_MAX {
            let name = String::from_utf8_lossy(name.strip_suffix(b".npy").unwrap_or(name));
            names.push(name.into_owned());
        }
        rest = next;
    }
    let message = format!("no array {member:?} among the {count} of the .npz: {}", names.join(", "));
    Err(SampleFault::new(FaultClass::MissingField, message))
}

/// Offset and number of entries of the directory.
fn directory(bytes: &[u8]) -> Result<(u64, u64), SampleFault> {
    const END_BYTES: usize = 22;
    const COMMENT_BYTES_MAX: usize = 0xffff;
    const LOCATOR_BYTES: usize = 20;
    if !bytes.starts_with(b"PK") {
        let first = &bytes[..bytes.len().min(6)];
        return Err(broken(&format!("no zip archive starts with {first:02x?}")));
    }
    let last = bytes.len().checked_sub(END_BYTES).ok_or_else(no_end)?;
    let is_end = |at: &usize| {
        let comment = u16_at(bytes, at + 20).map(usize::from);
        bytes[*at..].starts_with(b"PK\x05\x06") && comment == Some(bytes.len() - at - END_BYTES)
    };
    let at = (last.saturating_sub(COMMENT_BYTES_MAX)..=last).rev().find(is_end).ok_or_else(no_end)?;
    let (count, offset) = (u16_at(bytes, at + 10), u32_at(bytes, at + 16));
    match (count, offset) {
        (Some(count), Some(offset)) if count != u16::MAX && offset != IN_EXTRA => Ok((offset, count.into())),
        _ => large_directory(bytes, at.checked_sub(LOCATOR_BYTES)).ok_or_else(|| broken("its 64-bit end is damaged")),
    }
}

fn no_end() -> SampleFault {
    SampleFault::new(FaultClass::Truncated, ".npz: no directory at its end")
}

fn large_directory(bytes: &[u8], locator: Option<usize>) -> Option<(u64, u64)> {
    let locator = &bytes[locator?..];
    let end = tail(bytes, u64_at(locator, 8).filter(|_| locator.starts_with(b"PK\x06\x07"))?)?;
    end.starts_with(b"PK\x06\x06").then_some(())?;
    Some((u64_at(end, 48)?, u64_at(end, 32)?))
}

/// The first entry of a directory: its name, itself, and what follows.
fn entry(bytes: &[u8]) -> Option<(&[u8], Entry, &[u8])> {
    bytes.starts_with(b"PK\x01\x02").then_some(())?;
    let [name_len, extra_len, comment_len] = [28, 30, 32].map(|at| u16_at(bytes, at).map(usize::from));
    let name = bytes.get(46..)?.get(..name_len?)?;
    let extra = bytes.get(46 + name.len()..)?.get(..extra_len?)?;
    let next = bytes.get(46 + name.len() + extra.len() + comment_len?..)?;
    let mut entry = Entry {
        flags: u16_at(bytes, 8)?,
        method: u16_at(bytes, 10)?,
        crc: u32_at(bytes, 16)? as u32,
        packed: u32_at(bytes, 20)?,
        size: u32_at(bytes, 24)?,
        local: u32_at(bytes, 42)?,
    };
    let mut large = large_fields(extra);
    for value in [&mut entry.size, &mut entry.packed, &mut entry.local] {
        if *value == IN_EXTRA {
            *value = u64_at(large?, 0)?;
            large = large.and_then(|rest| rest.get(8..));
        }
    }
    Some((name, entry, next))
}

/// The extra field of 64-bit sizes, if there is one.
fn large_fields(mut extra: &[u8]) -> Option<&[u8]> {
    loop {
        let (kind, len) = (u16_at(extra, 0)?, usize::from(u16_at(extra, 2)?));
        let field = extra.get(4..)?.get(..len)?;
        if kind == 1 {
            return Some(field);
        }
        extra = &extra[4 + len..];
    }
}

/// The bytes of an entry, as they are stored.
fn packed<'a>(bytes: &'a [u8], entry: &Entry) -> Option<&'a [u8]> {
    let local = tail(bytes, entry.local)?;
    local.starts_with(b"PK\x03\x04").then_some(())?;
    let start = 30 + usize::from(u16_at(local, 26)?) + usize::from(u16_at(local, 28)?);
    local.get(start..)?.get(..usize::try_from(entry.packed).ok()?)
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;

    /// `numpy.savez_compressed(f, x=numpy.arange(40, dtype="int32"), y=numpy.zeros(3))` of NumPy 2, and the same by
    /// `numpy.savez`.
    static FILES: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| {
        ["compressed.npz", "stored.npz"].map(|name| {
            let path = format!("{}/../tests/data/arrays/{name}", env!("CARGO_MANIFEST_DIR"));
            std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
        })
    });

    fn check(bytes: &[u8], member: &str, limit: u64, expected: Result<usize, (FaultClass, &str)>) {
        match (NpzReader::default().member(bytes, member, limit), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found.len(), expected),
            (Err(fault), Err((class, words))) => {
                assert!(fault.class == class && fault.message.contains(words), "{fault}");
            }
            (found, expected) => panic!("{found:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn members() {
        for file in &*FILES {
            check(file, "x", 1000, Ok(128 + 160));
            check(file, "y.npy", 1000, Ok(128 + 24));
            check(file, "x", 287, Err((FaultClass::TooLarge, "288 bytes, the limit is 287")));
            check(file, "z", 1000, Err((FaultClass::MissingField, "no array \"z\" among the 2 of the .npz: x, y")));
            check(&file[..file.len() - 1], "x", 1000, Err((FaultClass::Truncated, "no directory")));
            check(&[], "x", 1000, Err((FaultClass::Empty, "no bytes")));
            check(b"\x93NUMPY", "x", 1000, Err((FaultClass::Corrupt, "93, 4e")));
        }
    }

    #[test]
    fn a_changed_byte_of_a_member_is_noticed() {
        for file in &*FILES {
            let mut file = file.clone();
            file[60] ^= 1;
            assert_eq!(NpzReader::default().member(&file, "x", 1000).expect_err("damaged").class, FaultClass::Corrupt);
        }
    }

    proptest! {
        #[test]
        fn damage_never_gives_other_contents(which in 0_usize..2, place: prop::sample::Index, value: u8, cut: prop::sample::Index) {
            let whole = &FILES[which];
            let expected = NpzReader::default().member(whole, "x", 1000).expect("whole").to_vec();
            let mut damaged = whole.clone();
            damaged[place.index(whole.len())] = value;
            if cut.index(4) == 0 {
                damaged.truncate(cut.index(whole.len()));
            }
            if let Ok(found) = NpzReader::default().member(&damaged, "x", 1000) {
                prop_assert!(found == expected);
            }
        }
    }
}
