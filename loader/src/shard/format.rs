//! The bytes of an index file: little-endian columns, read in place, and checked in full before the first use.
//!
//! ```text
//! head                      HEAD_BYTES  magic, version, file length, identity of the shard, counts
//! member_offsets     u64 each           where a member's body starts: in the shard, or, with the top bit set, in `stored`
//! member_lens        u32 each           its length
//! member_ends        u32 each           per sample: members up to its end
//! sample_schemas     u32 each           per sample: its schema
//! key_ends           u32 each           per sample: bytes of key text up to its end
//! key_text           UTF-8
//! stored             bytes              bodies that no shard has: classes, times and paths of files
//! meta               JSON               fields, schemas, findings
//! checksum           32                 BLAKE3 of all before
//! ```
//! A sample of three members takes 48 bytes and its key.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::compressed::Compression;
use super::findings::FindingCount;
use super::identity::{FileState, Identity};
use super::lmdb::SnapshotId;
use super::place::{ByteRange, Origin};
use super::table::{FieldCount, Table};

const MAGIC: [u8; 8] = *b"FEEDLIDX";
const VERSION: u64 = 3;
const HEAD_BYTES: usize = 152;
const CHECKSUM_BYTES: usize = 32;

/// Marks the offset of a body that is in the index itself.
pub(super) const STORED_BIT: u64 = 1 << 63;

/// The part that is not read per sample.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Meta {
    pub(super) fields: Vec<FieldCount>,
    /// Fields of each schema, by number, in the order of the members.
    pub(super) schemas: Vec<Vec<u32>>,
    pub(super) findings: Vec<FindingCount>,
    /// Where ranges of files may end, where that is not the shard's own length.
    #[serde(default)]
    pub(super) file_bytes_max: Option<u64>,
    /// How a tar is compressed; ranges then count unpacked bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) compression: Option<Compression>,
    /// Of a tree, its folders, relative to the root.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) folders: Vec<String>,
    /// Names of the classes, where the shard has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) classes: Option<Vec<String>>,
    /// The snapshot of a database that the index was made of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) snapshot: Option<SnapshotId>,
    /// What users should know of how the shard was understood.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) notes: Vec<String>,
}

/// Where the columns are in checked bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Columns {
    pub(super) samples: u32,
    pub(super) members: u32,
    pub(super) key_bytes_max: u32,
    member_offsets: Range<usize>,
    member_lens: Range<usize>,
    member_ends: Range<usize>,
    sample_schemas: Range<usize>,
    key_ends: Range<usize>,
    key_text: Range<usize>,
    stored: Range<usize>,
}

/// Writes an index of `table`; `meta` has what the table has not.
pub(super) fn encode(table: &Table, identity: &Identity, meta: Meta) -> Vec<u8> {
    let meta = Meta {
        fields: table.fields.clone(),
        schemas: table.schemas.clone(),
        file_bytes_max: table.file_bytes_max,
        ..meta
    };
    let meta = serde_json::to_vec(&meta).expect("numbers and text have a JSON form");
    let mut bytes = MAGIC.to_vec();
    let FileState { inode, bytes: shard_bytes, modified, changed } = identity.state;
    let mut push = |value: u64| bytes.extend(value.to_le_bytes());
    push(VERSION);
    let file_bytes_at = 16;
    push(0);
    push(inode);
    push(shard_bytes);
    for (seconds, nanoseconds) in [modified, changed] {
        push(seconds.cast_unsigned());
        push(nanoseconds.cast_unsigned());
    }
    push(identity.last_header);
    bytes.extend(identity.header_hash);
    for count in
        [table.sample_schemas.len(), table.member_offsets.len(), table.key_text.len(), table.stored.len(), meta.len()]
    {
        bytes.extend((count as u64).to_le_bytes());
    }
    debug_assert_eq!(bytes.len(), HEAD_BYTES);
    bytes.extend(table.member_offsets.iter().flat_map(|offset| offset.to_le_bytes()));
    for column in [&table.member_lens, &table.member_ends, &table.sample_schemas, &table.key_ends] {
        bytes.extend(column.iter().flat_map(|value| value.to_le_bytes()));
    }
    bytes.extend(table.key_text.as_bytes());
    bytes.extend(&table.stored);
    bytes.extend(meta);
    let file_bytes = (bytes.len() + CHECKSUM_BYTES) as u64;
    bytes[file_bytes_at..file_bytes_at + 8].copy_from_slice(&file_bytes.to_le_bytes());
    let checksum = *blake3::hash(&bytes).as_bytes();
    bytes.extend(checksum);
    bytes
}

