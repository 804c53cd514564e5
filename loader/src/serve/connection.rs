//! One client, from hello to its end.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::Service;
use super::beside::beside;
use super::datasets::{News, check_roots, classes_beside};
use super::drain::Work;
use super::lacking::find_lacking;
use super::limits::Admission;
use super::protocol::{self, ClientMessage, PROTOCOL_VERSION, ServerMessage, StreamInfo};
use super::quarantine::{LeftOut, Proposals, QuarantineList};
use crate::decode;
use crate::error::{Error, FaultReport, Result};
use crate::pipeline::{Stream, StreamEvent, StreamOptions};
use crate::plan::{MixPart, Source};
use crate::ring::{BatchTicket, RingDescriptors, SealedSpill};
use crate::shard::{Dataset, IndexProgress};
use crate::spec::{JobSpec, MixSpec, RingKind};
use crate::sys::memory::{Mebibytes, MemoryReport};
use crate::sys::socket::Peer;
use crate::sys::{memfd, socket, watch};

/// Most bytes of a list that a client attaches: a thousand million sample numbers.
const LIST_BYTES_MAX: u64 = 8 << 30;

/// How long a new stream waits for the memory of those that have just ended: rows at work are done by then.
const CLEARING_MAX: Duration = Duration::from_secs(1);
const CLEARING_PAUSE: Duration = Duration::from_millis(2);

/// Most messages carry none.
const NO_DESCRIPTORS: &[OwnedFd] = &[];

/// How long a client that is refused may take to read why.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest hello, in bytes: a client that has not said it may send no more.
const HELLO_BYTES_MAX: usize = 64 << 10;

/// Time between two looks whether the open batches of a stream that ends are finished.
const DRAIN_TICK: Duration = Duration::from_millis(2);

/// Serves a client that has just connected, beside the others, or refuses it.
pub(super) fn admit(socket: UnixStream, service: &Arc<Service>) {
    let admitted = socket::peer(socket.as_fd())
        .map_err(|source| Error::system("ask who connected", source))
        .and_then(|peer| service.check_user(peer).map(|()| peer))
        .and_then(|peer| Ok((peer, service.admissions.admit(peer.uid)?)));
    match admitted {
        Ok((peer, admission)) => {
            tokio::spawn(serve(socket, service.clone(), peer, admission));
        }
        Err(error) => {
            // A fresh socket has room for a few words, so nobody waits here for a client that does not read.
            let refusal = ServerMessage::Failed { kind: error.kind(), message: error.to_string() };
            let _ = protocol::encode(&refusal).map(|frame| socket.try_write(&frame));
        }
    }
}

/// Serves one client until its connection ends, however that happens.
async fn serve(socket: UnixStream, service: Arc<Service>, peer: Peer, admission: Admission) {
    let proposals = Proposals::new(service.options.cache_dir.as_deref());
    let mut connection = Connection {
        socket,
        received: Vec::new(),
        descriptors: VecDeque::new(),
        stream: None,
        proposals,
        peer,
        is_greeted: false,
        _admission: admission,
        // Who comes during the end is not waited for.
        work: service.drain.reason().is_none().then(|| service.begin_work()),
        service,
    };
    if let Err(error) = connection.run().await {
        tracing::debug!("a client's connection ended: {error}");
        let failed = ServerMessage::Failed { kind: error.kind(), message: error.to_string() };
        // The client may be gone; then nobody needs the words. One that does not read has its time to.
        let _ = tokio::time::timeout(REFUSAL_TIMEOUT, connection.send(&failed, NO_DESCRIPTORS)).await;
    }
}

/// In the order in which it ends: the client sees its socket closed, then its place is free, then a drain goes on.
struct Connection {
    socket: UnixStream,
    received: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
    stream: Option<Arc<Stream>>,
    proposals: Proposals,
    peer: Peer,
    is_greeted: bool,
    _admission: Admission,
    /// Until it has been told of the end.
    work: Option<Work>,
    service: Arc<Service>,
}

