//! Example files, and damage to them: written anew they show the same, or they are refused.

use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::decode::{Decoder, Region};

fn example(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/images").join(name)).expect("example")
}

fn optimize(bytes: &[u8], markers: Markers) -> Result<Vec<u8>, Refusal> {
    let mut transcoder = Transcoder::new().expect("a transcoder");
    JpegFile::parse(bytes).and_then(|file| transcoder.optimize(&file, markers))
}

/// The pixels that libjpeg makes of `bytes`, and its warnings.
fn shown(bytes: &[u8]) -> Result<(Vec<u8>, u32), SampleFault> {
    let mut decoder = Decoder::of_library().expect("a decoder");
    let image = decoder.open(bytes, 1 << 24)?;
    let (width, height) = image.size();
    let mut strips = image.region(Region::whole(width, height))?;
    let mut pixels = Vec::new();
    while let Some(strip) = strips.next_strip()? {
        for row in 0..strip.rows as usize {
            pixels.extend_from_slice(&strip.bytes[row * strip.stride..][..width as usize * 3]);
        }
    }
    drop(strips);
    Ok((pixels, decoder.warnings()))
}

fn reason(bytes: &[u8]) -> Reason {
    optimize(bytes, Markers::All).map(|_| "optimized").expect_err("refused").reason
}

/// A segment with its marker and length.
fn segment(marker: u8, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len() + 2).expect("a short segment").to_be_bytes();
    [&[0xff, marker], &length[..], content].concat()
}

/// `bytes` with `segments` behind the start-of-image marker.
fn with(bytes: &[u8], segments: &[Vec<u8>]) -> Vec<u8> {
    [&bytes[..2], &segments.concat(), &bytes[2..]].concat()
}

fn count(bytes: &[u8], of: impl Fn(u8) -> bool) -> usize {
    bytes.windows(2).filter(|pair| pair[0] == 0xff && of(pair[1])).count()
}

#[test]
fn examples_show_the_same_or_are_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/images");
    let refused = |name: &str| match name {
        "12-bit.jpg" => Some(Reason::Precision),
        "lossless.jpg" | "hierarchical.jpg" => Some(Reason::OtherCoding),
        "arithmetic.jpg" => Some(Reason::Arithmetic),
        "damaged.jpg" | "early-end.jpg" | "junk-before-marker.jpg" | "no-frame.jpg" | "restart-out-of-turn.jpg" => {
            Some(Reason::Damaged)
        }
        "truncated.jpg" | "truncated-header.jpg" | "no-end.jpg" => Some(Reason::Truncated),
        "progressive-first-scans.jpg" => Some(Reason::Incomplete),
        "huge.jpg" => Some(Reason::TooLarge),
        _ => None,
    };
    let mut optimized = 0;
    for entry in std::fs::read_dir(folder).expect("the examples") {
        let name = entry.expect("an entry").file_name().into_string().expect("a name");
        let bytes = example(&name);
        if !is_jpeg(&bytes) {
            continue;
        }
        match (optimize(&bytes, Markers::All), refused(&name)) {
            (Ok(new), None) => {
                assert_eq!(shown(&new).expect("decodes"), shown(&bytes).expect("decodes"), "{name}");
                assert_eq!(optimize(&new, Markers::All).expect("again"), new, "{name}");
                optimized += 1;
            }
            (Err(refusal), Some(reason)) => assert_eq!(refusal.reason, reason, "{name}: {refusal}"),
            (found, expected) => panic!("{name}: {:?}, expected {expected:?}", found.map(|_| "optimized")),
        }
    }
    assert!(optimized >= 20, "{optimized} examples");
}

#[test]
fn there_is_a_restart_marker_per_row_of_mcus() {
    let check = |name: &str, markers: usize| {
        let new = optimize(&example(name), Markers::All).expect("a sound file");
        let file = JpegFile::parse(&new).expect("a sound file");
        assert_eq!(count(&new[..file.end()], |code| matches!(code, 0xd0..=0xd7)), markers, "{name}");
        assert_eq!(count(&new, |code| code == 0xc0), 1, "{name} is baseline");
    };
    check("420-33x17.jpg", 1);
    check("420-17x33.jpg", 2);
    check("420-1x1.jpg", 0);
    check("420-1x37.jpg", 2);
    check("progressive.jpg", restarts("progressive.jpg"));
}

