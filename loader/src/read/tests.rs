//! Both backends under faults, refusals, signals and early ends. What needs no look inside is in `tests/readers.rs`.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::pool::PreadPool;
use super::progress::Faults;
use super::uring::UringReader;
use super::*;
use crate::sys::testing::{deny_io_uring, in_child, interrupt_every};
use crate::sys::uring::TaskRun;
use crate::sys::{eventfd, uring};

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
    let mut readers: Vec<Box<dyn Reader>> =
        vec![Box::new(PreadPool::new(depth, None).expect("pool").with_faults(faults()))];
    match UringReader::new(arena, depth) {
        Ok(reader) => readers.push(Box::new(reader.with_faults(faults()))),
        Err(refusal) => eprintln!("skipped: io_uring: {}", refusal::explain(&refusal)),
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
            let Some(buffer) = arena.allocate(len).expect("of a size that is allowed") else { break };
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

#[test]
fn a_sandbox_is_named() {
    if !in_child("read::tests::a_sandbox_is_named") {
        return;
    }
    deny_io_uring(libc_errno(rustix::io::Errno::PERM)).expect("install the filter");
    let mut arena = Arena::new(4 << 20).expect("arena");
    let mut reader = open_reader(ReaderChoice::Auto, &arena, 64).expect("falls back");
    let words = reader.describe().to_string();
    let expected = "pread (16 threads): io_uring is not available: io_uring_setup says EPERM: ";
    assert!(words.starts_with(expected), "{words}");
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    if matches!(disabled.trim(), "" | "0") {
        assert!(words.contains("a sandbox forbids it (a seccomp filter is in force"), "{words}");
    }
    let error = open_reader(ReaderChoice::Uring, &arena, 64).expect_err("forbidden").to_string();
    assert!(error.contains("io_uring was asked for but is not available: io_uring_setup says EPERM"), "{error}");
    let bytes = bytes();
    let id = reader.add_file(file(&bytes).into()).expect("add");
    for (range, result) in ranges().iter().zip(read_all(&mut *reader, &mut arena, id, &ranges())) {
        assert!(result.expect("inside") == bytes[range.0 as usize..(range.0 + range.1) as usize], "{range:?}");
    }
}

#[test]
fn a_hidden_io_uring_is_named() {
    if !in_child("read::tests::a_hidden_io_uring_is_named") {
        return;
    }
    deny_io_uring(libc_errno(rustix::io::Errno::NOSYS)).expect("install the filter");
    let refusal = uring::probe(TaskRun::Interrupting).expect_err("hidden");
    let words = refusal::explain(&refusal);
    assert!(
        words.starts_with("io_uring_setup says ENOSYS: ") && words.contains("seccomp filter is in force"),
        "{words}"
    );
}

fn libc_errno(errno: rustix::io::Errno) -> u16 {
    u16::try_from(errno.raw_os_error()).expect("a small number")
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
