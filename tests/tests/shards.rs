//! Shards as real writers make them: GNU tar, Python's tarfile in its three formats, and the `tar` crate. Each is
//! indexed, and what the index says is read back and compared. Writers that are missing are skipped by name.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use feedline_loader::plan::SampleId;
use feedline_loader::shard::{ByteRange, Dataset, FieldBytes, Finding, IndexOptions, IndexProgress};
use feedline_loader::{Error, Result};
use tempfile::TempDir;

/// A sample as (key, field → bytes).
type Sample = (String, BTreeMap<String, Vec<u8>>);

/// A folder for shards, with a cache folder in it.
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

    fn options(&self) -> IndexOptions {
        IndexOptions { cache_dir: Some(self.at("cache/deep")), ..IndexOptions::default() }
    }

    fn open(&self, names: &[&str]) -> Result<Dataset> {
        let paths: Vec<PathBuf> = names.iter().map(|name| self.at(name)).collect();
        Dataset::open(&paths, &self.options(), &|_| {})
    }

    /// Writes a shard with the `tar` crate.
    fn write(&self, name: &str, members: &[(&str, &[u8])]) -> PathBuf {
        fs::write(self.at(name), archive(members)).expect("written");
        self.at(name)
    }

    /// Runs a writer in this folder; `false`, said aloud, when it is not installed.
    fn run(&self, program: &str, arguments: &[&str]) -> bool {
        match Command::new(program).args(arguments).current_dir(self.folder.path()).output() {
            Ok(output) => {
                assert!(
                    output.status.success(),
                    "{program} {arguments:?}: {}",
                    String::from_utf8_lossy(&output.stderr)
                );
                true
            }
            Err(error) => {
                eprintln!("skipped: {program}: {error}");
                false
            }
        }
    }

    fn python(&self, script: &str) -> bool {
        let prelude = "import io, sys, tarfile\n\
             def T(path, members, **options):\n\
             \x20   with tarfile.open(path, 'w', **options) as out:\n\
             \x20       for name, body in members:\n\
             \x20           info = tarfile.TarInfo(name); info.size = len(body); info.mtime = 1.5\n\
             \x20           out.addfile(info, io.BytesIO(body))\n";
        self.run("python3", &["-c", &format!("{prelude}{script}")])
    }

    /// GNU tar, whose options other tars do not have.
    fn gnu_tar(&self, arguments: &[&str]) -> bool {
        let version = Command::new("tar").arg("--version").output();
        if !version.is_ok_and(|version| String::from_utf8_lossy(&version.stdout).contains("GNU")) {
            eprintln!("skipped: GNU tar is not installed");
            return false;
        }
        self.run("tar", arguments)
    }
}

/// An archive by the `tar` crate.
fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, body) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(body.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, *body).expect("in memory");
    }
    builder.into_inner().expect("in memory")
}

/// Every sample, its bytes read from where the index says.
fn samples(dataset: &Dataset) -> Vec<Sample> {
    let names: Vec<String> = {
        let shards = (0..dataset.shard_count()).flat_map(|shard| dataset.shard_summary(shard, 0).fields);
        let names: BTreeMap<String, ()> = shards.map(|field| (field.name, ())).collect();
        names.into_keys().collect()
    };
    let sources: Vec<Vec<String>> = names.iter().map(|name| vec![name.clone()]).collect();
    let selector = dataset.selector(&sources).expect("fields that are there");
    let read = |sample: u64| {
        let sample = SampleId(sample);
        let file = File::open(dataset.shard_path(dataset.locate(sample).0)).expect("still there");
        let mut ranges = vec![None; names.len()];
        selector.select(dataset, sample, &mut ranges);
        let bytes = |field: FieldBytes| {
            let ByteRange { offset, len } = field.in_file().expect("a tar has all bytes itself");
            let mut bytes = vec![0; len as usize];
            file.read_exact_at(&mut bytes, offset).expect("inside the shard");
            bytes
        };
        let fields = names.iter().zip(ranges).filter_map(|(name, range)| Some((name.clone(), bytes(range?))));
        (dataset.with_key(sample, str::to_owned), fields.collect())
    };
    (0..dataset.sample_count()).map(read).collect()
}

fn sample(key: &str, fields: &[(&str, &[u8])]) -> Sample {
    (key.to_owned(), fields.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect())
}

