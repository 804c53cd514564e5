//! LMDB databases through the public interface: what liblmdb wrote, read by ranges from the file.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use feedline_loader::plan::SampleId;
use feedline_loader::shard::{Dataset, Encoding, IndexOptions};
use feedline_loader::spec::{DatasetRules, KeyOrder, Profile};
use lmdb::{Environment, EnvironmentFlags, Transaction, WriteFlags};
use tempfile::TempDir;

/// A folder with a cache in it.
struct Bench {
    folder: TempDir,
}

impl Bench {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn open(&self, path: &Path, rules: DatasetRules) -> feedline_loader::Result<Dataset> {
        let options = IndexOptions { cache_dir: Some(self.at("cache")), rules, ..IndexOptions::default() };
        Dataset::open(&[path.to_owned()], &options, &|_| {})
    }

    /// Adds pairs to the database at `path`, in one commit.
    fn write(&self, path: &Path, pairs: &[(&str, &[u8])]) {
        let is_file = path.extension().is_some();
        if !is_file {
            fs::create_dir_all(path).expect("a folder");
        }
        let flags = if is_file { EnvironmentFlags::NO_SUB_DIR } else { EnvironmentFlags::empty() };
        let environment = Environment::new().set_flags(flags).set_map_size(16 << 20).open(path).expect("opened");
        let database = environment.open_db(None).expect("the main one");
        let mut transaction = environment.begin_rw_txn().expect("begun");
        for (key, value) in pairs {
            transaction.put(database, key, value, WriteFlags::empty()).expect("put");
        }
        transaction.commit().expect("committed");
    }
}

/// Every sample: its key, and the bytes and encoding of `field`.
fn read(dataset: &Dataset, field: &str) -> Vec<(String, Vec<u8>, Encoding)> {
    let selector = dataset.selector(&[vec![field.to_owned()]]).expect("there");
    let sample = |number: u64| {
        let sample = SampleId(number);
        let mut found = [None];
        selector.select(dataset, sample, &mut found);
        let place = found[0].expect("every sample has it");
        let (file, range) = place.in_file().expect("in the file");
        let mut bytes = vec![0; range.len as usize];
        let file = dataset.open_file(file).expect("as it was indexed");
        file.read_exact_at(&mut bytes, range.offset).expect("whole");
        (dataset.with_key(sample, str::to_owned), bytes, place.encoding)
    };
    (0..dataset.sample_count()).map(sample).collect()
}

#[test]
fn values_are_ranges_of_the_file_whatever_the_spelling() {
    let bench = Bench::new();
    let (folder, single) = (bench.at("d"), bench.at("n.lmdb"));
    let long = vec![7; 30_000];
    let pairs: [(&str, &[u8]); 3] = [("10", &long), ("9", b"small"), ("x/ü", b"")];
    for path in [&folder, &single] {
        bench.write(path, &pairs);
    }
    for path in [folder.clone(), folder.join("data.mdb"), single] {
        let dataset = bench.open(&path, DatasetRules::default()).expect("opened");
        let expected = pairs.map(|(key, value)| (key.to_owned(), value.to_vec(), Encoding::Value));
        assert_eq!(read(&dataset, "image"), expected, "{}", path.display());
        assert!(dataset.is_current());
        dataset.check_snapshots().expect("unchanged");
    }
}

#[test]
fn an_index_is_kept_for_its_snapshot_alone() {
    let bench = Bench::new();
    let path = bench.at("d");
    bench.write(&path, &[("a", b"1")]);
    let open = |rules| bench.open(&path, rules).expect("opened");
    assert_eq!(open(DatasetRules::default()).sample_count(), 1);
    let indexes = || fs::read_dir(bench.at("cache")).expect("a cache").count();
    assert_eq!(open(DatasetRules::default()).sample_count(), 1);
    assert_eq!(indexes(), 1);
    bench.write(&path, &[("b", b"2")]);
    assert_eq!(open(DatasetRules::default()).sample_count(), 2);
    assert_eq!(indexes(), 1);
    open(DatasetRules { key_order: KeyOrder::Natural, ..DatasetRules::default() });
    assert_eq!(indexes(), 2);
}

#[test]
fn a_database_that_is_replaced_is_told() {
    let bench = Bench::new();
    let (path, other) = (bench.at("n.lmdb"), bench.at("o.lmdb"));
    bench.write(&path, &[("a", b"1")]);
    bench.write(&other, &[("a", b"2")]);
    let dataset = bench.open(&path, DatasetRules::default()).expect("opened");
    fs::rename(&other, &path).expect("renamed");
    assert!(!dataset.is_current());
    let error = dataset.open_file(dataset.file_of(SampleId(0))).expect_err("another file").to_string();
    assert!(error.contains("was replaced after it was opened"), "{error}");
}

#[test]
fn profiles_decide_what_values_are() {
    let bench = Bench::new();
    let path = bench.at("d");
    bench.write(&path, &[("1", b"\x80\x04K\x05."), ("2", b"\x80\x04K\x06."), ("__len__", b"\x80\x04K\x02.")]);
    let check = |profile, field: &str, encoding| {
        let dataset = bench.open(&path, DatasetRules { profile, ..DatasetRules::default() }).expect("opened");
        let found: Vec<_> = read(&dataset, field).into_iter().map(|(key, _, encoding)| (key, encoding)).collect();
        assert_eq!(found, [("1".to_owned(), encoding), ("2".to_owned(), encoding)], "{profile:?}");
        assert_eq!(dataset.notices().len(), 1, "{:?}", dataset.notices());
    };
    check(Profile::Auto, "label", Encoding::Element(1));
    check(Profile::Folder, "0", Encoding::Element(0));
    check(Profile::Plain, "value", Encoding::Value);
    check(Profile::Datum, "label", Encoding::DatumLabel);
    let refused = |rules| bench.open(&path, rules).expect_err("refused").to_string();
    let rules = DatasetRules { profile: Profile::OpenCatalyst, ..DatasetRules::default() };
    assert!(refused(rules).contains("Open Catalyst"));
    let rules = DatasetRules { key_order: KeyOrder::MetaFile, ..DatasetRules::default() };
    assert!(refused(rules).contains("super-resolution"));
    let rules = DatasetRules { database: Some("x".into()), ..DatasetRules::default() };
    assert!(refused(rules).contains("leave database= out"));
}
