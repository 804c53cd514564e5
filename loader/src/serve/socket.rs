//! The socket that a sidecar listens on.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

use super::{ServeOptions, activation};
use crate::error::{Error, Result};

/// A socket that clients come to.
#[derive(Debug)]
pub(super) struct Listening {
    pub(super) listener: UnixListener,
    pub(super) path: PathBuf,
    /// Its file, where it is this process's; otherwise the socket is there before it and after it.
    pub(super) file: Option<SocketFile>,
}

/// The socket's file; it goes when the sidecar ends in order.
#[derive(Debug)]
pub(super) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Listens where the options say, or where the service manager does already.
pub(super) fn listen(options: &ServeOptions) -> Result<Listening> {
    let activated = if options.private { None } else { activation::take()? };
    let Some(activated) = activated else {
        let path = options.socket.clone().ok_or_else(|| {
            Error::config(
                "no socket to listen on: pass --socket PATH, write socket = \"PATH\" into the file that --config names, or \
                 start this service from a systemd socket unit",
            )
        })?;
        let (listener, file) = listen_at(&path, !options.allow_uids.is_empty())?;
        return Ok(Listening { listener, path, file: Some(file) });
    };
    let path = activated.path;
    if let Some(named) = options.socket.as_ref().filter(|named| !is_same(named, &path)) {
        return Err(Error::config(format!(
            "the service manager listens at {}, and the options say {}: leave the socket out of one of them",
            path.display(),
            named.display()
        )));
    }
    let listener = activated.listener.set_nonblocking(true).and_then(|()| UnixListener::from_std(activated.listener));
    let listener = listener.map_err(|source| Error::io("listen at", &path, source))?;
    Ok(Listening { listener, path, file: None })
}

fn is_same(left: &Path, right: &Path) -> bool {
    left == right
        || std::fs::canonicalize(left).is_ok_and(|left| std::fs::canonicalize(right).is_ok_and(|right| left == right))
}

/// Listens at `path`, for its owner only, or for everyone who is then asked for a user id that is allowed. A socket that a dead sidecar left behind is replaced; a living one's is not.
fn listen_at(path: &Path, for_others: bool) -> Result<(UnixListener, SocketFile)> {
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            return Err(Error::config(format!("{} exists and is no socket: choose another path", path.display())));
        }
        if UnixStream::connect(path).is_ok() {
            return Err(Error::config(format!(
                "a sidecar listens at {} already: use it, or choose another path",
                path.display()
            )));
        }
        std::fs::remove_file(path).map_err(|source| Error::io("remove the stale socket", path, source))?;
    }
    let listener = UnixListener::bind(path).map_err(|source| Error::io("listen at", path, source))?;
    let file = SocketFile(path.to_owned());
    // Whoever connects before this line is refused by uid all the same.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(if for_others { 0o666 } else { 0o600 }))
        .map_err(|source| Error::io("restrict", path, source))?;
    Ok((listener, file))
}
