//! One client, from hello to its end.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::Service;
use super::datasets::{check_roots, classes_beside};
use super::protocol::{self, ClientMessage, PROTOCOL_VERSION, ServerMessage, StreamInfo};
use super::quarantine::Proposals;
use crate::error::{Error, FaultReport, Result};
use crate::pipeline::{Stream, StreamEvent, StreamOptions};
use crate::plan::Source;
use crate::ring::RingDescriptors;
use crate::shard::{Dataset, IndexProgress};
use crate::spec::JobSpec;
use crate::sys::{memfd, socket, watch};

/// Most bytes of a list that a client attaches: a thousand million sample numbers.
const LIST_BYTES_MAX: u64 = 8 << 30;

/// Serves one client until its connection ends, however that happens.
pub(super) async fn serve(socket: UnixStream, service: Arc<Service>) {
    service.clients.send_modify(|count| *count += 1);
    let proposals = Proposals::new(service.options.cache_dir.as_deref());
    let mut connection =
        Connection { socket, service, received: Vec::new(), descriptors: VecDeque::new(), stream: None, proposals };
    if let Err(error) = connection.run().await {
        tracing::debug!("a client's connection ended: {error}");
        let failed = ServerMessage::Failed { kind: error.kind(), message: error.to_string() };
        // The client may be gone; then nobody needs the words.
        let _ = connection.send(&failed, &[]).await;
    }
    connection.close();
}

struct Connection {
    socket: UnixStream,
    service: Arc<Service>,
    received: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
    stream: Option<Arc<Stream>>,
    proposals: Proposals,
}

/// What a connection waits for.
enum Event {
    Message(ClientMessage),
    Stream(StreamEvent),
    Gone,
}

impl Connection {
    async fn run(&mut self) -> Result<()> {
        self.check_peer()?;
        let pidfd = socket::peer_pidfd(self.socket.as_fd()).and_then(|pidfd| watch::readable(pidfd).ok());
        let (events, mut stream_events) = unbounded_channel();
        loop {
            let event = tokio::select! {
                message = self.receive() => message?.map_or(Event::Gone, Event::Message),
                Some(event) = stream_events.recv() => Event::Stream(event),
                () = process_end(pidfd.as_ref()) => Event::Gone,
            };
            match event {
                Event::Gone => return Ok(()),
                Event::Stream(StreamEvent::Failed(error)) => return self.end_stream(error).await,
                Event::Stream(StreamEvent::Fault { report, first }) => self.note_fault(&report, first),
                Event::Message(message) => self.handle(message, &events, &mut stream_events).await?,
            }
        }
    }

    fn check_peer(&self) -> Result<()> {
        let peer = socket::peer(self.socket.as_fd()).map_err(|source| Error::system("ask who connected", source))?;
        let own = rustix::process::geteuid().as_raw();
        if peer.uid == own || self.service.options.allow_uids.contains(&peer.uid) {
            return Ok(());
        }
        tracing::warn!("refused a client of uid {}", peer.uid);
        Err(Error::config(format!(
            "this sidecar serves uid {own}, not uid {}: ask its operator for --allow-uid",
            peer.uid
        )))
    }

    async fn handle(
        &mut self,
        message: ClientMessage,
        events: &UnboundedSender<StreamEvent>,
        stream_events: &mut UnboundedReceiver<StreamEvent>,
    ) -> Result<()> {
        match message {
            ClientMessage::Hello { protocol: PROTOCOL_VERSION, .. } => {
                let version = env!("CARGO_PKG_VERSION").to_owned();
                let welcome = ServerMessage::Welcome { protocol: PROTOCOL_VERSION, version, pid: std::process::id() };
                self.send(&welcome, &[]).await
            }
            ClientMessage::Hello { protocol, version } => Err(Error::protocol(format!(
                "client version {version} speaks protocol {protocol}, this sidecar {} speaks {PROTOCOL_VERSION}: \
                 install the same Feedline on both sides",
                env!("CARGO_PKG_VERSION")
            ))),
            ClientMessage::Open { spec, indices, weights } => {
                if self.stream.is_some() {
                    return Err(Error::protocol("a connection has one stream, and it is open"));
                }
                debug_assert!(stream_events.is_empty());
                self.open(*spec, indices, weights, events.clone()).await
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
                self.send(&ServerMessage::Figures { figures }, &[]).await
            }
        }
    }

    async fn open(
        &mut self,
        spec: JobSpec,
        indices: Option<u64>,
        weights: Option<u64>,
        events: UnboundedSender<StreamEvent>,
    ) -> Result<()> {
        spec.check()?;
        check_roots(&spec.shards, &self.service.options.allow_roots)?;
        let indices = self.take_list(indices, u64::from_le_bytes)?;
        let weights = self.take_list(weights, f64::from_le_bytes)?;
        let dataset = self.open_dataset(&spec.shards).await?;
        let source = source(&spec, dataset.sample_count(), indices, weights)?;
        let events = Box::new(move |event| drop(events.send(event)));
        let classes = classes_beside(&spec.shards);
        let (stream, ring) = Stream::new(StreamOptions { spec, dataset, source, events })?;
        let info = self.info(&stream, classes);
        let RingDescriptors { payload, control, freed } = ring;
        self.service.lock_streams().push(stream.clone());
        self.service.pipeline.add(stream.clone());
        self.stream = Some(stream);
        self.send(&ServerMessage::Opened { info: Box::new(info) }, &[payload, control, freed]).await
    }

