//! Words to the service manager: ready, status, stopping, and the watchdog's sign of life.
//!
//! The protocol is a datagram of `KEY=value` lines to the socket in `NOTIFY_SOCKET`; see sd_notify(3). Nobody waits for
//! an answer, and a manager that is gone is no failure of the service.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The service manager, if there is one.
#[derive(Debug)]
pub(super) struct Notifier {
    manager: Option<(UnixDatagram, SocketAddr)>,
    /// How often it wants to hear from a healthy service at the least.
    watchdog: Option<Duration>,
}

impl Notifier {
    /// Nobody.
    pub(super) fn none() -> Self {
        Self { manager: None, watchdog: None }
    }

    /// The one that the environment names.
    pub(super) fn from_environment() -> Self {
        let Some(address) = std::env::var_os("NOTIFY_SOCKET") else { return Self::none() };
        let variable = |name| std::env::var(name).ok();
        let watchdog =
            watchdog(variable("WATCHDOG_USEC").as_deref(), variable("WATCHDOG_PID").as_deref(), std::process::id());
        match connect(&address) {
            Ok(manager) => Self { manager: Some(manager), watchdog },
            Err(error) => {
                tracing::warn!(
                    "the service manager hears nothing of this service, as NOTIFY_SOCKET={} cannot be used: {error}",
                    address.display()
                );
                Self::none()
            }
        }
    }

    /// How often to say [`Notifier::alive`], if at all: twice in the manager's interval.
    pub(super) fn pulse_interval(&self) -> Option<Duration> {
        self.watchdog.map(|interval| interval / 2)
    }

    /// Whether anybody listens.
    pub(super) fn is_heard(&self) -> bool {
        self.manager.is_some()
    }

    /// Clients may come.
    pub(super) fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nMAINPID={}\nSTATUS={}", std::process::id(), one_line(status)));
    }

    /// What the service does, for people.
    pub(super) fn status(&self, status: &str) {
        self.send(&format!("STATUS={}", one_line(status)));
    }

    /// The service is about to end, and takes no longer than `timeout` for it.
    pub(super) fn stopping(&self, status: &str, timeout: Duration) {
        let extend = timeout.as_micros();
        self.send(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={extend}\nSTATUS={}", one_line(status)));
    }

    /// Nothing is stuck.
    pub(super) fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    fn send(&self, words: &str) {
        let Some((socket, address)) = &self.manager else { return };
        if let Err(error) = socket.send_to_addr(words.as_bytes(), address) {
            tracing::debug!("the service manager was not told {words:?}: {error}");
        }
    }
}

/// A status is one line of the datagram.
fn one_line(text: &str) -> String {
    text.replace('\n', " ")
}

fn connect(address: &OsStr) -> std::io::Result<(UnixDatagram, SocketAddr)> {
    let address = match address.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        [b'/', ..] => SocketAddr::from_pathname(address)?,
        _ => return Err(std::io::Error::other("neither an absolute path nor an abstract name (@…)")),
    };
    let socket = UnixDatagram::unbound()?;
    // A manager that does not read must not stop the control plane.
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

/// The manager's interval, where it is meant for process `own`.
fn watchdog(interval_us: Option<&str>, pid: Option<&str>, own: u32) -> Option<Duration> {
    if pid.is_some_and(|pid| pid.parse() != Ok(own)) {
        return None;
    }
    let interval_us: u64 = interval_us?.parse().ok()?;
    (interval_us > 0).then(|| Duration::from_micros(interval_us))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_is_for_this_process() {
        let check = |interval, pid, expected: Option<u64>| {
            assert_eq!(watchdog(interval, pid, 42), expected.map(Duration::from_secs), "{interval:?} {pid:?}");
        };
        check(Some("30000000"), None, Some(30));
        check(Some("30000000"), Some("42"), Some(30));
        check(Some("30000000"), Some("41"), None);
        check(Some("0"), None, None);
        check(Some("soon"), None, None);
        check(None, Some("42"), None);
    }

    fn told(receiver: &UnixDatagram) -> String {
        let mut bytes = [0; 512];
        let count = receiver.recv(&mut bytes).expect("a datagram");
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    }

    #[test]
    fn words_reach_a_path_and_an_abstract_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notify");
        let name = format!("feedline-test-{}", std::process::id());
        let abstract_address = SocketAddr::from_abstract_name(&name).expect("short");
        let listeners = [
            (UnixDatagram::bind(&path).expect("bound"), path.into_os_string()),
            (UnixDatagram::bind_addr(&abstract_address).expect("bound"), format!("@{name}").into()),
        ];
        for (receiver, address) in listeners {
            let manager = Some(connect(&address).expect("an address"));
            let notifier = Notifier { manager, watchdog: Some(Duration::from_secs(8)) };
            assert_eq!(notifier.pulse_interval(), Some(Duration::from_secs(4)));
            notifier.ready("two\nlines");
            let ready = told(&receiver);
            assert!(ready.starts_with("READY=1\n") && ready.ends_with("\nSTATUS=two lines"), "{ready}");
            notifier.stopping("draining", Duration::from_secs(30));
            assert_eq!(told(&receiver), "STOPPING=1\nEXTEND_TIMEOUT_USEC=30000000\nSTATUS=draining");
            notifier.alive();
            assert_eq!(told(&receiver), "WATCHDOG=1");
            drop(receiver);
            notifier.status("nobody listens any more");
        }
        assert!(connect(OsStr::new("vsock:2:9")).is_err());
        Notifier::none().alive();
    }
}
