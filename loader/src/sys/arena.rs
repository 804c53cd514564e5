//! The memory that reads go to: one mapping made at start, cut into buffers of whole pages.
//!
//! One thread takes buffers out, any thread drops them. A dropped buffer travels back through a lock-free queue, so that
//! neither side waits for the other. What is too large for the arena gets a mapping of its own.
#![expect(unsafe_code, reason = "maps memory and hands out exclusive parts of it")]

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::budget::{Budget, Part, Reservation};
use super::memory::Mebibytes;
use crate::error::{Error, Result};

/// Longest read, in bytes: of [`OVERSIZED_BYTES_MAX`] so much that the four reads of one row always fit.
pub const READ_BYTES_MAX: u32 = 256 << 20;

/// Most memory that buffers outside the arena use together, in bytes.
pub const OVERSIZED_BYTES_MAX: u64 = 4 * READ_BYTES_MAX as u64;

/// A read longer than the arena's size divided by this gets memory of its own. Four reads of one row fit an arena that
/// is otherwise empty, so a row can always be read in the end.
const ARENA_SHARE: usize = 4;

/// Most pages of an arena, 64 GiB of small ones; it keeps a few bytes of books for each.
const ARENA_PAGES_MAX: u32 = 1 << 24;

/// The arena: owned by the thread that takes buffers out.
///
/// The memory is given back to the system when the arena, its buffers and the readers that registered it are all gone.
#[derive(Debug)]
pub struct Arena {
    shared: Arc<Shared>,
    /// Free spans by address; neighbours are always joined. Its capacity is never exceeded.
    free: Vec<Span>,
    oversized: u64,
}

#[derive(Debug)]
pub(crate) struct Shared {
    memory: Mapping,
    page_bytes: usize,
    /// Has a place for every page, so a push never fails.
    returned: ArrayQueue<Span>,
    oversized_bytes: AtomicU64,
    /// Whose memory it is.
    budget: Arc<Budget>,
    _reservation: Reservation,
}

/// Pages that have exactly one owner: a span is never copied, only split and joined.
#[derive(Debug, PartialEq, Eq)]
struct Span {
    first: u32,
    pages: u32,
}

impl Span {
    /// Cuts off the first `pages`; the rest is `None` when nothing is left.
    fn split(self, pages: u32) -> (Self, Option<Self>) {
        debug_assert!(pages <= self.pages);
        let rest = self.pages - pages;
        (Self { first: self.first, pages }, (rest > 0).then_some(Self { first: self.first + pages, pages: rest }))
    }

    fn end(&self) -> u32 {
        self.first + self.pages
    }
}

impl Arena {
    /// Reserves `bytes`, rounded up to whole pages. The pages are filled in as they are first used.
    pub fn new(bytes: usize) -> Result<Self> {
        Self::within(bytes, &Budget::unbounded())
    }

    /// As [`Arena::new`]; it and the buffers outside of it take their memory from `budget`.
    pub fn within(bytes: usize, budget: &Arc<Budget>) -> Result<Self> {
        let page_bytes = rustix::param::page_size();
        let pages =
            u32::try_from(bytes.div_ceil(page_bytes)).ok().filter(|pages| (1..=ARENA_PAGES_MAX).contains(pages));
        let Some(pages) = pages else {
            return Err(Error::config(format!(
                "a read arena of {bytes} bytes cannot be made: it has between 1 and {ARENA_PAGES_MAX} pages of \
                 {page_bytes} bytes"
            )));
        };
        let whole_bytes = pages as usize * page_bytes;
        let reservation = budget.reserve(Part::Reads, whole_bytes as u64).map_err(|shortage| Error::Resources {
            message: format!("reads need {}, but {shortage}", Mebibytes(whole_bytes as u64)),
        })?;
        let memory = Mapping::new(whole_bytes).map_err(|source| Error::Resources {
            message: format!(
                "cannot reserve {} for reads: {source}; free some memory or raise the limit on address space (ulimit -v)",
                Mebibytes(bytes as u64)
            ),
        })?;
        // Only a wish: the copy from the page cache then touches fewer page tables.
        memory.prefer_huge_pages();
        let mut free = Vec::with_capacity(pages as usize / 2 + 2);
        free.push(Span { first: 0, pages });
        let returned = ArrayQueue::new(pages as usize);
        let oversized_bytes = AtomicU64::new(0);
        let (budget, _reservation) = (budget.clone(), reservation);
        let shared = Shared { memory, page_bytes, returned, oversized_bytes, budget, _reservation };
        Ok(Self { shared: Arc::new(shared), free, oversized: 0 })
    }

