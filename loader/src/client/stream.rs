//! A stream of batches from one sidecar.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connection::{Connection, unexpected};
use super::{Lease, Poll, WAIT_SLICE, Waiting};
use crate::error::{Error, Result};
use crate::ring::{BatchStatus, BatchTicket, HeldSlot, RingDescriptors, RingReader};
use crate::serve::protocol::{ClientMessage, ServerMessage, StreamInfo};
use crate::spec::JobSpec;
use crate::sys::memfd;
use crate::telemetry::{ClientFigures, StreamFigures, Summary};

/// Lists that are too long for the job spec; they travel as memory.
#[derive(Debug, Default, Clone, Copy)]
pub struct Attachments<'a> {
    /// Sample numbers of a subset, in the order in which an unshuffled epoch takes them.
    pub indices: Option<&'a [u64]>,
    /// One weight a sample; an epoch then draws with replacement.
    pub weights: Option<&'a [f64]>,
    /// Samples to leave out, as JSON lines; the spec has the list's hash.
    pub quarantine: Option<&'a [u8]>,
}

/// An open stream: one ring, one rank, epoch after epoch.
#[derive(Debug)]
pub struct Stream {
    /// Where the sidecar listens, for messages.
    socket: PathBuf,
    connection: Connection,
    ring: Arc<RingReader>,
    info: StreamInfo,
    cursor: Cursor,
    window: Window,
    failure: Option<(crate::error::ErrorKind, String)>,
    /// Why the sidecar shuts down, and the first batch that it does not finish.
    ending: Option<(String, BatchTicket)>,
    spills: Spills,
    /// A batch whose spilled values had not come when a call ended early; the next call goes on with it.
    taken: Option<HeldSlot>,
    /// The process that opened it: a forked child may not use it.
    pid: u32,
}

/// Where the stream stands.
#[derive(Debug)]
struct Cursor {
    generation: u32,
    /// Number of the next batch since the last seek, over all epochs.
    sequence: u64,
    epoch: u64,
    /// Global position that a resume of this epoch would start from.
    position: u64,
    /// Number of the next batch of this epoch.
    batch: u64,
    /// Batches of this epoch from where it was started.
    batches: u64,
}

/// What is measured since the last summary.
#[derive(Debug)]
struct Window {
    started: Instant,
    client: ClientFigures,
    base: StreamFigures,
}

impl Stream {
    /// Opens a stream at the sidecar that listens at `socket`, for `spec`. It stands at the start of epoch 0.
    ///
    /// # Errors
    /// [`Error::SidecarExit`] where none listens; [`Error::Remote`] with the sidecar's words when the job cannot be;
    /// [`Error::Stalled`] after `timeout` without progress of the index.
    pub fn open(
        socket: &Path,
        spec: &JobSpec,
        attachments: Attachments<'_>,
        timeout: Duration,
        poll: &mut Poll<'_>,
    ) -> Result<Self> {
        spec.check()?;
        let mut connection = Connection::open(socket, timeout, poll)?;
        let mut descriptors = Vec::new();
        let indices =
            attach(&mut descriptors, attachments.indices.map(|list| list.iter().map(|index| index.to_le_bytes())))?;
        let weights =
            attach(&mut descriptors, attachments.weights.map(|list| list.iter().map(|weight| weight.to_le_bytes())))?;
        let quarantine = attach(&mut descriptors, attachments.quarantine.map(|list| list.iter().map(|byte| [*byte])))?;
        let open = ClientMessage::Open { spec: Box::new(spec.clone()), indices, weights, quarantine };
        connection.send(&open, &descriptors)?;
        let info = wait_opened(&mut connection, timeout, poll)?;
        let map = if info.ring_name.is_some() { RingReader::map_named } else { RingReader::map };
        let ring = map(descriptors_of(&mut connection)?, &info.layout, info.slot_count)?;
        let cursor =
            Cursor { generation: 0, sequence: 0, epoch: 0, position: 0, batch: 0, batches: info.batches_per_epoch };
        let window =
            Window { started: Instant::now(), client: ClientFigures::default(), base: StreamFigures::default() };
        let (spills, pid) = (Spills::default(), std::process::id());
        let socket = socket.to_owned();
        Ok(Self {
            socket,
            connection,
            ring,
            info,
            cursor,
            window,
            failure: None,
            ending: None,
            spills,
            taken: None,
            pid,
        })
    }

    /// What the sidecar said of the stream.
    pub fn info(&self) -> &StreamInfo {
        &self.info
    }

    /// Epoch and global position that a resume would start from.
    pub fn position(&self) -> (u64, u64) {
        (self.cursor.epoch, self.cursor.position)
    }

    /// The stream's ring.
    pub fn ring(&self) -> &Arc<RingReader> {
        &self.ring
    }