fn findings(dataset: &Dataset, shard: u32) -> Vec<(Finding, u64)> {
    dataset.shard_summary(shard, 0).findings.into_iter().map(|found| (found.finding, found.count)).collect()
}

/// Opening fails with an `Error::Shard` that holds `part`; returns its offset.
fn refused(bench: &Bench, name: &str, part: &str) -> u64 {
    match bench.open(&[name]) {
        Err(Error::Shard { path, offset, message }) => {
            assert_eq!(path, bench.at(name));
            assert!(message.contains(part), "{message}");
            offset
        }
        other => panic!("{name}: expected {part:?}, got {other:?}"),
    }
}

#[test]
fn every_writer_gives_the_same_samples() {
    let bench = Bench::new();
    // Names over 100 bytes that differ only behind the 120th; one is beyond ASCII.
    let shared = format!("{}/{}", "d".repeat(90), "n".repeat(40));
    let members: Vec<(String, Vec<u8>)> = vec![
        ("a/0.jpg".to_owned(), vec![1; 2000]),
        ("a/0.cls".to_owned(), b"7".to_vec()),
        ("a/1.jpg".to_owned(), Vec::new()),
        (format!("{shared}1.jpg"), vec![2; 512]),
        (format!("{shared}2.jpg"), vec![3; 513]),
        (format!("{}/größe.jpg", "é".repeat(60)), vec![4; 511]),
    ];
    let expected: Vec<Sample> = vec![
        sample("a/0", &[("jpg", &[1; 2000]), ("cls", b"7")]),
        sample("a/1", &[("jpg", b"")]),
        sample(&format!("{shared}1"), &[("jpg", &[2; 512])]),
        sample(&format!("{shared}2"), &[("jpg", &[3; 513])]),
        sample(&format!("{}/größe", "é".repeat(60)), &[("jpg", &[4; 511])]),
    ];
    let check = |name: &str| assert_eq!(samples(&bench.open(&[name]).expect(name)), expected, "{name}");

    let borrowed: Vec<(&str, &[u8])> = members.iter().map(|(name, body)| (name.as_str(), body.as_slice())).collect();
    bench.write("crate.tar", &borrowed);
    check("crate.tar");

    for (name, body) in &members {
        let path = bench.at("tree").join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, body).expect("written");
    }
    fs::write(bench.at("list"), members.iter().map(|(name, _)| format!("{name}\n")).collect::<String>())
        .expect("written");
    for format in ["gnu", "oldgnu", "pax", "ustar"] {
        let (name, format) = (format!("gnu-{format}.tar"), format!("--format={format}"));
        if bench.gnu_tar(&[&format, "-cf", &name, "-C", "tree", "--verbatim-files-from", "-T", "list"]) {
            check(&name);
        }
    }
    for format in ["USTAR_FORMAT", "GNU_FORMAT", "PAX_FORMAT"] {
        let name = format!("python-{format}.tar");
        let script = format!(
            "names = open('list', encoding='utf-8').read().split('\\n')[:-1]\n\
             T('{name}', [(n, open('tree/' + n, 'rb').read()) for n in names], format=tarfile.{format}, encoding='utf-8')"
        );
        if bench.python(&script) {
            check(&name);
        }
    }
}

#[test]
fn global_pax_records_are_read_over() {
    let bench = Bench::new();
    let script = "T('x.tar', [('ü' * 150 + '.jpg', b'1')], format=tarfile.PAX_FORMAT, pax_headers={'comment': 'x'})";
    if bench.python(script) {
        let expected = vec![sample(&"ü".repeat(150), &[("jpg", b"1")])];
        assert_eq!(samples(&bench.open(&["x.tar"]).expect("sound")), expected);
    }
}

#[test]
fn a_leading_dot_folder_does_not_change_keys() {
    let bench = Bench::new();
    fs::create_dir_all(bench.at("tree/a")).expect("made");
    for name in ["a/0.cls", "a/0.jpg", "a/1.cls", "a/1.jpg"] {
        fs::write(bench.at("tree").join(name), name).expect("written");
    }
    if bench.gnu_tar(&["--sort=name", "-cf", "dot.tar", "-C", "tree", "./"])
        && bench.gnu_tar(&["--sort=name", "-cf", "plain.tar", "-C", "tree", "a"])
    {
        let (dot, plain) = (bench.open(&["dot.tar"]).expect("sound"), bench.open(&["plain.tar"]).expect("sound"));
        assert_eq!(samples(&dot), samples(&plain));
        assert_eq!(findings(&dot, 0), [(Finding::Directory, 2)]);
        assert!(dot.notices().is_empty(), "{:?}", dot.notices());
    }
}

