//! `feedline optimize` and `feedline convert --optimize` as a user runs them, on shards and trees of the example images.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn run(command: &str, inputs: &[&Path], out: &Path, options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_feedline"))
        .arg(command)
        .args(inputs)
        .arg(out)
        .args(options)
        .output()
        .expect("the command starts")
}

fn optimize(inputs: &[&Path], out: &Path, options: &[&str]) -> Output {
    run("optimize", inputs, out, &[&["--json"], options].concat())
}

fn report(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("--json prints one value")
}

fn refusal(output: &Output, code: i32, part: &str) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{message}");
    assert!(message.contains(part), "{message}");
}

/// The example images, by name: JPEGs of every kind, damaged ones, other formats.
fn examples() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/images");
    let mut examples: Vec<(String, Vec<u8>)> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension != "json"))
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap()))
        .collect();
    examples.sort();
    examples
}

/// A member as a reader of shards sees it: name, mode, time of change, content.
type Member = (String, u32, u64, Vec<u8>);

/// A shard of GNU's format, with a folder, long names, labels, and images under the name of another format.
fn write_shard(path: &Path, number: u32, images: &[(String, Vec<u8>)]) {
    let mut builder = tar::Builder::new(fs::File::create(path).unwrap());
    let mut add = |name: &str, kind, mode, mtime, body: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(body.len() as u64);
        header.set_mode(mode);
        header.set_mtime(mtime);
        builder.append_data(&mut header, name, body).unwrap();
    };
    add("images/", tar::EntryType::Directory, 0o755, 5, b"");
    for (place, (name, image)) in images.iter().enumerate() {
        let mtime = 1_600_000_000 + place as u64;
        let folder = if place % 3 == 0 { "a long folder/".repeat(12) } else { format!("images/{number}/") };
        add(&format!("{folder}{}.bin", name.replace('.', "-")), tar::EntryType::Regular, 0o640, mtime, image);
        add(&format!("{folder}{}.cls", name.replace('.', "-")), tar::EntryType::Regular, 0o600, mtime, b"3");
    }
    builder.finish().unwrap();
}

fn members(path: &Path) -> Vec<Member> {
    let mut archive = tar::Archive::new(fs::File::open(path).unwrap());
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let name = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        (name, entry.header().mode().unwrap(), entry.header().mtime().unwrap(), content)
    });
    entries.collect()
}

/// A folder with shards of the examples.
fn shards(count: u32) -> (tempfile::TempDir, Vec<PathBuf>) {
    let folder = tempfile::tempdir().unwrap();
    let images = examples();
    let paths: Vec<PathBuf> = (0..count).map(|number| folder.path().join(format!("s-{number:03}.tar"))).collect();
    (0..count).zip(&paths).for_each(|(number, path)| write_shard(path, number, &images[number as usize..]));
    (folder, paths)
}

/// Names and contents of the files of a folder.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

fn is_jpeg(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\xff\xd8\xff")
}

#[test]
fn only_jpegs_change_and_the_report_adds_up() {
    let (folder, paths) = shards(3);
    fs::write(folder.path().join("classes.json"), "[\"a\", \"b\"]").unwrap();
    let before = files(folder.path());
    let out = folder.path().with_extension("out");
    let report = report(&optimize(&[folder.path()], &out, &[]));
    assert_eq!(files(folder.path()), before, "the shards that are read stay as they are");
    let names: Vec<String> = files(&out).into_keys().collect();
    assert_eq!(names, ["classes.json", "manifest.json", "s-000.tar", "s-001.tar", "s-002.tar"]);

    let (mut jpegs, mut changed, mut sizes) = (0, 0, (0, 0));
    for path in &paths {
        let new = members(&out.join(path.file_name().unwrap()));
        let old = members(path);
        assert_eq!(new.len(), old.len());
        for (new, old) in new.iter().zip(&old) {
            assert_eq!((&new.0, new.1, new.2), (&old.0, old.1, old.2));
            jpegs += u64::from(is_jpeg(&old.3));
            if new.3 != old.3 {
                assert!(is_jpeg(&old.3), "{} is no JPEG and has changed", old.0);
                changed += 1;
                sizes = (sizes.0 + old.3.len() as u64, sizes.1 + new.3.len() as u64);
            }
        }
    }
    assert_eq!(report["jpegs"], jpegs);
    let copied: u64 =
        report["copied"].as_object().unwrap().values().map(|copied| copied["count"].as_u64().unwrap()).sum();
    assert_eq!(report["optimized"].as_u64().unwrap() + copied, jpegs);
    assert!(changed > 60 && report["optimized"] == changed, "{changed} {report}");
    assert_eq!(
        (report["optimized_bytes_before"].as_u64(), report["optimized_bytes_after"].as_u64()),
        (Some(sizes.0), Some(sizes.1))
    );
    for reason in ["truncated", "damaged", "arithmetic", "precision", "other-coding", "incomplete", "too-large"] {
        assert_eq!(report["copied"][reason]["members"][0]["shard"], "s-000.tar", "{reason}: {report}");
    }
    let manifest: Value = serde_json::from_slice(&files(&out)["manifest.json"]).unwrap();
    for (name, shard) in manifest["sets"]["optimized"]["shards"].as_object().unwrap() {
        let bytes = fs::read(out.join(name)).unwrap();
        assert_eq!(shard["bytes"], bytes.len());
        assert_eq!(shard["blake3"], blake3::hash(&bytes).to_hex().to_string());
    }
    fs::remove_dir_all(out).unwrap();
}

