//! All backends under faults, refusals, signals and early ends. What needs no look inside is in `tests/readers.rs`; how
//! a sandbox and limits show is in `tests/limits.rs` beside this file.

mod limits;

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::pool::PreadPool;
use super::progress::Faults;
use super::uring::UringReader;
use super::*;
use crate::sys::eventfd;
use crate::sys::testing::{in_child, interrupt_every};
use crate::sys::uring::TaskRun;

const FILE_BYTES: usize = 3 << 20;

fn bytes() -> Vec<u8> {
    (0..FILE_BYTES as u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().expect("temporary file");
    file.write_all(bytes).expect("write");
    file
}

/// Ranges of all sizes and alignments, the last one up to the end of the file.
fn ranges() -> Vec<(u64, u64)> {
    let odd = (0..200_u64).map(|index| (index * 13_001 % 2_000_000, index * index * 17 % 300_000));
    odd.chain([(0, 0), (0, FILE_BYTES as u64), (FILE_BYTES as u64, 0), (FILE_BYTES as u64 - 1, 1)]).collect()
}

/// Every backend that can be had, in every variant.
fn backends(arena: &Arena, depth: u32, faults_every: u64) -> Vec<Box<dyn Reader>> {
    let faults = || Faults { every: faults_every, ..Faults::default() };
    let mut readers: Vec<Box<dyn Reader>> = Vec::new();
    for source in [Source::Pread { fallback: None }, Source::Map] {
        readers.push(Box::new(PreadPool::new(depth, Pace::Adaptive, source).expect("pool").with_faults(faults())));
    }
    for policy in [DirectPolicy::Never, DirectPolicy::Always] {
        match UringReader::new(arena, depth, Pace::Adaptive, policy) {
            Ok(reader) => readers.push(Box::new(reader.with_faults(faults()))),
            Err(refusal) => eprintln!("skipped: io_uring: {}", refusal::explain(&refusal)),
        }
    }
    for task_run in TaskRun::ALL {
        match UringReader::plain(depth, task_run) {
            Ok(reader) => readers.push(Box::new(reader.with_faults(faults()))),
            Err(refusal) => eprintln!("skipped: io_uring, {task_run:?}: {}", refusal::explain(&refusal)),
        }
    }
    readers
}

/// Reads every range, as many at once as the reader takes; the results in the order of the ranges.
fn read_all(
    reader: &mut dyn Reader,
    arena: &mut Arena,
    file: FileId,
    ranges: &[(u64, u64)],
) -> Vec<Result<Vec<u8>, String>> {
    let wake = eventfd::create().expect("eventfd");
    let mut results = vec![None; ranges.len()];
    let (mut next, mut missing) = (0, ranges.len());
    let mut done = Vec::new();
    while missing > 0 {
        while next < ranges.len() {
            let (offset, len) = ranges[next];
            let Some(buffer) = arena.allocate_at(offset, len).expect("of a size that is allowed") else { break };
            if reader.submit(ReadRequest { file, offset, ticket: next as u64, buffer }).is_err() {
                break;
            }
            next += 1;
        }
        assert!(!reader.wait(Duration::from_secs(30), wake.as_fd(), &mut done).expect("wait"), "nobody signalled");
        assert!(!done.is_empty(), "nothing ended within 30 s");
        for Completion { ticket, buffer, result } in done.drain(..) {
            let result = result.map(|()| buffer.as_slice().to_vec()).map_err(|error| error.to_string());
            assert!(results[ticket as usize].replace(result).is_none(), "ended twice");
            missing -= 1;
        }
    }
    assert_eq!(reader.in_flight(), 0);
    results.into_iter().map(|result| result.expect("none is missing")).collect()
}

fn check_reads(depth: u32, faults_every: u64) {
    let bytes = bytes();
    let mut arena = Arena::new(4 << 20).expect("arena");
    for mut reader in backends(&arena, depth, faults_every) {
        let id = reader.add_file(file(&bytes).into()).expect("add");
        for (range, result) in ranges().iter().zip(read_all(&mut *reader, &mut arena, id, &ranges())) {
            let expected = &bytes[range.0 as usize..(range.0 + range.1) as usize];
            assert!(result.expect("a range inside the file") == expected, "{range:?} by {}", reader.describe());
        }
    }
}

#[test]
fn whole_ranges() {
    for depth in [1, 3, 64] {
        check_reads(depth, 0);
    }
}

#[test]
fn faults_are_mended() {
    check_reads(32, 7);
    check_reads(5, 2);
}

#[test]
fn an_early_end_is_an_error() {
    let mut arena = Arena::new(4 << 20).expect("arena");
    let cases = [
        ((900, 200), "the file ends too early: have 100 of 200 bytes at byte 900"),
        ((1000, 1), "the file ends too early: have 0 of 1 bytes at byte 1000"),
        ((1 << 62, 8), "the file ends too early: have 0 of 8 bytes at byte 4611686018427387904"),
        ((u64::MAX, 1), "no file has 1 bytes at byte 18446744073709551615"),
        ((i64::MAX as u64, 1), "no file has 1 bytes at byte 9223372036854775807"),
    ];
    for mut reader in backends(&arena, 8, 0) {
        let id = reader.add_file(file(&bytes()[..1000]).into()).expect("add");
        let results = read_all(&mut *reader, &mut arena, id, &cases.map(|(range, _)| range));
        for ((range, words), result) in cases.iter().zip(results) {
            assert_eq!(result.expect_err("too long"), *words, "{range:?} by {}", reader.describe());
        }
        // A folder opens, but cannot be read.
        let folder = reader.add_file(File::open("/").expect("open").into()).expect("add");
        let result = read_all(&mut *reader, &mut arena, folder, &[(0, 1)]).remove(0);
        assert_eq!(result.expect_err("a folder"), "Is a directory (os error 21)");
        reader.remove_file(folder);
        let result = read_all(&mut *reader, &mut arena, folder, &[(0, 1)]).remove(0);
        assert!(result.expect_err("removed").contains("not, or no longer"));
    }
}

#[test]
fn a_removed_file_serves_its_reads() {
    let bytes = bytes();
    let mut arena = Arena::new(4 << 20).expect("arena");
    let wake = eventfd::create().expect("eventfd");
    for mut reader in backends(&arena, 8, 2) {
        let id = reader.add_file(file(&bytes).into()).expect("add");
        let buffer = arena.allocate(100_000).expect("allowed").expect("room");
        reader.submit(ReadRequest { file: id, offset: 5, ticket: 1, buffer }).expect("room");
        reader.remove_file(id);
        let other = reader.add_file(file(&[1; 200_000]).into()).expect("add");
        assert_ne!(id, other);
        let mut done = Vec::new();
        while done.is_empty() {
            reader.wait(Duration::from_secs(30), wake.as_fd(), &mut done).expect("wait");
        }
        assert!(done[0].buffer.as_slice() == &bytes[5..100_005], "{}", reader.describe());
        let results = read_all(&mut *reader, &mut arena, other, &[(0, 200_000)]);
        assert_eq!(results, [Ok(vec![1; 200_000])]);
        // The place of the first is free again, in the kernel's table too.
        let third = reader.add_file(file(&[3; 1000]).into()).expect("add");
        assert_eq!(third.place(), id.place());
        assert_eq!(read_all(&mut *reader, &mut arena, third, &[(0, 1000)]), [Ok(vec![3; 1000])]);
    }
}

#[test]
fn a_full_queue_hands_back() {
    let arena = Arena::new(1 << 20).expect("arena");
    let wake = eventfd::create().expect("eventfd");
    for mut reader in backends(&arena, 2, 0) {
        let mut arena = Arena::new(1 << 20).expect("arena");
        let id = reader.add_file(file(&[7; 30]).into()).expect("add");
        let mut request = |ticket| {
            let buffer = arena.allocate(10).expect("allowed").expect("room");
            ReadRequest { file: id, offset: ticket * 10, ticket, buffer }
        };
        reader.submit(request(0)).expect("room");
        reader.submit(request(1)).expect("room");
        let refused = reader.submit(request(2)).expect_err("two are in flight");
        assert_eq!((refused.ticket, reader.in_flight()), (2, 2));
        let mut done = Vec::new();
        reader.wait(Duration::from_secs(30), wake.as_fd(), &mut done).expect("wait");
        assert!(!done.is_empty());
        reader.submit(refused).expect("room again");
        while done.len() < 3 {
            reader.wait(Duration::from_secs(30), wake.as_fd(), &mut done).expect("wait");
        }
        done.sort_by_key(|completion| completion.ticket);
        assert_eq!(done.iter().map(|completion| completion.ticket).collect::<Vec<_>>(), [0, 1, 2]);
    }
}

#[test]
fn memory_and_files_go_with_the_last_user() {
    let arena = Arena::new(16 << 20).expect("arena");
    let readers = backends(&arena, 64, 0).len();
    for index in 0..readers {
        let mut arena = Arena::new(64 << 20).expect("arena");
        let memory = Arc::downgrade(arena.shared());
        let mut reader = backends(&arena, 64, 0).swap_remove(index);
        let (closed, open) = std::io::pipe().expect("pipe");
        let big = file(&bytes());
        rustix::fs::fdatasync(&big).expect("sync");
        rustix::fs::fadvise(&big, 0, None, rustix::fs::Advice::DontNeed).expect("advice");
        let big = reader.add_file(big.into()).expect("add");
        let pipe = reader.add_file(OwnedFd::from(closed)).expect("add");
        for ticket in 0..64 {
            // A read of an empty pipe ends only when it is cancelled (and at once by pread, which pipes refuse).
            let file = if ticket % 4 == 0 { pipe } else { big };
            let buffer = arena.allocate(1 << 20).expect("allowed").expect("room");
            reader.submit(ReadRequest { file, offset: 0, ticket, buffer }).expect("room");
        }
        let wake = eventfd::create().expect("eventfd");
        eventfd::signal(wake.as_fd()).expect("signal");
        let mut done = Vec::new();
        reader.wait(Duration::ZERO, wake.as_fd(), &mut done).expect("wait");
        drop(arena);
        drop(reader);
        assert_eq!(memory.upgrade().is_some(), !done.is_empty(), "only what we hold keeps it");
        done.clear();
        assert!(memory.upgrade().is_none(), "the reader has given everything back");
        // The kernel lets go of the files of a ring a little after it; the reading end is then closed.
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut open = open;
        while open.write(b"x").is_ok() {
            assert!(Instant::now() < deadline, "the pipe is still open");
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_reader_that_was_never_used() {
    let mut arena = Arena::new(1 << 20).expect("arena");
    let memory = Arc::downgrade(arena.shared());
    for mut reader in backends(&arena, 8, 0) {
        let id = reader.add_file(file(&[1; 100]).into()).expect("add");
        let buffer = arena.allocate(100).expect("allowed").expect("room");
        reader.submit(ReadRequest { file: id, offset: 0, ticket: 0, buffer }).expect("room");
        // Opened here, ended elsewhere, without a wait.
        std::thread::spawn(move || drop(reader)).join().expect("no panic");
    }
    drop(arena);
    assert!(memory.upgrade().is_none());
}

#[test]
fn wakes_end_waits_and_are_not_lost() {
    let arena = Arena::new(1 << 20).expect("arena");
    for mut reader in backends(&arena, 8, 0) {
        let wake = Arc::new(eventfd::create().expect("eventfd"));
        let mut done = Vec::new();
        let mut wait = |timeout| reader.wait(timeout, wake.as_fd(), &mut done).expect("wait");
        let long = Duration::from_secs(30);
        assert!(!wait(Duration::ZERO), "silent");
        for _ in 0..50 {
            let signal = wake.clone();
            let thread = std::thread::spawn(move || eventfd::signal(signal.as_fd()).expect("signal"));
            assert!(wait(long), "woken while it waits, or just before");
            thread.join().expect("no panic");
            assert!(wait(long), "not cleared yet");
            assert!(eventfd::clear(wake.as_fd()).expect("clear"));
            wait(Duration::ZERO);
            assert!(!wait(Duration::ZERO), "silent again");
            eventfd::signal(wake.as_fd()).expect("signal");
            assert!(wait(long), "signalled between two waits");
            assert!(eventfd::clear(wake.as_fd()).expect("clear"));
        }
        // Another descriptor takes the place of the first.
        let other = eventfd::create().expect("eventfd");
        eventfd::signal(other.as_fd()).expect("signal");
        assert!(reader.wait(long, other.as_fd(), &mut done).expect("wait"));
        assert!(done.is_empty());
    }
}

/// A reader by io_uring past the page cache, and whether temporary files can be read so; `None` without io_uring.
fn direct_reader(arena: &Arena, policy: DirectPolicy) -> Option<(UringReader, bool)> {
    match UringReader::new(arena, 16, Pace::Adaptive, policy) {
        Ok(reader) => {
            let file = file(&[1; 5000]);
            let facts = direct::look_at(file.as_fd()).expect("statx");
            let can = direct::try_out(file.as_fd(), facts.block_bytes);
            can.as_ref().err().into_iter().for_each(|why| eprintln!("skipped: direct reads: {why}"));
            Some((reader, can.is_ok()))
        }
        Err(refusal) => {
            eprintln!("skipped: io_uring: {}", refusal::explain(&refusal));
            None
        }
    }
}

#[test]
fn a_mount_loses_its_direct_reads_at_the_first_failure() {
    let bytes = bytes();
    let mut arena = Arena::new(4 << 20).expect("arena");
    for direct_reads_max in [0, 1, 20] {
        let Some((reader, can)) = direct_reader(&arena, DirectPolicy::Always) else { return };
        let faults = Faults { direct_reads_max: Some(direct_reads_max), ..Faults::default() };
        let count = faults.direct_reads.clone();
        let mut reader = reader.with_faults(faults);
        let id = reader.add_file(file(&bytes).into()).expect("add");
        let before = reader.describe().to_string();
        for (range, result) in ranges().iter().zip(read_all(&mut reader, &mut arena, id, &ranges())) {
            assert!(result.expect("inside") == bytes[range.0 as usize..(range.0 + range.1) as usize], "{range:?}");
        }
        if can {
            assert!(before.contains(" past the page cache (blocks of "), "{before}");
            assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), direct_reads_max);
            let words = reader.describe().to_string();
            assert!(words.contains(" through the page cache (a later read says EINVAL)"), "{words}");
        }
    }
}

#[test]
fn auto_reads_directly_once_the_files_are_larger_than_the_memory() {
    let bytes = bytes();
    let mut arena = Arena::new(4 << 20).expect("arena");
    let Some((reader, can)) = direct_reader(&arena, DirectPolicy::WhenLarger) else { return };
    let faults = Faults::default();
    let count = faults.direct_reads.clone();
    let mut reader = reader.with_memory(|| Some(FILE_BYTES as u64 + 1)).with_faults(faults);
    let mut check = |reader: &mut UringReader, id, direct: bool, words: &str| {
        count.store(0, std::sync::atomic::Ordering::Relaxed);
        for (range, result) in ranges().iter().zip(read_all(reader, &mut arena, id, &ranges())) {
            assert!(result.expect("inside") == bytes[range.0 as usize..(range.0 + range.1) as usize], "{range:?}");
        }
        let long = ranges().iter().filter(|range| range.1 >= 16 << 10).count() as u64;
        let expected = if direct && can { long } else { 0 };
        // An over-read up to the end of the file comes up short, and one attempt is all it takes.
        assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), expected);
        let report = reader.describe().to_string();
        assert!(!can || report.contains(words), "{report}");
    };
    let first = reader.add_file(file(&bytes).into()).expect("add");
    check(&mut reader, first, false, "through the page cache while the files fit the memory of 3.0 MiB");
    let second = reader.add_file(file(&bytes).into()).expect("add");
    check(&mut reader, second, true, " past the page cache (blocks of ");
    check(&mut reader, first, true, " past the page cache (blocks of ");
}