#[test]
fn keys_and_fields_follow_the_first_dot() {
    let bench = Bench::new();
    let check = |members: &[&str], expected: &[(&str, &[&str])]| {
        let members: Vec<(&str, &[u8])> = members.iter().map(|name| (*name, b"x".as_slice())).collect();
        bench.write("x.tar", &members);
        let found = samples(&bench.open(&["x.tar"]).expect("sound"));
        let found: Vec<(&str, Vec<&str>)> =
            found.iter().map(|(key, fields)| (key.as_str(), fields.keys().map(String::as_str).collect())).collect();
        let expected: Vec<(&str, Vec<&str>)> = expected.iter().map(|(key, fields)| (*key, fields.to_vec())).collect();
        assert_eq!(found, expected);
    };
    check(&["v1.0/22.0/1.1.png", "v1.0/22.0/1.cls"], &[("v1.0/22.0/1", &["1.png", "cls"])]);
    check(&["0.left.png", "0.right.png", "0.json"], &[("0", &["json", "left.png", "right.png"])]);
    check(&["a.JPG", "a.Cls"], &[("a", &["cls", "jpg"])]);
    check(&["005 track 2.0 (x).mp3"], &[("005 track 2", &["0 (x).mp3"])]);
    let notices = bench.open(&["x.tar"]).expect("sound").notices().to_vec();
    assert!(
        notices.len() == 1 && notices[0].contains("first dot") && notices[0].contains("005 track 2.0"),
        "{notices:?}"
    );
}

#[test]
fn litter_is_skipped_and_counted() {
    let bench = Bench::new();
    bench.write(
        "x.tar",
        &[
            ("._0.jpg", b"\x00\x05\x16\x07rest"),
            (".DS_Store", b"x"),
            ("README", b"x"),
            ("0.jpg", b"1"),
            ("._0.cls", b"\x00\x05\x16\x07rest"),
            ("0.cls", b"2"),
            ("__MACOSX/._0.jpg", b"x"),
            ("deep/Thumbs.db", b"x"),
            ("__index__", b"x"),
            (".hidden", b"x"),
        ],
    );
    let dataset = bench.open(&["x.tar"]).expect("sound");
    assert_eq!(samples(&dataset), [sample("0", &[("jpg", b"1"), ("cls", b"2")])]);
    let expected =
        [(Finding::AppleDouble, 2), (Finding::DesktopLitter, 3), (Finding::Meta, 1), (Finding::NoExtension, 2)];
    assert_eq!(findings(&dataset, 0), expected);
    let notices = dataset.notices();
    assert_eq!(notices.len(), 4);
    assert!(notices[0].contains("(._name), skipped: 2, in 1 of 1 shards") && notices[0].contains("byte 0, ._0.jpg"));
}

#[test]
fn what_is_no_plain_file_is_refused_by_name() {
    let bench = Bench::new();
    fs::create_dir(bench.at("tree")).expect("made");
    fs::write(bench.at("tree/0.jpg"), b"1").expect("written");
    fs::hard_link(bench.at("tree/0.jpg"), bench.at("tree/1.jpg")).expect("linked");
    std::os::unix::fs::symlink("0.jpg", bench.at("tree/2.jpg")).expect("linked");
    fs::write(bench.at("tree/4.cls"), b"4").expect("written");
    File::create(bench.at("tree/4.jpg")).and_then(|file| file.set_len(3 << 20)).expect("a hole");
    fs::write(bench.at("tree/5.jpg"), b"5").expect("written");
    if !bench.run("mkfifo", &["tree/3.jpg"]) {
        return;
    }
    let formats: [&[&str]; 4] = [
        &["--format=gnu"],
        &["--format=pax", "--sparse-version=0.0"],
        &["--format=pax", "--sparse-version=0.1"],
        &["--format=pax", "--sparse-version=1.0"],
    ];
    for format in formats {
        let rest = ["--sparse", "--sort=name", "-cf", "x.tar", "-C", "tree", "."];
        if !bench.gnu_tar(&[format, &rest].concat()) {
            return;
        }
        let dataset = bench.open(&["x.tar"]).expect("sound");
        let expected = [sample("0", &[("jpg", b"1")]), sample("4", &[("cls", b"4")]), sample("5", &[("jpg", b"5")])];
        assert_eq!(samples(&dataset), expected, "{format:?}");
        let counts = [
            (Finding::Directory, 1),
            (Finding::HardLink, 1),
            (Finding::SymbolicLink, 1),
            (Finding::Fifo, 1),
            (Finding::Sparse, 1),
        ];
        assert_eq!(findings(&dataset, 0), counts, "{format:?}");
        let notices = dataset.notices().join("\n");
        assert!(
            notices.contains("2.jpg") && notices.contains("4.jpg") && notices.contains("--dereference"),
            "{notices}"
        );
    }
}

