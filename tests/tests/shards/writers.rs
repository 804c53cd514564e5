//! Shards as real writers make them, and what in them is no data.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use feedline_loader::shard::Finding;

use super::bench::*;

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
fn archives_of_git_are_read() {
    let bench = Bench::new();
    let name = format!("photos/{}.jpg", "n".repeat(120));
    fs::create_dir_all(bench.at("repository/photos")).expect("made");
    fs::write(bench.at("repository").join(&name), b"j").expect("written");
    fs::write(bench.at("repository/photos/0.cls"), b"7").expect("written");
    let git = |arguments: &[&str]| {
        let settings = ["-C", "repository", "-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"];
        bench.run("git", &[&settings[..], arguments].concat())
    };
    let archive = ["archive", "--format=tar", "--output=../git.tar", "HEAD"];
    if git(&["init", "-q"]) && git(&["add", "."]) && git(&["commit", "-q", "-m", "photos"]) && git(&archive) {
        let expected =
            [sample("photos/0", &[("cls", b"7")]), sample(&format!("photos/{}", "n".repeat(120)), &[("jpg", b"j")])];
        assert_eq!(samples(&bench.open(&["git.tar"]).expect("sound")), expected);
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
