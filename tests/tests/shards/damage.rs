//! Shards that are torn, cut, damaged or compressed.

use std::fs::{self};

use feedline_loader::plan::SampleId;
use feedline_loader::shard::Finding;

use super::bench::*;

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
fn what_cannot_be_unpacked_is_named_as_such() {
    let bench = Bench::new();
    bench.write("x.tar", &[("0.jpg", b"x")]);
    if bench.run("bzip2", &["-k", "x.tar"]) {
        // The name does not count.
        fs::rename(bench.at("x.tar.bz2"), bench.at("y.tar")).expect("renamed");
        assert_eq!(refused(&bench, "y.tar", "compressed with bzip2"), 0);
    }
    fs::write(bench.at("y.tar"), [b"%PDF-1.7".as_slice(), &[b' '; 600]].concat()).expect("written");
    refused(&bench, "y.tar", "it starts with 25 50 44 46");
}
