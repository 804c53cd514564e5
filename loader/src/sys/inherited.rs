//! Descriptors that whoever started this process left open for it.
#![expect(unsafe_code, reason = "a number becomes a descriptor with an owner")]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Mutex;

/// Numbers that have been taken.
static TAKEN: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

/// Takes over descriptor `number`, which the caller knows to be meant for this process and for nobody else in it; from now
/// on it is closed on exec. A number can be taken once.
pub fn take(number: RawFd) -> io::Result<OwnedFd> {
    let mut taken = TAKEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if taken.contains(&number) {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("descriptor {number} was taken over before")));
    }
    // SAFETY: a call that only looks at a number, and fails where it names no open descriptor.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    taken.push(number);
    // SAFETY:
    // - it is open, as was just seen;
    // - it was open when the process started, so nothing in it that opens descriptors got this number, and by the
    //   caller's word nobody else uses it; the list above keeps a second owner from being made here.
    let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC)?;
    Ok(descriptor)
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, IntoRawFd};

    use super::*;

    #[test]
    fn a_descriptor_is_taken_once_and_must_be_open() {
        let (socket, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let number = socket.into_raw_fd();
        let taken = take(number).expect("open");
        assert_eq!(taken.as_raw_fd(), number);
        assert!(rustix::io::fcntl_getfd(&taken).expect("open").contains(rustix::io::FdFlags::CLOEXEC));
        assert_eq!(take(number).expect_err("taken").kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(take(1 << 20).expect_err("not open").raw_os_error(), Some(libc::EBADF));
    }
}
