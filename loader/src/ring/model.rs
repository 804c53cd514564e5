//! The life of a slot under the model checker: all interleavings of up to three forced switches, with the
//! reorderings that the checker models, of the very code in [`super::state`] and [`super::bump`]. Rows are checked cells: an access that is
//! not ordered fails the test.

use std::sync::atomic::Ordering;

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::state::{self, Lent, Word};
use super::{BatchTicket, bump};

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }
    fn compare_exchange(&self, current: u64, new: u64, success: Ordering, failure: Ordering) -> Result<u64, u64> {
        self.compare_exchange(current, new, success, failure)
    }
}

/// One slot with one row, and the signal that a client sleeps on.
struct Model {
    word: AtomicU64,
    row: UnsafeCell<u64>,
    signal: AtomicU64,
    sleepers: Mutex<()>,
    woken: Condvar,
}

impl Model {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            word: AtomicU64::new(state::FREE),
            row: UnsafeCell::new(0),
            signal: AtomicU64::new(0),
            sleepers: Mutex::new(()),
            woken: Condvar::new(),
        })
    }

    fn set_row(&self, value: u64) {
        // The checker refuses a concurrent access; the pointer is valid for the call.
        self.row.with_mut(|row| write(row, value));
    }

    fn row(&self) -> u64 {
        self.row.with(read)
    }

    /// As `RingWriter::bump`.
    fn bump(&self) {
        self.signal.fetch_add(1, Ordering::Release);
        let _sleepers = self.sleepers.lock().expect("lock");
        self.woken.notify_all();
    }

    /// As the kernel's futex: compares and falls asleep as one step.
    fn sleep(&self, seen: u64) {
        let sleepers = self.sleepers.lock().expect("lock");
        if self.signal.load(Ordering::Relaxed) == seen {
            drop(self.woken.wait(sleepers).expect("lock"));
        }
    }

    /// As a client: sleeps until `ticket` is there, and has it.
    fn take(&self, ticket: BatchTicket) {
        loop {
            let seen = self.signal.load(Ordering::Acquire);
            if state::take(&self.word, ticket) {
                return;
            }
            self.sleep(seen);
        }
    }
}

#[expect(unsafe_code, reason = "the checked cell hands out pointers")]
fn write(row: *mut u64, value: u64) {
    // SAFETY: the cell's pointer is valid, and the checker has refused any concurrent access.
    unsafe { row.write(value) }
}

#[expect(unsafe_code, reason = "the checked cell hands out pointers")]
fn read(row: *const u64) -> u64 {
    // SAFETY: as in `write`.
    unsafe { row.read() }
}

fn ticket(generation: u32, sequence: u64) -> BatchTicket {
    BatchTicket::new(generation, sequence).expect("small")
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // Three forced switches find all known kinds of errors of such small protocols, and keep it to seconds.
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn ring_loom_publish_take_release_refill() {
    check(|| {
        let model = Model::new();
        let client = {
            let model = Arc::clone(&model);
            thread::spawn(move || {
                for sequence in 0..2 {
                    model.take(ticket(1, sequence));
                    assert_eq!(model.row(), 10 + sequence);
                    // In-place operations of the trainer.
                    model.set_row(99);
                    state::release(&model.word, ticket(1, sequence)).expect("held by us");
                }
            })
        };
        for sequence in 0..2 {
            if sequence > 0 {
                while state::observe(&model.word, ticket(1, sequence - 1)).expect("a state") != Lent::Free {
                    thread::yield_now();
                }
            }
            state::acquire(&model.word).expect("free");
            model.set_row(10 + sequence);
            state::publish(&model.word, ticket(1, sequence)).expect("filling");
            model.bump();
        }
        client.join().expect("client");
    });
}

#[test]
fn ring_loom_reclaim_races_with_take() {
    check(|| {
        let model = Model::new();
        state::acquire(&model.word).expect("free");
        let worker = {
            let model = Arc::clone(&model);
            thread::spawn(move || {
                model.set_row(1);
                state::publish(&model.word, ticket(1, 0)).expect("filling");
                model.bump();
            })
        };
        let client = {
            let model = Arc::clone(&model);
            thread::spawn(move || {
                let taken = state::take(&model.word, ticket(1, 0));
                if taken {
                    assert_eq!(model.row(), 1);
                    state::release(&model.word, ticket(1, 0)).expect("held by us");
                }
                taken
            })
        };
        // The feeder, which did not publish: whoever frees the slot, the next row is ordered after the last.
        let mut reclaimed = false;
        loop {
            reclaimed |= state::reclaim(&model.word, ticket(1, 0));
            if state::observe(&model.word, ticket(1, 0)).expect("a state") == Lent::Free {
                break;
            }
            thread::yield_now();
        }
        state::acquire(&model.word).expect("free");
        model.set_row(2);
        worker.join().expect("worker");
        assert_ne!(client.join().expect("client"), reclaimed, "one of them had it");
    });
}

#[test]
fn ring_loom_discard_races_with_reclaim_and_refill() {
    check(|| {
        let model = Model::new();
        state::acquire(&model.word).expect("free");
        model.set_row(1);
        state::publish(&model.word, ticket(1, 0)).expect("filling");
        let client = {
            let model = Arc::clone(&model);
            thread::spawn(move || {
                // The next stream: whatever waits of the last one goes back, and the new batch must not.
                let found = model.word.load(Ordering::Relaxed);
                if state::ready_generation(found).is_some_and(|generation| generation < 2) {
                    state::discard(&model.word, found);
                }
                model.take(ticket(2, 0));
                assert_eq!(model.row(), 2);
            })
        };
        state::reclaim(&model.word, ticket(1, 0));
        assert_eq!(state::observe(&model.word, ticket(1, 0)), Ok(Lent::Free));
        state::acquire(&model.word).expect("free");
        model.set_row(2);
        state::publish(&model.word, ticket(2, 0)).expect("filling");
        model.bump();
        client.join().expect("client");
    });
}

#[test]
fn ring_loom_workers_take_room_and_one_spills() {
    check(|| {
        let model = Model::new();
        let used = Arc::new(AtomicU64::new(0));
        let spill = Arc::new(Mutex::new(None));
        let remaining = Arc::new(AtomicU64::new(2));
        state::acquire(&model.word).expect("free");
        let workers = [10, 20].map(|value| {
            let (model, used, spill, remaining) = (model.clone(), used.clone(), spill.clone(), remaining.clone());
            thread::spawn(move || {
                // Room for one value of two.
                match bump::take(&*used, 8, 8, 15) {
                    Some(offset) => {
                        assert_eq!(offset, 0, "the other value lies there");
                        model.set_row(value);
                    }
                    None => assert_eq!(spill.lock().expect("lock").replace(value), None, "both spilled"),
                }
                if remaining.fetch_sub(1, Ordering::AcqRel) == 1 {
                    state::publish(&model.word, ticket(1, 0)).expect("filling");
                    model.bump();
                }
            })
        });
        model.take(ticket(1, 0));
        let spilled = spill.lock().expect("lock").take().expect("one spilled");
        assert_eq!(model.row() + spilled, 30);
        for worker in workers {
            worker.join().expect("worker");
        }
    });
}