    /// Whether a batch is there that [`Stream::next`] would lend without a wait.
    pub fn has_ready(&mut self) -> Result<bool> {
        self.check_process()?;
        if self.taken.is_none() && self.cursor.batch < self.cursor.batches {
            self.taken = self.ring.take(self.ticket()?)?;
        }
        Ok(self.taken.is_some())
    }

    /// Slots that tensors of this process hold.
    pub fn slots_held(&self) -> u32 {
        self.ring.slots_held()
    }

    /// Delivers `epoch` from global `position` on. Nothing is sent when the stream already stands there, so that
    /// batches which were prefetched across the border of an epoch are used.
    pub fn seek(&mut self, epoch: u64, position: u64) -> Result<()> {
        self.check_process()?;
        if position > self.info.epoch_positions {
            return Err(Error::config(format!(
                "position {position} is past the end of an epoch of {} samples",
                self.info.epoch_positions
            )));
        }
        if self.cursor.epoch == epoch && self.cursor.position == position {
            return Ok(());
        }
        let generation =
            self.cursor.generation.checked_add(1).ok_or_else(|| Error::config("too many seeks of one stream"))?;
        if let Err(error) = self.connection.send(&ClientMessage::Seek { generation, epoch, position }, &[]) {
            // It may have said why it went.
            self.check_failure()?;
            return Err(error);
        }
        let batches = self.info.batches_from(position);
        self.cursor = Cursor { generation, sequence: 0, epoch, position, batch: 0, batches };
        self.taken = None;
        self.spills = Spills::default();
        Ok(())
    }

    /// Waits until the sidecar has begun what the last seek asked for: from then on a named ring shows those who read it
    /// no older stream.
    pub fn settle(&mut self, timeout: Duration, poll: &mut Poll<'_>) -> Result<()> {
        self.check_process()?;
        let started = Instant::now();
        loop {
            let signal = self.ring.signal();
            if self.ring.generation() == self.cursor.generation {
                return Ok(());
            }
            self.check_failure()?;
            let (waited, waiting) = (started.elapsed(), self.waiting());
            if waited > timeout {
                return Err(Error::Stalled {
                    message: format!("no seek within {:.1} s; waited for {waiting}", waited.as_secs_f64()),
                });
            }
            poll(&waiting, waited)?;
            self.ring.wait(signal, WAIT_SLICE)?;
        }
    }

    /// Borrows the next batch; `None` at the end of the epoch, after which the next call starts the following one.
    ///
    /// # Errors
    /// [`Error::Stalled`] after `timeout` without a batch, [`Error::SidecarExit`] when the sidecar is gone,
    /// [`Error::Sample`] when the batch holds a bad sample and the job's rule is to raise (the batch is then
    /// consumed), [`Error::Remote`] when the stream failed as a whole.
    pub fn next(&mut self, timeout: Duration, poll: &mut Poll<'_>) -> Result<Option<Lease>> {
        self.check_process()?;
        if self.cursor.batch == self.cursor.batches {
            self.start_following_epoch();
            return Ok(None);
        }
        let slot = match self.taken.take() {
            Some(slot) => slot,
            None => match self.ring.take(self.ticket()?)? {
                Some(slot) => slot,
                None => self.wait_slot(timeout, poll)?,
            },
        };
        let slot = if slot.spill_bytes() > 0 { self.with_spill(slot, timeout, poll)? } else { slot };
        let failed = slot.descriptor().status == BatchStatus::Failed;
        let lease = Lease::new(slot);
        self.cursor.sequence += 1;
        self.cursor.batch += 1;
        self.cursor.position = lease.end_position();
        if failed {
            let report =
                lease.report()?.into_iter().next().ok_or_else(|| Error::protocol("a failed batch gives no reason"))?;
            return Err(Error::Sample { report });
        }
        self.window.client.batches += 1;
        self.window.client.rows += u64::from(lease.rows());
        Ok(Some(lease))
    }

    /// Whether the stream and its sidecar are still there: an error that one of them left behind, if any.
    pub fn check_alive(&mut self) -> Result<()> {
        self.check_process()?;
        self.check_failure()
    }

    /// What was measured since the last summary, judged; starts the next window.
    pub fn summary(&mut self, timeout: Duration, poll: &mut Poll<'_>) -> Result<Summary> {
        self.check_process()?;
        self.connection.send(&ClientMessage::Figures, &[])?;
        let figures = loop {
            match self.connection.wait(timeout, poll, &Waiting::Figures)? {
                ServerMessage::Figures { figures } => break *figures,
                ServerMessage::Spilled { generation, sequence, .. } => self.keep_spill(generation, sequence)?,
                ServerMessage::Draining { reason, generation, sequence } => {
                    self.note_end(reason, generation, sequence)?
                }
                other => return Err(unexpected(other, "figures")),
            }
        };
        let now = Instant::now();
        let wall_s = now.duration_since(self.window.started).as_secs_f64();
        let client = ClientFigures { wall_s, ..self.window.client };
        let summary = Summary::new(client, figures.since(&self.window.base));
        self.window = Window { started: now, client: ClientFigures::default(), base: figures };
        Ok(summary)
    }

