//! The life of a slot as arithmetic on one atomic word; no memory, no waiting.
//!
//! The word holds the state in its low 4 bits, above them the sequence (32 bits) and the generation (28 bits) of the
//! batch while there is one. So a word is never the same for two batches, and a compare-and-swap that was prepared
//! for one can not hit the next. All zeros (a page that was lost) is no state.
//!
//! ```text
//! FREE ──acquire──▶ FILLING ──publish──▶ READY ──take──▶ HELD
//!  ▲  sidecar          │      sidecar     │     client    │
//!  └───abandon─────────┴──reclaim/discard─┴────release────┘
//!      sidecar            either            client
//! ```
//!
//! Generic over the word, so that the model checker runs this very code.

use std::sync::atomic::Ordering;

use super::BatchTicket;

/// An atomic 64-bit word: the standard library's, or the model checker's.
pub trait Word {
    /// See [`std::sync::atomic::AtomicU64::load`].
    fn load(&self, order: Ordering) -> u64;
    /// See [`std::sync::atomic::AtomicU64::compare_exchange`].
    fn compare_exchange(&self, current: u64, new: u64, success: Ordering, failure: Ordering) -> Result<u64, u64>;
}

impl Word for std::sync::atomic::AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }
    fn compare_exchange(&self, current: u64, new: u64, success: Ordering, failure: Ordering) -> Result<u64, u64> {
        self.compare_exchange(current, new, success, failure)
    }
}

/// Nobody's.
pub const FREE: u64 = 1;
/// The sidecar writes.
pub const FILLING: u64 = 2;
const READY: u64 = 3;
const HELD: u64 = 4;
const STATE_MASK: u64 = 0xf;

fn with_ticket(state: u64, ticket: BatchTicket) -> u64 {
    u64::from(ticket.generation) << 36 | u64::from(ticket.sequence) << 4 | state
}

/// The word of a batch that waits to be taken.
pub fn ready(ticket: BatchTicket) -> u64 {
    with_ticket(READY, ticket)
}

/// The word of a batch that the client has.
pub fn held(ticket: BatchTicket) -> u64 {
    with_ticket(HELD, ticket)
}

/// The generation of the batch that `word` offers; `None` if it offers none.
pub fn ready_generation(word: u64) -> Option<u32> {
    (word & STATE_MASK == READY).then_some((word >> 36) as u32)
}

/// What has become of a slot since the sidecar published a batch in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lent {
    /// Its publishing thread has not come to the word yet.
    Filling,
    /// The batch waits.
    Ready,
    /// The client has it.
    Held,
    /// It came back.
    Free,
}

/// Sidecar: the free slot is ours to fill. `Err` is what the word held instead.
pub fn acquire(word: &impl Word) -> Result<(), u64> {
    // Relaxed: `observe` has already acquired what the client did, and nobody but us moves a free slot.
    word.compare_exchange(FREE, FILLING, Ordering::Relaxed, Ordering::Relaxed).map(drop)
}

/// Sidecar: the slot is free again, unpublished.
pub fn abandon(word: &impl Word) -> Result<(), u64> {
    // Relaxed: the next to use it is the sidecar, which orders its own threads itself.
    word.compare_exchange(FILLING, FREE, Ordering::Relaxed, Ordering::Relaxed).map(drop)
}

/// Sidecar: everything is written, the batch may be taken.
pub fn publish(word: &impl Word, ticket: BatchTicket) -> Result<(), u64> {
    // Release: pairs with the Acquire in `take` (the client reads the rows) and in `observe` (the sidecar's feeder gives
    // the slot to other threads; every change in between is a read-modify-write, which keeps the release in force).
    word.compare_exchange(FILLING, ready(ticket), Ordering::Release, Ordering::Relaxed).map(drop)
}

/// Sidecar: what has become of a slot that holds `ticket`. `Err` is a word that cannot be.
pub fn observe(word: &impl Word, ticket: BatchTicket) -> Result<Lent, u64> {
    // Acquire: pairs with the Release in `release`, so that the client's last accesses come before our next stores.
    match word.load(Ordering::Acquire) {
        FREE => Ok(Lent::Free),
        FILLING => Ok(Lent::Filling),
        found if found == ready(ticket) => Ok(Lent::Ready),
        found if found == held(ticket) => Ok(Lent::Held),
        found => Err(found),
    }
}

/// Sidecar: takes an unclaimed batch back; false if the client was first (or has broken the word, which `observe`
/// finds out).
pub fn reclaim(word: &impl Word, ticket: BatchTicket) -> bool {
    // Relaxed: the slot is used again only after an `observe`.
    word.compare_exchange(ready(ticket), FREE, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

/// Client: the batch is ours if it is there.
pub fn take(word: &impl Word, ticket: BatchTicket) -> bool {
    // Acquire: pairs with the Release in `publish`.
    word.compare_exchange(ready(ticket), held(ticket), Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Client: throws away an unclaimed batch whose word was `found` (see [`ready_generation`]); false if the sidecar was
/// first.
pub fn discard(word: &impl Word, found: u64) -> bool {
    // Relaxed: the client has touched nothing of the batch, so there is nothing to order.
    word.compare_exchange(found, FREE, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

/// Client: done with the batch. `Err` is what the word held instead: the sidecar never touches a held slot.
pub fn release(word: &impl Word, ticket: BatchTicket) -> Result<(), u64> {
    // Release: pairs with the Acquire in `observe`.
    word.compare_exchange(held(ticket), FREE, Ordering::Release, Ordering::Relaxed).map(drop)
}
