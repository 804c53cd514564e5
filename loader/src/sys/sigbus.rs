//! Surviving the loss of shared pages under a write.
//!
//! A client may punch holes into the memory of its ring; when the sidecar's next store there finds no page to be had,
//! the kernel sends `SIGBUS`. The handler here looks the address up among the ranges that are guarded; if it lies in
//! one, a private page of zeros takes the lost one's place, the range is marked as faulted, and the store goes on,
//! into memory that nobody will read. A load from a guarded map of a file gets zeros, which its reader discards when it
//! sees the mark. Any other `SIGBUS` goes where it went before.
//!
//! A fault that the kernel answers by its OOM killer instead (no memory in the cgroup) is out of reach here; the
//! reservation at start is what keeps that from happening.
#![expect(unsafe_code, reason = "signal handler; replaces lost pages")]

use std::cell::UnsafeCell;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, OnceLock};

use super::shared::SharedMapping;

/// Most ranges that can be guarded at once; two a ring.
pub const RANGES_MAX: usize = 512;

/// One guarded range. `version` is odd while the bounds change and grows with each change, so the handler, which
/// cannot wait, skips a range in the making: no thread writes to it yet, or any more.
struct Entry {
    version: AtomicU32,
    start: AtomicUsize,
    end: AtomicUsize,
    faults: AtomicU32,
}

static ENTRIES: [Entry; RANGES_MAX] = [const {
    Entry {
        version: AtomicU32::new(0),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        faults: AtomicU32::new(0),
    }
}; RANGES_MAX];

/// Guards the claiming and giving back of entries; the handler never takes it.
static CLAIMED: Mutex<[bool; RANGES_MAX]> = Mutex::new([false; RANGES_MAX]);

/// Keeps a range of addresses guarded until dropped. Drop it before the memory is unmapped.
#[derive(Debug)]
pub struct Guard {
    entry: usize,
}

impl Guard {
    /// Guards `range`, which starts and ends at page borders; installs the handler with the first one.
    pub fn new(range: Range<usize>) -> io::Result<Self> {
        install()?;
        let mut claimed = CLAIMED.lock().expect("no panic happens under this lock");
        let Some(entry) = claimed.iter().position(|taken| !taken) else {
            return Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                format!("{RANGES_MAX} shared mappings are guarded already; end some of the clients"),
            ));
        };
        claimed[entry] = true;
        ENTRIES[entry].faults.store(0, Ordering::Relaxed);
        set_bounds(&ENTRIES[entry], range.start, range.end);
        Ok(Self { entry })
    }

    /// Guards all of `mapping`.
    pub fn of(mapping: &SharedMapping) -> io::Result<Self> {
        let start = mapping.start().addr().get();
        Self::new(start..start + mapping.bytes())
    }

    /// How many pages of the range have been lost. Loads that this thread made before have come from pages that are
    /// counted, or from none that was lost.
    pub fn faults(&self) -> u32 {
        fence(Ordering::SeqCst);
        ENTRIES[self.entry].faults.load(Ordering::SeqCst)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut claimed = CLAIMED.lock().expect("no panic happens under this lock");
        set_bounds(&ENTRIES[self.entry], 0, 0);
        claimed[self.entry] = false;
    }
}

/// Called under the lock: the writers take turns.
fn set_bounds(entry: &Entry, start: usize, end: usize) {
    entry.version.fetch_add(1, Ordering::Relaxed);
    // Odd before the bounds change, for a handler that reads the bounds first: pairs with the fence in `find`.
    fence(Ordering::Release);
    entry.start.store(start, Ordering::Relaxed);
    entry.end.store(end, Ordering::Relaxed);
    // Release: pairs with the Acquire of `version` in `find`.
    entry.version.fetch_add(1, Ordering::Release);
}

