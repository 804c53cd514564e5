//! Folders of plain files as datasets.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};

use feedline_loader::Error;
use feedline_loader::plan::SampleId;
use feedline_loader::shard::{Dataset, FieldBytes, Finding, IndexOptions, Links, Origin};

use super::bench::*;

fn write(bench: &Bench, path: &str, bytes: &[u8]) {
    let path = bench.at(path);
    fs::create_dir_all(path.parent().expect("has one")).expect("made");
    fs::write(path, bytes).expect("written");
}

/// (key, class, bytes) of every sample.
fn contents(dataset: &Dataset, ending: &str) -> Vec<(String, Option<String>, Vec<u8>)> {
    use std::io::Read;
    let sources = vec![vec![ending.to_owned()], vec!["cls".to_owned()]];
    let selector = dataset.selector(&sources).expect("there");
    let read = |sample: u64| {
        let sample = SampleId(sample);
        let mut found = [None::<FieldBytes>; 2];
        selector.select(dataset, sample, &mut found);
        let [Some(image), class] = found else { panic!("sample {sample:?} has no image") };
        let mut bytes = Vec::new();
        dataset.open_file(dataset.file_of(sample)).expect("there").read_to_end(&mut bytes).expect("read");
        let (file, range) = image.in_file().expect("an image is a file");
        assert_eq!((file, range.offset, range.len as usize), (dataset.file_of(sample), 0, bytes.len()));
        let class = class.map(|class| {
            assert_eq!(class.origin, Origin::Index);
            String::from_utf8(dataset.stored(&class).expect("in memory").to_vec()).expect("decimal")
        });
        (dataset.with_key(sample, str::to_owned), class, bytes)
    };
    (0..dataset.sample_count()).map(read).collect()
}

#[test]
fn classes_are_the_folders_in_order() {
    let bench = Bench::new();
    for (path, bytes) in [
        ("tree/dog/2.JPG", b"dog2".as_slice()),
        ("tree/dog/10.jpg", b"dog10"),
        ("tree/cat/deep/er/1.jpg", b"cat1"),
        ("tree/cat/.DS_Store", b"x"),
        ("tree/cat/notes.txt", b"x"),
        ("tree/top.jpg", b"top"),
        ("tree/zebra/readme", b"x"),
    ] {
        write(&bench, path, bytes);
    }
    let dataset = bench.open(&["tree"]).expect("a tree");
    let row = |key: &str, class: Option<&str>, bytes: &[u8]| (key.to_owned(), class.map(str::to_owned), bytes.to_vec());
    let expected = [
        row("top", None, b"top"),
        row("cat/deep/er/1", Some("0"), b"cat1"),
        row("dog/10", Some("1"), b"dog10"),
        row("dog/2", Some("1"), b"dog2"),
    ];
    assert_eq!(contents(&dataset, "jpg"), expected);
    assert_eq!(dataset.classes().expect("a tree has them"), ["cat", "dog", "zebra"]);
    assert_eq!(findings(&dataset, 0), [(Finding::DesktopLitter, 1), (Finding::NoImage, 2), (Finding::EmptyFolder, 1)]);
}

#[test]
fn equal_stems_are_two_samples_with_keys_of_their_own() {
    let bench = Bench::new();
    write(&bench, "tree/a/1.jpg", b"j");
    write(&bench, "tree/a/1.png", b"p");
    let dataset = bench.open(&["tree"]).expect("a tree");
    let keys: Vec<String> = (0..2).map(|sample| dataset.with_key(SampleId(sample), str::to_owned)).collect();
    assert_eq!(keys, ["a/1.jpg", "a/1.png"]);
}

#[test]
fn a_tree_that_changes_is_listed_again() {
    let bench = Bench::new();
    write(&bench, "tree/a/1.jpg", b"one");
    let old = bench.open(&["tree"]).expect("a tree");
    assert!(old.is_current());
    write(&bench, "tree/a/2.jpg", b"two");
    assert!(!old.is_current());
    let new = bench.open(&["tree"]).expect("a tree");
    assert_eq!((old.sample_count(), new.sample_count()), (1, 2));
    write(&bench, "tree/a/2.jpg", b"longer");
    let error = new.open_file(new.file_of(SampleId(1))).expect_err("changed").to_string();
    assert!(error.contains("then 3 bytes") && error.contains("now 6 bytes"), "{error}");
    // No folder tells of it, so it must not be taken for current again.
    assert!(!new.is_current());
    let newer = bench.open(&["tree"]).expect("a tree");
    assert_eq!(contents(&newer, "jpg")[1].2, b"longer");
    fs::remove_file(bench.at("tree/a/2.jpg")).expect("removed");
    assert!(newer.open_file(newer.file_of(SampleId(1))).is_err());
}