    /// A buffer of exactly `len` bytes; `None` when there is no room until other buffers are dropped.
    ///
    /// Fails when there never will be room: more than [`READ_BYTES_MAX`], or the system refuses the memory.
    pub fn allocate(&mut self, len: u64) -> Result<Option<ReadBuffer>> {
        self.allocate_at(0, len)
    }

    /// As [`Arena::allocate`], for a read from `offset` of a file: the buffer stands at the same place in its page as
    /// the bytes do in the file's, so that whole blocks around them can be read without a copy.
    pub fn allocate_at(&mut self, offset: u64, len: u64) -> Result<Option<ReadBuffer>> {
        let Some(len) = u32::try_from(len).ok().filter(|&len| len <= READ_BYTES_MAX) else {
            return Err(Error::Resources {
                message: format!(
                    "a read of {} is refused: at most {} are read at once; split the sample",
                    Mebibytes(len),
                    Mebibytes(u64::from(READ_BYTES_MAX))
                ),
            });
        };
        let lead = u32::try_from(offset % self.shared.page_bytes as u64).expect("less than a page");
        let whole = lead as usize + len as usize;
        if whole > self.shared.memory.bytes / ARENA_SHARE && whole > self.shared.page_bytes {
            return self.allocate_own(lead, len);
        }
        while let Some(span) = self.shared.returned.pop() {
            self.give_back(span);
        }
        let pages = u32::try_from(whole.div_ceil(self.shared.page_bytes)).expect("fewer than bytes").max(1);
        // The lowest address that fits: the same pages are used again while they are in the CPU's caches, and the
        // registered part, which lies first, is used most.
        let Some(index) = self.free.iter().position(|span| span.pages >= pages) else { return Ok(None) };
        let whole = std::mem::replace(&mut self.free[index], Span { first: 0, pages: 0 });
        let (span, rest) = whole.split(pages);
        match rest {
            Some(rest) => self.free[index] = rest,
            None => drop(self.free.remove(index)),
        }
        let start = span.first as usize * self.shared.page_bytes + lead as usize;
        // SAFETY: a span lies within the mapping of its arena, and the lead within the span's first page.
        let address = unsafe { self.shared.memory.address.add(start) };
        Ok(Some(ReadBuffer { address, lead, len, home: Home::Arena(Some(span)), shared: self.shared.clone() }))
    }

    /// How many buffers got memory of their own so far, because they were longer than a quarter of the arena.
    pub fn oversized(&self) -> u64 {
        self.oversized
    }