/// The range that holds `address`. Async-signal-safe: loads only.
fn find(address: usize) -> Option<&'static Entry> {
    ENTRIES.iter().find(|entry| {
        let before = entry.version.load(Ordering::Acquire);
        let (start, end) = (entry.start.load(Ordering::Relaxed), entry.end.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let after = entry.version.load(Ordering::Relaxed);
        before == after && before % 2 == 0 && (start..end).contains(&address)
    })
}

/// The action that was there before ours, written once under the `OnceLock` and only read afterwards.
struct Previous(UnsafeCell<libc::sigaction>);

// SAFETY: written before the handler can run (see `install`), then only read.
unsafe impl Sync for Previous {}

static PREVIOUS: Previous = Previous(UnsafeCell::new(NO_ACTION));

/// The default action, no flags, an empty mask.
// SAFETY: all zeros is a valid sigaction, of that meaning.
const NO_ACTION: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };

fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    INSTALLED
        .get_or_init(|| install_once().map_err(|error| error.raw_os_error().unwrap_or(libc::EINVAL)))
        .map_err(io::Error::from_raw_os_error)
}

/// Size of a page, looked up before the handler needs it.
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);

fn install_once() -> io::Result<()> {
    PAGE_BYTES.store(rustix::param::page_size(), Ordering::Relaxed);
    // The old action is read first, so that it is in its place when ours becomes live.
    // SAFETY: a null action only reads; the `OnceLock` gives us the only access to PREVIOUS so far.
    let status = unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), PREVIOUS.0.get()) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut action = NO_ACTION;
    action.sa_sigaction = handle as extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) as usize;
    // On the alternative stack, as the runtime's handler for stack overflow needs it.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `handle` keeps to async-signal-safe calls, and `action` is fully initialised.
    let status = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler.
    let details = unsafe { &*info };
    // Positive codes are the kernel's own faults, which have an address.
    if details.si_code > 0 {
        // SAFETY: for a fault the kernel has filled the address.
        let address = unsafe { details.si_addr() } as usize;
        if let Some(entry) = find(address) {
            // Counted first: whoever sees the new page's zeros and then looks at the count finds it raised.
            entry.faults.fetch_add(1, Ordering::SeqCst);
            if replace_page(address) {
                return;
            }
            entry.faults.fetch_sub(1, Ordering::SeqCst);
        }
    }
    pass_on(signal, info, context);
}