/// What a connection waits for.
enum Event {
    Message(ClientMessage),
    Stream(StreamEvent),
    /// The service begins to end.
    Drain,
    /// A stream that ends is to be looked at.
    Tick,
    /// The client said nothing for too long.
    Quiet,
    Gone,
}

impl Connection {
    async fn run(&mut self) -> Result<()> {
        let pidfd = socket::peer_pidfd(self.socket.as_fd()).and_then(|pidfd| watch::readable(pidfd).ok());
        let (events, mut stream_events) = unbounded_channel();
        let drain = self.service.drain.begins();
        tokio::pin!(drain);
        // Who comes during the end may ask for the status, and is refused a stream.
        let mut is_told = self.service.drain.reason().is_some();
        let mut is_draining = false;
        let mut heard = Instant::now();
        loop {
            let quiet = self.quiet_timeout().map(|timeout| heard + timeout);
            let event = tokio::select! {
                message = self.receive() => message?.map_or(Event::Gone, Event::Message),
                Some(event) = stream_events.recv() => Event::Stream(event),
                () = process_end(pidfd.as_ref()) => Event::Gone,
                () = &mut drain, if !is_told => Event::Drain,
                () = tokio::time::sleep(DRAIN_TICK), if is_draining => Event::Tick,
                () = until(quiet) => Event::Quiet,
            };
            match event {
                Event::Gone => return Ok(()),
                Event::Quiet => return Err(self.too_quiet()),
                Event::Drain if self.stream.is_none() => return Err(self.refusal_at_end()),
                Event::Drain => is_told = true,
                Event::Tick if self.is_finished() && stream_events.is_empty() => return Ok(()),
                Event::Tick => {}
                Event::Stream(StreamEvent::Failed(error)) => return self.end_stream(error).await,
                Event::Stream(StreamEvent::Fault { report, first }) => self.note_fault(&report, first),
                Event::Stream(StreamEvent::Spilled { ticket, spill }) => self.send_spill(ticket, spill).await?,
                Event::Stream(StreamEvent::Drains { end }) => {
                    self.tell_end(end).await?;
                    is_draining = true;
                }
                Event::Message(message) => {
                    self.handle(message, &events, &mut stream_events, pidfd.as_ref()).await?;
                    heard = Instant::now();
                }
            }
        }
    }

    /// How long the client may say nothing.
    fn quiet_timeout(&self) -> Option<Duration> {
        let limits = &self.service.options.limits;
        match (self.is_greeted, &self.stream) {
            (false, _) => Some(limits.hello_timeout),
            // The anchor of a trainer has nothing to say.
            (true, None) if !self.service.options.private => Some(limits.idle_timeout),
            _ => None,
        }
    }

    fn too_quiet(&self) -> Error {
        let limits = &self.service.options.limits;
        if !self.is_greeted {
            return Error::protocol(format!("no hello came within {:.0?} of the connection", limits.hello_timeout));
        }
        Error::Stalled {
            message: format!(
                "this connection had no stream and said nothing for {:.0?}: connect when there is something to ask",
                limits.idle_timeout
            ),
        }
    }

    fn refusal_at_end(&self) -> Error {
        self.service.refusal_at_end(self.service.drain.reason().unwrap_or("it ends"))
    }

    /// Tells the client which batch is the first that will not come.
    async fn tell_end(&mut self, end: BatchTicket) -> Result<()> {
        let reason = self.service.drain.reason().unwrap_or("it ends").to_owned();
        let message = ServerMessage::Draining { reason, generation: end.generation(), sequence: end.sequence() };
        self.send(&message, NO_DESCRIPTORS).await?;
        if let Some(stream) = &self.stream {
            stream.ring().notify_events();
        }
        Ok(())
    }

    /// Whether every batch that was opened lies in the ring. The feeder opens no more, as it has told.
    fn is_finished(&self) -> bool {
        self.stream.as_ref().is_none_or(|stream| stream.ring().slots_by_state().filling == 0)
    }