/// Checks every byte of an index that an accessor may later rely on.
pub(super) fn parse(bytes: &[u8]) -> Result<(Identity, Columns, Meta), String> {
    let contents = bytes.len().checked_sub(CHECKSUM_BYTES).filter(|&end| end >= HEAD_BYTES);
    let (contents, checksum) = bytes.split_at(contents.ok_or_else(|| format!("{} bytes are no index", bytes.len()))?);
    if contents[..8] != MAGIC {
        return Err("not an index".to_owned());
    }
    let word = |at: usize| u64_at(contents, at);
    if word(8) != VERSION {
        return Err(format!("an index of version {}, this program writes {VERSION}", word(8)));
    }
    if word(16) != bytes.len() as u64 {
        return Err(format!("{} bytes are there, {} were written", bytes.len(), word(16)));
    }
    if blake3::hash(contents).as_bytes() != checksum {
        return Err("the checksum is wrong".to_owned());
    }
    let identity = Identity {
        state: FileState {
            inode: word(24),
            bytes: word(32),
            modified: (word(40).cast_signed(), word(48).cast_signed()),
            changed: (word(56).cast_signed(), word(64).cast_signed()),
        },
        last_header: word(72),
        header_hash: contents[80..112].try_into().expect("32 bytes"),
    };
    let (mut columns, meta) = lay_out(contents.len(), [word(112), word(120), word(128), word(136), word(144)])
        .ok_or_else(|| "the counts do not add up to the length".to_owned())?;
    let meta: Meta = serde_json::from_slice(&contents[meta]).map_err(|error| format!("meta: {error}"))?;
    columns.key_bytes_max = columns.check(contents, meta.file_bytes_max.unwrap_or(identity.state.bytes), &meta)?;
    Ok((identity, columns, meta))
}

/// The columns' places for [samples, members, bytes of keys, stored bytes, bytes of meta], if they fill `contents_bytes` exactly.
fn lay_out(contents_bytes: usize, counts: [u64; 5]) -> Option<(Columns, Range<usize>)> {
    let [samples, members, key_bytes, stored_bytes, meta_bytes] = counts;
    let mut end = HEAD_BYTES;
    let mut take = |count: u64, bytes_each: usize| {
        let start = end;
        end = usize::try_from(count).ok()?.checked_mul(bytes_each)?.checked_add(start)?;
        Some(start..end)
    };
    let columns = Columns {
        samples: u32::try_from(samples).ok()?,
        members: u32::try_from(members).ok()?,
        key_bytes_max: 0,
        member_offsets: take(members, 8)?,
        member_lens: take(members, 4)?,
        member_ends: take(samples, 4)?,
        sample_schemas: take(samples, 4)?,
        key_ends: take(samples, 4)?,
        key_text: take(key_bytes, 1)?,
        stored: take(stored_bytes, 1)?,
    };
    let meta = take(meta_bytes, 1)?;
    (end == contents_bytes).then_some((columns, meta))
}

impl Columns {
    /// The member's place.
    pub(super) fn member(&self, bytes: &[u8], member: u32) -> (Origin, ByteRange) {
        let offset = u64_at(&bytes[self.member_offsets.clone()], member as usize * 8);
        let origin = if offset & STORED_BIT == 0 { Origin::File } else { Origin::Index };
        (origin, ByteRange { offset: offset & !STORED_BIT, len: u32_at(&bytes[self.member_lens.clone()], member) })
    }

