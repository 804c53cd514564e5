//! The two meta pages of an LMDB file: its page size, its snapshots, and where their trees begin. Pure.
//!
//! Every commit writes the meta page whose number is the parity of its transaction id, so the two hold the last two
//! snapshots. Numbers are in the byte order and the word size of the machine that wrote them.

use std::io;

use super::super::window::ReadAt;

/// Bytes of a page's head.
pub(crate) const PAGE_HEAD_BYTES: usize = 16;

/// Bytes from the start of a meta page that are looked at.
pub(crate) const META_BYTES: usize = 152;

/// Bytes of the record of a database: in a meta page, or as the value of its name.
pub(crate) const DATABASE_BYTES: usize = 48;

const MAGIC: u32 = 0xBEEF_C0DE;
const DATA_VERSION: u32 = 1;
const META_FLAG: u16 = 0x08;
const NO_PAGE: u64 = u64::MAX;
const PAGE_BYTES_MIN: u32 = 256;
const PAGE_BYTES_MAX: u32 = 1 << 16;

/// Keys are compared from their last byte.
pub(crate) const REVERSE_KEY: u16 = 0x02;
/// A key may have several values.
pub(crate) const SORTED_DUPLICATES: u16 = 0x04;
/// Keys are integers of the machine.
pub(crate) const INTEGER_KEY: u16 = 0x08;

/// Deepest tree: liblmdb's own limit.
const DEPTH_MAX: u16 = 32;

/// One database: a tree of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Database {
    pub(crate) flags: u16,
    pub(crate) depth: u16,
    pub(crate) branch_pages: u64,
    pub(crate) leaf_pages: u64,
    pub(crate) entries: u64,
    /// `None` when it is empty.
    pub(crate) root: Option<u64>,
}

/// One snapshot of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) page_bytes: u32,
    /// Pages in use, the meta pages included.
    pub(crate) page_count: u64,
    pub(crate) transaction: u64,
    pub(crate) main: Database,
}

impl Database {
    /// Reads a record of [`DATABASE_BYTES`].
    pub(crate) fn parse(record: &[u8]) -> Result<Self, String> {
        let record: &[u8; DATABASE_BYTES] =
            record.try_into().map_err(|_| format!("a record of {} bytes, not {DATABASE_BYTES}", record.len()))?;
        let word = |at: usize| u64::from_ne_bytes(record[at..at + 8].try_into().expect("8 bytes"));
        let half = |at: usize| u16::from_ne_bytes([record[at], record[at + 1]]);
        let root = word(40);
        let database = Self {
            flags: half(4),
            depth: half(6),
            branch_pages: word(8),
            leaf_pages: word(16),
            entries: word(32),
            root: (root != NO_PAGE).then_some(root),
        };
        if database.depth > DEPTH_MAX {
            return Err(format!("a tree of {} levels, the limit is {DEPTH_MAX}", database.depth));
        }
        if database.root.is_some() != (database.depth > 0) || database.root.is_some() != (database.entries > 0) {
            return Err(format!(
                "a tree of {} levels and {} entries with root {:?}",
                database.depth, database.entries, database.root
            ));
        }
        Ok(database)
    }
}

/// Reads one meta page, or its first [`META_BYTES`], as those of a file of `file_bytes`.
pub(crate) fn parse_meta(page: &[u8], file_bytes: u64) -> Result<Meta, String> {
    let Some(page) = page.first_chunk::<META_BYTES>() else {
        return Err(format!("the file ends in the middle of a meta page ({} bytes of it are there)", page.len()));
    };
    let word = |at: usize| u64::from_ne_bytes(page[at..at + 8].try_into().expect("8 bytes"));
    let quad = |at: usize| u32::from_ne_bytes(page[at..at + 4].try_into().expect("4 bytes"));
    let magic = quad(PAGE_HEAD_BYTES);
    if magic == MAGIC.swap_bytes() {
        return Err(
            "it was written by a machine of the other byte order: copy it there with mdb_dump, load it here".into()
        );
    }
    if magic != MAGIC && quad(12) == MAGIC {
        return Err("it was written by a 32-bit program: copy it there with mdb_dump, load it here".into());
    }
    if magic != MAGIC {
        return Err(format!("no meta page of LMDB: {magic:#010x} where {MAGIC:#010x} belongs"));
    }
    let version = quad(20);
    if version != DATA_VERSION {
        return Err(format!(
            "the format has version {version}, this program reads {DATA_VERSION}: dump it with the program that wrote it, \
             load it with LMDB 0.9"
        ));
    }
    if u16::from_ne_bytes([page[10], page[11]]) & META_FLAG == 0 {
        return Err("the page is not marked as a meta page".into());
    }
    // The record of the free list has the page size in the place that other records pad.
    let page_bytes = quad(40);
    if !page_bytes.is_power_of_two() || !(PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&page_bytes) {
        return Err(format!("a page size of {page_bytes} bytes cannot be"));
    }
    let main = Database::parse(&page[88..88 + DATABASE_BYTES]).map_err(|reason| format!("main database: {reason}"))?;
    let last_page = word(136);
    let page_count = last_page.checked_add(1).filter(|count| count.checked_mul(u64::from(page_bytes)).is_some());
    let Some(page_count) = page_count.filter(|&count| count >= 2) else {
        return Err(format!("a last page of number {last_page} cannot be"));
    };
    // Pages that were given back before they were ever written may lie past the end, so a count of pages alone is no
    // proof of a cut; a root is.
    let file_pages = file_bytes / u64::from(page_bytes);
    if let Some(root) = main.root.filter(|&root| root < 2 || root >= page_count || root >= file_pages) {
        return Err(format!(
            "the tree begins at page {root}, of {page_count} in use; the file has {file_pages} pages of {page_bytes} bytes \
             ({file_bytes} bytes): {}",
            if root >= file_pages { "is it a part of a copy?" } else { "it is damaged" }
        ));
    }
    Ok(Meta { page_bytes, page_count, transaction: word(144), main })
}