    async fn handle(
        &mut self,
        message: ClientMessage,
        events: &UnboundedSender<StreamEvent>,
        stream_events: &mut UnboundedReceiver<StreamEvent>,
        pidfd: Option<&AsyncFd<OwnedFd>>,
    ) -> Result<()> {
        if !self.is_greeted && !matches!(message, ClientMessage::Hello { .. }) {
            return Err(Error::protocol("the first message of a connection is a hello"));
        }
        match message {
            ClientMessage::Hello { protocol: PROTOCOL_VERSION, .. } => {
                self.is_greeted = true;
                let version = env!("CARGO_PKG_VERSION").to_owned();
                let welcome = ServerMessage::Welcome { protocol: PROTOCOL_VERSION, version, pid: std::process::id() };
                self.send(&welcome, NO_DESCRIPTORS).await
            }
            ClientMessage::Hello { protocol, version } => Err(Error::protocol(format!(
                "client version {version} speaks protocol {protocol}, this sidecar {} speaks {PROTOCOL_VERSION}: \
                 install the same Feedline on both sides",
                env!("CARGO_PKG_VERSION")
            ))),
            ClientMessage::Open { spec, indices, weights, quarantine } => {
                if self.stream.is_some() {
                    return Err(Error::protocol("a connection has one stream, and it is open"));
                }
                debug_assert!(stream_events.is_empty());
                if self.service.drain.reason().is_some() {
                    return Err(self.refusal_at_end());
                }
                let lists = Lists {
                    indices: self.take_list(indices, u64::from_le_bytes)?,
                    weights: self.take_list(weights, f64::from_le_bytes)?,
                    quarantine: self.take_list(quarantine, u8::from_le_bytes)?,
                };
                self.open(*spec, lists, events.clone(), pidfd).await
            }
            ClientMessage::Seek { generation, epoch, position } => {
                let stream = self.stream.as_ref().ok_or_else(|| Error::protocol("a seek before a stream is open"))?;
                self.service.pipeline.seek(stream, generation, epoch, position);
                Ok(())
            }
            ClientMessage::Figures => {
                let stream =
                    self.stream.as_ref().ok_or_else(|| Error::protocol("no stream is open to have figures"))?;
                let figures = Box::new(stream.figures(self.service.pipeline.stages()));
                self.send(&ServerMessage::Figures { figures }, NO_DESCRIPTORS).await
            }
            ClientMessage::Status => {
                let status = Box::new(self.service.status());
                self.send(&ServerMessage::Status { status }, NO_DESCRIPTORS).await
            }
        }
    }

    async fn open(
        &mut self,
        spec: JobSpec,
        lists: Lists,
        events: UnboundedSender<StreamEvent>,
        pidfd: Option<&AsyncFd<OwnedFd>>,
    ) -> Result<()> {
        spec.check()?;
        check_ring(spec.ring, &self.service.options.allow_uids)?;
        let labels = spec.rules.labels.iter().map(|labels| labels.path.clone());
        let read: Vec<PathBuf> = spec.shards.iter().cloned().chain(labels).collect();
        check_roots(&read, &self.service.options.allow_roots)?;
        let quarantine = quarantine(&spec, lists.quarantine.as_deref())?;
        // Without a dataset the client has gone, as the next look at its socket or process says.
        let Some(dataset) = self.open_dataset(&spec, pidfd).await? else { return Ok(()) };
        let (LeftOut { samples, notices: left_out_notices }, quarantined) =
            find_left_out(&spec, quarantine, &dataset).await?;
        let source = source(&spec, &dataset, lists.indices, lists.weights)?;
        let events = Box::new(move |event| drop(events.send(event)));
        let classes = dataset.classes().map(<[String]>::to_vec).or_else(|| classes_beside(&spec.shards));
        let dropped = samples.len() as u64 - quarantined;
        let options = StreamOptions { spec, dataset, source, left_out: samples, events };
        self.wait_for_memory().await;
        let (stream, ring) = self.service.pipeline.open(options)?;
        let notices =
            [stream.dataset().notices(), &left_out_notices, &stream.plan().notices(), stream.notices()].concat();
        let info = StreamInfo { quarantined, dropped, notices, ..self.info(&stream, classes) };
        let RingDescriptors { payload, control, freed } = ring;
        let has_databases = !stream.dataset().databases().is_empty();
        let snapshot = self.service.datasets.opened_at(stream.dataset()).filter(|_| has_databases);
        self.service.streams.add(stream.clone(), self.peer, snapshot);
        self.service.pipeline.add(stream.clone());
        self.stream = Some(stream);
        self.send(&ServerMessage::Opened { info: Box::new(info) }, &[payload, control, freed]).await
    }

