//! Walks over archives in memory, sound ones and damaged ones.

use proptest::prelude::*;

use super::super::tar::tests::{header, sealed};
use super::*;

/// A header and its padded body.
fn member(name: &str, flag: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = header(name, flag, body.len() as u64).to_vec();
    bytes.extend(body);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn end() -> Vec<u8> {
    vec![0; 1024]
}

type Walked = Result<(Vec<(String, u64, u64)>, Vec<(Finding, u64)>)>;

/// The members as (name, body offset, size), and the findings.
fn walk(bytes: &[u8]) -> Walked {
    let mut walk = Walk::new(Path::new("/t.tar"), bytes, bytes.len() as u64);
    let mut members = Vec::new();
    while let Some(member) = walk.next_member()? {
        members.push((member.name, member.body_offset, member.size));
    }
    let findings = walk.finish(1).into_iter().map(|count| (count.finding, count.count)).collect();
    Ok((members, findings))
}

fn check(parts: &[Vec<u8>], members: &[(&str, u64, u64)], findings: &[(Finding, u64)]) {
    let (found, counts) = walk(&parts.concat()).expect("sound");
    let found: Vec<_> = found.iter().map(|(name, offset, size)| (name.as_str(), *offset, *size)).collect();
    assert_eq!(found, members);
    assert_eq!(counts, findings);
}

fn refuse(bytes: &[u8], offset: u64, part: &str) {
    match walk(bytes) {
        Err(Error::Shard { path, offset: found, message }) => {
            assert_eq!((path.to_str(), found), (Some("/t.tar"), offset), "{message}");
            assert!(message.contains(part), "{message}");
        }
        other => panic!("expected an error with {part:?}, got {other:?}"),
    }
}

#[test]
fn members_are_found() {
    let (a, b) = (member("a.jpg", b'0', &[1; 700]), member("b.cls", b'0', b"1"));
    check(&[a.clone(), b.clone(), end()], &[("a.jpg", 512, 700), ("b.cls", 2048, 1)], &[]);
    check(&[member("a.txt", b'0', b""), end()], &[("a.txt", 512, 0)], &[]);
    check(&[end()], &[], &[]);
    // Padding of any length, not even of whole blocks.
    check(&[b.clone(), end(), vec![0; 100_100]], &[("b.cls", 512, 1)], &[]);
    check(std::slice::from_ref(&b), &[("b.cls", 512, 1)], &[(Finding::NoEndMarker, 1)]);
    check(&[b.clone(), vec![0; 100]], &[("b.cls", 512, 1)], &[(Finding::NoEndMarker, 1)]);
    check(&[b.clone(), vec![0; 512]], &[("b.cls", 512, 1)], &[]);
    check(
        &[b.clone(), end(), a.clone(), end()],
        &[("b.cls", 512, 1), ("a.jpg", 2560, 700)],
        &[(Finding::Concatenated, 1)],
    );
    check(&[b.clone(), end(), vec![7; 100]], &[("b.cls", 512, 1)], &[(Finding::TrailingJunk, 1)]);
    check(&[b, end(), vec![7; 5000]], &[("b.cls", 512, 1)], &[(Finding::TrailingJunk, 1)]);
}

#[test]
fn extended_headers_override() {
    let long = "d/".repeat(120) + "a.jpg";
    let gnu = member("././@LongLink", b'L', format!("{long}\0").as_bytes());
    check(&[gnu, member("d/d", b'0', b"1"), end()], &[(&long, 2048 - 512, 1)], &[]);

    let pax = |flag: u8, records: &str| member("PaxHeader", flag, records.as_bytes());
    check(&[pax(b'x', "14 path=b.jpg\n"), member("a", b'0', b"1"), end()], &[("b.jpg", 1536, 1)], &[]);
    // The size decides where the next header is.
    let mut lying = member("a.jpg", b'0', &[1; 700]);
    lying[..512].copy_from_slice(&header("a.jpg", b'0', 0));
    check(
        &[pax(b'x', "12 size=700\n"), lying, member("b.jpg", b'0', b"1"), end()],
        &[("a.jpg", 1536, 700), ("b.jpg", 3072, 1)],
        &[],
    );
    // Local records are for one member, global ones for all, and the local ones win.
    check(
        &[
            pax(b'g', "13 comment=x\n14 path=g.jpg\n"),
            pax(b'x', "14 path=x.jpg\n"),
            member("a.jpg", b'0', b""),
            member("b.jpg", b'0', b""),
            end(),
        ],
        &[("x.jpg", 2560, 0), ("g.jpg", 3072, 0)],
        &[],
    );
}

#[test]
fn what_is_no_file_is_counted() {
    let size = |flag: u8| sealed(header("a.jpg", flag, 700)).to_vec();
    // Links and directories have no body, whatever their size says.
    check(
        &[size(b'1'), size(b'2'), size(b'5'), size(b'3'), size(b'6'), member("b.jpg", b'0', b"1"), end()],
        &[("b.jpg", 3072, 1)],
        &[
            (Finding::Directory, 1),
            (Finding::HardLink, 1),
            (Finding::SymbolicLink, 1),
            (Finding::Device, 1),
            (Finding::Fifo, 1),
        ],
    );
    let mut sparse = header("s.jpg", b'S', 600);
    sparse[482] = 1;
    let mut map = [vec![0; 512], vec![0; 512]];
    map[0][504] = 1;
    check(
        &[
            sealed(sparse).to_vec(),
            map.concat(),
            vec![9; 1024],
            member("M", b'M', b"?"),
            member("b.jpg", b'0', b"1"),
            end(),
        ],
        &[("b.jpg", 4096, 1)],
        &[(Finding::Sparse, 1), (Finding::UnknownType, 1)],
    );
    let sparse = member("PaxHeader", b'x', b"22 GNU.sparse.major=1\n");
    check(&[sparse, member("s.jpg", b'0', b"1"), end()], &[], &[(Finding::Sparse, 1)]);
}

#[test]
fn long_members_are_refused() {
    /// An archive that is mostly hole.
    struct Holes {
        head: Vec<u8>,
    }
    impl ReadAt for Holes {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
            buffer.fill(0);
            let rest = usize::try_from(offset).ok().and_then(|offset| self.head.get(offset..)).unwrap_or_default();
            let count = rest.len().min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            Ok(buffer.len())
        }
    }
    let found = |size: u64| {
        let holes = Holes { head: header("a.bin", b'0', size).to_vec() };
        let mut walk = Walk::new(Path::new("/t.tar"), &holes, size + (64 << 10));
        walk.next_member().expect("sound").map(|member| member.size).ok_or_else(|| walk.finish(1)[0].finding)
    };
    assert_eq!(found(u64::from(u32::MAX)), Ok(u64::from(u32::MAX)));
    assert_eq!(found(1 << 32), Err(Finding::TooLong));
}

