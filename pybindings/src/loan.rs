//! How long a slot stays with the trainer: until nobody looks at it and the device has finished reading it.
//!
//! Three ways, by what the loader was asked for. Without page-locking, the last view's death gives the slot back: a copy
//! from pageable memory is over when its call returns. With `pin_memory` a dead batch is parked: at the next `next()` the
//! current stream, and those of `release_after`, are followed, and the slot goes back when they have got there. With
//! `device` the loader makes the copy, and the slot goes back when it is done.
//!
//! Slots come back from a thread of the driver, which must not call the driver; so it never drops the last reference to
//! a ring, whose end undoes the page-locking. What it leaves is swept up by the next call from Python.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feedline_loader::client::Lease;
use feedline_loader::ring::RingReader;

use crate::cuda::{self, Callback, Context, Follower, Refusal};

/// A batch that Python looks at.
pub struct Loan {
    /// `None` only while it is dropped.
    lease: Option<Lease>,
    park: Option<Arc<Park>>,
    /// Streams beside the current one that use the memory.
    streams: Mutex<Vec<u64>>,
}

impl Loan {
    /// Lends `lease`; dead, it goes to `park`, if there is one.
    pub fn new(lease: Lease, park: Option<Arc<Park>>) -> Arc<Self> {
        Arc::new(Self { lease: Some(lease), park, streams: Mutex::default() })
    }

    /// Has the slot's return wait for what is queued on `stream` when the batch is dead.
    pub fn release_after(&self, stream: u64) {
        locked(&self.streams).push(stream);
    }
}

impl Deref for Loan {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        self.lease.as_ref().expect("there until dropped")
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let lease = self.lease.take();
        // In a forked child the park's lock may be held by a thread that is not there; the slot is the parent's anyway.
        if let (Some(park), Some(lease)) = (&self.park, lease)
            && lease.ring().check_owner().is_ok()
        {
            let streams = std::mem::take(&mut *locked(&self.streams));
            locked(&park.dead).push(Parked { lease, streams });
        }
    }
}

struct Parked {
    lease: Lease,
    streams: Vec<u64>,
}

/// Dead batches whose memory the device may still read.
pub struct Park {
    dead: Mutex<Vec<Parked>>,
    follower: Follower,
    /// The stream that was current last.
    current: AtomicU64,
    pid: u32,
}

impl Park {
    /// An empty one, for memory that streams of `context` read.
    pub fn new(context: Arc<Context>) -> Result<Arc<Self>, Refusal> {
        let follower = Follower::new(context)?;
        let (dead, current) = (Mutex::default(), AtomicU64::new(0));
        Ok(Arc::new(Self { dead, follower, current, pid: std::process::id() }))
    }

    /// Gives the slots of dead batches back when `current`, and the streams that they named, have done what is queued.
    pub fn collect(&self, current: u64) -> Result<(), Refusal> {
        self.current.store(current, Ordering::Relaxed);
        let parked = std::mem::take(&mut *locked(&self.dead));
        let Some(first) = parked.first() else { return Ok(()) };
        let ring = Arc::clone(first.lease.ring());
        let mut streams = vec![current];
        streams.extend(parked.iter().flat_map(|parked| &parked.streams));
        streams.sort_unstable();
        streams.dedup();
        let held: Vec<Lease> = parked.into_iter().map(|parked| parked.lease).collect();
        self.follower.call_after(&streams, Return::buried(ring, Box::new(held)))
    }
}

impl Drop for Park {
    fn drop(&mut self) {
        if std::process::id() == self.pid {
            // A refusal keeps the slots, and the ring, for good: the device might still read them.
            let _ = self.collect(self.current.load(Ordering::Relaxed));
        }
    }
}

/// Gives the slot of `loan` back when `stream` has done what is queued on it, unless Python looks at it for longer.
pub fn return_after(context: &Context, stream: u64, loan: Arc<Loan>) -> Result<(), Refusal> {
    let ring = Arc::clone(loan.ring());
    cuda::call_after(context, stream, Return::buried(ring, Box::new(loan)))
}

/// A return to come.
struct Return {
    /// What holds the slots; dropped by the call.
    held: Mutex<Option<Box<dyn Send>>>,
    /// Keeps the ring, so that the call never ends it.
    _ring: Arc<RingReader>,
    pid: u32,
}

impl Callback for Return {
    fn call(&self) {
        drop(locked(&self.held).take());
    }
}

/// Returns that may still be under way.
static UNDER_WAY: Mutex<Vec<Arc<Return>>> = Mutex::new(Vec::new());

impl Return {
    /// One that `sweep` will let go of, so that the driver's thread never has the last reference.
    fn buried(ring: Arc<RingReader>, held: Box<dyn Send>) -> Arc<Self> {
        sweep();
        let made = Arc::new(Self { held: Mutex::new(Some(held)), _ring: ring, pid: std::process::id() });
        locked(&UNDER_WAY).push(Arc::clone(&made));
        made
    }

    /// Whether the driver is done with it.
    fn is_over(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1 && self.held.try_lock().is_ok_and(|held| held.is_none())
    }
}

/// Lets go of rings whose slots have all come back.
pub fn sweep() {
    // Not waited for: a forked child may have inherited it locked.
    let Ok(mut under_way) = UNDER_WAY.try_lock() else { return };
    if under_way.first().is_some_and(|first| first.pid != std::process::id()) {
        // The parent's; its rings are not mapped here.
        std::mem::forget(std::mem::take(&mut *under_way));
    }
    let (over, rest) = std::mem::take(&mut *under_way).into_iter().partition(Return::is_over);
    *under_way = rest;
    drop(under_way);
    // Outside the lock: it may end a ring.
    drop::<Vec<_>>(over);
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
