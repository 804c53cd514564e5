//! Walks the tree of one database, level by level: branch and leaf pages only, each once, in the order of the keys.
//!
//! A level is known as a whole before its pages are read, so the kernel can be told what is read next. All leaves lie
//! on the level that the database's record names, and no page is on a level twice, so cycles cannot be.

use std::fs::File;
use std::io;

use super::super::window::{ReadAt, UntilStopped};
use super::meta::{Database, INTEGER_KEY, Meta, PAGE_HEAD_BYTES, REVERSE_KEY, SORTED_DUPLICATES};
use super::page::{Kind, Page, Value};

/// Pages that the kernel is asked for before they are read: a queue depth.
const AHEAD_PAGES: usize = 64;

/// Most bytes of neighbouring pages that are read at once.
const RUN_BYTES_MAX: usize = 64 << 10;

/// Something whose pages can be asked for ahead.
pub(super) trait PageSource: ReadAt {
    /// These bytes are read soon.
    fn will_need(&self, _offset: u64, _bytes: u64) {}
}

impl PageSource for File {
    fn will_need(&self, offset: u64, bytes: u64) {
        // Only a wish: not all file systems take it.
        let bytes = std::num::NonZeroU64::new(bytes);
        let _ = rustix::fs::fadvise(self, offset, bytes, rustix::fs::Advice::WillNeed);
    }
}

impl PageSource for [u8] {}

impl<S: PageSource + ?Sized> PageSource for UntilStopped<'_, S> {
    fn will_need(&self, offset: u64, bytes: u64) {
        self.source.will_need(offset, bytes);
    }
}

/// A damaged place, or a failed read.
#[derive(Debug)]
pub(super) enum WalkError {
    /// The system refused a read.
    Io(io::Error),
    /// The page at `offset` is not what it must be.
    Damage { offset: u64, message: String },
}

/// One key with its value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry<'a> {
    pub(super) key: &'a [u8],
    /// Where the value starts in the file.
    pub(super) offset: u64,
    /// Its length in bytes.
    pub(super) len: u32,
    /// Whether the value is the record of a database: then these are its bytes.
    pub(super) database: Option<&'a [u8]>,
}

/// The file, and what of it may be read.
#[derive(Debug)]
pub(super) struct Tree<'a, S: ?Sized> {
    pub(super) source: &'a S,
    pub(super) file_bytes: u64,
    pub(super) meta: Meta,
}

