//! `feedline convert` as a user runs it: trees in, shards out, read back by this crate's `tar`, GNU tar and Python.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const JPEG: &[u8] = b"\xff\xd8\xff\xe0 not a whole picture, but one by its magic";
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n likewise";

fn convert(folder: &Path, out: &Path, options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_feedline"))
        .arg("convert")
        .args([folder, out])
        .args(options)
        .output()
        .expect("the command starts")
}

fn report(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("--json prints one value")
}

fn refusal(output: &Output, code: i32) -> String {
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{message}");
    assert!(output.stdout.is_empty());
    message
}

fn tree(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, data) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, data).unwrap();
    }
    folder
}

fn many(count: usize) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for class in ["ant", "bee", "cow"] {
        fs::create_dir(folder.path().join(class)).unwrap();
        for number in 0..count {
            let data = [JPEG, &vec![number as u8; 100 + number * 7]].concat();
            fs::write(folder.path().join(format!("{class}/{number:04}.jpg")), data).unwrap();
        }
    }
    folder
}

/// Names of the visible files of a folder.
fn names(folder: &Path) -> BTreeSet<String> {
    fs::read_dir(folder).unwrap().map(|item| item.unwrap().file_name().into_string().unwrap()).collect()
}

/// (name, content) of the members of all shards, in order.
fn members(out: &Path) -> Vec<(String, Vec<u8>)> {
    let mut members = Vec::new();
    for name in names(out).iter().filter(|name| name.ends_with(".tar")) {
        let mut archive = tar::Archive::new(fs::File::open(out.join(name)).unwrap());
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            members.push((name, content));
        }
    }
    members
}

const ODD: [&str; 9] = [
    "v1.2 beta/track 2.0 (x).jpg",
    "v1.2 beta/кот и пёс.jpg",
    "v1.2 beta/nested/deeper.d/a.jpg",
    "v1.2 beta/same.jpg",
    "v1.2 beta/same.jpeg",
    "v1.2 beta/__meta__.jpg",
    "日本/100%.jpg",
    "日本/-rf.jpg",
    "日本/'quoted \"name\"'.JPG",
];

fn odd_tree() -> (tempfile::TempDir, Vec<String>) {
    let long = format!("日本/{}/{}.jpg", "folder of a long name/".repeat(8), "n".repeat(180));
    let mut paths: Vec<String> = ODD.iter().map(|path| path.to_string()).collect();
    paths.push(long);
    let contents: Vec<Vec<u8>> = paths.iter().map(|path| [JPEG, path.as_bytes()].concat()).collect();
    let files: Vec<(&str, &[u8])> =
        paths.iter().zip(&contents).map(|(path, data)| (path.as_str(), &data[..])).collect();
    (tree(&files), paths)
}

#[test]
fn odd_names_become_unique_keys_that_say_their_path() {
    let (folder, paths) = odd_tree();
    let out = tempfile::tempdir().unwrap();
    report(&convert(folder.path(), out.path(), &["--json"]));
    let members = members(out.path());
    let mut keys = BTreeSet::new();
    for pair in members.chunks(2) {
        let [(image_name, image), (label_name, label)] = pair else { panic!("an image without a label") };
        let key = image_name.strip_suffix(".jpg").expect("jpg is the true extension");
        assert_eq!(label_name, &format!("{key}.cls"));
        assert!(!key.contains('.'), "{key}");
        assert!(keys.insert(key.to_owned()), "{key} twice");
        let path = String::from_utf8(image[JPEG.len()..].to_vec()).unwrap().replace("//", "/");
        let unescaped = unescape(key);
        let stem = path.rsplit_once('.').unwrap().0;
        assert!(unescaped == stem || unescaped == path, "{key} is not {path}");
        assert_eq!(label, if path.starts_with('v') { b"0" } else { b"1" });
    }
    assert_eq!(keys.len(), paths.len());
    let classes: Vec<String> = serde_json::from_slice(&fs::read(out.path().join("classes.json")).unwrap()).unwrap();
    assert_eq!(classes, ["v1.2 beta", "日本"]);
}

fn unescape(key: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = key.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = match (first, tail) {
            (b'%', [high, low, tail @ ..]) => {
                let digits = [*high, *low];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
                tail
            }
            _ => {
                bytes.push(*first);
                tail
            }
        };
    }
    String::from_utf8(bytes).unwrap()
}