    /// Its size, in bytes.
    pub fn bytes(&self) -> usize {
        self.shared.memory.bytes
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn allocate_own(&mut self, lead: u32, len: u32) -> Result<Option<ReadBuffer>> {
        // Only this thread adds, so the sum cannot grow between the look and the addition.
        let used = self.shared.oversized_bytes.load(Ordering::Relaxed);
        if used + u64::from(len) > OVERSIZED_BYTES_MAX {
            return Ok(None);
        }
        let bytes = (lead as usize + len as usize).next_multiple_of(self.shared.page_bytes);
        let reservation = match self.shared.budget.reserve(Part::LongReads, bytes as u64) {
            Ok(reservation) => reservation,
            // The others come back.
            Err(_) if used > 0 => return Ok(None),
            Err(shortage) => {
                return Err(Error::Resources {
                    message: format!(
                        "one read needs {}, but {shortage}: raise --memory, or lower slots or batch sizes",
                        Mebibytes(bytes as u64)
                    ),
                });
            }
        };
        let memory = Mapping::new(bytes).map_err(|source| Error::Resources {
            message: format!(
                "cannot get {} for one read: {source}; other such reads use {}, the arena for ordinary ones has {}",
                Mebibytes(u64::from(len)),
                Mebibytes(used),
                Mebibytes(self.bytes() as u64)
            ),
        })?;
        self.shared.oversized_bytes.fetch_add(u64::from(len), Ordering::Relaxed);
        self.oversized += 1;
        // SAFETY: the lead is less than a page, and the mapping holds it and the bytes after it.
        let address = unsafe { memory.address.add(lead as usize) };
        Ok(Some(ReadBuffer { address, lead, len, home: Home::Own(memory, reservation), shared: self.shared.clone() }))
    }

    /// Puts a span among the free ones and joins it with its neighbours.
    fn give_back(&mut self, span: Span) {
        let index = self.free.partition_point(|other| other.first < span.first);
        let joins_before = index > 0 && self.free[index - 1].end() == span.first;
        let joins_after = self.free.get(index).is_some_and(|next| next.first == span.end());
        match (joins_before, joins_after) {
            (true, true) => {
                let after = self.free.remove(index);
                self.free[index - 1].pages += span.pages + after.pages;
            }
            (true, false) => self.free[index - 1].pages += span.pages,
            (false, true) => {
                self.free[index].first = span.first;
                self.free[index].pages += span.pages;
            }
            (false, false) => self.free.insert(index, span),
        }
    }
}

impl Shared {
    /// First byte and length of the mapping.
    pub(crate) fn memory(&self) -> (NonNull<u8>, usize) {
        (self.memory.address, self.memory.bytes)
    }
}

/// Memory for one read, with exactly one owner: whoever fills it (a reader, while the read is in flight) or reads it.
#[derive(Debug)]
pub struct ReadBuffer {
    address: NonNull<u8>,
    /// Bytes of its own memory before `address`: less than a page, and `address` stands at this place in its page.
    lead: u32,
    len: u32,
    home: Home,
    shared: Arc<Shared>,
}

#[derive(Debug)]
enum Home {
    /// Taken out when the buffer drops.
    Arena(Option<Span>),
    /// Unmapped when the buffer drops, and given back to the budget after that.
    Own(Mapping, #[expect(dead_code, reason = "it is held for its drop")] Reservation),
}

/// What one read fetches: the bytes of a buffer, or whole blocks around them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Bytes before the buffer's first.
    pub lead: u32,
    /// Bytes in all.
    pub len: u32,
}

// SAFETY: the memory has one owner and is not tied to a thread.
unsafe impl Send for ReadBuffer {}
// SAFETY: a shared reference gives only reading access.
unsafe impl Sync for ReadBuffer {}

impl ReadBuffer {
    /// The bytes: as many as were asked for. Before a read has filled them, what an earlier one left, or zeros.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` bytes from `address` lie in a live mapping (`home`, or `shared` that it is a part of), were zeros
        // at first, and belong to this buffer alone.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.len as usize) }
    }

    /// How many bytes.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether it takes room of the arena, rather than memory of its own.
    pub fn is_of_arena(&self) -> bool {
        matches!(self.home, Home::Arena(_))
    }