#[test]
fn a_file_without_direct_reads_is_read_nevertheless() {
    let mut arena = Arena::new(4 << 20).expect("arena");
    let Some((mut reader, can)) = direct_reader(&arena, DirectPolicy::Always) else { return };
    // It says that it has no bytes, so it decides nothing for its mount.
    let version = std::fs::read("/proc/version").expect("read");
    let id = reader.add_file(File::open("/proc/version").expect("open").into()).expect("add");
    let range = (3, version.len() as u64 - 3);
    assert_eq!(read_all(&mut reader, &mut arena, id, &[range]), [Ok(version[3..].to_vec())]);
    // A buffer that was made without regard to the offset is read into through the page cache.
    let bytes = bytes();
    let id = reader.add_file(file(&bytes).into()).expect("add");
    let buffer = arena.allocate(5000).expect("allowed").expect("room");
    reader.submit(ReadRequest { file: id, offset: 12_345, ticket: 0, buffer }).expect("room");
    let (wake, mut done) = (eventfd::create().expect("eventfd"), Vec::new());
    reader.wait(Duration::from_secs(30), wake.as_fd(), &mut done).expect("wait");
    let completion = done.pop().expect("ended");
    completion.result.expect("inside");
    assert!(completion.buffer.as_slice() == &bytes[12_345..17_345]);
    assert!(!can || reader.describe().to_string().contains("past the page cache (blocks"));
}