/// Rows of MCUs of an example in 4:2:0, less one.
fn restarts(name: &str) -> usize {
    let (_, height) = Decoder::new().expect("a decoder").open(&example(name), 1 << 24).expect("decodes").size();
    height.div_ceil(16) as usize - 1
}

#[test]
fn markers_are_kept_by_choice() {
    let plain = example("420.jpg");
    let exif = segment(0xe1, b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0");
    let turned = segment(0xe1, b"http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation=\"6\"/>");
    let (profile, profile_2) = (segment(0xe2, b"ICC_PROFILE\0\x01\x02aa"), segment(0xe2, b"ICC_PROFILE\0\x02\x02bb"));
    let other = [
        segment(0xe0, b"JFXX\0\x10thumbnail"),
        segment(0xe1, b"http://ns.adobe.com/xap/1.0/\0<x/>"),
        segment(0xed, b"Photoshop 3.0\0"),
        segment(0xfe, b"a comment"),
    ];
    let needed = [exif, turned, profile, profile_2];
    let all: Vec<_> = other.iter().zip(&needed).flat_map(|(left, right)| [left.clone(), right.clone()]).collect();
    let bytes = [with(&plain, &all), b"behind the image".to_vec()].concat();

    let bare = optimize(&plain, Markers::All).expect("a sound file");
    // The example has a JFIF segment only.
    assert_eq!(bare, optimize(&plain, Markers::None).expect("a sound file"));
    let check = |markers, expected: &[Vec<u8>], behind: &[u8]| {
        let found = optimize(&bytes, markers).expect("a sound file");
        assert_eq!(found, [with(&bare, expected), behind.to_vec()].concat(), "{markers:?}");
    };
    check(Markers::All, &all, b"behind the image");
    check(Markers::Needed, &needed, b"");
    check(Markers::None, &[], b"");

    let several = with(&plain, &[segment(0xe2, b"MPF\0II*\0")]);
    assert_eq!(reason(&several), Reason::SeveralPictures);
    assert_eq!(optimize(&several, Markers::Needed).expect("one picture"), bare);
}

#[test]
fn oddities_are_refused() {
    let plain = example("420.jpg");
    let place = |marker: u8| plain.windows(2).position(|pair| pair == [0xff, marker]).expect("there");
    let changed = |at: usize, value: u8| {
        let mut bytes = plain.clone();
        bytes[at] = value;
        bytes
    };
    let at = |offset: usize, inserted: &[u8]| [&plain[..offset], inserted, &plain[offset..]].concat();
    let check = |what: &str, bytes: &[u8], expected: Reason| {
        let found = optimize(bytes, Markers::All).map(|_| "optimized");
        assert_eq!(found.map_err(|refusal| refusal.reason), Err(expected), "{what}");
    };
    let (frame, scan, end) = (place(0xc0), place(0xda), plain.len() - 2);
    check("cut off", &plain[..plain.len() * 2 / 3], Reason::Truncated);
    check("only the end marker is missing", &plain[..end], Reason::Truncated);
    check("cut off in the header", &plain[..frame + 4], Reason::Truncated);
    check("bytes before a marker", &at(frame, &[0, 0, 0]), Reason::Damaged);
    check("bytes before the end", &at(end, &[1; 40]), Reason::Damaged);
    check("an early end", &at(scan + 400, &[0xff, 0xd9]), Reason::Damaged);
    check("a restart marker out of turn", &at(scan + 400, &[0xff, 0xd3]), Reason::Damaged);
    check("12 bits", &changed(frame + 4, 12), Reason::Precision);
    check("a lossless frame", &changed(frame + 1, 0xc3), Reason::OtherCoding);
    check("an arithmetic frame", &changed(frame + 1, 0xc9), Reason::Arithmetic);
    check(
        "no height",
        &{
            let mut bytes = changed(frame + 5, 0);
            bytes[frame + 6] = 0;
            bytes
        },
        Reason::Unusual,
    );
    check("two frames", &at(scan, &plain[frame..frame + 19]), Reason::Damaged);
    check("a comment behind the scan", &at(end, &segment(0xfe, b"late")), Reason::Unusual);
    check("two scans of all", &at(end, &plain[scan..end]), Reason::Unusual);
    check("a scan of no component", &changed(scan + 5, 77), Reason::Damaged);
    check("blocks of an MCU", &changed(frame + 11, 0x44), Reason::Damaged);
    check("not even a header", b"\xff\xd8\xff", Reason::Truncated);
    check(
        "65500 x 65500 pixels",
        &{
            let mut bytes = plain.clone();
            bytes[frame + 5..frame + 9].copy_from_slice(&[0xff, 0xdc, 0xff, 0xdc]);
            bytes
        },
        Reason::TooLarge,
    );
}

#[test]
fn a_progressive_file_without_its_last_scans_is_left_alone() {
    let whole = example("progressive.jpg");
    let scans: Vec<usize> = (0..whole.len() - 1).filter(|&place| whole[place..].starts_with(&[0xff, 0xda])).collect();
    assert!(scans.len() > 3);
    for &scan in &scans[1..] {
        let tables = whole[..scan].windows(2).rposition(|pair| pair == [0xff, 0xc4]).expect("there");
        let cut = if tables > scans[0] && tables > scan - 300 { tables } else { scan };
        let bytes = [&whole[..cut], &[0xff, 0xd9]].concat();
        assert!(matches!(reason(&bytes), Reason::Incomplete | Reason::Damaged), "cut at {cut}");
    }
    assert!(optimize(&whole, Markers::All).is_ok());
}

#[test]
fn files_take_nothing_from_those_before_them() {
    let mut transcoder = Transcoder::new().expect("a transcoder");
    let names = ["420.jpg", "progressive.jpg", "damaged.jpg", "cmyk.jpg", "truncated.jpg", "grey.jpg", "444.jpg"];
    for name in names.iter().chain(names.iter().rev()) {
        let bytes = example(name);
        let found = JpegFile::parse(&bytes).and_then(|file| transcoder.optimize(&file, Markers::All));
        assert_eq!(found, optimize(&bytes, Markers::All), "{name}");
    }
}

#[test]
fn real_photographs_show_the_same() {
    let Some(photos) = std::env::var_os("FEEDLINE_PHOTOS") else {
        println!("skipped: real photographs, FEEDLINE_PHOTOS is not set");
        return;
    };
    let (mut before, mut after, mut count) = (0, 0, 0);
    for entry in std::fs::read_dir(Path::new(&photos).join("small")).expect("photos") {
        let bytes = std::fs::read(entry.expect("an entry").path()).expect("a photo");
        if !is_jpeg(&bytes) {
            continue;
        }
        let new = optimize(&bytes, Markers::All).expect("a sound photo");
        assert!(shown(&new) == shown(&bytes), "other pixels");
        (before, after, count) = (before + bytes.len(), after + new.len(), count + 1);
    }
    println!("{count} photos, {before} bytes before, {after} after");
    assert!(count > 0 && after < before);
}

proptest! {
    #[test]
    fn what_is_not_refused_shows_the_same(
        name in prop::sample::select(vec!["420-33x17.jpg", "444.jpg", "progressive.jpg", "cmyk.jpg", "grey.jpg"]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = example(name);
        for (place, value) in changes {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        if let Ok(new) = optimize(&bytes, Markers::All) {
            prop_assert_eq!(shown(&new), shown(&bytes));
        }
    }

    #[test]
    fn any_bytes_are_parsed_or_refused(bytes: Vec<u8>) {
        let _ = JpegFile::parse(&[b"\xff\xd8\xff", &bytes[..]].concat());
    }
}