#[test]
fn gnu_tar_and_python_read_the_same_members() {
    let (folder, _) = odd_tree();
    let out = tempfile::tempdir().unwrap();
    report(&convert(folder.path(), out.path(), &["--prefix", "x", "--json"]));
    let expected: Vec<String> = members(out.path()).into_iter().map(|(name, _)| name).collect();
    let shard = out.path().join("x-000000.tar");
    let list = |program: &str, arguments: &[&str]| match Command::new(program).args(arguments).arg(&shard).output() {
        Ok(output) => {
            assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
            let names: Vec<String> = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
            assert_eq!(names, expected, "{program}");
        }
        Err(error) => eprintln!("skipped: {program}: {error}"),
    };
    list("tar", &["--quoting-style=literal", "-tf"]);
    list("python3", &["-X", "utf8", "-c", "import sys, tarfile\nfor m in tarfile.open(sys.argv[1]): print(m.name)"]);
}

#[test]
fn the_same_tree_gives_the_same_bytes_and_another_seed_another_order() {
    let folder = many(40);
    let run = |options: &[&str]| {
        let out = tempfile::tempdir().unwrap();
        report(&convert(folder.path(), out.path(), &[&["--prefix", "t", "--json"], options].concat()));
        let files: Vec<Vec<u8>> =
            names(out.path()).iter().map(|name| fs::read(out.path().join(name)).unwrap()).collect();
        (files, members(out.path()).into_iter().map(|(name, _)| name).collect::<Vec<_>>())
    };
    let first = run(&["--shard-size", "40K"]);
    assert_eq!(first, run(&["--shard-size", "40K"]));
    let other_seed = run(&["--shard-size", "40K", "--shuffle-seed", "1"]);
    assert_ne!(first.1, other_seed.1);
    let sorted = run(&["--samples-per-shard", "7", "--no-shuffle"]);
    assert!(sorted.1.is_sorted_by_key(|name| name.split('.').next()));
    let set = |names: &[String]| names.iter().cloned().collect::<BTreeSet<_>>();
    assert_eq!(set(&first.1), set(&other_seed.1));
    assert_eq!(set(&first.1), set(&sorted.1));
    assert_eq!(first.1.len(), 2 * 3 * 40);
}

#[test]
fn shards_end_where_the_rule_says_and_the_manifest_agrees() {
    let folder = many(30);
    let check = |options: &[&str], shards: Option<u64>, most_bytes: u64| {
        let out = tempfile::tempdir().unwrap();
        let report = report(&convert(folder.path(), out.path(), &[&["--prefix", "t", "--json"], options].concat()));
        assert_eq!(report["samples"], 90);
        assert!(shards.is_none_or(|shards| report["shards"] == shards), "{report}");
        let manifest: Value = serde_json::from_slice(&fs::read(out.path().join("manifest.json")).unwrap()).unwrap();
        let set = &manifest["sets"]["t"];
        assert_eq!(set["samples"], 90);
        let listed = set["shards"].as_array().unwrap();
        assert_eq!(listed.len() as u64, report["shards"]);
        for shard in listed {
            let data = fs::read(out.path().join(shard["file"].as_str().unwrap())).unwrap();
            assert_eq!(shard["bytes"], data.len() as u64);
            assert!(data.len() as u64 <= most_bytes);
            assert_eq!(shard["blake3"], blake3::hash(&data).to_hex().as_str());
        }
    };
    check(&["--samples-per-shard", "7"], Some(13), u64::MAX);
    check(&["--samples-per-shard", "90"], Some(1), u64::MAX);
    check(&["--shard-size", "20K"], None, 20 << 10);
    check(&["--shard-size", "1G"], Some(1), u64::MAX);
    check(&["--shard-size", "1"], Some(90), u64::MAX);
}

#[test]
fn shards_are_never_overwritten() {
    let folder = many(3);
    let out = tempfile::tempdir().unwrap();
    report(&convert(folder.path(), out.path(), &["--prefix", "t", "--json"]));
    let before = fs::read(out.path().join("t-000000.tar")).unwrap();
    let message = refusal(&convert(folder.path(), out.path(), &["--prefix", "t"]), 1);
    assert!(message.contains("choose another OUT or --prefix"), "{message}");
    assert_eq!(fs::read(out.path().join("t-000000.tar")).unwrap(), before);

    report(&convert(folder.path(), out.path(), &["--prefix", "other", "--json"]));
    let manifest: Value = serde_json::from_slice(&fs::read(out.path().join("manifest.json")).unwrap()).unwrap();
    assert!(manifest["sets"]["t"].is_object() && manifest["sets"]["other"].is_object());

    let other_classes = tree(&[("dog/1.jpg", JPEG)]);
    let message = refusal(&convert(other_classes.path(), out.path(), &["--prefix", "third"]), 1);
    assert!(message.contains("lists other classes"), "{message}");
    assert!(!names(out.path()).iter().any(|name| name.contains("third")));
}

