//! The walk against liblmdb's own cursor, over random databases; and over damaged files, where it must end in an error
//! or in ranges that lie in the file.

use std::cell::Cell;
use std::fs;
use std::io;
use std::path::Path;

use lmdb::{Cursor, DatabaseFlags, Environment, EnvironmentFlags, Transaction, WriteFlags};
use proptest::prelude::*;

use super::super::window::ReadAt;
use super::*;

/// A key and its value.
type Pair = (Vec<u8>, Vec<u8>);

/// Writes `pairs` into the database `inside` a new file, in several commits. Returns the file's bytes.
fn write(path: &Path, inside: Option<&str>, flags: DatabaseFlags, pairs: &[Pair]) -> Vec<u8> {
    let environment = Environment::new()
        .set_flags(EnvironmentFlags::NO_SUB_DIR | EnvironmentFlags::NO_SYNC)
        .set_map_size(256 << 20)
        .set_max_dbs(4)
        .open(path)
        .expect("opened");
    let database = environment.create_db(inside, flags).expect("created");
    for commit in pairs.chunks(pairs.len() / 3 + 1) {
        let mut transaction = environment.begin_rw_txn().expect("begun");
        for (key, value) in commit {
            transaction.put(database, key, value, WriteFlags::empty()).expect("put");
        }
        transaction.commit().expect("committed");
    }
    drop(environment);
    fs::read(path).expect("read")
}

/// What liblmdb's cursor says.
fn oracle(path: &Path, inside: Option<&str>) -> Vec<Pair> {
    let environment = Environment::new()
        .set_flags(EnvironmentFlags::NO_SUB_DIR | EnvironmentFlags::READ_ONLY)
        .set_max_dbs(4)
        .open(path)
        .expect("opened");
    let database = environment.open_db(inside).expect("there");
    let transaction = environment.begin_ro_txn().expect("begun");
    let mut cursor = transaction.open_ro_cursor(database).expect("a cursor");
    let pairs = cursor.iter().map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec())));
    pairs.collect::<Result<_, _>>().expect("sound")
}

fn walked(file: &[u8], inside: Option<&str>) -> Result<Vec<Pair>, String> {
    let value = |entry: &LmdbEntry| file[entry.offset as usize..][..entry.len as usize].to_vec();
    Ok(lmdb_entries(file, inside)?.into_iter().map(|entry| (entry.key.clone(), value(&entry))).collect())
}

fn pairs() -> impl Strategy<Value = Vec<Pair>> {
    let value = prop_oneof![
        3 => prop::collection::vec(any::<u8>(), 0..60),
        1 => (1_usize..20_000, any::<u8>()).prop_map(|(len, byte)| vec![byte; len]),
    ];
    let key = prop::collection::vec(any::<u8>(), 1..40);
    prop::collection::vec((key, value), 0..300)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn the_walk_equals_the_cursor(pairs in pairs(), is_inside in any::<bool>(), is_reverse in any::<bool>()) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("n.lmdb");
        let inside = is_inside.then_some("inner");
        let flags = if is_reverse && is_inside { DatabaseFlags::REVERSE_KEY } else { DatabaseFlags::empty() };
        let file = write(&path, inside, flags, &pairs);
        prop_assert_eq!(walked(&file, inside).expect("sound"), oracle(&path, inside));
        if is_inside {
            prop_assert_eq!(walked(&file, None).expect("sound"), vec![]);
        }
    }
}

/// 3 000 keys with values in the leaf, and some on pages of their own: three levels.
fn sound_file() -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let pairs: Vec<_> = (0..3_000_u32)
        .map(|number| {
            let len = if number % 50 == 0 { 5_000 } else { number as usize % 90 };
            (format!("key-{number:08}-{}", "x".repeat(60)).into_bytes(), vec![number as u8; len])
        })
        .collect();
    write(&folder.path().join("n.lmdb"), None, DatabaseFlags::empty(), &pairs)
}

