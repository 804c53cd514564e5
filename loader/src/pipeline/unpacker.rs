//! Threads that unpack compressed shards, so that the feeder never waits for one.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender, bounded};

use super::Waker;
use crate::error::{Error, Result};
use crate::shard::Dataset;

/// Shards that are unpacked at once: one that is needed now, and one ahead.
const THREADS: usize = 2;

/// A compressed shard of one of the datasets.
pub(super) struct Wanted {
    pub(super) dataset: Arc<Dataset>,
    pub(super) shard: u32,
}

/// A shard that is unpacked, or why it could not be.
pub(super) struct Unpacked {
    pub(super) wanted: Wanted,
    pub(super) file: Result<File>,
}

/// The threads. Dropped, it stops them, in the middle of a shard if need be, and waits for them.
pub(super) struct Unpacker {
    wanted: Option<Sender<Wanted>>,
    unpacked: Receiver<Unpacked>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Unpacker {
    /// Starts the threads; at most `capacity` shards may be wanted at once. `waker` is woken by each that is done.
    pub(super) fn start(capacity: usize, waker: &Arc<Waker>) -> Result<Self> {
        let (wanted, requests) = bounded::<Wanted>(capacity);
        let (done, unpacked) = bounded(capacity);
        let stop = Arc::new(AtomicBool::new(false));
        let mut unpacker = Self { wanted: Some(wanted), unpacked, stop: stop.clone(), threads: Vec::new() };
        for number in 0..THREADS {
            let (requests, done, stop, waker) = (requests.clone(), done.clone(), stop.clone(), waker.clone());
            let work = move || {
                while let Ok(wanted) = requests.recv() {
                    let file = wanted.dataset.unpack(wanted.shard, &stop);
                    if stop.load(Ordering::Relaxed) || done.send(Unpacked { wanted, file }).is_err() {
                        break;
                    }
                    waker.wake();
                }
            };
            let thread = thread::Builder::new().name(format!("unpack-{number}")).spawn(work);
            unpacker
                .threads
                .push(thread.map_err(|source| Error::system("start a thread that unpacks shards", source))?);
        }
        Ok(unpacker)
    }

    /// Asks for a shard; false where too many are asked for already, those of datasets that were closed since included.
    pub(super) fn want(&self, wanted: Wanted) -> bool {
        let sender = self.wanted.as_ref().expect("taken only on drop");
        sender.try_send(wanted).is_ok()
    }

    /// A shard that is done, if there is one.
    pub(super) fn next_done(&self) -> Option<Unpacked> {
        self.unpacked.try_recv().ok()
    }
}

impl Drop for Unpacker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.wanted = None;
        for thread in self.threads.drain(..) {
            // A panic has been told by its hook.
            let _ = thread.join();
        }
    }
}
