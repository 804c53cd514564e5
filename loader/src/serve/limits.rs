//! How many clients may be connected, and how long one may say nothing.
//!
//! A connection costs the service a few descriptors and some memory, so both the sum and each user's share are bounded:
//! whatever one user does, the others find room.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::watch;

use crate::error::{Error, Result};

/// Bounds on connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most connections at a time.
    pub connections: u32,
    /// Most connections of one user; an equal share for each user that may connect when not given.
    pub connections_per_uid: Option<u32>,
    /// A client that has connected says hello within this time.
    pub hello_timeout: Duration,
    /// A client of a shared service that has no stream says something within this time.
    pub idle_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            connections_per_uid: None,
            hello_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
        }
    }
}

/// Descriptors that a connection with a stream takes: its socket, its process, its ring's signal and three on their way.
const DESCRIPTORS_PER_CONNECTION: u64 = 6;

/// Descriptors for everything else: shards, databases, the reader, logs.
const DESCRIPTORS_KEPT: u64 = 512;

impl Limits {
    /// The limits, where this process may open enough descriptors for them; fewer connections where it may not. Raises its
    /// own soft limit as far as the hard one lets it.
    pub(super) fn within_descriptors(self) -> Self {
        let wanted = u64::from(self.connections) * DESCRIPTORS_PER_CONNECTION + DESCRIPTORS_KEPT;
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        // No number is no limit.
        let mut allowed = current.unwrap_or(u64::MAX);
        let raised = maximum.unwrap_or(u64::MAX).min(wanted);
        if allowed < raised && setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum }).is_ok() {
            allowed = raised;
        }
        let fitting = self.fitting(allowed);
        if fitting.connections < self.connections {
            tracing::warn!(
                "at most {} connections instead of {}, as this process may open {allowed} files: raise its limit (ulimit \
                 -n, LimitNOFILE=) to {wanted}",
                fitting.connections,
                self.connections
            );
        }
        fitting
    }

    fn fitting(self, descriptors: u64) -> Self {
        let room = descriptors.saturating_sub(DESCRIPTORS_KEPT.min(descriptors / 2)) / DESCRIPTORS_PER_CONNECTION;
        let connections = self.connections.min(u32::try_from(room).unwrap_or(u32::MAX)).max(1);
        Self { connections, ..self }
    }
}

/// The connected clients, by user.
#[derive(Debug)]
pub(super) struct Admissions {
    limits: Limits,
    per_uid: u32,
    state: Mutex<State>,
    /// Number of connected clients.
    count: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct State {
    by_uid: BTreeMap<u32, u32>,
    refused: u64,
}

/// A client's place; dropped, it is free again.
#[derive(Debug)]
pub(super) struct Admission {
    admissions: Arc<Admissions>,
    uid: u32,
}

impl Admissions {
    /// For `users` users that may connect.
    pub(super) fn new(limits: Limits, users: usize) -> Arc<Self> {
        let share = limits.connections / u32::try_from(users.max(1)).unwrap_or(u32::MAX);
        let per_uid = limits.connections_per_uid.unwrap_or(share).clamp(1, limits.connections.max(1));
        let (count, _) = watch::channel(0);
        Arc::new(Self { limits, per_uid, state: Mutex::default(), count })
    }

    /// A place for a client of user `uid`, if there is one.
    pub(super) fn admit(self: &Arc<Self>, uid: u32) -> Result<Admission> {
        let mut state = self.lock();
        let open: u32 = state.by_uid.values().sum();
        let own = state.by_uid.get(&uid).copied().unwrap_or(0);
        let (have, limit, whose, option) = if own >= self.per_uid {
            (own, self.per_uid, format!("of uid {uid} "), "--connections-per-uid")
        } else {
            (open, self.limits.connections, String::new(), "--connections")
        };
        if have >= limit {
            state.refused += 1;
            // The first, then ever fewer: a flood must not fill the log.
            if state.refused.is_power_of_two() {
                tracing::warn!("refused {} connections so far, now one of uid {uid}: {have} are open", state.refused);
            }
            return Err(Error::Resources {
                message: format!(
                    "this sidecar has {have} connections {whose}open and takes no more than {limit}: close loaders that are \
                     not in use, or ask its operator for a larger {option}"
                ),
            });
        }
        *state.by_uid.entry(uid).or_insert(0) += 1;
        self.count.send_modify(|count| *count += 1);
        Ok(Admission { admissions: self.clone(), uid })
    }

    /// Follows the number of connected clients.
    pub(super) fn subscribe(&self) -> watch::Receiver<usize> {
        self.count.subscribe()
    }

    /// The number of connected clients, most of them at a time, and how many were refused.
    pub(super) fn counts(&self) -> (u32, u32, u64) {
        let state = self.lock();
        (state.by_uid.values().sum(), self.limits.connections, state.refused)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let mut state = self.admissions.lock();
        if let Some(own) = state.by_uid.get_mut(&self.uid) {
            *own -= 1;
            if *own == 0 {
                state.by_uid.remove(&self.uid);
            }
        }
        self.admissions.count.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(connections: u32, connections_per_uid: Option<u32>) -> Limits {
        Limits { connections, connections_per_uid, ..Limits::default() }
    }

    #[test]
    fn one_user_leaves_room_for_the_others() {
        let check = |connections, per_uid, users, of_one| {
            let admissions = Admissions::new(limits(connections, per_uid), users);
            let flood: Vec<_> = (0..2 * connections).filter_map(|_| admissions.admit(7).ok()).collect();
            assert_eq!(flood.len(), of_one, "{connections} {per_uid:?} {users}");
            let refused = admissions.admit(7).expect_err("full").to_string();
            assert!(refused.contains(&format!("no more than {of_one}")), "{refused}");
            assert_eq!(admissions.admit(8).is_ok(), of_one < connections as usize);
            drop(flood);
            assert_eq!(admissions.counts().0, 0);
            assert!(admissions.admit(7).is_ok(), "there is room again");
        };
        check(8, None, 1, 8);
        check(8, None, 2, 4);
        check(8, Some(3), 1, 3);
        check(8, Some(100), 2, 8);
        check(2, None, 5, 1);
    }

    #[test]
    fn the_sum_is_bounded_and_counted() {
        let admissions = Admissions::new(limits(4, Some(3)), 1);
        let mut count = admissions.subscribe();
        let places: Vec<_> = [1, 1, 1, 2].iter().map(|uid| admissions.admit(*uid).expect("room")).collect();
        let refused = admissions.admit(3).expect_err("full").to_string();
        assert!(refused.contains("4 connections open") && refused.ends_with("--connections"), "{refused}");
        assert_eq!(admissions.counts(), (4, 4, 1));
        assert_eq!(*count.borrow_and_update(), 4);
        drop(places);
        assert_eq!(*count.borrow_and_update(), 0);
    }

    #[test]
    fn connections_fit_the_descriptors() {
        let check = |descriptors, expected| {
            assert_eq!(limits(1024, None).fitting(descriptors).connections, expected, "{descriptors}");
        };
        check(u64::MAX, 1024);
        check(1 << 20, 1024);
        check(512 + 6 * 100, 100);
        check(512 + 6 * 1000, 1000);
        check(256, 21);
        check(3, 1);
    }
}