#[test]
fn damaged_files_end_in_errors_or_in_ranges_of_the_file() {
    let sound = sound_file();
    assert_eq!(walked(&sound, None).expect("sound").len(), 3_000);
    let meta = meta::newest(&meta::read_metas(&sound[..], sound.len() as u64).expect("read").expect("sound"));
    assert!(meta.main.depth >= 3, "{meta:?}");
    let (refused, taken) = (Cell::new(0), Cell::new(0));
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig { cases: 3_000, ..Default::default() });
    let damage = (prop::collection::vec((0..sound.len(), any::<u8>()), 1..4), any::<bool>(), 0..sound.len());
    let outcome = runner.run(&damage, |(flips, heads_only, cut)| {
        let mut file = sound.clone();
        for (at, byte) in flips {
            // The heads of pages, where most of the numbers are.
            let at = if heads_only { at / 4096 * 4096 + at % 64 } else { at };
            file[at] = byte;
        }
        if cut % 4 == 0 {
            file.truncate(cut);
        }
        match lmdb_entries(&file, None) {
            Err(_) => refused.set(refused.get() + 1),
            Ok(entries) => {
                taken.set(taken.get() + 1);
                for entry in entries {
                    prop_assert!(entry.offset + u64::from(entry.len) <= file.len() as u64);
                }
            }
        }
        Ok(())
    });
    outcome.expect("no damage gets through");
    let (refused, taken) = (refused.get(), taken.get());
    assert!(refused > 300 && taken > 300, "{refused} refused, {taken} taken: both must be tried");
}

#[test]
fn damage_is_told_with_its_page() {
    let sound = sound_file();
    let meta = meta::newest(&meta::read_metas(&sound[..], sound.len() as u64).expect("read").expect("sound"));
    let root = meta.main.root.expect("not empty");
    let at = root as usize * 4096;
    let newest_meta = meta.transaction as usize % 2 * 4096;
    let check = |place: usize, bytes: &[u8], words: &str| {
        let mut file = sound.clone();
        file[place..place + bytes.len()].copy_from_slice(bytes);
        let error = lmdb_entries(&file, None).expect_err(words);
        assert!(error.contains(words), "{error}");
    };
    let page = format!("page {root}: ");
    check(at, &[0xff], &page);
    check(at + 10, &[2, 0], "no branch page");
    check(at + 12, &[0xff, 0xff], "its free space");
    check(at + 14, &[0xff, 0xff], "its free space");
    check(at + 16, &[3, 0], "node 0 is said to be at byte 3");
    check(at + 12, &[16, 0], "without a child");
    check(newest_meta + 128, &9_999_999_u64.to_ne_bytes(), "the tree begins at page 9999999");
    check(newest_meta + 120, &7_u64.to_ne_bytes(), "its record says 7");
    check(newest_meta + 104, &7_u64.to_ne_bytes(), "its record says");
    check(20, &2_u32.to_ne_bytes(), "version 2");
    // A root that leads to itself.
    let node = at + usize::from(u16::from_ne_bytes([sound[at + 16], sound[at + 17]]));
    check(node, &[root as u8, (root >> 8) as u8, 0, 0, 0, 0], "its record says");
    let cut = &sound[..sound.len() / 2 / 4096 * 4096];
    assert!(lmdb_entries(cut, None).expect_err("cut").contains("part of a copy"));
}

#[test]
fn several_values_a_key_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let pairs = vec![(b"a".to_vec(), b"1".to_vec()), (b"a".to_vec(), b"2".to_vec())];
    let file = write(&folder.path().join("n.lmdb"), Some("d"), DatabaseFlags::DUP_SORT, &pairs);
    assert!(lmdb_entries(&file, Some("d")).expect_err("refused").contains("DUPSORT"));
}

/// Counts the bytes that are read of it.
struct Counted<'a> {
    bytes: &'a [u8],
    read: Cell<u64>,
}

impl ReadAt for Counted<'_> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let count = self.bytes.read_at(buffer, offset)?;
        self.read.set(self.read.get() + count as u64);
        Ok(count)
    }
}

impl PageSource for Counted<'_> {}

/// Case 34 in small: values are never touched.
#[test]
fn less_than_a_hundredth_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let pairs: Vec<_> = (0..400_u32).map(|number| (format!("{number:06}").into_bytes(), vec![7; 100_000])).collect();
    let file = write(&folder.path().join("n.lmdb"), None, DatabaseFlags::empty(), &pairs);
    let source = Counted { bytes: &file, read: Cell::new(0) };
    let metas = meta::read_metas(&source, file.len() as u64).expect("read").expect("sound");
    let tree = Tree { source: &source, file_bytes: file.len() as u64, meta: meta::newest(&metas) };
    let mut count = 0;
    let walked = tree.walk(&tree.meta.main, &mut |entry| {
        assert_eq!(entry.len, 100_000);
        count += 1;
        Ok(())
    });
    walked.expect("sound");
    assert_eq!(count, 400);
    assert!(source.read.get() * 100 < file.len() as u64, "{} of {} bytes read", source.read.get(), file.len());
}
