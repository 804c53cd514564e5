//! Promise: a hostile client ends alone. Whatever it sends, scribbles, hoards or leaves open, another client's epoch is
//! whole, and when it is gone the sidecar has the descriptors and the shared memory that it had before.
//!
//! The sidecar is this very binary, started again; so is a client that gets stopped.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use feedline_loader::Error;
use feedline_loader::batch::BatchLayout;
use feedline_loader::client::{Attachments, Stream};
use feedline_loader::ring::{BatchTicket, HeldSlot, RingDescriptors, RingReader};
use feedline_loader::serve::protocol::{
    ClientMessage, FRAME_BYTES_MAX, PROTOCOL_VERSION, ServerMessage, decode, encode,
};
use feedline_loader::serve::{ServeOptions, serve};
use feedline_loader::spec::JobSpec;
use feedline_loader::sys::socket;
use rustix::process::{Pid, Signal, kill_process};

const SAMPLES: u64 = 600;
const BATCH: u64 = 8;
const SLOTS: u32 = 4;

/// Bytes of each sample's second member, which only some jobs read.
const BLOB_BYTES: u64 = 20_000;

/// What allocators, the sanitizer's above all, keep of the memory that two thousand connections or a frame of 16 MiB took.
const KEPT_KIB_MAX: u64 = 96 << 10;

/// Longest wait for something that comes at once as a rule.
const PATIENCE: Duration = Duration::from_secs(60);

const SOCKET: &str = "FEEDLINE_TEST_SOCKET";

/// A dataset, and a sidecar in a process of its own.
struct Service {
    folder: tempfile::TempDir,
    process: Child,
    /// Kept open, as the test harness writes there now and then.
    _output: BufReader<ChildStdout>,
}

impl Service {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let mut shard = tar::Builder::new(File::create(folder.path().join("shard.tar")).expect("file"));
        for sample in 0..SAMPLES {
            let label = sample.to_string();
            let mut header = tar::Header::new_ustar();
            header.set_size(label.len() as u64);
            header.set_mode(0o644);
            shard.append_data(&mut header, format!("{sample:06}.cls"), label.as_bytes()).expect("append");
            header.set_size(BLOB_BYTES);
            shard
                .append_data(&mut header, format!("{sample:06}.bin"), &*vec![sample as u8; BLOB_BYTES as usize])
                .expect("append");
        }
        shard.finish().expect("finish");
        let (process, output) = again("sidecar_process", &folder.path().join("socket"));
        Self { folder, process, _output: output }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn spec(&self) -> serde_json::Value {
        spec(self.folder.path())
    }

    fn honest(&self) -> Honest {
        let job: JobSpec = serde_json::from_value(self.spec()).expect("a job");
        let opened = Stream::open(&self.socket(), &job, Attachments::default(), PATIENCE, &mut |_, _| Ok(()));
        Honest { stream: opened.expect("an honest client is served"), labels: Vec::new() }
    }

    fn hostile(&self) -> Hostile {
        let socket = UnixStream::connect(self.socket()).expect("connect");
        Hostile { socket, received: Vec::new(), descriptors: Vec::new() }
    }

    /// Waits until the sidecar has as many descriptors, rings and segments as `before`.
    fn comes_back_to(&self, before: &Holdings) {
        let start = Instant::now();
        loop {
            let now = self.holdings();
            if now.descriptors == before.descriptors && now.rings == before.rings {
                let grown = now.private_kib.saturating_sub(before.private_kib);
                assert!(grown < KEPT_KIB_MAX, "private memory grew by {grown} KiB: {before:?} to {now:?}");
                return;
            }
            assert!(start.elapsed() < PATIENCE, "the sidecar keeps something: {before:?} to {now:?}");
            std::thread::yield_now();
        }
    }