#[test]
fn who_gives_up_names_the_file() {
    let mut arena = Arena::new(1 << 20).expect("arena");
    let path = tempfile::NamedTempFile::new().expect("temporary file");
    std::fs::write(path.path(), [1; 100]).expect("write");
    // By pread, from a map and by io_uring.
    for mut reader in backends(&arena, 8, 1).into_iter().take(3) {
        let id = reader.add_file(File::open(path.path()).expect("open").into()).expect("add");
        let error = read_all(&mut *reader, &mut arena, id, &[(7, 10)]).remove(0).expect_err("refused");
        let words = ": the storage gave 0 of 10 bytes at byte 7, then refused 16 times in a row: Resource temporarily";
        let name = path.path().display().to_string();
        assert!(error.starts_with(&name) && error.contains(words), "{}: {error}", reader.describe());
    }
}

#[test]
fn a_storm_of_signals_changes_nothing() {
    if !in_child("read::tests::a_storm_of_signals_changes_nothing") {
        return;
    }
    interrupt_every(1000).expect("timer");
    for _ in 0..5 {
        check_reads(64, 0);
        check_reads(2, 7);
    }
    // A wait lasts its time, signals or not.
    let arena = Arena::new(1 << 20).expect("arena");
    let wake = eventfd::create().expect("eventfd");
    for mut reader in backends(&arena, 4, 0) {
        let start = Instant::now();
        let woken = reader.wait(Duration::from_millis(50), wake.as_fd(), &mut Vec::new()).expect("wait");
        assert!(!woken && start.elapsed() >= Duration::from_millis(50), "{}", reader.describe());
    }
}

#[test]
fn depth_and_choice_are_checked() {
    let arena = Arena::new(1 << 20).expect("arena");
    for depth in [0, DEPTH_MAX + 1] {
        let error = open_reader(ReaderChoice::Auto, &arena, depth).expect_err("out of range").to_string();
        assert_eq!(error, format!("a reader with {depth} reads in flight cannot be made: between 1 and 4096"));
    }
    let words = open_reader(ReaderChoice::Pread, &arena, 4).expect("pread").describe().to_string();
    assert_eq!(words, "pread (4 threads)");
    let report = open_reader(ReaderChoice::Auto, &arena, DEPTH_MAX).expect("any").describe();
    eprintln!("{report}");
}
