//! The socket that a sidecar listens on.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

use crate::error::{Error, Result};

/// The socket's file; it goes when the sidecar ends in order.
#[derive(Debug)]
pub(super) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Listens at `path`, for its owner only. A socket that a dead sidecar left behind is replaced; a living one's is not.
pub(super) fn listen(path: &Path) -> Result<(UnixListener, SocketFile)> {
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
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
        .map_err(|source| Error::io("restrict", path, source))?;
    Ok((listener, file))
}