#[test]
fn a_file_that_is_written_in_place_is_told_though_it_has_its_length() {
    let bench = Bench::new();
    write(&bench, "tree/a/1.jpg", b"one");
    let path = bench.at("tree/a/1.jpg");
    let time = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    let set = |seconds| fs::File::options().write(true).open(&path).and_then(|file| file.set_modified(time(seconds)));
    set(1000).expect("set");
    let old = bench.open(&["tree"]).expect("a tree");
    let number = old.file_of(SampleId(0));
    let opened = old.open_file(number).expect("as it was");
    fs::write(&path, b"two").expect("written");
    set(1001).expect("set");
    assert!(old.is_current(), "no folder tells of it");
    let told = |outcome: Result<(), Error>| {
        let error = outcome.expect_err("another file").to_string();
        assert!(error.contains("then 3 bytes, written at 1000.0") && error.contains("written at 1001.0"), "{error}");
    };
    told(old.open_file(number).map(drop));
    told(old.check_read(number, opened.as_fd()));
    assert!(!old.is_current());
    let new = bench.open(&["tree"]).expect("a tree");
    assert_eq!(contents(&new, "jpg")[0].2, b"two");
    assert!(new.is_current());
    // What changes only the inode is no change.
    fs::hard_link(&path, bench.at("elsewhere.jpg")).expect("linked");
    new.open_file(new.file_of(SampleId(0))).expect("as it was");
}

#[test]
fn links_are_followed_once_and_not_out_of_a_confined_tree() {
    let bench = Bench::new();
    write(&bench, "outside/secret.jpg", b"secret");
    write(&bench, "tree/a/1.jpg", b"one");
    symlink(bench.at("outside"), bench.at("tree/out")).expect("linked");
    symlink(bench.at("outside/secret.jpg"), bench.at("tree/a/2.jpg")).expect("linked");
    symlink(bench.at("tree"), bench.at("tree/a/loop")).expect("linked");
    symlink(bench.at("tree/a/1.jpg"), bench.at("tree/a/3.jpg")).expect("linked");
    symlink(bench.at("nothing"), bench.at("tree/a/4.jpg")).expect("linked");
    let followed = bench.open(&["tree"]).expect("a tree");
    let bytes: Vec<Vec<u8>> = contents(&followed, "jpg").into_iter().map(|(_, _, bytes)| bytes).collect();
    assert_eq!(bytes, [&b"one"[..], b"secret", b"one", b"secret"]);
    assert_eq!(findings(&followed, 0), [(Finding::DeadLink, 1)]);

    let open = |cache: &str| {
        let options = IndexOptions { cache_dir: Some(bench.at(cache)), links: Links::Confined, ..bench.options() };
        Dataset::open(&[bench.at("tree")], &options, &|_| {}).expect("a tree")
    };
    let confined = open("confined");
    let keys: Vec<String> = contents(&confined, "jpg").into_iter().map(|(key, ..)| key).collect();
    assert_eq!(keys, ["a/1", "a/3"]);
    assert!(findings(&confined, 0).contains(&(Finding::OutsideLink, 2)), "{:?}", findings(&confined, 0));
    // An index that was made without the rule does not let them in.
    let reused = IndexOptions { links: Links::Confined, ..bench.options() };
    let reused = Dataset::open(&[bench.at("tree")], &reused, &|_| {}).expect("a tree");
    let open = |sample| reused.open_file(reused.file_of(SampleId(sample))).is_ok();
    assert!(
        (0..reused.sample_count())
            .all(|sample| !reused.with_key(SampleId(sample), |key| key.starts_with("out")) || !open(sample))
    );
    // A link that is put in the place of a file later is not followed.
    fs::remove_file(bench.at("tree/a/1.jpg")).expect("removed");
    symlink(bench.at("outside/secret.jpg"), bench.at("tree/a/1.jpg")).expect("linked");
    assert!(confined.open_file(confined.file_of(SampleId(0))).is_err());
}
