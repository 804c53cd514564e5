//! The orderly end: what is begun is finished and handed over, nothing else begins, then the service goes.
//!
//! A client needs nothing more of a service whose batches are published: they lie in memory that the client maps. So the
//! service is done with a stream once its open batches are finished and the client has been told which is the last.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::Service;
use crate::error::{Error, Result};

/// How long a drain may take where nobody says otherwise.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest drain of a private sidecar: its trainer is likely to be ending too.
const PRIVATE_DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// The signals that end a service.
pub(super) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// From now on they no longer kill.
    pub(super) fn listen() -> Result<Self> {
        let listen = |kind| signal(kind).map_err(|source| Error::system("listen for signals", source));
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    /// Waits for the next; its name.
    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// How far the end has come, for everyone in the service.
#[derive(Debug)]
pub(super) struct Drain {
    reason: watch::Sender<Option<&'static str>>,
    /// Connections that were there before the end, and have something to get yet: batches, or the word that it ends.
    work: watch::Sender<usize>,
}

/// A connection that the end waits for; dropped, it does no longer.
#[derive(Debug)]
pub(super) struct Work(Arc<Service>);

impl Drop for Work {
    fn drop(&mut self) {
        self.0.drain.work.send_modify(|count| *count -= 1);
    }
}

impl Drain {
    pub(super) fn new() -> Self {
        Self { reason: watch::channel(None).0, work: watch::channel(0).0 }
    }

    /// Why the service ends, once it does.
    pub(super) fn reason(&self) -> Option<&'static str> {
        *self.reason.borrow()
    }

    /// Returns when the end begins.
    pub(super) fn begins(&self) -> impl Future<Output = ()> + use<> {
        let mut reason = self.reason.subscribe();
        // The sender lives as long as the service, so waiting cannot fail.
        async move { drop(reason.wait_for(Option::is_some).await) }
    }
}

impl Service {
    /// The end will wait for this.
    pub(super) fn begin_work(self: &Arc<Self>) -> Work {
        self.drain.work.send_modify(|count| *count += 1);
        Work(self.clone())
    }

    /// What a client is told that comes too late.
    pub(super) fn refusal_at_end(&self, reason: &str) -> Error {
        let again = if self.options.private { "a new iteration starts one again" } else { "start it again" };
        Error::SidecarExit {
            message: format!(
                "the sidecar at {} is shutting down ({reason}) and opens no stream: {again}",
                self.socket.display()
            ),
        }
    }
}

/// Finishes what is begun, unless a second signal or the time-out comes first. `listener` goes on taking in clients, to
/// tell them; a listener that outlives the service keeps them for the next one instead.
pub(super) async fn drain(
    service: &Arc<Service>,
    reason: &'static str,
    listener: Option<&UnixListener>,
    signals: &mut StopSignals,
) {
    let timeout = service.options.drain_timeout;
    let timeout = if service.options.private { timeout.min(PRIVATE_DRAIN_TIMEOUT) } else { timeout };
    let streams = service.streams.streams().len();
    tracing::info!("{reason}: finishing the open batches of {streams} streams, for at most {:.0?}", timeout);
    service.notifier.stopping(&format!("draining {streams} streams"), timeout);
    service.drain.reason.send_replace(Some(reason));
    service.pipeline.drain();
    let mut work = service.drain.work.subscribe();
    let refuse_others = async {
        match listener {
            Some(listener) => super::accept(listener, service).await,
            None => std::future::pending().await,
        }
    };
    let cut_by = tokio::select! {
        _ = work.wait_for(|count| *count == 0) => None,
        () = refuse_others => None,
        again = signals.next() => Some(format!("a second signal ({again})")),
        () = tokio::time::sleep(timeout) => Some(format!("the drain's time-out of {timeout:.0?}")),
    };
    let Some(cut) = cut_by else { return tracing::info!("every open batch is finished") };
    tracing::warn!(
        "{cut} ends the service with {} connections that had batches to get; their trainers resume before those",
        *service.drain.work.borrow()
    );
    // What has not ended by now may never do.
    service.pipeline.abandon();
}