    fn holdings(&self) -> Holdings {
        let folder = PathBuf::from(format!("/proc/{}", self.process.id()));
        let text = |file: &str| std::fs::read_to_string(folder.join(file)).expect("it lives");
        let maps = text("maps");
        let rss = text("status")
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:")?.split_whitespace().next()?.parse().ok());
        Holdings {
            descriptors: std::fs::read_dir(folder.join("fd")).expect("it lives").count(),
            rings: maps
                .lines()
                .filter(|line| line.contains("feedline-payload") || line.contains("/dev/shm/feedline"))
                .count(),
            private_kib: rss.expect("the kernel tells"),
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let is_alive = self.process.try_wait().expect("wait").is_none();
        let _ = self.process.kill();
        let _ = self.process.wait();
        assert!(is_alive || std::thread::panicking(), "the sidecar ended before its test");
    }
}

/// What a sidecar holds for its clients.
#[derive(Debug)]
struct Holdings {
    descriptors: usize,
    rings: usize,
    private_kib: u64,
}

fn spec(folder: &Path) -> serde_json::Value {
    serde_json::json!({
        "version": 1, "name": "hostile", "shards": [folder.join("shard.tar")],
        "fields": [{"name": "label", "sources": ["cls"], "kind": "int"}],
        "batch_size": BATCH, "order": "global", "seed": 1, "rank": 0, "world_size": 1, "tail": "short", "epoch_length": null,
        "on_error": "raise", "error_budget": 0.0, "slots": SLOTS,
    })
}

/// Starts this binary as another process that runs the ignored test `name`, and waits for its first word.
fn again(name: &str, socket: &Path) -> (Child, BufReader<ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env(SOCKET, socket)
        .stdout(Stdio::piped())
        .spawn()
        .expect("start");
    let mut output = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    while !line.contains("ready") {
        line.clear();
        assert!(output.read_line(&mut line).expect("read") > 0, "{name} ended at its start");
    }
    (child, output)
}

#[test]
#[ignore = "the sidecar of the other tests"]
fn sidecar_process() {
    let socket = PathBuf::from(std::env::var_os(SOCKET).expect("a socket"));
    let options = ServeOptions {
        cache_dir: Some(socket.with_file_name("cache")),
        socket: Some(socket),
        workers: Some(1),
        ..ServeOptions::default()
    };
    serve(options, |_| println!("ready")).expect("serve");
}

/// A client that keeps to the rules.
struct Honest {
    stream: Stream,
    labels: Vec<i64>,
}

impl Honest {
    fn take(&mut self, batches: u64) {
        for _ in 0..batches {
            let lease = self.stream.next(PATIENCE, &mut |_, _| Ok(())).expect("it is served").expect("not over");
            let keys = lease.keys().expect("keys");
            self.labels.extend(keys.iter().map(|key| key.parse::<i64>().expect("a number")));
        }
    }

    /// Takes the rest of the epoch: every sample came once.
    fn finish(mut self) {
        self.take((SAMPLES - self.labels.len() as u64) / BATCH);
        assert!(self.stream.next(PATIENCE, &mut |_, _| Ok(())).expect("it is served").is_none());
        assert_eq!(self.labels.len() as u64, SAMPLES);
        assert_eq!(self.labels.iter().collect::<BTreeSet<_>>().len() as u64, SAMPLES);
    }
}

/// A client that keeps to nothing.
struct Hostile {
    socket: UnixStream,
    received: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

impl Hostile {
    fn say(&mut self, message: &ClientMessage) {
        self.socket.write_all(&encode(message).expect("encode")).expect("it listens");
    }

    fn hear(&mut self) -> ServerMessage {
        loop {
            if let Some(message) = decode(&mut self.received).expect("it speaks the protocol") {
                return message;
            }
            let mut chunk = [0; 65536];
            let read = socket::receive(self.socket.as_fd(), &mut chunk).expect("it answers");
            assert!(read.bytes > 0, "it closed the connection without a word");
            self.received.extend_from_slice(&chunk[..read.bytes]);
            self.descriptors.extend(read.descriptors);
        }
    }

    fn hello(&mut self) {
        self.say(&ClientMessage::Hello { protocol: PROTOCOL_VERSION, version: "0".into() });
        assert!(matches!(self.hear(), ServerMessage::Welcome { .. }));
    }