    /// True for a buffer of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and the exclusive reference makes ours the only access.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.len as usize) }
    }

    /// The window of exactly its bytes.
    pub fn exact(&self) -> Window {
        Window { lead: 0, len: self.len }
    }

    /// The window of whole blocks of `block_bytes` around its bytes, which are those at `offset` of a file; `None`
    /// where its memory does not stand or reach so (it was not made by [`Arena::allocate_at`] for this offset).
    pub fn whole_blocks(&self, offset: u64, block_bytes: u32) -> Option<Window> {
        let lead = u32::try_from(offset % u64::from(block_bytes)).expect("less than a block");
        let len = lead.checked_add(self.len)?.checked_next_multiple_of(block_bytes)?;
        let window = Window { lead, len };
        let in_page = (block_bytes as usize) <= self.shared.page_bytes;
        let stands = in_page && lead <= self.lead && (self.lead - lead).is_multiple_of(block_bytes);
        (stands && self.holds(window)).then_some(window)
    }

    fn holds(&self, window: Window) -> bool {
        window.lead <= self.lead && (self.lead - window.lead) as usize + window.len as usize <= self.memory_bytes()
    }

    /// Its memory, from the start of the page of its first byte.
    fn memory_bytes(&self) -> usize {
        match &self.home {
            Home::Arena(span) => span.as_ref().map_or(0, |span| span.pages as usize * self.shared.page_bytes),
            Home::Own(memory, _) => memory.bytes,
        }
    }

    /// Where the kernel writes `window` to. Moving the buffer does not move its bytes.
    ///
    /// # Panics
    /// If the buffer's memory does not hold the window.
    pub(super) fn address(&mut self, window: Window) -> NonNull<u8> {
        assert!(self.holds(window), "{window:?} is not within the buffer's memory");
        // SAFETY: the buffer owns as many bytes before its first, as was just seen.
        unsafe { self.address.sub(window.lead as usize) }
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        match &mut self.home {
            Home::Arena(span) => {
                let span = span.take().expect("taken only here");
                self.shared.returned.push(span).expect("there is a place for every page");
            }
            Home::Own(..) => {
                self.shared.oversized_bytes.fetch_sub(u64::from(self.len), Ordering::Relaxed);
            }
        }
    }
}

