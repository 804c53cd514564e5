//! Many shards as one dataset: numbering, fields, the cache of indexes.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use feedline_loader::plan::SampleId;
use feedline_loader::shard::{Dataset, FieldBytes, Finding, IndexOptions, IndexProgress};

use super::bench::*;

#[test]
fn missing_shards_are_all_listed_before_any_is_read() {
    let bench = Bench::new();
    fs::write(bench.at("s-0.tar"), b"no tar").expect("written");
    let error = bench.open(&["s-0.tar", "s-1.tar", "s-2.tar", "s-3.tar", "t.tar"]).expect_err("missing").to_string();
    assert!(
        error.contains("4 of 5 shards are missing") && error.contains("s-{1..3}.tar") && error.contains("t.tar"),
        "{error}"
    );
    let folder = bench.open(&["."]).expect_err("no images").to_string();
    assert!(folder.contains("not one sample"), "{folder}");
}

#[test]
fn samples_are_numbered_over_many_shards() {
    let bench = Bench::new();
    let counts = [7_u32, 5, 1, 0, 300, 0, 2];
    let mut expected = Vec::new();
    let mut paths = Vec::new();
    for (shard, count) in (0_u32..).zip(counts.iter().cycle().take(40)) {
        let names: Vec<String> = (0..*count).map(|local| format!("{shard}/{local}.jpg")).collect();
        let members: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), b"x".as_slice())).collect();
        paths.push(bench.write(&format!("{shard}.tar"), &members));
        expected.extend((0..*count).map(|local| (shard, local)));
    }
    for threads in [None, Some(1), Some(3)] {
        let reports = Mutex::new(Vec::new());
        let options = IndexOptions { threads, ..bench.options() };
        let note = |report: IndexProgress| reports.lock().expect("sound").push(report);
        let dataset = Dataset::open(&paths, &options, &note).expect("sound");
        assert_eq!((dataset.sample_count(), dataset.shard_count()), (expected.len() as u64, 40));
        for (number, &(shard, local)) in (0..).zip(&expected) {
            assert_eq!(dataset.locate(SampleId(number)), (shard, local));
            dataset.with_key(SampleId(number), |key| assert_eq!(key, format!("{shard}/{local}")));
        }
        assert_eq!(dataset.key_bytes_max(), 6);
        let reports = reports.into_inner().expect("sound");
        let last = |report: &IndexProgress| (report.shards_done, report.shards_total) == (40, 40);
        assert!(reports.iter().any(last) && reports.iter().any(|report| report.samples == dataset.sample_count()));
    }
}

#[test]
fn the_first_source_that_is_there_wins() {
    let bench = Bench::new();
    bench.write("a.tar", &[("0.jpg", b"j"), ("0.png", b"pp"), ("1.png", b"ppp"), ("1.jpg", b"jjjj"), ("2.cls", b"c")]);
    bench.write("b.tar", &[("0.left.png", b"55555"), ("0.cls", b"666666")]);
    let dataset = bench.open(&["a.tar", "b.tar"]).expect("sound");
    let check = |sources: &[&[&str]], lengths: &[&[Option<u32>]]| {
        let sources: Vec<Vec<String>> =
            sources.iter().map(|names| names.iter().map(|name| (*name).to_owned()).collect()).collect();
        let selector = dataset.selector(&sources).expect("there");
        for (sample, expected) in (0..).zip(lengths) {
            let mut ranges = vec![None; sources.len()];
            selector.select(&dataset, SampleId(sample), &mut ranges);
            assert_eq!(
                ranges.iter().map(|range| range.map(|field: FieldBytes| field.range.len)).collect::<Vec<_>>(),
                *expected
            );
        }
    };
    check(&[&["jpg", "png"], &["cls"]], &[&[Some(1), None], &[Some(4), None], &[None, Some(1)], &[None, Some(6)]]);
    check(&[&["png", "jpg"]], &[&[Some(2)], &[Some(3)], &[None], &[None]]);
    check(&[&["*.png", "png"]], &[&[Some(2)], &[Some(3)], &[None], &[Some(5)]]);
    check(&[], &[&[], &[], &[], &[]]);
    let sources = [vec!["jpg".to_owned()], vec!["jpeg".to_owned(), "webp".to_owned()]];
    let error = dataset.selector(&sources).expect_err("absent").to_string();
    assert!(error.contains("jpeg, webp") && error.contains("cls (2), jpg (2), left.png (1), png (2)"), "{error}");
}