#[test]
fn no_byte_depends_on_workers_or_interruptions() {
    let (folder, paths) = shards(3);
    let paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
    let whole = folder.path().join("whole");
    report(&optimize(&paths, &whole, &["--workers", "1"]));
    let many = folder.path().join("many");
    report(&optimize(&paths, &many, &["--workers", "7"]));
    assert!(files(&many) == files(&whole));

    // As if two runs had ended: one shard done, one before its last rename, a line of the journal cut off.
    let broken = folder.path().join("broken");
    report(&optimize(&paths[..1], &broken, &[]));
    let manifest: Value = serde_json::from_slice(&files(&whole)["manifest.json"]).unwrap();
    let shards = &manifest["sets"]["optimized"]["shards"];
    let line = |name: &str| format!("{}\n", serde_json::json!({ "file": name, "record": shards[name] }));
    let journal = line("s-000.tar") + &line("s-001.tar") + &line("s-002.tar")[..200];
    fs::write(broken.join(".optimized.journal"), journal).unwrap();
    fs::remove_file(broken.join("manifest.json")).unwrap();
    fs::write(broken.join(".s-001.tar.partial"), b"half of it").unwrap();
    fs::write(broken.join(".s-002.tar.partial"), b"less").unwrap();
    let report_2 = report(&optimize(&paths, &broken, &[]));
    assert_eq!((&report_2["shards"], &report_2["kept"]), (&3.into(), &1.into()));
    assert!(files(&broken) == files(&whole));

    let again = report(&optimize(&paths, &broken, &[]));
    assert_eq!(again["kept"], 3);
    assert_eq!(again["jpegs"], report_2["jpegs"]);
    assert!(files(&broken) == files(&whole));
    let words = run("optimize", &paths, &broken, &[]);
    assert!(String::from_utf8_lossy(&words.stdout).contains("3 shards of an earlier run kept"));
}

#[test]
fn compressed_shards_become_plain() {
    let (folder, paths) = shards(1);
    let out = folder.path().join("out");
    report(&optimize(&[&paths[0]], &out, &[]));
    let packed = folder.path().join("s-000.tar.gz");
    let gzip = Command::new("gzip").arg("-c").arg(&paths[0]).output().expect("gzip starts");
    fs::write(&packed, gzip.stdout).unwrap();
    let plain = folder.path().join("plain");
    let report = report(&optimize(&[&packed], &plain, &[]));
    assert_eq!(report["bytes_before"], fs::metadata(&paths[0]).unwrap().len());
    assert!(files(&plain)["s-000.tar"] == files(&out)["s-000.tar"]);
    refusal(&optimize(&[&packed, &paths[0]], &folder.path().join("both"), &[]), 2, "would both be s-000.tar");
}

#[test]
fn nothing_is_overwritten() {
    let (folder, paths) = shards(2);
    let out = tempfile::tempdir().unwrap();
    let check = |part: &str, options: &[&str]| refusal(&optimize(&[folder.path()], out.path(), options), 1, part);
    fs::write(out.path().join("s-001.tar"), b"mine").unwrap();
    check("not by this command", &[]);
    assert_eq!(files(out.path()).into_iter().collect::<Vec<_>>(), [("s-001.tar".to_owned(), b"mine".to_vec())]);
    fs::remove_file(out.path().join("s-001.tar")).unwrap();

    report(&optimize(&[folder.path()], out.path(), &[]));
    let done = files(out.path());
    check("another choice of --markers", &["--markers", "needed"]);
    let mut changed = done["s-001.tar"].clone();
    changed[1000] ^= 1;
    fs::write(out.path().join("s-001.tar"), changed).unwrap();
    check("changed since", &[]);
    fs::write(out.path().join("s-001.tar"), &done["s-001.tar"]).unwrap();
    write_shard(&paths[1], 7, &examples()[..20]);
    check("made from another file", &[]);
    assert!(files(out.path()) == done);
}