    /// Opens a stream as anybody may.
    fn open(&mut self, spec: serde_json::Value) -> (RingDescriptors, BatchLayout) {
        self.hello();
        let spec = Box::new(serde_json::from_value(spec).expect("a job"));
        self.say(&ClientMessage::Open { spec, indices: None, weights: None, quarantine: None });
        loop {
            match self.hear() {
                ServerMessage::Opened { info } => {
                    let [payload, control, freed] = std::mem::take(&mut self.descriptors).try_into().expect("three");
                    return (RingDescriptors { payload, control, freed }, info.layout);
                }
                ServerMessage::Indexing { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Waits for the sidecar's last words.
    fn expect_end(mut self, words: &str) {
        loop {
            match self.hear() {
                ServerMessage::Failed { message, .. } => return assert!(message.contains(words), "{message}"),
                ServerMessage::Figures { .. } | ServerMessage::Indexing { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Sends bytes, and waits until the sidecar has ended the connection.
    fn send_until_closed(mut self, bytes: &[u8]) {
        // It may close before all is sent.
        let _ = self.socket.write_all(bytes);
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
        let mut rest = Vec::new();
        match self.socket.read_to_end(&mut rest) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
        }
    }
}

/// Bytes that look like nothing, the same ones in every run.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut word = seed;
    let mut next = || {
        word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 27) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Runs `attack` while an honest client is half way through its epoch; then everything is as it was.
fn survives(attack: impl FnOnce(&Service)) {
    let service = Service::start();
    // Whatever is made once is made now.
    service.honest().finish();
    let before = {
        let settled = Instant::now();
        while service.holdings().rings > 0 {
            assert!(settled.elapsed() < PATIENCE, "a ring stays");
            std::thread::yield_now();
        }
        service.holdings()
    };
    let mut honest = service.honest();
    honest.take(20);
    attack(&service);
    honest.finish();
    service.honest().finish();
    service.comes_back_to(&before);
}

#[test]
fn noise_and_lengths() {
    survives(|service| {
        for seed in 0..200 {
            service.hostile().send_until_closed(&noise(seed, 1 + 37 * seed as usize));
        }
        service.hostile().send_until_closed(&u32::MAX.to_le_bytes());
        // The longest frame that may be, never finished, and one that is no JSON.
        let mut frame = (FRAME_BYTES_MAX as u32).to_le_bytes().to_vec();
        frame.extend(vec![b'['; FRAME_BYTES_MAX / 2]);
        service.hostile().send_until_closed(&frame);
        frame.extend(vec![b'['; FRAME_BYTES_MAX / 2]);
        service.hostile().send_until_closed(&frame);
    });
}

#[test]
fn jobs_that_cannot_be() {
    survives(|service| {
        let check = |change: &dyn Fn(&mut serde_json::Value), words: &str| {
            let mut spec = service.spec();
            change(&mut spec);
            let mut hostile = service.hostile();
            hostile.hello();
            let open = serde_json::json!({"type": "open", "spec": spec, "indices": null, "weights": null});
            hostile.socket.write_all(&encode(&open).expect("encode")).expect("it listens");
            hostile.expect_end(words);
        };
        check(&|spec| spec["batch_size"] = 0.into(), "batch_size must be 1");
        check(&|spec| spec["batch_size"] = u32::MAX.into(), "batch_size must be 1");
        check(&|spec| spec["slots"] = 65.into(), "slots must be 4 to 64");
        check(&|spec| spec["rank"] = 9.into(), "rank must be below world_size");
        check(&|spec| spec["shards"] = serde_json::json!(["/dev/zero"]), "/dev/zero");
        check(&|spec| spec["shards"] = serde_json::json!(["/proc/self/mem"]), "/proc/self/mem");
        check(&|spec| spec["nonsense"] = 1.into(), "unknown field");
        let array = |shape: &[u32]| {
            let kind = serde_json::json!({"array": {"member": null, "dtype": "float64", "shape": shape, "max_bytes": 1 << 20}});
            serde_json::json!([{"name": "a", "sources": ["cls"], "kind": kind}])
        };
        check(&|spec| spec["fields"] = array(&[u32::MAX; 8]), "over 16 GiB");
        check(&|spec| spec["fields"] = array(&[1; 9]), "at most 8 dimensions");
        check(&|spec| (spec["fields"], spec["slots"]) = (array(&[1 << 27]), 64.into()), "lower");
        check(&|spec| spec["epoch_length"] = 0.into(), "epoch_length");
    });
}

#[test]
fn messages_out_of_place() {
    survives(|service| {
        let seek = |generation| ClientMessage::Seek { generation, epoch: u64::MAX, position: u64::MAX };
        let mut early = service.hostile();
        early.hello();
        early.say(&seek(1));
        early.expect_end("before a stream is open");
        let mut twice = service.hostile();
        let _ring = twice.open(service.spec());
        let spec = Box::new(serde_json::from_value(service.spec()).expect("a job"));
        twice.say(&ClientMessage::Open { spec, indices: None, weights: None, quarantine: None });
        twice.expect_end("a connection has one stream");
        let mut back = service.hostile();
        let _ring = back.open(service.spec());
        (1..100).for_each(|generation| back.say(&ClientMessage::Seek { generation, epoch: 0, position: 3 }));
        back.say(&ClientMessage::Seek { generation: 5, epoch: 0, position: 0 });
        back.expect_end("generation 5 comes after 99");
        // Answers that nobody reads fill the socket, and this client waits for itself.
        let mut deaf = service.hostile();
        let _ring = deaf.open(service.spec());
        deaf.socket.set_write_timeout(Some(Duration::from_millis(200))).expect("mode");
        let frame = encode(&ClientMessage::Figures).expect("encode");
        let full = (0..1_000_000).find(|_| deaf.socket.write_all(&frame).is_err());
        assert!(full.is_some(), "a million requests were taken in");
        service.honest().finish();
    });
}

#[test]
fn descriptors_attached_and_lists_that_are_not_there() {
    survives(|service| {
        let shard = File::open(service.folder.path().join("shard.tar")).expect("file");
        for _ in 0..100 {
            let hostile = service.hostile();
            let many = [shard.as_fd(); 4];
            let sent = (0..50).take_while(|_| socket::send(hostile.socket.as_fd(), &[0], &many).is_ok()).count();
            assert!(sent > 0);
        }
        let check = |list: &File, entries: u64, words: &str| {
            let mut hostile = service.hostile();
            hostile.hello();
            let spec = Box::new(serde_json::from_value(service.spec()).expect("a job"));
            let open = ClientMessage::Open { spec, indices: Some(entries), weights: None, quarantine: None };
            let frame = encode(&open).expect("encode");
            assert_eq!(socket::send(hostile.socket.as_fd(), &frame, &[list.as_fd()]).expect("send"), frame.len());
            hostile.expect_end(words);
        };
        check(&shard, 10, "another kind of file");
        let memory = |bytes: u64| {
            let memory = rustix::fs::memfd_create("list", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
            rustix::fs::ftruncate(&memory, bytes).expect("size");
            File::from(memory)
        };
        check(&memory(1 << 33), 1 << 30, "cannot be read");
        check(&memory(80), 11, "cannot be read");
        check(&memory(80), u64::MAX, "over the limit");
        let numbers = memory(0);
        numbers.write_all_at(&[0xff; 80], 0).expect("write");
        check(&numbers, 10, "sample");
    });
}

#[test]
fn thousands_of_connections() {
    survives(|service| {
        // As many as this process may open; the sidecar has its own limit, and refuses the rest.
        let mut silent = Vec::new();
        while silent.len() < 2_000 {
            match UnixStream::connect(service.socket()) {
                Ok(socket) => silent.push(socket),
                Err(error) if silent.len() > 500 => {
                    eprintln!("skipped: more than {} connections ({error})", silent.len());
                    break;
                }
                Err(error) => panic!("connection {}: {error}", silent.len()),
            }
        }
        // Who says nothing is sent away, and there is room for others again.
        let socket = silent.swap_remove(0);
        Hostile { socket, received: Vec::new(), descriptors: Vec::new() }.expect_end("no hello came within 10s");
        drop(silent);
    });
}

/// Waits until every slot is ready, so that the sidecar wants none, and takes nothing.
fn wait_full(ring: &RingDescriptors, layout: &BatchLayout, is_named: bool) {
    let copy = |memory: &OwnedFd| memory.try_clone().expect("duplicate");
    let copies =
        RingDescriptors { payload: copy(&ring.payload), control: copy(&ring.control), freed: copy(&ring.freed) };
    let map = if is_named { RingReader::map_named } else { RingReader::map };
    let reader = map(copies, layout, SLOTS).expect("map");
    let start = Instant::now();
    loop {
        let seen = reader.signal();
        if reader.slots_ready() == SLOTS {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "the ring is not filled");
        reader.wait(seen, PATIENCE).expect("wait");
    }
}

/// Takes what is ready, all of it, and keeps it.
fn hoard(ring: RingDescriptors, layout: &BatchLayout) -> Vec<HeldSlot> {
    let reader = RingReader::map(ring, layout, SLOTS).expect("map");
    let mut held = Vec::new();
    while held.len() < SLOTS as usize {
        let seen = reader.signal();
        match reader.take(BatchTicket::new(0, held.len() as u64).expect("small")).expect("take") {
            Some(slot) => held.push(slot),
            None => drop(reader.wait(seen, PATIENCE).expect("wait")),
        }
    }
    held
}

#[test]
fn a_hoarded_ring_and_one_that_is_never_looked_at() {
    survives(|service| {
        let mut hoarder = service.hostile();
        let (ring, layout) = hoarder.open(service.spec());
        let held = hoard(ring, &layout);
        let mut idle = service.hostile();
        let _ring = idle.open(service.spec());
        service.honest().finish();
        drop(held);
    });
}

#[test]
fn a_scribbled_control_page_and_lost_pages() {
    let control = |ring: &RingDescriptors| File::from(ring.control.try_clone().expect("duplicate"));
    let punch = |memory: &OwnedFd| {
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(memory, flags, 0, 64 << 10).expect("punch");
    };
    survives(|service| {
        // While the ring is filled and after that: nobody wakes the sidecar then, which looks by its own clock.
        for seed in 0..20 {
            let mut scribbler = service.hostile();
            let (ring, layout) = scribbler.open(service.spec());
            if seed % 2 == 0 {
                wait_full(&ring, &layout, false);
            }
            control(&ring).write_all_at(&noise(seed, 192 + 128 * SLOTS as usize), 0).expect("write");
            scribbler.expect_end("the client broke its ring");
        }
        for slot in 0..SLOTS {
            let mut scribbler = service.hostile();
            let (ring, layout) = scribbler.open(service.spec());
            wait_full(&ring, &layout, false);
            control(&ring).write_all_at(&u64::MAX.to_ne_bytes(), 192 + 128 * u64::from(slot)).expect("write");
            scribbler.expect_end("the client broke its ring");
        }
        let mut puncher = service.hostile();
        let (ring, layout) = puncher.open(service.spec());
        wait_full(&ring, &layout, false);
        punch(&ring.control);
        puncher.expect_end("the client broke its ring");
        // A hole in the slots takes nothing but this client's own rows.
        let mut puncher = service.hostile();
        let (ring, layout) = puncher.open(service.spec());
        punch(&ring.payload);
        drop(hoard(ring, &layout));
    });
}

#[test]
fn a_named_ring_that_is_cut() {
    survives(|service| {
        for part in ["slots", "control"] {
            let mut hostile = service.hostile();
            let mut spec = service.spec();
            spec["ring"] = "named".into();
            let (ring, layout) = hostile.open(spec);
            wait_full(&ring, &layout, true);
            let memory = if part == "slots" { &ring.payload } else { &ring.control };
            rustix::fs::ftruncate(memory, 0).expect("cut");
            // All slots are filled: the next store comes with the next stream.
            hostile.say(&ClientMessage::Seek { generation: 1, epoch: 1, position: 0 });
            hostile.expect_end("pages of the ring's memory were lost");
        }
    });
}

#[test]
fn a_stopped_client() {
    survives(|service| {
        let (mut client, _output) = again("client_that_is_stopped", &service.socket());
        let pid = Pid::from_raw(client.id() as i32).expect("a process");
        kill_process(pid, Signal::STOP).expect("stop");
        service.honest().finish();
        client.kill().expect("kill");
        client.wait().expect("wait");
    });
}

#[test]
fn clients_killed_with_reads_in_flight() {
    survives(|service| {
        for _ in 0..20 {
            let (mut client, _output) = again("client_that_is_stopped", &service.socket());
            // Its ring is being filled, as it takes batch after batch.
            client.kill().expect("kill");
            client.wait().expect("wait");
        }
    });
}

#[test]
#[ignore = "the client of a_stopped_client"]
fn client_that_is_stopped() {
    let socket = PathBuf::from(std::env::var_os(SOCKET).expect("a socket"));
    let mut spec = spec(socket.parent().expect("a folder"));
    spec["fields"] = serde_json::json!([
        {"name": "label", "sources": ["cls"], "kind": "int"},
        {"name": "blob", "sources": ["bin"], "kind": {"bytes": {"max_bytes": BLOB_BYTES}}},
    ]);
    let job: JobSpec = serde_json::from_value(spec).expect("a job");
    let mut stream = Stream::open(&socket, &job, Attachments::default(), PATIENCE, &mut |_, _| Ok(())).expect("open");
    let held = stream.next(PATIENCE, &mut |_, _| Ok(())).expect("served");
    println!("ready");
    // Until it is killed, or the sidecar has gone.
    let ended = loop {
        match stream.next(PATIENCE, &mut |_, _| Ok(())) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(ended, Error::SidecarExit { .. }), "{ended}");
    drop(held);
}
