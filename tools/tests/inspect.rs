//! `feedline inspect` as a user runs it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const JPEG: &[u8] = b"\xff\xd8\xff\xe0 not a whole picture, but one by its magic";

fn feedline(arguments: &[&str]) -> Output {
    let cache = tempfile::tempdir().unwrap();
    Command::new(env!("CARGO_BIN_EXE_feedline"))
        .args(arguments)
        .env("FEEDLINE_CACHE", cache.path())
        .output()
        .expect("the command starts")
}

/// Three shards of two samples each, prefix `x`.
fn shards() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..6 {
        let class = folder.path().join(format!("tree/{}", if number % 2 == 0 { "a" } else { "b.c" }));
        fs::create_dir_all(&class).unwrap();
        fs::write(class.join(format!("{number} é.jpg")), JPEG).unwrap();
    }
    let (tree, out) = (folder.path().join("tree"), folder.path().join("out"));
    let (tree, out) = (tree.to_str().unwrap(), out.to_str().unwrap());
    let done = feedline(&["convert", tree, out, "--prefix", "x", "--samples-per-shard", "2", "--no-shuffle"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    folder
}

fn out(folder: &Path, pattern: &str) -> String {
    folder.join("out").join(pattern).to_str().unwrap().to_owned()
}

#[test]
fn what_convert_wrote_is_what_inspect_finds() {
    let folder = shards();
    let output = feedline(&["inspect", "--json", &out(folder.path(), "x-{000000..000002}.tar")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["samples"], 6);
    assert_eq!(report["shards"].as_array().unwrap().len(), 3);
    let field = |place: usize| {
        let field = &report["fields"][place];
        (field["name"].as_str().unwrap(), field["samples"].as_u64().unwrap(), field["bytes"].as_u64().unwrap())
    };
    assert_eq!(field(0), ("jpg", 6, 6 * JPEG.len() as u64));
    assert_eq!(field(1), ("cls", 6, 6));
    let keys: Vec<&str> = report["shards"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|shard| shard["first_keys"].as_array().unwrap())
        .map(|key| key.as_str().unwrap())
        .collect();
    assert_eq!(keys, ["a/0 é", "a/2 é", "a/4 é", "b%2Ec/1 é", "b%2Ec/3 é", "b%2Ec/5 é"]);
    assert_eq!(report["notices"].as_array().unwrap().len(), 0, "{}", report["notices"]);
}

#[test]
fn the_table_has_totals_fields_and_shards() {
    let folder = shards();
    let output = feedline(&["inspect", "--keys", "1", &out(folder.path(), "x-*.tar")]);
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("3 shards, 6 samples, "), "{text}");
    let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(cells(lines[2]), ["field", "samples", "missing", "empty", "size", "mean"]);
    assert_eq!(cells(lines[3])[..4], ["jpg", "6", "0", "0"]);
    assert_eq!(cells(lines[7])[..2], ["x-000000.tar", "2"]);
    assert!(lines[7].ends_with("a/0 é"), "{text}");
}

#[test]
fn what_cannot_be_read_is_refused() {
    let folder = shards();
    fs::write(folder.path().join("out/page.tar"), b"<html>404</html>".repeat(100)).unwrap();
    let check = |arguments: &[&str], codes: &[i32], words: &str| {
        let output = feedline(arguments);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code().is_some_and(|code| codes.contains(&code)), "{:?}: {message}", output.status);
        assert!(output.stdout.is_empty());
        assert!(message.contains(words), "{message}");
    };
    check(&["inspect"], &[2], "SHARD");
    check(&["inspect", &out(folder.path(), "missing-{0..2}.tar")], &[1, 2], "missing-");
    check(&["inspect", &out(folder.path(), "page.tar")], &[1], "page.tar");
}
