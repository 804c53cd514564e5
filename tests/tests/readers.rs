//! Promise: every reader gives the same bytes and the same errors, and leaves nothing behind.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::time::Duration;

use feedline_loader::read::{Arena, Completion, ReadRequest, Reader, ReaderChoice, open_reader};
use feedline_loader::sys::epoll::{Epoll, Trigger};
use feedline_loader::sys::eventfd;
use proptest::prelude::*;

/// Not a multiple of anything.
const FILE_BYTES: usize = 1_234_567;

/// Nothing here takes that long; waits end by it instead of hanging.
const PATIENCE: Duration = Duration::from_secs(30);

fn contents() -> Vec<u8> {
    (0..FILE_BYTES as u64).map(|index| (index.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as u8).collect()
}

fn file(bytes: &[u8]) -> OwnedFd {
    let mut file = tempfile::tempfile().expect("temporary file");
    file.write_all(bytes).expect("write");
    file.into()
}

/// Every reader, each with the part of it that is asked for by name.
const CHOICES: [ReaderChoice; 4] =
    [ReaderChoice::Uring, ReaderChoice::UringDirect, ReaderChoice::Pread, ReaderChoice::Mmap];

/// The reader of this choice; `None` with a word about it where io_uring cannot be had.
fn open(choice: ReaderChoice, arena: &Arena, depth: u32) -> Option<Box<dyn Reader>> {
    match open_reader(choice, arena, depth) {
        Ok(reader) => Some(reader),
        Err(error) if matches!(choice, ReaderChoice::Uring | ReaderChoice::UringDirect) => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{choice}: {error}"),
    }
}

/// What became of a range: its bytes, or the words of the error.
type Outcome = Result<Vec<u8>, String>;

fn read_all(choice: ReaderChoice, depth: u32, bytes: &[u8], ranges: &[(u64, u64)]) -> Option<Vec<Outcome>> {
    let mut arena = Arena::new(1 << 20).expect("arena");
    let mut reader = open(choice, &arena, depth)?;
    let id = reader.add_file(file(bytes)).expect("add");
    let wake = Epoll::new().expect("epoll");
    let mut outcomes = BTreeMap::new();
    let mut done: Vec<Completion> = Vec::new();
    let mut next = 0;
    while outcomes.len() < ranges.len() {
        while let Some(&(offset, len)) = ranges.get(next) {
            let Some(buffer) = arena.allocate_at(offset, len).expect("of an allowed size") else { break };
            if reader.submit(ReadRequest { file: id, offset, ticket: next as u64, buffer }).is_err() {
                break;
            }
            next += 1;
        }
        let woken = reader.wait(PATIENCE, wake.as_fd(), &mut done).expect("wait");
        assert!(!woken && !done.is_empty(), "{choice}: nothing ended, woken {woken}");
        for Completion { ticket, buffer, result } in done.drain(..) {
            let outcome = result.map(|()| buffer.as_slice().to_vec()).map_err(|error| error.to_string());
            assert!(outcomes.insert(ticket, outcome).is_none(), "{choice}: range {ticket} ended twice");
        }
    }
    assert_eq!(reader.in_flight(), 0);
    Some(outcomes.into_values().collect())
}

/// Offsets and lengths: anywhere, around page borders, around the end of the file, of no bytes, and a large one.
fn range() -> impl Strategy<Value = (u64, u64)> {
    const END: u64 = FILE_BYTES as u64;
    prop_oneof![
        8 => (0..END, 0..200_000_u64),
        2 => (0..300_u64, 0..3_u64).prop_map(|(page, len)| ((page * 4096).saturating_sub(1), len)),
        2 => (0..20_u64, 0..20_u64).prop_map(|(back, len)| (END - back, len)),
        1 => Just((1, END - 1)),
    ]
}

/// Sizes around blocks and pages, and one that is a multiple of nothing.
fn file_bytes() -> impl Strategy<Value = usize> {
    let awkward = [0, 1, 511, 512, 513, 4095, 4096, 4097, 65_535, 65_536, 131_073];
    prop_oneof![2 => prop::sample::select(awkward.to_vec()), 1 => Just(FILE_BYTES), 1 => 0..FILE_BYTES]
}

/// What every reader must say of a range.
fn expected(bytes: &[u8], (offset, len): (u64, u64)) -> Outcome {
    let have = (bytes.len() as u64).saturating_sub(offset);
    if len <= have || len == 0 {
        let start = (offset as usize).min(bytes.len());
        return Ok(bytes[start..start + len as usize].to_vec());
    }
    Err(format!("the file ends too early: have {have} of {len} bytes at byte {offset}"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn all_read_the_same(
        depth in 1_u32..80,
        size in file_bytes(),
        ranges in prop::collection::vec(range(), 1..60),
        near in prop::collection::vec((0_u64..140_000, 0_u64..9000), 1..20),
    ) {
        let bytes = &contents()[..size];
        let ranges: Vec<_> = ranges.into_iter().chain(near).collect();
        for choice in CHOICES {
            let Some(outcomes) = read_all(choice, depth, bytes, &ranges) else { continue };
            for (&range, outcome) in ranges.iter().zip(&outcomes) {
                prop_assert!(*outcome == expected(bytes, range), "{} of {} bytes: {:?}", choice, size, range);
            }
        }
    }
}

/// Members as they lie in a shard: each of these sizes behind a header of 512 bytes, padded to 512.
#[test]
fn members_of_awkward_sizes() {
    let mut members = Vec::new();
    let mut end = 0_u64;
    for len in [1, 511, 512, 513, 4095, 4096, 4097, 1, 0, 131_071, 131_073] {
        members.push((end + 512, len));
        end = (end + 512 + len).next_multiple_of(512);
    }
    // Nothing follows the last one: the file ends inside a block.
    let (last, len) = members[members.len() - 1];
    let bytes = &contents()[..(last + len) as usize];
    for choice in CHOICES {
        let Some(outcomes) = read_all(choice, 4, bytes, &members) else { continue };
        for (member, outcome) in members.iter().zip(outcomes) {
            assert!(outcome == expected(bytes, *member), "{choice}: {member:?}");
        }
    }
}

#[test]
fn woken_through_an_epoll_set_from_another_thread() {
    for choice in CHOICES {
        let arena = Arena::new(1 << 20).expect("arena");
        let Some(mut reader) = open(choice, &arena, 8) else { continue };
        let (edge, level) = (eventfd::create().expect("eventfd"), eventfd::create().expect("eventfd"));
        let set = Epoll::new().expect("epoll");
        set.add(edge.as_fd(), 0, Trigger::Edge).expect("add");
        set.add(level.as_fd(), 1, Trigger::Level).expect("add");
        let mut done = Vec::new();
        for round in 0..200 {
            let event = if round % 2 == 0 { &edge } else { &level };
            std::thread::scope(|scope| {
                scope.spawn(|| eventfd::signal(event.as_fd()).expect("signal"));
                let woken = reader.wait(PATIENCE, set.as_fd(), &mut done).expect("wait");
                assert!(woken, "{choice}: round {round}");
            });
            let mut keys = Vec::new();
            set.wait(Duration::ZERO, |key| keys.push(key)).expect("epoll");
            assert_eq!(keys, [round % 2]);
            if round % 2 == 1 {
                assert!(eventfd::clear(level.as_fd()).expect("clear"));
            }
        }
        assert!(done.is_empty());
    }
}

#[test]
fn dropped_with_reads_in_flight() {
    const READS: u64 = 256;
    const READ_BYTES: usize = 100_000;
    let bytes = contents();
    for choice in CHOICES {
        for round in 0..12 {
            let mut arena = Arena::new(32 << 20).expect("arena");
            let Some(mut reader) = open(choice, &arena, READS as u32) else { break };
            let id = reader.add_file(file(&bytes)).expect("add");
            for ticket in 0..READS {
                let offset = ticket * 1000;
                let buffer = arena.allocate_at(offset, READ_BYTES as u64).expect("allowed").expect("room");
                reader.submit(ReadRequest { file: id, offset, ticket, buffer }).expect("room");
            }
            // With and without the kernel having seen them; the arena goes before or after the reader.
            let wake = Epoll::new().expect("epoll");
            let mut done = Vec::new();
            if round % 2 == 0 {
                reader.wait(Duration::ZERO, wake.as_fd(), &mut done).expect("wait");
            }
            if round % 3 == 0 {
                drop(arena);
                drop(reader);
                continue;
            }
            drop(reader);
            for Completion { ticket, buffer, result } in done.drain(..) {
                result.expect("inside the file");
                let start = ticket as usize * 1000;
                assert!(buffer.as_slice() == &bytes[start..start + READ_BYTES], "{choice}: read {ticket}");
            }
            // Every buffer is back, so there is room for as many again.
            let all: Vec<_> = (0..READS).map(|_| arena.allocate(READ_BYTES as u64).expect("allowed")).collect();
            assert!(all.iter().all(Option::is_some), "{choice}: a buffer did not come back");
        }
    }
}

/// Runs as a process of its own, so that other tests' descriptors and threads are not counted.
#[test]
fn nothing_is_left_of_500_readers() {
    const CHILD: &str = "FEEDLINE_TEST_COUNTED";
    if std::env::var_os(CHILD).is_none() {
        let program = std::env::current_exe().expect("this test binary");
        let mut command = Command::new(program);
        command.args(["--exact", "nothing_is_left_of_500_readers", "--nocapture", "--test-threads=1"]);
        let output = command.env(CHILD, "1").output().expect("start the child");
        let words = String::from_utf8_lossy(&output.stderr);
        words.lines().filter(|line| line.starts_with("skipped")).for_each(|line| eprintln!("{line}"));
        assert!(output.status.success(), "{}: {}{words}", output.status, String::from_utf8_lossy(&output.stdout));
        return;
    }
    let bytes = contents();
    for choice in CHOICES {
        let mut first = None;
        for round in 0..500 {
            let ranges = [(0, 1000), (5000, 100_000), (FILE_BYTES as u64, 10)];
            if read_all(choice, 64, &bytes[..150_000], &ranges).is_none() {
                break;
            }
            // The first round may leave what the runtime keeps.
            let now = (descriptors(), threads());
            assert_eq!(now, *first.get_or_insert(now), "{choice}: descriptors and threads after round {round}");
        }
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("proc").count()
}

/// Threads of this process but the kernel's own workers, which end by themselves after some idle seconds.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("proc").flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| !name.starts_with("iou-")).count()
}

#[test]
fn a_file_that_was_cut_off_meanwhile() {
    let mut arena = Arena::new(1 << 20).expect("arena");
    for choice in CHOICES {
        let Some(mut reader) = open(choice, &arena, 8) else { continue };
        let path = tempfile::NamedTempFile::new().expect("temporary file");
        std::fs::write(path.path(), [5; 10_000]).expect("write");
        let id = reader.add_file(File::open(path.path()).expect("open").into()).expect("add");
        path.as_file().set_len(6000).expect("cut");
        let wake = Epoll::new().expect("epoll");
        // Within the page in which the file ends now, and over one that it has lost.
        let cases = [
            (1000, None),
            (2000, Some("have 4000 of 5000 bytes at byte 2000")),
            (4500, Some("have 1500 of 5000 bytes at byte 4500")),
        ];
        for (offset, expected) in cases {
            let buffer = arena.allocate_at(offset, 5000).expect("allowed").expect("room");
            reader.submit(ReadRequest { file: id, offset, ticket: 0, buffer }).expect("room");
            let mut done = Vec::new();
            reader.wait(PATIENCE, wake.as_fd(), &mut done).expect("wait");
            let completion = done.pop().expect("one has ended");
            match (completion.result, expected) {
                (Ok(()), None) => assert_eq!(completion.buffer.as_slice(), [5; 5000]),
                (Err(error), Some(words)) => {
                    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
                    assert!(error.to_string().contains(words), "{choice}: {error}");
                }
                (result, _) => panic!("{choice}: {result:?} at byte {offset}"),
            }
        }
    }
}