    /// The bytes of a range whose origin is the index.
    pub(super) fn stored<'a>(&self, bytes: &'a [u8], range: ByteRange) -> &'a [u8] {
        let start = usize::try_from(range.offset).expect("checked when the index was opened");
        &bytes[self.stored.clone()][start..start + range.len as usize]
    }

    /// The sample's first member.
    pub(super) fn member_start(&self, bytes: &[u8], sample: u32) -> u32 {
        start(&bytes[self.member_ends.clone()], sample)
    }

    /// The sample's schema.
    pub(super) fn schema(&self, bytes: &[u8], sample: u32) -> u32 {
        u32_at(&bytes[self.sample_schemas.clone()], sample)
    }

    /// The sample's key.
    pub(super) fn key<'a>(&self, bytes: &'a [u8], sample: u32) -> &'a str {
        let ends = &bytes[self.key_ends.clone()];
        let key = start(ends, sample) as usize..u32_at(ends, sample) as usize;
        std::str::from_utf8(&bytes[self.key_text.clone()][key]).expect("checked when the index was opened")
    }

    /// A hash of all keys in their order, in hexadecimal digits.
    pub(super) fn keys_hash(&self, bytes: &[u8]) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&bytes[self.key_ends.clone()]).update(&bytes[self.key_text.clone()]);
        hasher.finalize().to_hex()[..32].to_owned()
    }

    /// Checks the columns against each other, the shard's length and `meta`. Returns the length of the longest key.
    fn check(&self, bytes: &[u8], file_bytes_max: u64, meta: &Meta) -> Result<u32, String> {
        let fields = meta.fields.len();
        if meta.schemas.iter().flatten().any(|&field| field as usize >= fields) {
            return Err("a schema names a field that is not there".to_owned());
        }
        for member in 0..self.members {
            let (origin, ByteRange { offset, len }) = self.member(bytes, member);
            let (limit, place) = if origin == Origin::File {
                (file_bytes_max, "the shard")
            } else {
                (self.stored.len() as u64, "the stored bytes")
            };
            if offset.checked_add(u64::from(len)).is_none_or(|end| end > limit) {
                return Err(format!("member {member} ends after {place}"));
            }
        }
        let keys = std::str::from_utf8(&bytes[self.key_text.clone()]).map_err(|error| format!("keys: {error}"))?;
        let (key_ends, member_ends) = (&bytes[self.key_ends.clone()], &bytes[self.member_ends.clone()]);
        let (mut key_start, mut member_start, mut key_bytes_max) = (0, 0, 0);
        for sample in 0..self.samples {
            let (key_end, member_end) = (u32_at(key_ends, sample), u32_at(member_ends, sample));
            if keys.get(key_start as usize..key_end as usize).is_none() {
                return Err(format!("the key of sample {sample} is no part of the key text"));
            }
            let schema = meta.schemas.get(self.schema(bytes, sample) as usize);
            let members = member_end.checked_sub(member_start).map(|members| members as usize);
            if member_end > self.members || schema.is_none() || schema.map(Vec::len) != members {
                return Err(format!("sample {sample} does not have the members of its schema"));
            }
            key_bytes_max = key_bytes_max.max(key_end - key_start);
            (key_start, member_start) = (key_end, member_end);
        }
        if key_start as usize != keys.len() || member_start != self.members {
            return Err("keys or members are left over".to_owned());
        }
        Ok(key_bytes_max)
    }
}

/// Where an item starts in a column of ends: at the end of the one before.
fn start(ends: &[u8], item: u32) -> u32 {
    item.checked_sub(1).map_or(0, |before| u32_at(ends, before))
}