#[test]
fn leftovers_of_a_killed_run_are_cleared() {
    let folder = many(3);
    let out = tempfile::tempdir().unwrap();
    fs::write(out.path().join(".t-000007.tar.partial"), b"half a shard").unwrap();
    fs::write(out.path().join(".other-000007.tar.partial"), b"not ours").unwrap();
    report(&convert(folder.path(), out.path(), &["--prefix", "t", "--json"]));
    let expected = [".other-000007.tar.partial", "classes.json", "manifest.json", "t-000000.tar"];
    assert_eq!(names(out.path()).into_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn a_second_writer_is_refused() {
    let folder = many(3);
    let out = tempfile::tempdir().unwrap();
    let lock = fs::File::open(out.path()).unwrap();
    lock.try_lock().unwrap();
    let message = refusal(&convert(folder.path(), out.path(), &[]), 1);
    assert!(message.contains("another convert or optimize is writing there"), "{message}");
}

#[test]
fn files_that_are_not_samples_are_counted() {
    let folder = tree(&[
        ("a/1.jpg", JPEG),
        ("a/2.jpg", PNG),
        ("a/3.png", PNG),
        ("a/notes.txt", b"x"),
        ("a/.4.jpg", JPEG),
        ("a/empty.jpg", b""),
        ("b/1.jpg", JPEG),
        ("b/page.jpg", b"<html>404</html>"),
        ("labels.csv", b"x"),
    ]);
    let out = tempfile::tempdir().unwrap();
    let message = refusal(&convert(folder.path(), out.path(), &["--prefix", "t"]), 1);
    assert!(message.contains("1 of 6 image files cannot be packed") && message.contains("a/empty.jpg"), "{message}");
    let message = refusal(&convert(folder.path(), out.path(), &["--prefix", "t", "--error-budget", "0.2"]), 1);
    assert!(message.contains("2 of 6 image files") && message.contains("<html>"), "{message}");
    assert!(names(out.path()).is_empty());

    let report = report(&convert(folder.path(), out.path(), &["--prefix", "t", "--error-budget", "0.5", "--json"]));
    assert_eq!(report["samples"], 4);
    for reason in ["other-type", "hidden", "empty", "not-an-image", "outside-class"] {
        assert_eq!(report["left_out"][reason]["count"], 1, "{reason}");
    }
    assert_eq!(report["mistaken_extension"]["first"], "a/2.jpg is png");
    let names: BTreeSet<String> = members(out.path()).into_iter().map(|(name, _)| name).collect();
    assert!(names.contains("a/2.png") && names.contains("a/3.png") && names.contains("b/1.jpg"));
}

#[test]
fn what_cannot_be_is_refused_with_the_way_out() {
    let good = many(1);
    let empty_class = tree(&[("a/1.jpg", JPEG), ("b/notes.txt", b"x")]);
    let flat = tree(&[("1.jpg", JPEG)]);
    let out = tempfile::tempdir().unwrap();
    let check = |folder: &Path, out: &Path, options: &[&str], words: &str| {
        let message = refusal(&convert(folder, out, options), 2);
        assert!(message.contains(words), "{message}");
    };
    check(Path::new("/no/such/folder"), out.path(), &[], "is no folder");
    check(flat.path(), out.path(), &[], "one folder per class");
    check(empty_class.path(), out.path(), &[], "1 class of 2 without a single image: \"b\"");
    check(good.path(), &good.path().join("out"), &[], "choose a folder outside");
    check(good.path(), out.path(), &["--prefix", "a/b"], "--prefix");
    check(good.path(), out.path(), &["--shard-size", "12 apples"], "unknown unit");
    check(good.path(), out.path(), &["--shard-size", "1M", "--samples-per-shard", "5"], "cannot be used with");
    check(good.path(), out.path(), &["--error-budget", "7"], "0 to 1");
    assert_eq!(names(good.path()).len(), 3);
}
