//! The control socket, as the client uses it: blocking in slices, so that signals and death are seen.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll as poll_descriptors};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::{Poll, WAIT_SLICE, Waiting};
use crate::error::{Error, Result};
use crate::serve::protocol::{self, ClientMessage, PROTOCOL_VERSION, ServerMessage};
use crate::sys::socket::{receive, send};

/// Longest wait of an anchor for the sidecar's answer.
const ANCHOR_TIMEOUT: Duration = Duration::from_secs(10);

/// One connection to a sidecar.
#[derive(Debug)]
pub(super) struct Connection {
    socket: OwnedFd,
    received: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    /// The sidecar's process, 0 before the welcome.
    pub(super) sidecar_pid: u32,
}

impl Connection {
    /// Connects and exchanges hellos.
    pub(super) fn open(path: &Path, timeout: Duration, poll: &mut Poll<'_>) -> Result<Self> {
        let refused = |source: rustix::io::Errno| Error::SidecarExit {
            message: format!(
                "no sidecar answers at {}: {}; start one with `feedline serve --socket {}`",
                path.display(),
                io::Error::from(source),
                path.display()
            ),
        };
        let started = Instant::now();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(|source| Error::system("make a socket", source))?;
        let address = SocketAddrUnix::new(path).map_err(|_| {
            Error::config(format!("the socket path {} is longer than the system allows (107 bytes)", path.display()))
        })?;
        loop {
            match connect(&socket, &address) {
                Ok(()) => break,
                // The sidecar takes in nobody at the moment, and as many as the system lets wait do so already.
                Err(Errno::AGAIN | Errno::INTR) => {
                    let waited = started.elapsed();
                    if waited > timeout {
                        return Err(no_answer(waited, &Waiting::Connect));
                    }
                    poll(&Waiting::Connect, waited)?;
                    std::thread::sleep(WAIT_SLICE);
                }
                Err(source) => return Err(refused(source)),
            }
        }
        let mut connection = Self { socket, received: Vec::new(), descriptors: Vec::new(), sidecar_pid: 0 };
        let version = env!("CARGO_PKG_VERSION").to_owned();
        if let Err(error) = connection.send(&ClientMessage::Hello { protocol: PROTOCOL_VERSION, version }, &[]) {
            // Whoever refuses a client may be quicker than its hello; what it said then lies in the socket.
            return Err(match connection.try_receive() {
                Ok(Some(refusal)) => unexpected(refusal, "a welcome"),
                _ => error,
            });
        }
        match connection.wait(timeout, poll, &Waiting::Connect)? {
            ServerMessage::Welcome { protocol: PROTOCOL_VERSION, pid, .. } => connection.sidecar_pid = pid,
            ServerMessage::Welcome { protocol, version, .. } => {
                return Err(Error::protocol(format!(
                    "the sidecar is version {version} and speaks protocol {protocol}, this client speaks {PROTOCOL_VERSION}: \
                     install the same Feedline on both sides"
                )));
            }
            other => return Err(unexpected(other, "a welcome")),
        }
        Ok(connection)
    }

    /// Sends one message and the descriptors that belong to it.
    pub(super) fn send(&self, message: &ClientMessage, descriptors: &[OwnedFd]) -> Result<()> {
        let frame = protocol::encode(message)?;
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let mut sent = 0;
        while sent < frame.len() {
            let attached = if sent == 0 { borrowed.as_slice() } else { &[] };
            match send(self.socket.as_fd(), &frame[sent..], attached) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait_for(PollFlags::OUT, WAIT_SLICE)?,
                Err(error) => return Err(self.gone(Some(error))),
            }
        }
        Ok(())
    }

    /// The next message, waited for.
    pub(super) fn wait(&mut self, timeout: Duration, poll: &mut Poll<'_>, waiting: &Waiting) -> Result<ServerMessage> {
        let started = Instant::now();
        loop {
            if let Some(message) = self.try_receive()? {
                return Ok(message);
            }
            let waited = started.elapsed();
            if waited > timeout {
                return Err(no_answer(waited, waiting));
            }
            poll(waiting, waited)?;
            self.wait_for(PollFlags::IN, WAIT_SLICE)?;
        }
    }

    /// A message that has arrived, if any; an error when the sidecar is gone.
    pub(super) fn try_receive(&mut self) -> Result<Option<ServerMessage>> {
        loop {
            if let Some(message) = protocol::decode(&mut self.received)? {
                return Ok(Some(message));
            }
            let mut chunk = [0; 16384];
            match receive(self.socket.as_fd(), &mut chunk) {
                Ok(read) if read.bytes == 0 => return Err(self.gone(None)),
                Ok(read) => {
                    self.received.extend_from_slice(&chunk[..read.bytes]);
                    self.descriptors.extend(read.descriptors);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(self.gone(Some(error))),
            }
        }
    }

    /// The descriptors that came with the message just received. They ride on its first byte, so those of a whole
    /// message are there; those of messages behind it may be too.
    pub(super) fn take_descriptors<const N: usize>(&mut self) -> Result<[OwnedFd; N]> {
        let count = self.descriptors.len();
        if count < N {
            return Err(Error::protocol(format!("a message came with {count} descriptors, {N} belong to it")));
        }
        Ok(self.descriptors.drain(..N).collect::<Vec<_>>().try_into().expect("N of them"))
    }

    fn wait_for(&self, event: PollFlags, timeout: Duration) -> Result<()> {
        let timeout = Timespec::try_from(timeout).expect("a slice fits");
        let mut descriptors = [PollFd::new(&self.socket, event)];
        match poll_descriptors(&mut descriptors, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(source) => Err(Error::system("wait for the sidecar", source)),
        }
    }

    fn gone(&self, source: Option<io::Error>) -> Error {
        let reason = source.map_or_else(|| "it closed the connection".to_owned(), |source| source.to_string());
        Error::SidecarExit { message: format!("the sidecar (process {}) is gone: {reason}", self.sidecar_pid) }
    }
}

fn no_answer(waited: Duration, waiting: &Waiting) -> Error {
    Error::Stalled { message: format!("no answer within {:.1} s; waited for {waiting}", waited.as_secs_f64()) }
}

/// The error that a message stands for, or a complaint about a message out of place.
pub(super) fn unexpected(message: ServerMessage, expected: &str) -> Error {
    match message {
        ServerMessage::Failed { kind, message } => Error::Remote { kind, message },
        other => Error::protocol(format!("expected {expected}, got {other:?}")),
    }
}

/// A connection that keeps a private sidecar alive between streams.
#[derive(Debug)]
pub struct Anchor {
    connection: Connection,
}

impl Anchor {
    /// Connects to the sidecar that listens at `path`; `poll` runs between the slices of the wait.
    pub fn connect(path: &Path, poll: &mut Poll<'_>) -> Result<Self> {
        let connection = Connection::open(path, ANCHOR_TIMEOUT, poll)?;
        Ok(Self { connection })
    }

    /// The sidecar's process.
    pub fn sidecar_pid(&self) -> u32 {
        self.connection.sidecar_pid
    }

    /// Whether the sidecar still answers for this connection. It has nothing to say to it but that it ends.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.connection.try_receive(), Ok(None))
    }
}
