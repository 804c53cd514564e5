//! Asks a sidecar what it does.

use std::path::Path;
use std::time::Duration;

use super::connection::{Connection, unexpected};
use super::{Poll, Waiting};
use crate::error::Result;
use crate::serve::protocol::{ClientMessage, ServerMessage};
use crate::serve::status::ServiceStatus;

/// What the sidecar that listens at `socket` does at this moment.
///
/// # Errors
/// [`Error::SidecarExit`](crate::Error::SidecarExit) where none listens, [`Error::Stalled`](crate::Error::Stalled) after
/// `timeout` without an answer.
pub fn status(socket: &Path, timeout: Duration, poll: &mut Poll<'_>) -> Result<ServiceStatus> {
    let mut connection = Connection::open(socket, timeout, poll)?;
    connection.send(&ClientMessage::Status, &[])?;
    match connection.wait(timeout, poll, &Waiting::Status)? {
        ServerMessage::Status { status } => Ok(*status),
        other => Err(unexpected(other, "the sidecar's status")),
    }
}