impl<S: PageSource + ?Sized> Tree<'_, S> {
    /// Hands every entry of `database` to `visit`, in the order of the keys.
    pub(super) fn walk(
        &self,
        database: &Database,
        visit: &mut dyn FnMut(Entry<'_>) -> Result<(), WalkError>,
    ) -> Result<(), WalkError> {
        let Some(root) = database.root else { return Ok(()) };
        let damaged = |message| Err(self.damage(root, message));
        if database.flags & SORTED_DUPLICATES != 0 {
            return damaged(
                "this database keeps several values a key (DUPSORT), which is no layout of samples: write it again with \
                 one value a key"
                    .into(),
            );
        }
        let mut level = vec![root];
        let mut branches = 0;
        for _ in 1..database.depth {
            branches += level.len() as u64;
            level = self.children(&level, database.branch_pages)?;
        }
        let leaves = level.len() as u64;
        if (branches, leaves) != (database.branch_pages, database.leaf_pages) {
            return damaged(format!(
                "the tree has {branches} branch and {leaves} leaf pages, its record says {} and {}",
                database.branch_pages, database.leaf_pages
            ));
        }
        let (mut entries, mut last_key) = (0_u64, None::<Vec<u8>>);
        self.pages(&level, Kind::Leaf, &mut |number, page| {
            for node in 0..page.node_count() {
                let leaf = page.leaf(node).map_err(|message| self.damage(number, message))?;
                if last_key.as_ref().is_some_and(|last| !ascends(database.flags, last, leaf.key)) {
                    return Err(self.damage(number, format!("node {node}: its key is out of order")));
                }
                let last = last_key.get_or_insert_default();
                last.clear();
                last.extend_from_slice(leaf.key);
                entries += 1;
                visit(self.entry(number, node, leaf.key, leaf.value)?)?;
            }
            Ok(())
        })?;
        if entries != database.entries {
            return damaged(format!("the tree has {entries} entries, its record says {}", database.entries));
        }
        Ok(())
    }

    fn entry<'k>(&self, number: u64, node: usize, key: &'k [u8], value: Value<'k>) -> Result<Entry<'k>, WalkError> {
        let start = number * u64::from(self.meta.page_bytes);
        let damaged = |message| Err(self.damage(number, message));
        Ok(match value {
            Value::Here { offset, bytes } => {
                let len = u32::try_from(bytes.len()).expect("less than a page");
                Entry { key, offset: start + offset as u64, len, database: None }
            }
            Value::Pages { first, len } => {
                let offset = first.checked_mul(u64::from(self.meta.page_bytes)).filter(|_| first >= 2);
                let offset = offset.and_then(|offset| offset.checked_add(PAGE_HEAD_BYTES as u64));
                let inside = offset.filter(|offset| offset.saturating_add(u64::from(len)) <= self.file_bytes);
                let Some(offset) = inside else {
                    return damaged(format!(
                        "node {node}: its value, {len} bytes from page {first} on, passes the end of the file ({} bytes)",
                        self.file_bytes
                    ));
                };
                Entry { key, offset, len, database: None }
            }
            Value::Database(record) => Entry { key, offset: start, len: 0, database: Some(record) },
            Value::Duplicates => {
                return damaged(format!("node {node}: several values, in a database of one value a key"));
            }
        })
    }

    /// The pages below a level of branches.
    fn children(&self, level: &[u64], branch_pages: u64) -> Result<Vec<u64>, WalkError> {
        let pages_max = usize::try_from(self.file_pages()).unwrap_or(usize::MAX);
        let mut below = Vec::new();
        self.pages(level, Kind::Branch, &mut |number, page| {
            if page.node_count() == 0 {
                return Err(self.damage(number, "a branch page without a child".into()));
            }
            for node in 0..page.node_count() {
                below.push(page.child(node).map_err(|message| self.damage(number, message))?);
            }
            if below.len() > pages_max {
                return Err(self.damage(number, format!("the tree has more pages than the file ({pages_max})")));
            }
            Ok(())
        })?;
        let mut sorted = below.clone();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(self.damage(twice[0], format!("two of {branch_pages} branch pages lead to it")));
        }
        Ok(below)
    }

    /// Reads the pages of a level, in order.
    fn pages(
        &self,
        level: &[u64],
        kind: Kind,
        visit: &mut dyn FnMut(u64, Page<'_>) -> Result<(), WalkError>,
    ) -> Result<(), WalkError> {
        let page_bytes = self.meta.page_bytes as usize;
        let pages = self.file_pages().min(self.meta.page_count);
        if let Some(&outside) = level.iter().find(|&&number| number < 2 || number >= pages) {
            let message = format!(
                "a page of the tree has number {outside}; the file has {} pages of {page_bytes} bytes, {} in use: is it a \
                 part of a copy?",
                self.file_pages(),
                self.meta.page_count
            );
            return Err(WalkError::Damage { offset: self.file_bytes, message });
        }
        let mut bytes = Vec::new();
        let mut asked = 0;
        let mut next = 0;
        while next < level.len() {
            while asked < level.len() && asked < next + AHEAD_PAGES {
                self.source.will_need(level[asked] * page_bytes as u64, page_bytes as u64);
                asked += 1;
            }
            let run_max = (RUN_BYTES_MAX / page_bytes).max(1);
            let run = &level[next..];
            let neighbours = run.iter().zip(0..).take_while(|&(&number, place)| number == run[0] + place);
            let count = neighbours.take(run_max).count();
            bytes.resize(count * page_bytes, 0);
            let filled = read_up_to(self.source, &mut bytes, run[0] * page_bytes as u64).map_err(WalkError::Io)?;
            for (number, page) in run.iter().zip(bytes[..filled].chunks(page_bytes)) {
                let page = Page::new(page, *number, kind).map_err(|message| self.damage(*number, message))?;
                visit(*number, page)?;
            }
            if filled < bytes.len() {
                return Err(self.damage(run[filled / page_bytes], "the file ends in it".into()));
            }
            next += count;
        }
        Ok(())
    }

    fn file_pages(&self) -> u64 {
        self.file_bytes / u64::from(self.meta.page_bytes)
    }

    /// Damage on page `number`.
    pub(super) fn damage(&self, number: u64, message: String) -> WalkError {
        let offset = number.saturating_mul(u64::from(self.meta.page_bytes));
        WalkError::Damage { offset, message: format!("page {number}: {message}") }
    }
}

/// Whether `key` comes after `last` in a database of these flags.
fn ascends(flags: u16, last: &[u8], key: &[u8]) -> bool {
    if flags & INTEGER_KEY != 0 {
        return matches!((integer_key(last), integer_key(key)), (Some(last), Some(key)) if last < key);
    }
    if flags & REVERSE_KEY != 0 {
        return last.iter().rev().lt(key.iter().rev());
    }
    last < key
}

/// A key of a database of integers.
pub(super) fn integer_key(key: &[u8]) -> Option<u64> {
    match key.len() {
        4 => Some(u64::from(u32::from_ne_bytes(key.try_into().expect("4 bytes")))),
        8 => Some(u64::from_ne_bytes(key.try_into().expect("8 bytes"))),
        _ => None,
    }
}

/// Reads until `buffer` is full or the source ends; returns how much was read.
pub(super) fn read_up_to<S: ReadAt + ?Sized>(source: &S, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match source.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
