//! A descriptor that becomes readable when somebody has something to say.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::EventfdFlags;
use rustix::io::Errno;

/// A new one, silent, non-blocking, closed on exec.
pub fn create() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Makes it readable. A full counter is readable already, so that is no error.
pub fn signal(event: BorrowedFd<'_>) -> io::Result<()> {
    match rustix::io::retry_on_intr(|| rustix::io::write(event, &1_u64.to_ne_bytes())) {
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Makes it silent again; true if it had been readable.
///
/// Only for an eventfd that no other process holds: whoever shares it can make this call block.
pub fn clear(event: BorrowedFd<'_>) -> io::Result<bool> {
    let mut count = [0_u8; 8];
    match rustix::io::retry_on_intr(|| rustix::io::read(event, &mut count)) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