    /// Gives streams that have just ended a moment to give their memory back.
    async fn wait_for_memory(&self) {
        let deadline = Instant::now() + CLEARING_MAX;
        while self.service.pipeline.is_clearing() && Instant::now() < deadline {
            tokio::time::sleep(CLEARING_PAUSE).await;
        }
    }

    /// Opens the dataset beside the control plane, telling the client how far it is; `None` when the client goes before
    /// that is done.
    async fn open_dataset(&mut self, spec: &JobSpec, pidfd: Option<&AsyncFd<OwnedFd>>) -> Result<Option<Arc<Dataset>>> {
        let mut opening = self.service.datasets.open(&spec.shards, &spec.rules);
        let drain = self.service.drain.begins();
        tokio::pin!(drain);
        loop {
            tokio::select! {
                news = opening.next() => match news {
                    News::Opened(dataset) => return Ok(Some(dataset)),
                    News::Failed(kind, message) => return Err(Error::Remote { kind, message }),
                    News::Progress(IndexProgress { shards_done, shards_total, samples }) => {
                        self.send(&ServerMessage::Indexing { shards_done, shards_total, samples }, NO_DESCRIPTORS).await?;
                    }
                },
                filled = self.fill() => {
                    if !filled? {
                        return Ok(None);
                    }
                }
                () = process_end(pidfd) => return Ok(None),
                () = &mut drain => return Err(self.refusal_at_end()),
            }
        }
    }

    fn info(&self, stream: &Stream, classes: Option<Vec<String>>) -> StreamInfo {
        let (plan, spec) = (stream.plan(), stream.spec());
        StreamInfo {
            sample_count: stream.dataset().sample_count(),
            epoch_positions: plan.epoch_positions(),
            batches_per_epoch: plan.batch_count(0),
            global_batch: u64::from(spec.batch_size) * u64::from(spec.world_size),
            tail: spec.tail,
            left_out: plan.left_out(),
            repeated: plan.repeated(),
            quarantined: 0,
            dropped: 0,
            databases: stream.dataset().databases(),
            classes,
            layout: stream.layout().clone(),
            slot_count: spec.slots,
            notices: Vec::new(),
            workers: self.service.workers,
            reader: self.service.pipeline.reader(),
            decoder: decode::identity(&spec.fields),
            sidecar_pid: std::process::id(),
            ring_name: stream.ring().name().map(str::to_owned),
        }
    }

    /// The list that the client attached as the next descriptor.
    fn take_list<T, const N: usize>(
        &mut self,
        count: Option<u64>,
        decode: impl Fn([u8; N]) -> T,
    ) -> Result<Option<Vec<T>>> {
        let Some(count) = count else { return Ok(None) };
        let descriptor =
            self.descriptors.pop_front().ok_or_else(|| Error::protocol("a list was announced and not attached"))?;
        let bytes = count.checked_mul(N as u64).filter(|bytes| *bytes <= LIST_BYTES_MAX);
        let bytes = bytes.ok_or_else(|| Error::protocol(format!("a list of {count} entries is over the limit")))?;
        let memory = MemoryReport::read();
        // It is held twice, as bytes and as numbers, while it is taken in.
        if memory.free_bytes().is_some_and(|free_bytes| free_bytes / 2 < bytes) {
            let message = format!(
                "a list of {count} entries takes 2 x {} while it is read, which cannot be had ({memory}): attach a shorter \
                 one, or raise the memory limit",
                Mebibytes(bytes)
            );
            return Err(Error::Resources { message });
        }
        let contents = memfd::read_contents(&descriptor, bytes)
            .map_err(|source| Error::protocol(format!("the attached list cannot be read: {source}")))?;
        Ok(Some(contents.chunks_exact(N).map(|entry| decode(entry.try_into().expect("N bytes"))).collect()))
    }