#[test]
fn holes_are_passed_over_unread() {
    /// An archive, then a hole, then what is behind it.
    struct Hole {
        head: Vec<u8>,
        tail_offset: u64,
        tail: Vec<u8>,
    }
    impl ReadAt for Hole {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
            assert!(offset < (4 << 20) || offset + (4 << 20) > self.tail_offset, "byte {offset} of the hole is read");
            buffer.fill(0);
            for (start, part) in [(0, &self.head), (self.tail_offset, &self.tail)] {
                for (place, byte) in buffer.iter_mut().enumerate() {
                    let at = (offset + place as u64).checked_sub(start).and_then(|at| usize::try_from(at).ok());
                    *byte |= at.and_then(|at| part.get(at)).unwrap_or(&0);
                }
            }
            Ok(buffer.len())
        }

        fn next_data(&self, offset: u64) -> u64 {
            if offset < self.head.len() as u64 { offset } else { offset.max(self.tail_offset) }
        }
    }
    let found = |tail: Vec<u8>, tail_offset, file_bytes| {
        let hole = Hole { head: [member("a.jpg", b'0', b"1"), end()].concat(), tail_offset, tail };
        let mut walk = Walk::new(Path::new("/t.tar"), &hole, file_bytes);
        let mut names = Vec::new();
        while let Some(member) = walk.next_member().expect("sound") {
            names.push(member.name);
        }
        names
    };
    assert_eq!(found(Vec::new(), 1 << 50, 1 << 50), ["a.jpg"]);
    assert_eq!(found(Vec::new(), (1 << 40) + 700, (1 << 40) + 700), ["a.jpg"]);
    // The system's holes end at borders of its own blocks, the archive's header may come later.
    assert_eq!(found(member("b.jpg", b'0', b"1"), 1 << 40, (1 << 40) + 1024), ["a.jpg", "b.jpg"]);
    assert_eq!(
        found([vec![0; 1536], member("b.jpg", b'0', b"1")].concat(), 1 << 40, (1 << 40) + 2560),
        ["a.jpg", "b.jpg"]
    );
}

