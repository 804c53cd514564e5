//! Socket activation: the listening socket that systemd (or whoever speaks its protocol) made before this process.
//!
//! `LISTEN_PID` names the process that the sockets are for and `LISTEN_FDS` how many there are, from descriptor 3 on; see
//! sd_listen_fds(3).

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketType, sockopt};

use crate::error::{Error, Result};
use crate::sys::inherited;

/// The first descriptor that is handed over.
const FIRST_DESCRIPTOR: i32 = 3;

/// A socket that was handed over.
#[derive(Debug)]
pub(super) struct Activated {
    pub(super) listener: UnixListener,
    pub(super) path: PathBuf,
}

/// The socket that this process was given, if any.
pub(super) fn take() -> Result<Option<Activated>> {
    let variable = |name| std::env::var(name).ok();
    let own = std::process::id();
    let count = sockets(variable("LISTEN_PID").as_deref(), variable("LISTEN_FDS").as_deref(), own)?;
    if count == 0 {
        return Ok(None);
    }
    let descriptor = inherited::take(FIRST_DESCRIPTOR)
        .map_err(|source| Error::system("take over descriptor 3, which LISTEN_FDS promises", source))?;
    check(&descriptor)?;
    let listener = UnixListener::from(descriptor);
    let address = listener.local_addr().map_err(|source| Error::system("ask where descriptor 3 listens", source))?;
    let path = address.as_pathname().map(Path::to_owned).ok_or_else(|| {
        Error::config(
            "the socket that this service was given has no path, so clients could not name it: set ListenStream= in the \
             socket unit to an absolute path",
        )
    })?;
    Ok(Some(Activated { listener, path }))
}

/// How many sockets are meant for process `own`: one or none.
fn sockets(pid: Option<&str>, count: Option<&str>, own: u32) -> Result<u32> {
    let (Some(pid), Some(count)) = (pid, count) else { return Ok(0) };
    // A parent's variables, which it did not clear: they are about its own descriptors.
    if pid.parse() != Ok(own) {
        return Ok(0);
    }
    match count.parse::<u32>() {
        Ok(count @ 0..=1) => Ok(count),
        Ok(count) => Err(Error::config(format!(
            "LISTEN_FDS={count}: this service listens on one socket; leave one ListenStream= in the socket unit"
        ))),
        Err(_) => Err(Error::config(format!("LISTEN_FDS={count:?} is no number of sockets"))),
    }
}

/// Whether clients can come through `socket`.
fn check(socket: &OwnedFd) -> Result<()> {
    let refuse = |found: &str| {
        Err(Error::config(format!(
            "descriptor 3, handed over by LISTEN_FDS, is {found}, and must be a listening AF_UNIX stream socket: use \
             ListenStream=/path with Accept=no in the socket unit"
        )))
    };
    match sockopt::socket_domain(socket) {
        Ok(AddressFamily::UNIX) => {}
        Ok(family) => return refuse(&format!("a socket of address family {}", family.as_raw())),
        Err(_) => return refuse("no socket"),
    }
    match sockopt::socket_type(socket) {
        Ok(SocketType::STREAM) => {}
        _ => return refuse("a Unix socket of another type"),
    }
    match sockopt::socket_acceptconn(socket) {
        Ok(true) => Ok(()),
        _ => refuse("a Unix stream socket that does not listen"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;

    #[test]
    fn the_variables_are_for_one_process_and_one_socket() {
        let check = |pid, count, expected: Option<u32>| {
            assert_eq!(sockets(pid, count, 42).ok(), expected, "{pid:?} {count:?}");
        };
        check(None, None, Some(0));
        check(Some("42"), None, Some(0));
        check(None, Some("1"), Some(0));
        check(Some("42"), Some("1"), Some(1));
        check(Some("42"), Some("0"), Some(0));
        check(Some("41"), Some("1"), Some(0));
        check(Some("x"), Some("1"), Some(0));
        check(Some("42"), Some("2"), None);
        check(Some("42"), Some("-1"), None);
        check(Some("42"), Some(""), None);
    }

    #[test]
    fn only_a_listening_unix_stream_socket_will_do() {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = UnixListener::bind(folder.path().join("s")).expect("bound");
        check(&listener.into()).expect("it is one");
        let refused = |descriptor: OwnedFd, word: &str| {
            let error = check(&descriptor).expect_err(word).to_string();
            assert!(error.contains(word) && error.contains("ListenStream="), "{error}");
        };
        refused(File::open("/dev/null").expect("there").into(), "no socket");
        refused(UnixStream::pair().expect("a pair").0.into(), "does not listen");
        refused(UnixDatagram::unbound().expect("made").into(), "another type");
        refused(std::net::TcpListener::bind("127.0.0.1:0").expect("bound").into(), "family 2");
    }
}
