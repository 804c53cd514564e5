//! Unix sockets: bytes with descriptors, and who is at the other end.
//!
//! Nothing here blocks by itself or retries: on a non-blocking socket the error is `WouldBlock`, and the caller's
//! event loop does the waiting.
#![expect(unsafe_code, reason = "socket options that rustix has not, or cannot represent")]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::cmsg_space;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

/// Most descriptors that travel with one message.
pub const DESCRIPTORS_MAX: usize = 4;

/// What one receive brought.
#[derive(Debug)]
pub struct Received {
    /// Bytes at the start of the buffer; 0 is the end of the stream.
    pub bytes: usize,
    /// The descriptors that came with them, closed on exec.
    pub descriptors: Vec<OwnedFd>,
}

/// Sends some first part of `bytes`, all `descriptors` with its first byte; returns how many bytes went.
///
/// The caller sends the rest without descriptors.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    if descriptors.len() > DESCRIPTORS_MAX || (bytes.is_empty() && !descriptors.is_empty()) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "a message carries at most {DESCRIPTORS_MAX} descriptors, and those with at least one byte; got {} with \
                 {} bytes",
                descriptors.len(),
                bytes.len()
            ),
        ));
    }
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let pushed = ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(pushed, "the buffer has room for DESCRIPTORS_MAX");
    }
    // No SIGPIPE: a peer that is gone is an ordinary error.
    Ok(rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?)
}

/// Receives what is there, at most `buffer`.
///
/// More than [`DESCRIPTORS_MAX`] descriptors with one message are an error of the peer; all of them are closed.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let message =
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    // Collected before anything is judged: what is dropped here is closed.
    let mut descriptors = Vec::new();
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            descriptors.extend(received);
        }
    }
    if descriptors.len() > DESCRIPTORS_MAX || message.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("more than {DESCRIPTORS_MAX} descriptors in one message"),
        ));
    }
    Ok(Received { bytes: message.bytes, descriptors })
}

/// Who is at the other end, as it was when the connection was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its process id in our pid namespace; `None` when it has none there.
    pub pid: Option<i32>,
    /// Its effective user id in our user namespace (65534 when it has none there).
    pub uid: u32,
}

/// Asks the kernel who connected.
pub fn peer(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    // Not rustix's: its pid type has no 0, which is what the kernel says of a foreign pid namespace.
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    socket_option(socket, libc::SO_PEERCRED, &mut credentials)?;
    Ok(Peer { pid: (credentials.pid > 0).then_some(credentials.pid), uid: credentials.uid })
}

/// A descriptor that becomes readable when the peer's process ends; `None` where the kernel gives none.
///
/// `SO_PEERPIDFD` (Linux 6.5) names the very process that connected. Before that the pid is opened, which can hit
/// another process if the first has already ended and its number was given again: the end of the socket stays the
/// authority, this is only the quicker word.
pub fn peer_pidfd(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    let mut descriptor: libc::c_int = -1;
    if socket_option(socket, libc::SO_PEERPIDFD, &mut descriptor).is_ok() && descriptor >= 0 {
        // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
        return Some(unsafe { OwnedFd::from_raw_fd(descriptor) });
    }
    let pid = rustix::process::Pid::from_raw(peer(socket).ok()?.pid?)?;
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
}

/// A plain C value that the kernel fills.
trait OptionValue: Copy {}
impl OptionValue for libc::ucred {}
impl OptionValue for libc::c_int {}

fn socket_option<T: OptionValue>(socket: BorrowedFd<'_>, name: libc::c_int, value: &mut T) -> io::Result<()> {
    let mut bytes = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` into `value`, whose type has no invalid bit patterns.
    let status = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            std::ptr::from_mut(value).cast(),
            &raw mut bytes,
        )
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::sys::eventfd;

    #[test]
    fn descriptors_arrive_with_their_bytes() {
        let (near, far) = UnixStream::pair().expect("pair");
        let event = eventfd::create().expect("eventfd");
        let descriptors = [event.as_fd(), near.as_fd(), event.as_fd(), near.as_fd()];
        assert_eq!(send(near.as_fd(), b"four", &descriptors).expect("send"), 4);
        assert_eq!(send(near.as_fd(), b"none", &[]).expect("send"), 4);
        let mut buffer = [0; 64];
        let received = receive(far.as_fd(), &mut buffer).expect("receive");
        assert_eq!((&buffer[..received.bytes], received.descriptors.len()), (&b"four"[..], 4));
        let rest = receive(far.as_fd(), &mut [0; 64]).expect("receive");
        assert_eq!((rest.bytes, rest.descriptors.len()), (4, 0));
        for descriptor in &received.descriptors {
            let flags = rustix::io::fcntl_getfd(descriptor).expect("flags");
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
        eventfd::signal(received.descriptors[0].as_fd()).expect("signal");
        assert!(eventfd::clear(event.as_fd()).expect("clear"), "the received descriptor is the one sent");
    }

    #[test]
    fn too_many_descriptors_are_refused_and_closed() {
        let (near, far) = UnixStream::pair().expect("pair");
        let event = eventfd::create().expect("eventfd");
        let many = [event.as_fd(); 32];
        assert!(send(near.as_fd(), b"x", &many[..5]).is_err());
        assert!(send(near.as_fd(), b"", &many[..1]).is_err());
        // A peer that does not keep to it.
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(32))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&many)));
        rustix::net::sendmsg(&near, &[IoSlice::new(b"x")], &mut ancillary, SendFlags::empty()).expect("send");
        let error = receive(far.as_fd(), &mut [0; 8]).expect_err("32 descriptors");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        // The other end of a pipe says whether any copy is still open.
        let (reader, writer) = std::io::pipe().expect("pipe");
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let copies = [writer.as_fd(); 32];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&copies)));
        rustix::net::sendmsg(&near, &[IoSlice::new(b"x")], &mut ancillary, SendFlags::empty()).expect("send");
        drop(writer);
        receive(far.as_fd(), &mut [0; 8]).expect_err("32 descriptors");
        let mut rest = Vec::new();
        io::Read::read_to_end(&mut &reader, &mut rest).expect("ends only when no writer is left");
    }

    #[test]
    fn the_end_and_a_lost_peer() {
        let (mut near, far) = UnixStream::pair().expect("pair");
        near.write_all(b"last").expect("write");
        drop(near);
        let mut buffer = [0; 8];
        assert_eq!(receive(far.as_fd(), &mut buffer).expect("receive").bytes, 4);
        assert_eq!(receive(far.as_fd(), &mut buffer).expect("receive").bytes, 0);
        assert_eq!(send(far.as_fd(), b"x", &[]).expect_err("nobody").kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn the_peer_is_this_process() {
        let (near, _far) = UnixStream::pair().expect("pair");
        let peer = peer(near.as_fd()).expect("credentials");
        assert_eq!(peer.pid, i32::try_from(std::process::id()).ok());
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        if peer_pidfd(near.as_fd()).is_none() {
            eprintln!("skipped: this kernel gives no pidfd");
        }
    }
}