    fn note_fault(&mut self, report: &FaultReport, first: bool) {
        // A private sidecar shares its client's terminal, and the client tells of each.
        if first && self.service.options.private {
            tracing::info!("{report}; others of class {} are counted, not logged", report.class);
        } else if first {
            tracing::warn!("{report}; others of class {} are counted, not logged", report.class);
        } else {
            tracing::debug!("{report}");
        }
        if let Err(error) = self.proposals.add(report) {
            tracing::warn!("cannot propose a sample for quarantine: {error}");
        }
    }

    /// Tells the client that its stream is over, and waits until it has gone: it may have batches to finish.
    async fn end_stream(&mut self, error: Error) -> Result<()> {
        if let Some(stream) = &self.stream {
            // As above: the client raises it.
            if self.service.options.private {
                tracing::info!("job {:?} ended: {error}", stream.spec().name);
            } else {
                tracing::warn!("job {:?} ended: {error}", stream.spec().name);
            }
            self.service.pipeline.remove(stream);
            let failed = ServerMessage::Failed { kind: error.kind(), message: error.to_string() };
            let ring = stream.ring().clone();
            self.send(&failed, NO_DESCRIPTORS).await?;
            ring.notify_events();
        }
        // It is told of its stream's end, so that of the service need not wait for it.
        self.work = None;
        while self.receive().await?.is_some() {}
        Ok(())
    }

    /// Hands over the memory of a batch's spilled values, unless nobody wants the batch any more.
    async fn send_spill(&self, ticket: BatchTicket, spill: SealedSpill) -> Result<()> {
        if self.stream.as_ref().is_some_and(|stream| stream.generation() != ticket.generation()) {
            return Ok(());
        }
        let (generation, sequence) = (ticket.generation(), ticket.sequence());
        let message = ServerMessage::Spilled { generation, sequence, bytes: spill.bytes };
        self.send(&message, &[spill.memory]).await
    }

    async fn send(&self, message: &ServerMessage, descriptors: &[impl AsFd]) -> Result<()> {
        let frame = protocol::encode(message)?;
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let mut sent = 0;
        while sent < frame.len() {
            let attached = if sent == 0 { borrowed.as_slice() } else { &[] };
            let written = self
                .socket
                .async_io(Interest::WRITABLE, || socket::send(self.socket.as_fd(), &frame[sent..], attached))
                .await;
            sent += written.map_err(|source| Error::system("answer a client", source))?;
        }
        Ok(())
    }

    /// The next message; `None` when the client is gone.
    async fn receive(&mut self) -> Result<Option<ClientMessage>> {
        loop {
            if let Some(message) = protocol::decode(&mut self.received)? {
                return Ok(Some(message));
            }
            if !self.fill().await? {
                return Ok(None);
            }
        }
    }

    /// Takes in what the client has sent; false when it is gone.
    async fn fill(&mut self) -> Result<bool> {
        let mut chunk = [0; 16384];
        let read = self.socket.async_io(Interest::READABLE, || socket::receive(self.socket.as_fd(), &mut chunk)).await;
        match read {
            Ok(read) if read.bytes == 0 => Ok(false),
            Ok(read) => {
                self.received.extend_from_slice(&chunk[..read.bytes]);
                self.descriptors.extend(read.descriptors);
                if self.descriptors.len() > socket::DESCRIPTORS_MAX {
                    return Err(Error::protocol("more descriptors than any message has"));
                }
                let most = if self.is_greeted { 2 * protocol::FRAME_BYTES_MAX } else { HELLO_BYTES_MAX };
                if self.received.len() > most {
                    return Err(Error::protocol("more messages than a client has to send"));
                }
                Ok(true)
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Ok(false),
            Err(source) => Err(Error::system("read from a client", source)),
        }
    }
}

impl Drop for Connection {
    /// In every way in which a connection ends, a panic included.
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            self.service.streams.remove(&stream);
            self.service.pipeline.release(stream);
        }
    }
}

/// Returns at `moment`; never, where there is none.
async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}

