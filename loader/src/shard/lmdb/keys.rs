//! The keys of a database while its samples are found: texts in one block, with where each value lies.

use std::io;

use super::super::window::ReadAt;
use super::walk::read_up_to;
use crate::decode::unwrap::pickle::PickleReader;
use crate::decode::unwrap::{Value, msgpack};

/// A key and its value's place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    key_start: usize,
    key_bytes: u32,
    pub(super) len: u32,
    pub(super) offset: u64,
}

/// All keys of a database, those that are about it apart.
#[derive(Debug, Default)]
pub(super) struct Keys {
    text: Vec<u8>,
    pub(super) records: Vec<Record>,
    /// Keys about the database itself: counts, lists of keys.
    pub(super) reserved: Vec<Record>,
}

/// Longest value that is read as a number.
const NUMBER_BYTES_MAX: usize = 64;

impl Keys {
    /// Adds a key.
    pub(super) fn add(&mut self, key: &[u8], offset: u64, len: u32) {
        let key_bytes = u32::try_from(key.len()).expect("shorter than a page");
        let record = Record { key_start: self.text.len(), key_bytes, len, offset };
        self.text.extend_from_slice(key);
        if is_reserved(key) { self.reserved.push(record) } else { self.records.push(record) }
    }

    /// The text of a key.
    pub(super) fn key(&self, record: &Record) -> &[u8] {
        &self.text[record.key_start..][..record.key_bytes as usize]
    }

    /// Puts the records in an order of their keys.
    pub(super) fn sort_by(&mut self, compare: impl Fn(&[u8], &[u8]) -> std::cmp::Ordering) {
        let text = std::mem::take(&mut self.text);
        let key = |record: &Record| &text[record.key_start..][..record.key_bytes as usize];
        self.records.sort_by(|a, b| compare(key(a), key(b)));
        self.text = text;
    }

    /// The reserved record of this name.
    pub(super) fn reserved(&self, name: &str) -> Option<&Record> {
        self.reserved.iter().find(|record| self.key(record) == name.as_bytes())
    }

    /// The number of samples that the database says it has, by the first of these names: `None` where it does not say,
    /// and an error where what it says is no number.
    pub(super) fn stated_count<S: ReadAt + ?Sized>(
        &self,
        source: &S,
    ) -> io::Result<Option<(&'static str, Result<u64, String>)>> {
        for name in ["num-samples", "length", "__len__"] {
            let Some(record) = self.reserved(name) else { continue };
            let mut value = vec![0; (record.len as usize).min(NUMBER_BYTES_MAX)];
            let filled = read_up_to(source, &mut value, record.offset)?;
            value.truncate(filled);
            let number = number(&value).and_then(|number| u64::try_from(number).ok());
            return Ok(Some((name, number.ok_or_else(|| format!("{:?}", String::from_utf8_lossy(&value))))));
        }
        Ok(None)
    }
}

/// Keys about the database itself, which never are samples.
fn is_reserved(key: &[u8]) -> bool {
    let is_dunder = key.len() > 4 && key.starts_with(b"__") && key.ends_with(b"__");
    is_dunder || matches!(key, b"num-samples" | b"length")
}

/// An integer in decimal text, in a pickle or in msgpack.
fn number(value: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(value).ok().and_then(|text| text.trim().parse().ok());
    let pickled = || match PickleReader::default().value(value) {
        Ok(Value::Int(number)) => Some(number),
        _ => None,
    };
    text.or_else(pickled).or_else(|| msgpack::integer(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_writers_store_them() {
        let check = |value: &[u8], expected| assert_eq!(number(value), expected, "{value:x?}");
        check(b"3", Some(3));
        check(b"12\n", Some(12));
        check(b"\x80\x04K\x05.", Some(5));
        check(b"I7\n.", Some(7));
        check(b"\xcd\x01\x00", Some(256));
        check(b"\xff\xff\xff\xff\x10\0", None);
        check(b"", None);
    }

    #[test]
    fn reserved_keys_are_kept_apart() {
        let mut keys = Keys::default();
        for key in ["1", "length", "__len__", "__keys__", "num-samples", "____", "__x"] {
            keys.add(key.as_bytes(), 0, 1);
        }
        let texts: Vec<_> = keys.records.iter().map(|record| keys.key(record)).collect();
        assert_eq!(texts, [&b"1"[..], b"____", b"__x"]);
        assert!(keys.reserved("length").is_some() && keys.reserved("1").is_none());
        let stated = keys.stated_count(&b"42"[..]).expect("read").expect("stated");
        assert_eq!(stated, ("num-samples", Ok(4)));
    }
}