/// Puts a private page of zeros in the place of the page around `address`. Leaves `errno` as it was.
fn replace_page(address: usize) -> bool {
    let page_bytes = PAGE_BYTES.load(Ordering::Relaxed);
    let page = (address & !(page_bytes - 1)) as *mut libc::c_void;
    // SAFETY: `errno` is a thread-local integer, always valid.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved = unsafe { *errno };
    // SAFETY: the page lies in a guarded range, whose owner keeps it mapped while any thread can fault in it. Code that
    // reads or writes there holds raw pointers only, so that the change of what is behind them breaks no promise.
    let mapped = unsafe {
        libc::mmap(
            page,
            page_bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    // SAFETY: as above.
    unsafe { *errno = saved };
    mapped != libc::MAP_FAILED
}

/// Does what would have happened without us.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: written before this handler was installed, never after.
    let previous = unsafe { &*PREVIOUS.0.get() };
    match previous.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: restoring the earlier action is async-signal-safe.
            unsafe { libc::sigaction(signal, previous, std::ptr::null_mut()) };
            // A fault comes again when the instruction is repeated, a signal from a process does not: send it again.
            // It stays blocked until we return.
            // SAFETY: async-signal-safe.
            unsafe { libc::raise(signal) };
        }
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: with SA_SIGINFO the kernel would call it with exactly these arguments.
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute::<usize, _>(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: without SA_SIGINFO it takes the signal's number only.
            let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute::<usize, _>(handler) };
            handler(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;
    use crate::sys::shared::OnFork;
    use crate::sys::testing::in_child;

    const PAGES: usize = 8;

    fn mapped_file() -> (File, SharedMapping, usize) {
        let page = rustix::param::page_size();
        let file = tempfile::tempfile().expect("file");
        file.set_len((PAGES * page) as u64).expect("size");
        let mapping = SharedMapping::map(file.as_fd(), PAGES * page, OnFork::Leave).expect("map");
        (file, mapping, page)
    }

    fn store(mapping: &SharedMapping, offset: usize, value: u8) {
        assert!(offset < mapping.bytes());
        // SAFETY: within the mapping.
        let place = unsafe { mapping.start().add(offset) };
        // SAFETY: as above; volatile, so that the store happens.
        unsafe { place.write_volatile(value) };
    }

    fn guard(mapping: &SharedMapping) -> Guard {
        Guard::of(mapping).expect("guard")
    }

    #[test]
    fn stores_into_lost_pages_are_counted_and_survived() {
        // The handler is the whole process's, and the model checker's coroutines put another in its place.
        if !in_child("sys::sigbus::tests::stores_into_lost_pages_are_counted_and_survived") {
            return;
        }
        let (file, mapping, page) = mapped_file();
        let guard = guard(&mapping);
        file.set_len(2 * page as u64).expect("cut");
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let mapping = &mapping;
                scope.spawn(move || (0..PAGES).for_each(|index| store(mapping, index * page + thread, 7)));
            }
        });
        let faults = guard.faults() as usize;
        assert!((PAGES - 2..=3 * (PAGES - 2)).contains(&faults), "{faults} faults");
        let mut kept = [0; 3];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut kept, page as u64).expect("read");
        assert_eq!(kept, [7; 3], "pages that are there are not replaced");
    }

    #[test]
    fn ranges_come_and_go() {
        // The handler is the whole process's, and the model checker's coroutines put another in its place.
        if !in_child("sys::sigbus::tests::ranges_come_and_go") {
            return;
        }
        let (file, mapping, page) = mapped_file();
        for _ in 0..2 * RANGES_MAX {
            drop(guard(&mapping));
            assert!(find(mapping.start().addr().get()).is_none());
        }
        let guard = guard(&mapping);
        assert_eq!(guard.faults(), 0);
        file.set_len(0).expect("cut");
        store(&mapping, 3 * page, 1);
        assert_eq!(guard.faults(), 1);
        // What lies around it may be another test's.
        let entry = |address: usize| find(address).map(std::ptr::from_ref);
        let (start, own) = (mapping.start().addr().get(), &raw const ENTRIES[guard.entry]);
        assert_eq!((entry(start), entry(start + PAGES * page - 1)), (Some(own), Some(own)));
        assert!(entry(start - 1) != Some(own) && entry(start + PAGES * page) != Some(own));
    }

    /// Runs only in a process of its own: see below.
    #[test]
    #[ignore = "dies of SIGBUS; run by a_fault_elsewhere_still_kills"]
    fn die_of_sigbus() {
        let (guarded_file, guarded, page) = mapped_file();
        let _guard = guard(&guarded);
        guarded_file.set_len(0).expect("cut");
        store(&guarded, page, 1);
        eprintln!("survived the guarded fault");
        if std::env::var_os("FEEDLINE_TEST_RAISE").is_some() {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::BUS).expect("kill");
        }
        let (file, mapping, _) = mapped_file();
        file.set_len(0).expect("cut");
        store(&mapping, page, 1);
        eprintln!("survived the other fault");
    }

    #[test]
    fn a_fault_elsewhere_still_kills() {
        for raise in [false, true] {
            let mut command = Command::new(std::env::current_exe().expect("this test"));
            command.args(["--exact", "sys::sigbus::tests::die_of_sigbus", "--ignored", "--nocapture"]);
            if raise {
                command.env("FEEDLINE_TEST_RAISE", "1");
            }
            let output = command.output().expect("run");
            let words = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{words}");
            assert!(words.contains("survived the guarded fault") && !words.contains("the other"), "{words}");
        }
    }
}
