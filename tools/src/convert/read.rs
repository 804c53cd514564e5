//! Reads files ahead of the writer, and makes of them what it writes: several threads, the order of the list, a bounded
//! number of bytes in memory.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Scope;

use crossbeam_channel::{Receiver, Sender, unbounded};

/// Most bytes read and not yet written; one larger file is read alone.
const AHEAD_BYTES: u64 = 64 << 20;
/// Most files read and not yet written.
const AHEAD_FILES: usize = 1024;

/// A file to read: where, and the size that it had when it was listed.
pub struct Request {
    /// Its path.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
}

/// What became of a list of files, in the list's order.
pub struct ReadAhead<'scope, T> {
    shared: &'scope Shared,
    arrivals: Receiver<(usize, T)>,
    early: HashMap<usize, T>,
    next: usize,
}

/// What the readers of one list share.
pub struct Shared {
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Default)]
struct Progress {
    taken: usize,
    written: usize,
    ahead_bytes: u64,
    stopped: bool,
}

impl Shared {
    /// For one list.
    pub fn new() -> Self {
        Self { progress: Mutex::default(), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        // Nothing under this lock can panic half-way.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next place of the list once there is room for its bytes.
    fn take(&self, count: usize, request: &impl Fn(usize) -> Request) -> Option<(usize, Request)> {
        let mut progress = self.lock();
        loop {
            if progress.stopped || progress.taken == count {
                return None;
            }
            let place = progress.taken;
            let wanted = request(place);
            let ahead = place - progress.written;
            if ahead == 0 || (progress.ahead_bytes + wanted.bytes <= AHEAD_BYTES && ahead < AHEAD_FILES) {
                progress.taken += 1;
                progress.ahead_bytes += wanted.bytes;
                return Some((place, wanted));
            }
            progress = self.changed.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<'scope, T: Send + 'scope> ReadAhead<'scope, T> {
    /// Starts a reader of the `count` files that `request` names for each of `makers`, which get the contents.
    pub fn start(
        scope: &'scope Scope<'scope, '_>,
        shared: &'scope Shared,
        makers: impl IntoIterator<Item = impl FnMut(io::Result<Vec<u8>>) -> T + Send + 'scope>,
        count: usize,
        request: impl Fn(usize) -> Request + Send + Copy + 'scope,
    ) -> Self {
        let (sender, arrivals): (Sender<_>, _) = unbounded();
        for mut make in makers {
            let sender = sender.clone();
            scope.spawn(move || {
                while let Some((place, wanted)) = shared.take(count, &request) {
                    if sender.send((place, make(read_file(&wanted.path, wanted.bytes)))).is_err() {
                        return;
                    }
                }
            });
        }
        Self { shared, arrivals, early: HashMap::new(), next: 0 }
    }

    /// What was made of the next file of the list; `bytes` is the size in its request.
    pub fn next(&mut self, bytes: u64) -> io::Result<T> {
        let found = loop {
            if let Some(found) = self.early.remove(&self.next) {
                break found;
            }
            match self.arrivals.recv() {
                Ok((place, found)) => self.early.insert(place, found),
                Err(_) => return Err(io::Error::other("a reader thread has died")),
            };
        };
        self.next += 1;
        let mut progress = self.shared.lock();
        progress.written += 1;
        progress.ahead_bytes -= bytes;
        drop(progress);
        self.shared.changed.notify_all();
        Ok(found)
    }
}

impl<T> Drop for ReadAhead<'_, T> {
    fn drop(&mut self) {
        self.shared.lock().stopped = true;
        self.shared.changed.notify_all();
    }
}

fn read_file(path: &Path, bytes: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let mut data = Vec::new();
    // One byte more than expected, so that the end is met without growing.
    data.try_reserve_exact(usize::try_from(bytes).map_or(usize::MAX, |bytes| bytes.saturating_add(1)))?;
    file.read_to_end(&mut data)?;
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn files_come_in_order_whatever_their_sizes() {
        let folder = tempfile::tempdir().unwrap();
        let sizes: Vec<u64> = (0..200).map(|n| (n * 7919) % 5000).collect();
        for (place, &size) in sizes.iter().enumerate() {
            fs::write(folder.path().join(place.to_string()), vec![place as u8; size as usize]).unwrap();
        }
        fs::remove_file(folder.path().join("77")).unwrap();
        let request = |place: usize| Request { path: folder.path().join(place.to_string()), bytes: sizes[place] };
        let shared = Shared::new();
        std::thread::scope(|scope| {
            let mut reader = ReadAhead::start(scope, &shared, [|data| data; 4], sizes.len(), request);
            for (place, &size) in sizes.iter().enumerate() {
                match reader.next(size).expect("readers live") {
                    Ok(data) => assert_eq!(data, vec![place as u8; size as usize]),
                    Err(error) => assert_eq!((place, error.kind()), (77, io::ErrorKind::NotFound)),
                }
            }
        });
    }

    #[test]
    fn a_writer_that_leaves_ends_the_readers() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a"), b"x").unwrap();
        let request = |_: usize| Request { path: folder.path().join("a"), bytes: AHEAD_BYTES };
        let shared = Shared::new();
        std::thread::scope(|scope| {
            let mut reader = ReadAhead::start(scope, &shared, [|data| data; 3], 1000, request);
            assert_eq!(reader.next(AHEAD_BYTES).unwrap().unwrap(), b"x");
        });
    }
}