#[test]
fn offsets_beyond_4_gib_and_members_too_long() {
    const LONG: u64 = 9 << 30;
    let bench = Bench::new();
    let mut header = tar::Header::new_gnu();
    header.set_path("0.bin").expect("short");
    header.set_size(LONG);
    header.set_cksum();
    let file = File::create(bench.at("x.tar")).expect("made");
    file.write_all_at(header.as_bytes(), 0).expect("written");
    file.write_all_at(&archive(&[("1.jpg", b"one")]), 512 + LONG).expect("written");
    let dataset = bench.open(&["x.tar"]).expect("sound");
    assert_eq!(samples(&dataset), [sample("1", &[("jpg", b"one")])]);
    assert_eq!(findings(&dataset, 0), [(Finding::TooLong, 1)]);
}

#[test]
fn torn_and_doubled_samples_are_errors() {
    let bench = Bench::new();
    bench.write("torn.tar", &[("0.jpg", b"x"), ("1.jpg", b"x"), ("0.cls", b"x"), ("1.cls", b"x")]);
    assert_eq!(refused(&bench, "torn.tar", "re-sort the shard"), 2048);
    assert_eq!(refused(&bench, "torn.tar", "\"0.cls\""), 2048);
    bench.write("doubled.tar", &[("0.jpg", b"x"), ("0.JPG", b"x"), ("0.cls", b"x")]);
    assert_eq!(refused(&bench, "doubled.tar", "second member for field \"jpg\""), 1024);
}

#[test]
fn samples_end_with_their_shard() {
    let bench = Bench::new();
    bench.write("a.tar", &[("k.jpg", b"j")]);
    bench.write("b.tar", &[("k.cls", b"c")]);
    let dataset = bench.open(&["a.tar", "b.tar"]).expect("sound");
    assert_eq!(samples(&dataset), [sample("k", &[("jpg", b"j")]), sample("k", &[("cls", b"c")])]);
}

#[test]
fn cut_shards_are_errors() {
    let bench = Bench::new();
    let whole = archive(&[("0.jpg", &[1; 100]), ("1.jpg", &[2; 2000])]);
    fs::write(bench.at("x.tar"), &whole[..1024 + 512 + 700]).expect("written");
    assert_eq!(refused(&bench, "x.tar", "700 of 2000 bytes"), 1024 + 512);
    fs::write(bench.at("x.tar"), &whole[..1024 + 100]).expect("written");
    assert_eq!(refused(&bench, "x.tar", "100 of 512 bytes"), 1024);
    // Cut at a border, nothing is missing that the file could tell.
    fs::write(bench.at("x.tar"), &whole[..1024]).expect("written");
    let dataset = bench.open(&["x.tar"]).expect("sound");
    assert_eq!((dataset.sample_count(), findings(&dataset, 0)), (1, vec![(Finding::NoEndMarker, 1)]));
}

/// A shard of four samples, its bytes from `start` on overwritten by `fill`.
fn overwritten(start: usize, fill: &[u8]) -> Vec<u8> {
    let mut bytes = archive(&[("0.jpg", b"a"), ("1.jpg", b"b"), ("2.jpg", b"c"), ("3.jpg", b"d")]);
    bytes[start..start + fill.len()].copy_from_slice(fill);
    bytes
}