    /// Starts a window of measurement now, so that time before an epoch does not count as part of it.
    pub fn start_window(&mut self) {
        self.window.started = Instant::now();
        self.window.client = ClientFigures::default();
    }

    fn start_following_epoch(&mut self) {
        let cursor = &mut self.cursor;
        cursor.epoch += 1;
        cursor.position = 0;
        cursor.batch = 0;
        cursor.batches = self.info.batches_per_epoch;
    }

    /// The slow path of [`Stream::next`]: nothing was ready.
    fn wait_slot(&mut self, timeout: Duration, poll: &mut Poll<'_>) -> Result<HeldSlot> {
        let started = Instant::now();
        let taken = self.wait_slot_until(started, timeout, poll);
        let waited_s = started.elapsed().as_secs_f64();
        self.window.client.waited_s += waited_s;
        if self.window.client.batches == 0 {
            self.window.client.first_batch_s = waited_s;
        }
        taken
    }

    fn wait_slot_until(&mut self, started: Instant, timeout: Duration, poll: &mut Poll<'_>) -> Result<HeldSlot> {
        loop {
            let signal = self.ring.signal();
            if let Some(slot) = self.ring.take(self.ticket()?)? {
                return Ok(slot);
            }
            if let Err(error) = self.check_failure() {
                // A sidecar that shut down may have finished it between the two looks.
                return self.ring.take(self.ticket()?)?.ok_or(error);
            }
            let waited = started.elapsed();
            let waiting = self.waiting();
            if waited > timeout {
                return Err(Error::Stalled {
                    message: format!("no batch within {:.1} s; waited for {waiting}", waited.as_secs_f64()),
                });
            }
            poll(&waiting, waited)?;
            self.ring.wait(signal, WAIT_SLICE)?;
        }
    }

    /// A batch that is in hand, with the memory of its spilled values.
    fn with_spill(&mut self, mut slot: HeldSlot, timeout: Duration, poll: &mut Poll<'_>) -> Result<HeldSlot> {
        let memory = match self.wait_spill(slot.descriptor().ticket, timeout, poll) {
            Ok(memory) => memory,
            Err(error) => {
                self.taken = Some(slot);
                return Err(error);
            }
        };
        slot.attach_spill(memory.as_fd())?;
        Ok(slot)
    }

    /// Waits for the memory of a batch's spilled values. The sidecar tells of it before it publishes the batch, so the
    /// wait is short.
    fn wait_spill(&mut self, ticket: BatchTicket, timeout: Duration, poll: &mut Poll<'_>) -> Result<OwnedFd> {
        loop {
            if let Some(memory) = self.spills.take(ticket) {
                return Ok(memory);
            }
            if self.failure.is_some() {
                // It was the last message.
                self.check_failure()?;
            }
            let waiting = self.waiting();
            match self.connection.wait(timeout, poll, &waiting)? {
                ServerMessage::Spilled { generation, sequence, .. } => self.keep_spill(generation, sequence)?,
                ServerMessage::Draining { reason, generation, sequence } => {
                    self.note_end(reason, generation, sequence)?
                }
                ServerMessage::Failed { kind, message } => self.failure = Some((kind, message)),
                other => return Err(unexpected(other, "the memory of spilled values")),
            }
        }
    }

    /// Keeps the memory that came with a message until its batch is taken.
    fn keep_spill(&mut self, generation: u32, sequence: u64) -> Result<()> {
        let [memory] = self.connection.take_descriptors()?;
        let ticket = BatchTicket::new(generation, sequence)?;
        self.spills.keep(ticket, memory, self.ticket()?, self.info.slot_count)
    }

    fn ticket(&self) -> Result<BatchTicket> {
        BatchTicket::new(self.cursor.generation, self.cursor.sequence)
    }

    fn waiting(&self) -> Waiting {
        Waiting::Batch {
            epoch: self.cursor.epoch,
            batch: self.cursor.batch,
            slots_ready: self.ring.slots_ready(),
            slots_held: self.ring.slots_held(),
            slot_count: self.info.slot_count,
        }
    }