fn u32_at(column: &[u8], item: u32) -> u32 {
    let at = item as usize * 4;
    u32::from_le_bytes(column[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::super::findings::{Finding, Findings};
    use super::super::walk::Member;
    use super::*;

    const SHARD_BYTES: u64 = 1 << 20;

    fn identity() -> Identity {
        let state = FileState { inode: 3, bytes: SHARD_BYTES, modified: (-1, 5), changed: (1 << 40, 999) };
        Identity { state, last_header: 1024, header_hash: [7; 32] }
    }

    /// An index of the named members, 100 bytes each.
    fn index(names: &[&str]) -> Vec<u8> {
        let (mut table, mut findings) = (Table::default(), Findings::default());
        let path = Path::new("/t.tar");
        for (number, name) in names.iter().enumerate() {
            let header_offset = number as u64 * 1024;
            let member = Member {
                name: (*name).to_owned(),
                header_offset,
                body_offset: header_offset + 512,
                size: 100,
                has_size_record: false,
            };
            table.add(path, &member, &mut findings).expect("in order");
        }
        table.close(path, &mut findings).expect("few");
        findings.add(Finding::Fifo, 9, || "pipe".to_owned());
        encode(&table, &identity(), Meta { findings: findings.into_counts(), ..Meta::default() })
    }

    fn resealed(mut bytes: Vec<u8>) -> Vec<u8> {
        let contents = bytes.len() - CHECKSUM_BYTES;
        let checksum = *blake3::hash(&bytes[..contents]).as_bytes();
        bytes[contents..].copy_from_slice(&checksum);
        bytes
    }

    /// Goes through every accessor, as far as the counts say.
    fn use_all(bytes: &[u8], identity: &Identity, columns: &Columns, meta: &Meta) {
        for sample in 0..columns.samples {
            let key = columns.key(bytes, sample);
            assert!(key.len() <= columns.key_bytes_max as usize);
            let schema = &meta.schemas[columns.schema(bytes, sample) as usize];
            for (place, field) in schema.iter().enumerate() {
                let _ = &meta.fields[*field as usize];
                let place = u32::try_from(place).expect("small");
                let (origin, range) = columns.member(bytes, columns.member_start(bytes, sample) + place);
                if origin == Origin::File {
                    assert!(range.offset + u64::from(range.len) <= identity.state.bytes);
                } else {
                    assert_eq!(columns.stored(bytes, range).len(), range.len as usize);
                }
            }
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let bytes = index(&["a.jpg", "a.cls", "größe.cls", "größe.jpg", "c.jpg", "c.cls"]);
        let (found, columns, meta) = parse(&bytes).expect("sound");
        assert_eq!(found, identity());
        assert_eq!((columns.samples, columns.members, columns.key_bytes_max), (3, 6, 7));
        let keys: Vec<_> = (0..3).map(|sample| columns.key(&bytes, sample)).collect();
        assert_eq!(keys, ["a", "größe", "c"]);
        assert_eq!(meta.schemas, [[0, 1], [1, 0]]);
        assert_eq!((0..3).map(|sample| columns.schema(&bytes, sample)).collect::<Vec<_>>(), [0, 1, 0]);
        let start = columns.member_start(&bytes, 2);
        let place = (Origin::File, ByteRange { offset: 5 * 1024 + 512, len: 100 });
        assert_eq!(columns.member(&bytes, start + 1), place);
        assert_eq!(meta.findings[0].example, "pipe");
        use_all(&bytes, &found, &columns, &meta);
        let none = parse(&index(&[])).expect("sound").1;
        assert_eq!((none.samples, none.members), (0, 0));
    }

    #[test]
    fn a_sample_of_three_takes_less_than_64_bytes_and_its_key() {
        let names = |samples: usize| -> Vec<String> {
            (0..samples).flat_map(|n| ["jpg", "cls", "json"].map(|field| format!("{n:06}.{field}"))).collect()
        };
        let bytes = |samples| index(&names(samples).iter().map(String::as_str).collect::<Vec<_>>()).len();
        assert_eq!((bytes(300) - bytes(100)) / 200, 48 + 6);
    }

    #[test]
    fn damage_is_told() {
        let sound = index(&["a.jpg", "a.cls", "b.jpg", "b.cls"]);
        let check = |change: &dyn Fn(&mut Vec<u8>), part: &str| {
            let mut bytes = sound.clone();
            change(&mut bytes);
            let error = parse(&bytes).expect_err(part);
            assert!(error.contains(part), "{error}");
        };
        let put = |at: usize, value: u64| {
            move |bytes: &mut Vec<u8>| {
                bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
                *bytes = resealed(std::mem::take(bytes));
            }
        };
        check(&|bytes| bytes.clear(), "no index");
        check(&|bytes| bytes[0] = b'X', "not an index");
        check(&|bytes| bytes.truncate(300), "300 bytes are there");
        check(&|bytes| bytes[200] ^= 1, "checksum");
        check(&put(8, VERSION + 1), "an index of version");
        check(&put(32, 700), "ends after the shard");
        check(&put(112, 3), "do not add up");
        check(&put(112, u64::MAX), "do not add up");
        check(&put(120, u64::MAX / 8), "do not add up");
        check(&put(152, u64::MAX >> 1), "ends after the shard");
        check(&put(152, u64::MAX), "ends after the stored bytes");
    }

    proptest! {
        /// Whatever the bytes, they are either refused or safe to use.
        #[test]
        fn no_file_panics(
            noise in proptest::collection::vec(any::<u8>(), 0..400),
            damage in proptest::collection::vec((0_usize..10_000, any::<u8>()), 0..3),
            word in (0_usize..40, prop_oneof![0..20_u64, any::<u64>()]),
            cut in 0_usize..10_000,
        ) {
            let _ = parse(&noise);
            let mut bytes = index(&["a.jpg", "a.cls", "é.jpg", "b.cls", "c.jpg"]);
            let len = bytes.len();
            for (at, byte) in damage {
                bytes[at % len] = byte;
            }
            if word.0 > 1 {
                bytes[word.0 * 8..][..8].copy_from_slice(&word.1.to_le_bytes());
            }
            bytes.truncate(cut.max(HEAD_BYTES + CHECKSUM_BYTES));
            let len = bytes.len() as u64;
            // Most damage would stop at the length, or at the checksum.
            bytes[16..24].copy_from_slice(&len.to_le_bytes());
            bytes = resealed(bytes);
            if let Ok((identity, columns, meta)) = parse(&bytes) {
                use_all(&bytes, &identity, &columns, &meta);
            }
        }
    }
}