#[test]
fn damage_is_an_error_with_its_place() {
    let a = member("a.jpg", b'0', &[1; 2000]);
    let whole = [a.clone(), member("b.jpg", b'0', b"1"), end()].concat();
    refuse(&a[..512 + 700], 512, "inside member \"a.jpg\": 700 of 2000 bytes");
    refuse(&a[..512 + 2001], 512, "padding after member \"a.jpg\"");
    refuse(&whole[..a.len() + 100], a.len() as u64, "100 of 512");
    let mut damaged = whole.clone();
    damaged[a.len()] ^= 1;
    refuse(&damaged, a.len() as u64, "checksum");
    let pax = member("PaxHeader", b'x', b"12 size=700\n");
    refuse(&pax, 1024, "its member is missing");
    refuse(&[pax, end()].concat(), 1024, "followed by the end");
    refuse(&member("PaxHeader", b'x', b"nonsense"), 512, "length");
    refuse(&header("PaxHeader", b'x', 1 << 30), 512, "at most");
    refuse(&member("PaxHeader", b'x', b"30 size=18446744073709551615\n\0")[..512], 512, "cut off");
}

#[test]
fn other_files_are_named() {
    refuse(b"\x1f\x8b\x08rest", 0, "compressed with gzip");
    refuse(&[b"\x28\xb5\x2f\xfd".as_slice(), &[3; 600]].concat(), 0, "zstd -dc < /t.tar > shard.tar");
    refuse(b"\xfd7zXZ\0\0", 0, "compressed with xz");
    refuse(&[b"PK\x03\x04".as_slice(), &[3; 600]].concat(), 0, "not a tar: it starts with 50 4b 03 04");
    refuse(b"hello", 0, "5 bytes, a header has 512");
}

proptest! {
    /// Neither arbitrary bytes nor a damaged archive make the walk panic or run for ever, and members stay inside.
    #[test]
    fn no_archive_panics(
        noise in proptest::collection::vec(any::<u8>(), 0..3000),
        flags in proptest::collection::vec(proptest::sample::select(b"0012567SLKxgMV\0".to_vec()), 1..8),
        sizes in proptest::collection::vec(0_u64..3000, 8),
        damage in proptest::collection::vec((0_usize..9000, any::<u8>()), 0..4),
        cut in 0_usize..9000,
    ) {
        let _ = walk(&noise);
        let mut bytes = Vec::new();
        for (flag, size) in flags.iter().zip(sizes) {
            bytes.extend(header("n.jpg", *flag, size));
            bytes.extend(noise.iter().take(usize::try_from(size).expect("small")));
            bytes.resize(bytes.len().next_multiple_of(512), 0);
        }
        for (at, byte) in damage {
            let len = bytes.len();
            bytes[at % len] = byte;
        }
        bytes.truncate(bytes.len().min(cut.max(512)));
        if let Ok((members, _)) = walk(&bytes) {
            for (_, offset, size) in members {
                prop_assert!(offset + size <= bytes.len() as u64);
            }
        }
    }
}