/// An anonymous, private mapping of zeros.
#[derive(Debug)]
pub(super) struct Mapping {
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process; who may touch which part of it is the business of `Span`.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(super) fn new(bytes: usize) -> io::Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: the kernel picks a place where nothing is yet.
        let address = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, access, flags) }?;
        Ok(Self { address: NonNull::new(address.cast()).expect("the kernel maps nothing at 0"), bytes })
    }

    /// Its first byte.
    pub(super) fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Its size.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// A wish for fewer page tables.
    pub(super) fn prefer_huge_pages(&self) {
        // SAFETY: the advice changes no contents.
        let _ = unsafe { rustix::mm::madvise(self.address.as_ptr().cast(), self.bytes, Advice::LinuxHugepage) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: ours since `new`, and whoever uses a part of it keeps it from being dropped.
        let unmapped = unsafe { rustix::mm::munmap(self.address.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One page of this machine.
    fn page() -> usize {
        rustix::param::page_size()
    }

    /// Free pages, and that the free list is sorted and joined.
    fn free_pages(arena: &mut Arena) -> u32 {
        while let Some(span) = arena.shared.returned.pop() {
            arena.give_back(span);
        }
        assert!(arena.free.windows(2).all(|pair| pair[0].end() < pair[1].first), "{:?}", arena.free);
        arena.free.iter().map(|span| span.pages).sum()
    }

    proptest! {
        #[test]
        fn buffers_never_overlap_and_all_come_back(steps in prop::collection::vec((0_u64..90_000, 0_u64..10_000, any::<prop::sample::Index>()), 1..300)) {
            let mut arena = Arena::new(64 * page()).expect("arena");
            let capacity = arena.free.capacity();
            let mut held: Vec<(u8, ReadBuffer)> = Vec::new();
            for (mark, (len, offset, index)) in steps.into_iter().enumerate() {
                let mark = mark as u8;
                match arena.allocate_at(offset, len).expect("small enough") {
                    Some(mut buffer) => {
                        prop_assert_eq!(buffer.as_slice().len() as u64, len);
                        buffer.as_mut_slice().fill(mark);
                        held.push((mark, buffer));
                    }
                    None => drop(held.swap_remove(index.index(held.len()))),
                }
                for (mark, buffer) in &held {
                    // Pages are whole, so a sample of each shows an overlap.
                    prop_assert!(buffer.as_slice().iter().step_by(page() / 4).all(|byte| byte == mark));
                    prop_assert!(buffer.as_slice().last().is_none_or(|byte| byte == mark));
                }
            }
            drop(held);
            prop_assert_eq!(free_pages(&mut arena), 64);
            prop_assert_eq!(arena.free.capacity(), capacity);
        }
    }

    #[test]
    fn whole_blocks_around_a_range() {
        let mut arena = Arena::new(64 * page()).expect("arena");
        let page = page() as u64;
        let mut check = |made_for: u64, offset: u64, len: u64, block_bytes: u32, expected: Option<(u32, u32)>| {
            let mut buffer = arena.allocate_at(made_for, len).expect("allowed").expect("room");
            let window = buffer.whole_blocks(offset, block_bytes);
            assert_eq!(window.map(|window| (window.lead, window.len)), expected, "{len} bytes at {offset}");
            let Some(window) = window else { return };
            let start = buffer.address(window).addr().get();
            assert_eq!(start as u64 % u64::from(block_bytes), 0);
            assert_eq!(start + window.lead as usize, buffer.as_slice().as_ptr().addr());
            assert!(u64::from(window.lead) + len <= u64::from(window.len));
        };
        for len in [1, 511, 512, 513, 4095, 4096, 4097, 70_000, 40 * page] {
            for offset in [0, 1, 511, 512, 513, 4095, 4096, 5 * page + 700] {
                let lead = (offset % 512) as u32;
                check(offset, offset, len, 512, Some((lead, (lead + len as u32).next_multiple_of(512))));
            }
        }
        check(700, 700, 100, page as u32, Some((700, page as u32)));
        check(page - 1, page - 1, 2, page as u32, Some((page as u32 - 1, 2 * page as u32)));
        check(0, 700, 100, 512, None);
        check(512, 1024, 100, 512, Some((0, 512)));
        check(511, 511, 0, 512, Some((511, 512)));
        check(700, 700, 100, 2 * page as u32, None);
    }

    #[test]
    #[should_panic(expected = "not within the buffer's memory")]
    fn a_window_beyond_the_memory() {
        let mut arena = Arena::new(page()).expect("arena");
        let mut buffer = arena.allocate(10).expect("allowed").expect("room");
        buffer.address(Window { lead: 0, len: page() as u32 + 1 });
    }

    #[test]
    fn no_room_is_not_an_error() {
        let mut arena = Arena::new(8 * page()).expect("arena");
        assert_eq!(arena.bytes(), 8 * page());
        let mut quarter = || arena.allocate(2 * page() as u64).expect("allowed");
        let four = [quarter(), quarter(), quarter(), quarter()];
        assert!(four.iter().all(Option::is_some), "four reads of one row always fit");
        assert!(quarter().is_none());
        let one = four.into_iter().nth(2);
        assert!(one.is_some());
        drop(one);
        assert_eq!(free_pages(&mut arena), 8);
    }

    #[test]
    fn what_is_too_large_gets_memory_of_its_own() {
        let mut arena = Arena::new(8 * page()).expect("arena");
        let mut own = arena.allocate(2 * page() as u64 + 1).expect("allowed").expect("room");
        own.as_mut_slice().fill(1);
        assert_eq!((arena.oversized(), free_pages(&mut arena)), (1, 8));
        let largest: Vec<_> = (0..4).map(|_| arena.allocate(u64::from(READ_BYTES_MAX)).expect("allowed")).collect();
        assert_eq!(largest.iter().filter(|buffer| buffer.is_some()).count(), 3, "1 GiB in all");
        drop(own);
        assert!(arena.allocate(u64::from(READ_BYTES_MAX)).expect("allowed").is_some());
        assert_eq!(arena.oversized(), 5);
        for len in [u64::from(READ_BYTES_MAX) + 1, u64::MAX] {
            let error = arena.allocate(len).expect_err("too long").to_string();
            assert!(error.contains("at most 256.0 MiB are read at once"), "{error}");
        }
    }

    #[test]
    fn sizes_that_cannot_be() {
        for bytes in [0, usize::MAX] {
            let error = Arena::new(bytes).expect_err("no such arena").to_string();
            assert!(error.contains(&format!("a read arena of {bytes} bytes cannot be made")), "{error}");
        }
    }

    #[test]
    fn the_mapping_goes_with_its_last_user() {
        let mut arena = Arena::new(8 * page()).expect("arena");
        let memory = Arc::downgrade(arena.shared());
        let mut buffer = arena.allocate(10).expect("allowed").expect("room");
        drop(arena);
        buffer.as_mut_slice().fill(9);
        std::thread::spawn(move || assert_eq!(buffer.as_slice(), [9; 10])).join().expect("no panic");
        assert!(memory.upgrade().is_none());
    }
}