#[test]
fn what_cannot_be_done_is_told() {
    let (folder, paths) = shards(2);
    let out = tempfile::tempdir().unwrap();
    let check = |inputs: &[&Path], out: &Path, part: &str| refusal(&optimize(inputs, out, &[]), 2, part);
    check(&[folder.path()], &folder.path().join("inside"), "choose a folder outside");
    check(&[&paths[0]], folder.path(), "choose another folder");
    check(&[&folder.path().join("s-{000..009}.tar")], out.path(), "8 of 10 shards are missing");
    let tree = tempfile::tempdir().unwrap();
    fs::create_dir(tree.path().join("class")).unwrap();
    fs::write(tree.path().join("class/1.jpg"), b"\xff\xd8\xff").unwrap();
    check(&[tree.path()], out.path(), "feedline convert");
    fs::create_dir(tree.path().join("lmdb")).unwrap();
    fs::write(tree.path().join("lmdb/data.mdb"), vec![0; 8192]).unwrap();
    check(&[&tree.path().join("lmdb")], out.path(), "LMDB");
    assert!(files(out.path()).is_empty());
    assert!(!folder.path().join("inside").exists());
}

#[test]
fn a_damaged_shard_does_not_hold_up_the_others() {
    let (folder, paths) = shards(3);
    let out = tempfile::tempdir().unwrap();
    let whole = fs::read(&paths[1]).unwrap();
    fs::write(&paths[1], &whole[..whole.len() / 2]).unwrap();
    let output = optimize(&[folder.path()], out.path(), &[]);
    refusal(&output, 1, "cut off inside");
    let report_1: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report_1["shards"], &report_1["failed"][0]["shard"]), (&2.into(), &"s-001.tar".into()));
    assert_eq!(files(out.path()).into_keys().collect::<Vec<_>>(), ["manifest.json", "s-000.tar", "s-002.tar"]);
    // Mended, only it is written.
    fs::write(&paths[1], &whole).unwrap();
    assert_eq!(report(&optimize(&[folder.path()], out.path(), &[]))["kept"], 2);
    assert_eq!(files(out.path()).len(), 4);
}

#[test]
fn a_tree_is_optimized_while_it_is_packed() {
    let tree = tempfile::tempdir().unwrap();
    for (number, (name, image)) in examples().into_iter().enumerate() {
        if !name.ends_with(".reference.png") {
            let class = tree.path().join(["a", "b"][number % 2]);
            fs::create_dir_all(&class).unwrap();
            fs::write(class.join(name), image).unwrap();
        }
    }
    let options = ["--json", "--prefix", "t", "--samples-per-shard", "40", "--error-budget", "1"];
    let folder = tempfile::tempdir().unwrap();
    let convert = |out: &str, more: &[&str]| {
        let out = folder.path().join(out);
        let report = report(&run("convert", &[tree.path()], &out, &[&options[..], more].concat()));
        let shards = files(&out).into_keys().filter(|name| name.ends_with(".tar"));
        (report, shards.flat_map(|name| members(&out.join(name))).collect::<Vec<_>>(), files(&out))
    };
    let (plain_report, plain, _) = convert("plain", &[]);
    let (one_report, one, one_files) = convert("one", &["--optimize", "--workers", "1"]);
    let (_, _, many_files) = convert("many", &["--optimize", "--workers", "5"]);
    assert!(one_files == many_files);
    assert!(plain_report.get("optimized").is_none());

    // The same JPEGs as from a shard.
    let shards = folder.path().join("optimized");
    report(&optimize(&[&folder.path().join("plain")], &shards, &[]));
    let from_shards: Vec<Member> =
        ["t-000000.tar", "t-000001.tar"].iter().flat_map(|name| members(&shards.join(name))).collect();
    assert!(one == from_shards);
    let changed = one.iter().zip(&plain).filter(|(new, old)| new.3 != old.3).count();
    assert!(changed > 20 && one_report["optimized"]["optimized"] == changed, "{one_report}");
    let first = one_report["optimized"]["copied"]["arithmetic"]["members"][0]["name"].as_str().unwrap();
    assert!(first.ends_with("/arithmetic.jpg"), "{first}");
    let manifest: Value = serde_json::from_slice(&one_files["manifest.json"]).unwrap();
    assert_eq!(manifest["sets"]["t"]["optimized"]["markers"], "all");
}