    /// Turns what arrived on the socket into errors: the stream's failure, the sidecar's end or its death.
    fn check_failure(&mut self) -> Result<()> {
        while self.failure.is_none() {
            match self.connection.try_receive() {
                Ok(None) => return self.check_end(),
                Ok(Some(ServerMessage::Spilled { generation, sequence, .. })) => {
                    self.keep_spill(generation, sequence)?;
                }
                Ok(Some(ServerMessage::Draining { reason, generation, sequence })) => {
                    self.note_end(reason, generation, sequence)?;
                }
                Ok(Some(ServerMessage::Failed { kind, message })) => self.failure = Some((kind, message)),
                Ok(Some(other)) => return Err(unexpected(other, "nothing")),
                Err(Error::SidecarExit { message }) => {
                    let message = match &self.ending {
                        // What was to be finished was not: the time-out or a second signal was quicker.
                        Some((reason, _)) => self.ended_words(reason),
                        None => format!("{message}; {}", self.resume_words()),
                    };
                    return Err(Error::SidecarExit { message });
                }
                Err(other) => return Err(other),
            }
        }
        let (kind, message) = self.failure.clone().expect("set above");
        Err(Error::Remote { kind, message })
    }

    /// Whether the next batch is one that the sidecar still finishes, where it shuts down.
    fn check_end(&self) -> Result<()> {
        match &self.ending {
            // A word about an earlier seek: that about the last one is on its way, or the end of the socket.
            Some((reason, end)) if end.generation() == self.cursor.generation && self.ticket()? >= *end => {
                Err(Error::SidecarExit { message: self.ended_words(reason) })
            }
            _ => Ok(()),
        }
    }

    /// Keeps what the sidecar said of its end.
    fn note_end(&mut self, reason: String, generation: u32, sequence: u64) -> Result<()> {
        self.ending = Some((reason, BatchTicket::new(generation, sequence)?));
        Ok(())
    }

    fn ended_words(&self, reason: &str) -> String {
        format!(
            "the sidecar at {} is shutting down ({reason}): {}, or start it again",
            self.socket.display(),
            self.resume_words()
        )
    }

    fn resume_words(&self) -> String {
        let (epoch, position) = self.position();
        format!("resume at epoch {epoch}, position {position} (global samples)")
    }

    fn check_process(&self) -> Result<()> {
        if std::process::id() == self.pid {
            return Ok(());
        }
        Err(Error::config(format!(
            "this stream belongs to process {}, and this is its forked child {}: start a new iteration here",
            self.pid,
            std::process::id()
        )))
    }
}

/// Memory of spilled values whose batches have not been taken yet.
#[derive(Debug, Default)]
struct Spills(Vec<(BatchTicket, OwnedFd)>);

impl Spills {
    /// Keeps `memory` for batch `ticket`, where `next` is the batch that will be taken next; lets go of what belongs to
    /// batches that never will. A ring of `slot_count` slots has no more than that many batches waiting.
    fn keep(&mut self, ticket: BatchTicket, memory: OwnedFd, next: BatchTicket, slot_count: u32) -> Result<()> {
        self.0.retain(|(kept, _)| *kept >= next);
        if ticket < next {
            return Ok(());
        }
        if self.0.len() >= slot_count as usize {
            return Err(Error::protocol(format!(
                "{ticket} has spilled values, as have {slot_count} that wait before it"
            )));
        }
        self.0.push((ticket, memory));
        Ok(())
    }

    fn take(&mut self, ticket: BatchTicket) -> Option<OwnedFd> {
        let place = self.0.iter().position(|(kept, _)| *kept == ticket)?;
        Some(self.0.swap_remove(place).1)
    }
}

/// Writes a list into a memfd that travels with the request; the count of its entries.
fn attach<const N: usize>(
    descriptors: &mut Vec<OwnedFd>,
    list: Option<impl ExactSizeIterator<Item = [u8; N]>>,
) -> Result<Option<u64>> {
    let Some(list) = list else { return Ok(None) };
    let count = list.len() as u64;
    let bytes: Vec<u8> = list.flatten().collect();
    descriptors
        .push(memfd::with_contents("feedline-list", &bytes).map_err(|source| Error::system("attach a list", source))?);
    Ok(Some(count))
}

/// Waits for the stream to be open. Progress of the index starts the time-out anew.
fn wait_opened(connection: &mut Connection, timeout: Duration, poll: &mut Poll<'_>) -> Result<StreamInfo> {
    let mut waiting = Waiting::Index { shards_done: 0, shards_total: 0, samples: 0 };
    loop {
        match connection.wait(timeout, poll, &waiting)? {
            ServerMessage::Opened { info } => return Ok(*info),
            ServerMessage::Indexing { shards_done, shards_total, samples } => {
                waiting = Waiting::Index { shards_done, shards_total, samples };
            }
            other => return Err(unexpected(other, "an open stream")),
        }
    }
}

fn descriptors_of(connection: &mut Connection) -> Result<RingDescriptors> {
    let [payload, control, freed] = connection.take_descriptors()?;
    Ok(RingDescriptors { payload, control, freed })
}