#[test]
fn lost_headers_are_damage_not_an_end() {
    // Members of one block: header at 1024, body at 1536, header at 2048.
    for (start, fill) in [(1024, vec![0; 512]), (1024, [vec![0; 1024], vec![7; 512]].concat())] {
        let bench = Bench::new();
        fs::write(bench.at("x.tar"), overwritten(start, &fill)).expect("written");
        let error = bench.open(&["x.tar"]).expect_err("damage").to_string();
        assert!(error.contains("byte 1024"), "{error}");
    }
}

#[test]
fn archives_one_after_the_other_are_read_on() {
    let bench = Bench::new();
    let joined = [archive(&[("0.jpg", b"a")]), archive(&[("1.jpg", b"b")]), b"junk".to_vec()].concat();
    fs::write(bench.at("x.tar"), joined).expect("written");
    let dataset = bench.open(&["x.tar"]).expect("sound");
    assert_eq!(samples(&dataset), [sample("0", &[("jpg", b"a")]), sample("1", &[("jpg", b"b")])]);
    assert_eq!(findings(&dataset, 0), [(Finding::Concatenated, 1), (Finding::TrailingJunk, 1)]);
    if bench.python("T('a.tar', [('0.jpg', b'a')]); T('b.tar', [('1.jpg', b'b')])")
        && bench.run("sh", &["-c", "cat a.tar b.tar > c.tar"])
    {
        assert_eq!(bench.open(&["c.tar"]).expect("sound").sample_count(), 2);
    }
}

#[test]
fn empty_archives_have_no_samples_and_empty_files_are_errors() {
    let bench = Bench::new();
    fs::write(bench.at("none.tar"), vec![0; 10_240]).expect("written");
    fs::write(bench.at("zero.tar"), b"").expect("written");
    bench.write("one.tar", &[("0.jpg", b""), ("0.txt", b"")]);
    let dataset = bench.open(&["none.tar", "one.tar", "none.tar"]).expect("sound");
    assert_eq!(samples(&dataset), [sample("0", &[("jpg", b""), ("txt", b"")])]);
    assert_eq!(dataset.locate(SampleId(0)), (1, 0));
    assert_eq!(dataset.shard_summary(1, 9).fields[0].empty, 1);
    let notices = dataset.notices().join("\n");
    assert!(
        notices.contains("archives without samples: 2, in 2 of 3") && notices.contains("more than once"),
        "{notices}"
    );
    refused(&bench, "zero.tar", "0 bytes");
    let error = bench.open(&["none.tar"]).expect_err("nothing to serve").to_string();
    assert!(error.contains("not one sample in 1 shards"), "{error}");
}

#[test]
fn compressed_shards_are_named_as_such() {
    let bench = Bench::new();
    bench.write("x.tar", &[("0.jpg", b"x")]);
    for (program, name) in [("gzip", "gzip"), ("xz", "xz"), ("zstd", "zstd"), ("bzip2", "bzip2")] {
        if bench.run("sh", &["-c", &format!("command -v {program} > have || true")])
            && fs::read(bench.at("have")).expect("written").is_empty()
        {
            eprintln!("skipped: {program} is not installed");
            continue;
        }
        // The name does not count.
        assert!(bench.run("sh", &["-c", &format!("{program} -c < x.tar > y.tar")]));
        assert_eq!(refused(&bench, "y.tar", &format!("compressed with {name}")), 0);
    }
    fs::write(bench.at("y.tar"), [b"%PDF-1.7".as_slice(), &[b' '; 600]].concat()).expect("written");
    refused(&bench, "y.tar", "it starts with 25 50 44 46");
}

#[test]
fn missing_shards_are_all_listed_before_any_is_read() {
    let bench = Bench::new();
    fs::write(bench.at("s-0.tar"), b"no tar").expect("written");
    let error = bench.open(&["s-0.tar", "s-1.tar", "s-2.tar", "s-3.tar", "t.tar"]).expect_err("missing").to_string();
    assert!(
        error.contains("4 of 5 shards are missing") && error.contains("s-{1..3}.tar") && error.contains("t.tar"),
        "{error}"
    );
    let folder = bench.open(&["."]).expect_err("a folder").to_string();
    assert!(folder.contains("is a folder"), "{folder}");
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