#[test]
fn a_changed_shard_is_indexed_again() {
    let bench = Bench::new();
    let path = bench.write("x.tar", &[("0.jpg", &[0; 900]), ("2.jpg", b"two")]);
    let old = bench.open(&["x.tar"]).expect("sound");
    assert!(old.is_current());
    old.check_file(0, &fs::metadata(&path).expect("there")).expect("the same");

    bench.write("x.tar", &[("0.jpg", &[0; 900]), ("1.jpg", b"one"), ("2.jpg", b"two")]);
    assert!(!old.is_current());
    let error = old.check_file(0, &fs::metadata(&path).expect("there")).expect_err("another").to_string();
    assert!(error.contains("changed after it was indexed"), "{error}");
    let new = bench.open(&["x.tar"]).expect("sound");
    assert_eq!(samples(&new).len(), 3);
    assert!(new.is_current());

    // Other contents of the same length at the same time: the inode's time of change tells.
    let time = fs::metadata(&path).and_then(|metadata| metadata.modified()).expect("there");
    bench.write("x.tar", &[("0.jpg", &[0; 900]), ("1.jpg", b"one"), ("9.jpg", b"two")]);
    File::options().write(true).open(&path).and_then(|file| file.set_modified(time)).expect("set");
    assert!(!new.is_current());
    assert_eq!(samples(&bench.open(&["x.tar"]).expect("sound"))[2].0, "9");
    fs::remove_file(&path).expect("there");
    assert!(!new.is_current());
}

/// The one index file in the cache.
fn index_file(bench: &Bench) -> PathBuf {
    let entries = fs::read_dir(bench.at("cache/deep")).expect("made");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    assert_eq!(paths.len(), 1, "{paths:?}");
    paths.pop().expect("one")
}

#[test]
fn indexes_are_kept_for_this_user_and_used_again() {
    let bench = Bench::new();
    bench.write("x.tar", &[("0.jpg", b"zero"), ("1.jpg", b"one")]);
    let expected = samples(&bench.open(&["x.tar"]).expect("sound"));
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!((mode(&bench.at("cache/deep")), mode(&index_file(&bench))), (0o700, 0o600));
    let inode = || fs::metadata(index_file(&bench)).expect("there").ino();
    let first = inode();
    assert_eq!(samples(&bench.open(&["x.tar"]).expect("sound")), expected);
    assert_eq!(inode(), first);

    // A damaged index is made anew, whatever the damage.
    let sound = fs::read(index_file(&bench)).expect("there");
    type Damage<'a> = &'a dyn Fn(&mut Vec<u8>);
    let damages: [Damage<'_>; 4] =
        [&|bytes| bytes.clear(), &|bytes| bytes.truncate(100), &|bytes| bytes[150] ^= 1, &|bytes| bytes.push(0)];
    for damage in damages {
        let mut bytes = sound.clone();
        damage(&mut bytes);
        fs::write(index_file(&bench), bytes).expect("written");
        assert_eq!(samples(&bench.open(&["x.tar"]).expect("sound")), expected);
        assert_eq!(fs::read(index_file(&bench)).expect("there"), sound);
    }

    // What others may write is read instead of mapped; what is no file at all is replaced.
    fs::set_permissions(index_file(&bench), fs::Permissions::from_mode(0o666)).expect("own");
    let kept = inode();
    assert_eq!(samples(&bench.open(&["x.tar"]).expect("sound")), expected);
    assert_eq!(inode(), kept);
    let path = index_file(&bench);
    fs::remove_file(&path).expect("there");
    if bench.run("mkfifo", &[path.to_str().expect("plain")]) {
        assert_eq!(samples(&bench.open(&["x.tar"]).expect("sound")), expected);
        assert!(fs::metadata(index_file(&bench)).expect("there").is_file());
    }
}

#[test]
fn without_a_cache_indexes_stay_in_memory() {
    let bench = Bench::new();
    let path = bench.write("x.tar", &[("0.jpg", b"zero")]);
    // Nobody, not even root, can make a folder in a file.
    let options = IndexOptions { cache_dir: Some(path.join("cache")), ..IndexOptions::default() };
    let dataset = Dataset::open(&[path], &options, &|_| {}).expect("sound");
    assert_eq!(samples(&dataset), [sample("0", &[("jpg", b"zero")])]);
    let notices = dataset.notices();
    assert!(
        notices.len() == 1 && notices[0].contains("in memory only") && notices[0].contains("FEEDLINE_CACHE"),
        "{notices:?}"
    );
}

#[test]
fn a_summary_says_what_a_shard_holds() {
    let bench = Bench::new();
    let path = bench.write("x.tar", &[("0.jpg", b"zero"), ("0.cls", b"1"), ("1.jpg", b""), ("x", b"?")]);
    let summary = bench.open(&["x.tar"]).expect("sound").shard_summary(0, 1);
    assert_eq!((summary.samples, summary.members, summary.first_keys), (2, 3, vec!["0".to_owned()]));
    assert_eq!(summary.bytes, fs::metadata(&path).expect("there").len());
    let fields: Vec<_> =
        summary.fields.iter().map(|field| (field.name.as_str(), field.samples, field.empty, field.bytes)).collect();
    assert_eq!(fields, [("jpg", 2, 1, 4), ("cls", 1, 0, 1)]);
    let found = &summary.findings[0];
    assert_eq!((found.finding, found.count, found.example.as_str()), (Finding::NoExtension, 1, "x"));
}
