//! Waiting for a descriptor inside the control plane's event loop.
#![expect(unsafe_code, reason = "tokio asks for a promise about the descriptor")]

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers `descriptor` with the running event loop, to be waited for until it is readable.
pub fn readable(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` names one open descriptor for as long as it lives and cannot be exchanged behind the
    // `AsyncFd` that owns it.
    unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }.map_err(io::Error::from)
}
