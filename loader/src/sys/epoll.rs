//! Waiting for several descriptors at once, each known by a number.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::Timespec;

/// Most events that one [`Epoll::wait`] reports; more stay for the next.
pub const EVENTS_MAX: usize = 32;

/// When a descriptor is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// As long as it is readable.
    Level,
    /// Once for each thing that happens to it: nobody has to read it.
    Edge,
}

/// A set of descriptors.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

/// Readable when one of its descriptors is due, so that a set can be waited for like any of them.
impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Epoll {
    /// An empty set.
    pub fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(CreateFlags::CLOEXEC)?))
    }

    /// Reports `descriptor` under `key` when it is readable or hung up. A closed descriptor leaves the set by itself
    /// only when no copy of it is open anywhere, so [`Epoll::remove`] what other processes hold.
    pub fn add(&self, descriptor: BorrowedFd<'_>, key: u64, trigger: Trigger) -> io::Result<()> {
        let edge = match trigger {
            Trigger::Level => EventFlags::empty(),
            Trigger::Edge => EventFlags::ET,
        };
        let flags = EventFlags::IN | EventFlags::RDHUP | edge;
        Ok(epoll::add(&self.0, descriptor, EventData::new_u64(key), flags)?)
    }

    /// Takes `descriptor` out of the set.
    pub fn remove(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&self.0, descriptor)?)
    }

    /// Calls `each` with the key of every descriptor that is due; returns their number, 0 when `timeout` is over or a
    /// signal handler ran.
    pub fn wait(&self, timeout: Duration, mut each: impl FnMut(u64)) -> io::Result<usize> {
        let timeout = Timespec::try_from(timeout).unwrap_or(Timespec { tv_sec: i64::from(i32::MAX), tv_nsec: 0 });
        let mut events = [MaybeUninit::<Event>::uninit(); EVENTS_MAX];
        match epoll::wait(&self.0, &mut events, Some(&timeout)) {
            Ok((due, _)) => {
                due.iter().for_each(|event| each(event.data.u64()));
                Ok(due.len())
            }
            Err(Errno::INTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::eventfd;

    fn due(set: &Epoll) -> Vec<u64> {
        let mut keys = Vec::new();
        set.wait(Duration::ZERO, |key| keys.push(key)).expect("wait");
        keys
    }

    #[test]
    fn edges_come_once_for_each_signal_without_reading() {
        let set = Epoll::new().expect("epoll");
        let (edge, level) = (eventfd::create().expect("eventfd"), eventfd::create().expect("eventfd"));
        set.add(edge.as_fd(), 7, Trigger::Edge).expect("add");
        set.add(level.as_fd(), 8, Trigger::Level).expect("add");
        assert!(due(&set).is_empty());
        for _ in 0..3 {
            eventfd::signal(edge.as_fd()).expect("signal");
            assert_eq!(due(&set), [7]);
            assert!(due(&set).is_empty());
        }
        eventfd::signal(level.as_fd()).expect("signal");
        assert_eq!((due(&set), due(&set)), (vec![8], vec![8]));
        assert!(eventfd::clear(level.as_fd()).expect("clear"));
        assert!(!eventfd::clear(level.as_fd()).expect("clear"));
        assert!(due(&set).is_empty());
        set.remove(edge.as_fd()).expect("remove");
        eventfd::signal(edge.as_fd()).expect("signal");
        assert!(due(&set).is_empty());
    }
}