    /// Opens the dataset beside the control plane, telling the client how far it is.
    async fn open_dataset(&mut self, shards: &[PathBuf]) -> Result<Arc<Dataset>> {
        let (progress, mut reports) = tokio::sync::watch::channel(None::<IndexProgress>);
        let (service, shards) = (self.service.clone(), shards.to_vec());
        let mut opening = tokio::task::spawn_blocking(move || {
            service.datasets.open(&shards, &|report| {
                progress.send_replace(Some(report));
            })
        });
        loop {
            tokio::select! {
                opened = &mut opening => {
                    return opened.map_err(|panic| Error::protocol(format!("the index builder failed: {panic}")))?;
                }
                Ok(()) = reports.changed() => {
                    let report = *reports.borrow_and_update();
                    if let Some(IndexProgress { shards_done, shards_total, samples }) = report {
                        self.send(&ServerMessage::Indexing { shards_done, shards_total, samples }, &[]).await?;
                    }
                }
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
            classes,
            layout: stream.layout().clone(),
            slot_count: spec.slots,
            notices: stream.dataset().notices().to_vec(),
            workers: self.service.workers,
            reader: self.service.pipeline.reader(),
            sidecar_pid: std::process::id(),
        }
    }

    /// The list that the client attached as the next descriptor.
    fn take_list<T>(&mut self, count: Option<u64>, decode: impl Fn([u8; 8]) -> T) -> Result<Option<Vec<T>>> {
        let Some(count) = count else { return Ok(None) };
        let descriptor =
            self.descriptors.pop_front().ok_or_else(|| Error::protocol("a list was announced and not attached"))?;
        let bytes = count.checked_mul(8).filter(|bytes| *bytes <= LIST_BYTES_MAX);
        let bytes = bytes.ok_or_else(|| Error::protocol(format!("a list of {count} entries is over the limit")))?;
        let contents = memfd::read_contents(&descriptor, bytes)
            .map_err(|source| Error::protocol(format!("the attached list cannot be read: {source}")))?;
        Ok(Some(contents.chunks_exact(8).map(|entry| decode(entry.try_into().expect("8 bytes"))).collect()))
    }

    fn note_fault(&mut self, report: &FaultReport, first: bool) {
        if first {
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
            tracing::warn!("job {:?} ended: {error}", stream.spec().name);
            self.service.pipeline.remove(stream);
            let failed = ServerMessage::Failed { kind: error.kind(), message: error.to_string() };
            let ring = stream.ring().clone();
            self.send(&failed, &[]).await?;
            ring.notify_events();
        }
        while self.receive().await?.is_some() {}
        Ok(())
    }

    async fn send(&self, message: &ServerMessage, descriptors: &[OwnedFd]) -> Result<()> {
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
            let mut chunk = [0; 16384];
            let read =
                self.socket.async_io(Interest::READABLE, || socket::receive(self.socket.as_fd(), &mut chunk)).await;
            match read {
                Ok(read) if read.bytes == 0 => return Ok(None),
                Ok(read) => {
                    self.received.extend_from_slice(&chunk[..read.bytes]);
                    self.descriptors.extend(read.descriptors);
                    if self.descriptors.len() > socket::DESCRIPTORS_MAX {
                        return Err(Error::protocol("more descriptors than any message has"));
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Ok(None),
                Err(source) => return Err(Error::system("read from a client", source)),
            }
        }
    }

    fn close(&mut self) {
        if let Some(stream) = self.stream.take() {
            self.service.lock_streams().retain(|other| other.id() != stream.id());
            self.service.pipeline.remove(&stream);
        }
        self.service.clients.send_modify(|count| *count -= 1);
    }
}

/// Returns when the client's process has ended; never, where the kernel gives no descriptor for it.
async fn process_end(pidfd: Option<&AsyncFd<OwnedFd>>) {
    match pidfd {
        Some(pidfd) => drop(pidfd.readable().await),
        None => std::future::pending().await,
    }
}

/// Which samples an epoch takes.
fn source(spec: &JobSpec, sample_count: u64, indices: Option<Vec<u64>>, weights: Option<Vec<f64>>) -> Result<Source> {
    match (indices, weights) {
        (None, None) => Source::all(sample_count),
        (Some(indices), None) => Source::indices(indices, sample_count),
        (None, Some(weights)) => Source::weighted(weights, sample_count, spec.epoch_length.unwrap_or(sample_count)),
        (Some(_), Some(_)) => {
            Err(Error::config("indices= and weights= exclude each other: set the weight of left-out samples to 0"))
        }
    }
}