/// Reads both meta pages of `source`. Both must be sound, as liblmdb asks: one alone does not tell which is newer.
pub(crate) fn read_metas<S: ReadAt + ?Sized>(source: &S, file_bytes: u64) -> io::Result<Result<[Meta; 2], String>> {
    let first = match parse_meta(&read_start(source, 0)?, file_bytes) {
        Ok(first) => first,
        Err(reason) => return Ok(Err(format!("meta page 0: {reason}"))),
    };
    let offset = u64::from(first.page_bytes);
    let second = match parse_meta(&read_start(source, offset)?, file_bytes) {
        Ok(second) => second,
        Err(reason) => return Ok(Err(format!("meta page 1: {reason}"))),
    };
    if first.page_bytes != second.page_bytes {
        let reason =
            format!("page sizes of {} and {} bytes contradict each other", first.page_bytes, second.page_bytes);
        return Ok(Err(format!("meta page 1: {reason}")));
    }
    Ok(Ok([first, second]))
}

/// The newest of the two.
pub(crate) fn newest(metas: &[Meta; 2]) -> Meta {
    if metas[1].transaction > metas[0].transaction { metas[1] } else { metas[0] }
}

fn read_start<S: ReadAt + ?Sized>(source: &S, offset: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; META_BYTES];
    let filled = super::walk::read_up_to(source, &mut bytes, offset)?;
    bytes.truncate(filled);
    Ok(bytes)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A meta page as liblmdb writes it for an empty database.
    pub(crate) fn meta_page(transaction: u64) -> Vec<u8> {
        let mut page = vec![0; 4096];
        let mut put = |at: usize, bytes: &[u8]| page[at..at + bytes.len()].copy_from_slice(bytes);
        put(10, &META_FLAG.to_ne_bytes());
        put(16, &MAGIC.to_ne_bytes());
        put(20, &1_u32.to_ne_bytes());
        put(40, &4096_u32.to_ne_bytes());
        put(80, &NO_PAGE.to_ne_bytes());
        put(128, &NO_PAGE.to_ne_bytes());
        put(136, &1_u64.to_ne_bytes());
        put(144, &transaction.to_ne_bytes());
        page
    }

    #[test]
    fn an_empty_database_and_what_is_refused() {
        let meta = parse_meta(&meta_page(7), 8192).expect("sound");
        assert_eq!((meta.page_bytes, meta.page_count, meta.transaction), (4096, 2, 7));
        assert_eq!(meta.main.root, None);
        let check = |at: usize, bytes: &[u8], words: &str| {
            let mut page = meta_page(7);
            page[at..at + bytes.len()].copy_from_slice(bytes);
            let error = parse_meta(&page, 8192).expect_err(words);
            assert!(error.contains(words), "{error}");
        };
        check(16, &[0; 4], "no meta page");
        check(16, &MAGIC.swap_bytes().to_ne_bytes(), "other byte order");
        check(12, &[MAGIC.to_ne_bytes(), [0; 4]].concat(), "32-bit");
        check(20, &2_u32.to_ne_bytes(), "version 2");
        check(20, &999_u32.to_ne_bytes(), "version 999");
        check(10, &[0, 0], "not marked");
        check(40, &4095_u32.to_ne_bytes(), "4095 bytes");
        check(40, &0_u32.to_ne_bytes(), "page size of 0");
        check(40, &(1_u32 << 31).to_ne_bytes(), "cannot be");
        check(94, &33_u16.to_ne_bytes(), "33 levels");
        check(94, &1_u16.to_ne_bytes(), "root None");
        check(136, &u64::MAX.to_ne_bytes(), "last page");
        check(136, &(u64::MAX >> 2).to_ne_bytes(), "last page");
        check(136, &0_u64.to_ne_bytes(), "last page");
        let mut rooted = meta_page(7);
        rooted[94] = 1;
        rooted[120] = 1;
        rooted[128..136].copy_from_slice(&9_u64.to_ne_bytes());
        rooted[136..144].copy_from_slice(&9_u64.to_ne_bytes());
        assert!(parse_meta(&rooted, 8192).expect_err("cut").contains("part of a copy"));
        parse_meta(&rooted, 10 * 4096).expect("whole");
    }

    #[test]
    fn the_newer_of_both_counts() {
        let both = |first, second| {
            let file = [meta_page(first), meta_page(second)].concat();
            read_metas(&file[..], 8192).expect("read").map(|metas| newest(&metas).transaction)
        };
        assert_eq!(both(0, 1), Ok(1));
        assert_eq!(both(2, 1), Ok(2));
        let cut = meta_page(3);
        assert!(read_metas(&cut[..], 4096).expect("read").expect_err("one page").contains("meta page 1"));
    }
}
