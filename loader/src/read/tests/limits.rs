//! What a sandbox, a limit or a refusal takes away, and that the report says so.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::CapabilitySet;

use super::*;
use crate::sys::testing::{deny_io_uring, deny_registering};
use crate::sys::uring;

/// Codes of `io_uring_register`, from the kernel's `io_uring.h`.
const REGISTER_BUFFERS: u32 = 0;
const REGISTER_FILES: [u32; 2] = [2, 13];

#[test]
fn a_sandbox_is_named() {
    if !in_child("read::tests::limits::a_sandbox_is_named") {
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
    if !in_child("read::tests::limits::a_hidden_io_uring_is_named") {
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

/// Reads the ranges through a new reader of this kind and returns its report; `None` where io_uring cannot be had.
fn report_of(choice: ReaderChoice) -> Option<String> {
    let bytes = bytes();
    let mut arena = Arena::new(4 << 20).expect("arena");
    let mut reader = match open_reader(choice, &arena, 64) {
        Ok(reader) => reader,
        Err(error) => {
            eprintln!("skipped: {error}");
            return None;
        }
    };
    let id = reader.add_file(file(&bytes).into()).expect("add");
    for (range, result) in ranges().iter().zip(read_all(&mut *reader, &mut arena, id, &ranges())) {
        assert!(result.expect("inside") == bytes[range.0 as usize..(range.0 + range.1) as usize], "{range:?}");
    }
    Some(reader.describe().to_string())
}

#[test]
fn registering_fails_on_its_own() {
    if !in_child("read::tests::limits::registering_fails_on_its_own") {
        return;
    }
    let Some(whole) = report_of(ReaderChoice::Uring) else { return };
    assert!(whole.starts_with("io_uring (queue 64, registered files and "), "{whole}");
    let permission = libc_errno(rustix::io::Errno::PERM);
    // Filters add up: first without buffers, then without files too, then without any registering.
    deny_registering(Some(REGISTER_BUFFERS), permission).expect("install the filter");
    for choice in [ReaderChoice::Uring, ReaderChoice::UringDirect] {
        let words = report_of(choice).expect("still there");
        assert!(words.starts_with("io_uring (queue 64, registered files)"), "{words}");
        assert!(words.ends_with(": no registered buffers (EPERM)"), "{words}");
    }
    REGISTER_FILES.into_iter().for_each(|code| deny_registering(Some(code), permission).expect("install the filter"));
    let words = report_of(ReaderChoice::Uring).expect("still there");
    assert_eq!(words, "io_uring (queue 64): no registered files (EPERM); no registered buffers (EPERM)");
    deny_registering(None, permission).expect("install the filter");
    let words = report_of(ReaderChoice::UringDirect).expect("by another way to run the ring");
    assert!(words.starts_with("io_uring (queue 64); "), "{words}");
}

#[test]
fn without_locked_memory() {
    if !in_child("read::tests::limits::without_locked_memory") {
        return;
    }
    let mut sets = rustix::thread::capabilities(None).expect("capabilities");
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    rustix::thread::set_capabilities(None, sets).expect("fewer of them");
    setrlimit(Resource::Memlock, Rlimit { current: Some(0), maximum: Some(0) }).expect("lower limit");
    for choice in [ReaderChoice::Uring, ReaderChoice::UringDirect] {
        let Some(words) = report_of(choice) else { return };
        assert!(words.starts_with("io_uring (queue 64, registered files)"), "{words}");
        let why = ": no registered buffers (the limit on locked memory, ulimit -l, is 0.0 MiB)";
        assert!(words.ends_with(why), "{words}");
    }
}

#[test]
fn with_few_descriptors() {
    if !in_child("read::tests::limits::with_few_descriptors") {
        return;
    }
    const LIMIT: u64 = 40;
    let limit = Rlimit { current: Some(LIMIT), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).expect("lower limit");
    let mut arena = Arena::new(4 << 20).expect("arena");
    for choice in [ReaderChoice::Uring, ReaderChoice::UringDirect, ReaderChoice::Pread, ReaderChoice::Mmap] {
        let mut reader = match open_reader(choice, &arena, 8) {
            Ok(reader) => reader,
            Err(error) => {
                eprintln!("skipped: {error}");
                continue;
            }
        };
        // As many files as the limit allows; the last ones leave no descriptor for direct reads.
        let contents = |number: usize| vec![number as u8; 10_000 + number];
        let path = tempfile::tempdir().expect("folder");
        let mut files = Vec::new();
        // One is kept for `read_all`, which makes a descriptor of its own.
        let kept = eventfd::create().expect("eventfd");
        while files.len() < LIMIT as usize {
            let path = path.path().join(files.len().to_string());
            std::fs::write(&path, contents(files.len())).unwrap_or_default();
            let Ok(file) = File::open(&path) else { break };
            files.push(reader.add_file(file.into()).expect("add"));
        }
        assert!(files.len() > 5, "{choice}: {}", files.len());
        drop(kept);
        for (number, id) in files.iter().enumerate() {
            let expected = contents(number);
            let results = read_all(&mut *reader, &mut arena, *id, &[(0, expected.len() as u64), (9_999, 1)]);
            assert_eq!(results, [Ok(expected), Ok(vec![number as u8])], "{choice}");
        }
    }
}