/// Returns when the client's process has ended; never, where the kernel gives no descriptor for it.
async fn process_end(pidfd: Option<&AsyncFd<OwnedFd>>) {
    match pidfd {
        Some(pidfd) => drop(pidfd.readable().await),
        None => std::future::pending().await,
    }
}

/// Named memory cannot be sealed, so a service of several users makes none.
fn check_ring(ring: RingKind, allow_uids: &[u32]) -> Result<()> {
    if ring == RingKind::Named && !allow_uids.is_empty() {
        return Err(Error::config(
            "ring=\"named\" is not for a service that admits other users (--allow-uid): named memory cannot be sealed, so \
             that what one process does to it could reach others; use ring=\"memfd\", or a sidecar of your own",
        ));
    }
    Ok(())
}

/// Lists that came with a job.
struct Lists {
    indices: Option<Vec<u64>>,
    weights: Option<Vec<f64>>,
    quarantine: Option<Vec<u8>>,
}

/// The list of samples to leave out, if it is the one that the spec names.
fn quarantine(spec: &JobSpec, attached: Option<&[u8]>) -> Result<Option<QuarantineList>> {
    let list = attached.map(QuarantineList::from_bytes).transpose()?;
    let (named, found) = (spec.quarantine.clone(), list.as_ref().map(QuarantineList::hash));
    if named != found {
        return Err(Error::protocol(format!("the job names quarantine {named:?}, and {found:?} is attached")));
    }
    Ok(list)
}

/// Finds the samples to leave out, beside the control plane: it goes through the keys or the samples of the shards concerned.
/// Beside them, how many are in quarantine.
async fn find_left_out(spec: &JobSpec, list: Option<QuarantineList>, dataset: &Arc<Dataset>) -> Result<(LeftOut, u64)> {
    if list.is_none() && spec.drop_missing.is_empty() && dataset.unpaired().is_empty() {
        return Ok((LeftOut::default(), 0));
    }
    let (dataset, spec) = (dataset.clone(), spec.clone());
    let find = move || {
        let mut found = list.map_or(Ok(LeftOut::default()), |list| list.find_in(&dataset))?;
        found.samples.sort_unstable();
        found.samples.dedup();
        let quarantined = found.samples.len() as u64;
        found.join(find_lacking(&spec, &dataset)?);
        Ok((found, quarantined))
    };
    beside("looks for samples to leave out", find).await
}

/// Which samples an epoch takes.
fn source(spec: &JobSpec, dataset: &Dataset, indices: Option<Vec<u64>>, weights: Option<Vec<f64>>) -> Result<Source> {
    let sample_count = dataset.sample_count();
    match (&spec.mix, indices, weights) {
        (None, None, None) => Source::all(sample_count),
        (None, Some(indices), None) => Source::indices(indices, sample_count),
        (None, None, Some(weights)) => {
            Source::weighted(weights, sample_count, spec.epoch_length.unwrap_or(sample_count))
        }
        (Some(mix), None, None) => Source::mixed(&mix_parts(mix, dataset), spec.epoch_length, mix.stop),
        (None, Some(_), Some(_)) => {
            Err(Error::config("indices= and weights= exclude each other: set the weight of left-out samples to 0"))
        }
        (Some(_), _, _) => Err(Error::config("a Mix takes neither indices= nor weights=: they belong to one dataset")),
    }
}

/// The parts of a mix in terms of samples; the spec has them in terms of shards, as many as the dataset has.
fn mix_parts(mix: &MixSpec, dataset: &Dataset) -> Vec<MixPart> {
    let first_sample = |shard: u64| {
        let firsts = dataset.first_samples();
        usize::try_from(shard).ok().and_then(|shard| firsts.get(shard)).copied().unwrap_or(dataset.sample_count())
    };
    let mut shard = 0;
    let part = |part: &crate::spec::MixPartSpec| {
        let first = first_sample(shard);
        shard += u64::from(part.shards);
        MixPart { first_sample: first, sample_count: first_sample(shard) - first, weight: part.weight }
    };
    mix.parts.iter().map(part).collect()
}
