//! Where the decode threads run: near the GPU, when all streams' GPUs are on one memory node; else wherever they may.
//!
//! Rings are on the node of their own GPU in any case; what is bound here saves the way of the pixels into them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::thread::{CpuSet, Pid};

use super::stream::StreamId;
use crate::sys::topology::{self, Cores, Placement};

/// The decode threads, and where the streams want them.
#[derive(Debug)]
pub(super) struct Crew {
    threads: Vec<Pid>,
    /// Cores that they may use where nothing binds them.
    allowed: Cores,
    wishes: Mutex<Wishes>,
}

#[derive(Debug, Default)]
struct Wishes {
    /// Node and its cores, for each open stream; `None` where it does not matter or is not known.
    by_stream: HashMap<StreamId, Option<(u32, Cores)>>,
    /// The node that the threads are bound to.
    bound: Option<u32>,
}

impl Crew {
    /// Of these threads, which may run anywhere that the calling thread may.
    pub(super) fn new(threads: Vec<Pid>) -> Self {
        // Where the mask cannot be read, nothing is ever bound.
        Self { threads, allowed: topology::allowed_cores().unwrap_or_default(), wishes: Mutex::default() }
    }

    /// Cores that may be used.
    pub(super) fn allowed(&self) -> &[u32] {
        &self.allowed
    }

    /// A stream begins.
    pub(super) fn add(&self, stream: StreamId, placement: Option<&Placement>) {
        let wish = match placement {
            Some(Placement::Node { node, cores }) => Some((*node, cores.clone())),
            Some(Placement::OneNode | Placement::Unknown(_)) | None => None,
        };
        let mut wishes = self.wishes();
        wishes.by_stream.insert(stream, wish);
        self.bind(&mut wishes);
    }

    /// A stream has ended.
    pub(super) fn remove(&self, stream: StreamId) {
        let mut wishes = self.wishes();
        if wishes.by_stream.remove(&stream).is_some() {
            self.bind(&mut wishes);
        }
    }

    fn bind(&self, wishes: &mut Wishes) {
        let home = common_home(wishes.by_stream.values(), self.threads.len());
        let node = home.map(|(node, _)| *node);
        if node == wishes.bound {
            return;
        }
        let cores = home.map_or(&self.allowed, |(_, cores)| cores);
        match place(&self.threads, cores) {
            Ok(()) => tracing::info!(
                "decode threads run {}",
                home.map_or("anywhere".to_owned(), |(node, _)| format!("on node {node}"))
            ),
            Err(error) => tracing::info!("decode threads stay where they are: {error}"),
        }
        wishes.bound = node;
    }

    fn wishes(&self) -> MutexGuard<'_, Wishes> {
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The node that all streams want, if its cores are enough for so many threads.
fn common_home<'a>(
    mut wishes: impl Iterator<Item = &'a Option<(u32, Cores)>>,
    threads: usize,
) -> Option<&'a (u32, Cores)> {
    let first = wishes.next()?.as_ref()?;
    let agree = wishes.all(|other| other.as_ref().is_some_and(|(node, _)| *node == first.0));
    (agree && first.1.len() >= threads).then_some(first)
}

fn place(threads: &[Pid], cores: &[u32]) -> std::io::Result<()> {
    let mut set = CpuSet::new();
    // Cores beyond what the mask can tell were not among those that it named.
    cores.iter().filter(|core| (**core as usize) < CpuSet::MAX_CPU).for_each(|core| set.set(*core as usize));
    for thread in threads {
        rustix::thread::sched_setaffinity(Some(*thread), &set)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_home_for_all() {
        let on = |node: u32| Some((node, vec![node * 4, node * 4 + 1]));
        let check = |wishes: &[Option<(u32, Cores)>], threads: usize, expected: Option<u32>| {
            assert_eq!(common_home(wishes.iter(), threads).map(|(node, _)| *node), expected, "{wishes:?}, {threads}");
        };
        check(&[], 1, None);
        check(&[on(1)], 2, Some(1));
        check(&[on(1), on(1)], 2, Some(1));
        check(&[on(1), on(0)], 2, None);
        check(&[on(1), None], 2, None);
        check(&[None], 2, None);
        check(&[on(1)], 3, None);
    }

    #[test]
    fn threads_go_where_streams_want_them() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid()).expect("the test lives");
            let _ = ended.recv();
        });
        let thread_id = told.recv().expect("the thread lives");
        let crew = Crew::new(vec![thread_id]);
        let cores = || {
            let set = rustix::thread::sched_getaffinity(Some(thread_id)).expect("it lives");
            crew.allowed().iter().copied().filter(|core| set.is_set(*core as usize)).collect::<Cores>()
        };
        let all = cores();
        let last = *all.last().expect("there is a core");
        let near = Placement::Node { node: 0, cores: vec![last] };
        crew.add(StreamId(1), Some(&near));
        assert_eq!(cores(), [last]);
        crew.add(StreamId(2), Some(&Placement::Unknown("nobody knows".to_owned())));
        assert_eq!(cores(), all, "another may want them elsewhere");
        crew.remove(StreamId(2));
        assert_eq!(cores(), [last]);
        crew.remove(StreamId(1));
        assert_eq!(cores(), all);
        drop(end);
        thread.join().expect("no panic");
    }
}
