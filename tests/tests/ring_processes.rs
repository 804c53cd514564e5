//! The ring between two real processes: contents over thousands of batches, streams given up half way, and the death
//! of either side.
//!
//! Each test starts this very binary again as the other process, with one end of a Unix socket as its standard input.

use std::cell::RefCell;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use feedline_loader::batch::{BatchLayout, Dtype, FieldLayout, RowForm};
use feedline_loader::plan::trace::Trace;
use feedline_loader::ring::{
    BatchDescriptor, BatchStatus, BatchTicket, HeldSlot, RingDescriptors, RingReader, RingWriter, SealedSpill,
    SlotCounts,
};
use feedline_loader::sys::epoll::{Epoll, Trigger};
use feedline_loader::sys::socket;

const SLOTS: u32 = 4;
const ROWS: u32 = 16;
const ROW_BYTES: usize = 1_537;
const WORKERS: u32 = 3;

/// Longest wait for the other process before a test is given up.
const PATIENCE: Duration = Duration::from_secs(60);

fn layout() -> BatchLayout {
    let fields = vec![
        FieldLayout::new("bytes", Dtype::Uint8, [ROW_BYTES as u32]).expect("field"),
        FieldLayout::new("number", Dtype::Int64, []).expect("field"),
        FieldLayout::varying("values", Dtype::Uint8, RowForm::Bytes),
    ];
    BatchLayout::with_values(fields, ROWS, 32, VALUES_BYTES).expect("layout")
}

/// Room for the values of an ordinary batch; of one in eleven they are longer.
const VALUES_BYTES: u32 = 4 << 10;

/// The value of varying length that a row holds.
fn value(ticket: BatchTicket, row: u32) -> Vec<u8> {
    let long = if ticket.sequence() % 11 == 5 { 5 } else { 1 };
    let len = (ticket.sequence() as usize * 31 + row as usize * 57) % 200 * long;
    row_bytes(ticket, row + 100)[..len].to_vec()
}

/// Bytes of a message that carries the memory of spilled values: the batch's stream and number.
const SPILL_MESSAGE_BYTES: usize = 12;

fn ticket(generation: u32, sequence: u64) -> BatchTicket {
    BatchTicket::new(generation, sequence).expect("small")
}

/// What row `row` of a batch holds: a function of its place, different in every byte from its neighbours.
fn row_bytes(ticket: BatchTicket, row: u32) -> Vec<u8> {
    let mut word = u64::from(ticket.generation()) << 48 ^ ticket.sequence() << 8 ^ u64::from(row);
    let mut bytes = Vec::with_capacity(ROW_BYTES + 7);
    while bytes.len() < ROW_BYTES {
        // splitmix64
        word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend_from_slice(&(mixed ^ mixed >> 31).to_le_bytes());
    }
    bytes.truncate(ROW_BYTES);
    bytes
}

fn key(ticket: BatchTicket, row: u32) -> String {
    format!("{}/{}/{row}", ticket.generation(), ticket.sequence())
}

/// Rows of a batch: not all are full.
fn row_count(ticket: BatchTicket) -> u32 {
    if ticket.sequence() % 7 == 3 { ROWS - 5 } else { ROWS }
}

fn descriptor(ticket: BatchTicket) -> BatchDescriptor {
    let sequence = ticket.sequence();
    BatchDescriptor {
        ticket,
        epoch: u64::from(ticket.generation()),
        batch_index: sequence + 5,
        first_position: sequence * 16,
        end_position: sequence * 16 + u64::from(row_count(ticket)),
        row_count: row_count(ticket),
        status: BatchStatus::Ok,
        fault_count: sequence as u32 % 3,
        trace: Trace::default(),
    }
}

/// The sidecar's side, without the rest of the sidecar.
struct Sidecar {
    ring: Arc<RingWriter>,
    client: UnixStream,
    freed: Epoll,
    /// By which the slots' memory is known in `/proc/self/maps`.
    payload_inode: u64,
}

impl Sidecar {
    /// Makes a ring and sends it.
    fn new(client: &UnixStream) -> Self {
        let (ring, descriptors) = RingWriter::create(&layout(), SLOTS).expect("ring");
        let fds = [descriptors.payload.as_fd(), descriptors.control.as_fd(), descriptors.freed.as_fd()];
        assert_eq!(socket::send(client.as_fd(), b"R", &fds).expect("send"), 1);
        let payload_inode = File::from(descriptors.payload).metadata().expect("stat").ino();
        let freed = Epoll::new().expect("epoll");
        freed.add(ring.freed_fd(), 0, Trigger::Edge).expect("add");
        freed.add(client.as_fd(), 1, Trigger::Level).expect("add");
        let client = client.try_clone().expect("duplicate");
        Self { ring: Arc::new(ring), client, freed, payload_inode }
    }

    /// Fills and publishes one batch with several threads; false when the client has something to say first.
    fn serve(&self, ticket: BatchTicket) -> bool {
        let mut patience = Duration::ZERO;
        let slot = loop {
            // The socket first, or a client that discards what it no longer wants would be served that for ever; then
            // the ring, after its edge has been taken.
            let mut spoken = false;
            let due = self.freed.wait(patience, |key| spoken |= key == 1).expect("wait");
            assert!(due > 0 || patience.is_zero(), "no slot came back: {:?}", self.ring.slots_by_state());
            if spoken {
                return false;
            }
            if let Some(slot) = self.ring.acquire().expect("a sound client") {
                break slot;
            }
            patience = PATIENCE;
        };
        let rows = row_count(ticket);
        let remaining = AtomicU32::new(rows);
        std::thread::scope(|scope| {
            for worker in 0..WORKERS {
                let (slot, remaining) = (&slot, &remaining);
                scope.spawn(move || {
                    for row in (worker..rows).step_by(WORKERS as usize) {
                        slot.store(0, row, &row_bytes(ticket, row));
                        slot.store(1, row, &(ticket.sequence() as i64 - i64::from(row)).to_ne_bytes());
                        slot.store_value(2, row, &value(ticket, row)).expect("memory");
                        assert!(slot.store_key(row, &key(ticket, row)));
                        slot.set_valid(row, row % 3 != 1);
                        if remaining.fetch_sub(1, Ordering::AcqRel) == 1 {
                            if let Some(spill) = slot.seal_spill().expect("seal") {
                                self.send_spill(ticket, &spill);
                            }
                            slot.publish(descriptor(ticket), Some(key(ticket, 1000).as_bytes()));
                        }
                    }
                });
            }
        });
        true
    }

    /// A client that was killed takes none.
    fn send_spill(&self, ticket: BatchTicket, spill: &SealedSpill) {
        let mut message = ticket.generation().to_ne_bytes().to_vec();
        message.extend(ticket.sequence().to_ne_bytes());
        let sent = socket::send(self.client.as_fd(), &message, &[spill.memory.as_fd()]);
        assert!(sent.as_ref().map_or(true, |&sent| sent == SPILL_MESSAGE_BYTES), "{sent:?}");
    }
}

/// The client's side.
struct Client {
    ring: Arc<RingReader>,
    socket: UnixStream,
    spills: RefCell<Vec<(BatchTicket, OwnedFd)>>,
}

impl Client {
    fn new(socket: UnixStream) -> Self {
        let received = socket::receive(socket.as_fd(), &mut [0]).expect("receive");
        let [payload, control, freed] = received.descriptors.try_into().expect("three descriptors");
        let ring = RingReader::map(RingDescriptors { payload, control, freed }, &layout(), SLOTS).expect("map");
        Self { ring, socket, spills: RefCell::default() }
    }

    /// Takes a batch with its spill, whose memory was sent before the batch was there.
    fn take(&self, ticket: BatchTicket) -> Option<HeldSlot> {
        let mut held = self.ring.take(ticket).expect("take")?;
        if held.spill_bytes() > 0 {
            self.sidecar_is_gone();
            let mut spills = self.spills.borrow_mut();
            let place = spills.iter().position(|(spilled, _)| *spilled == ticket).expect("sent before");
            held.attach_spill(spills.swap_remove(place).1.as_fd()).expect("attach");
            spills.retain(|(spilled, _)| *spilled > ticket);
        }
        Some(held)
    }

    /// Waits for a batch as a client does; `None` when the sidecar is gone.
    fn next(&self, ticket: BatchTicket) -> Option<HeldSlot> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let seen = self.ring.signal();
            if let Some(slot) = self.take(ticket) {
                return Some(slot);
            }
            self.ring.wait(seen, Duration::from_millis(100)).expect("wait");
            if self.sidecar_is_gone() {
                // It may have published before it went.
                return self.take(ticket);
            }
        }
        panic!("{ticket} did not come");
    }

    /// Keeps the memory of spilled values that has come; true at the end of the socket.
    fn sidecar_is_gone(&self) -> bool {
        self.socket.set_nonblocking(true).expect("mode");
        loop {
            let mut message = [0; SPILL_MESSAGE_BYTES];
            match socket::receive(self.socket.as_fd(), &mut message) {
                Ok(received) if received.bytes == 0 => return true,
                Ok(mut received) => {
                    assert_eq!(received.bytes, SPILL_MESSAGE_BYTES);
                    let generation = u32::from_ne_bytes(message[..4].try_into().expect("4 bytes"));
                    let sequence = u64::from_ne_bytes(message[4..].try_into().expect("8 bytes"));
                    let memory = received.descriptors.pop().expect("one");
                    self.spills.borrow_mut().push((ticket(generation, sequence), memory));
                }
                // A reset: dead with unread messages of ours.
                Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }
}

fn check(held: &HeldSlot) {
    let found = held.descriptor();
    let ticket = found.ticket;
    assert_eq!(found, descriptor(ticket));
    let rows = found.row_count;
    let mut bytes = vec![0; rows as usize * ROW_BYTES];
    held.copy_field(0, &mut bytes).expect("here");
    let mut numbers = vec![0; rows as usize * 8];
    held.copy_field(1, &mut numbers).expect("here");
    let entries = held.entries(2).expect("here");
    assert_eq!(held.spill_bytes() > 0, ticket.sequence() % 11 == 5, "{ticket}");
    for row in 0..rows {
        let mut found = vec![0; entries[row as usize].len as usize];
        held.copy_value(entries[row as usize], &mut found).expect("here");
        assert!(found == value(ticket, row), "{ticket}, row {row}");
        assert!(bytes[row as usize * ROW_BYTES..][..ROW_BYTES] == row_bytes(ticket, row), "{ticket}, row {row}");
        let number = i64::from_ne_bytes(numbers[row as usize * 8..][..8].try_into().expect("8 bytes"));
        assert_eq!(number, ticket.sequence() as i64 - i64::from(row));
        assert_eq!(held.key(row).expect("here"), key(ticket, row));
        assert_eq!(held.valid(row).expect("here"), row % 3 != 1);
    }
    assert_eq!(held.report().expect("here"), key(ticket, 1000).as_bytes());
}

/// Starts this binary as the other process, which runs the ignored test `name`.
fn start(name: &str) -> (Child, UnixStream) {
    let (near, far) = UnixStream::pair().expect("pair");
    let child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", name, "--ignored", "--nocapture"])
        .stdin(Stdio::from(OwnedFd::from(far)))
        .stdout(Stdio::null())
        .spawn()
        .expect("start");
    (child, near)
}

/// The socket that [`start`] gave to this process.
fn standard_input() -> UnixStream {
    UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().expect("duplicate"))
}

const BATCHES: u64 = 4_000;

#[test]
fn thousands_of_batches_arrive_whole() {
    let (mut child, socket) = start("client_checks_all");
    let sidecar = Sidecar::new(&socket);
    for sequence in 0..BATCHES {
        assert!(sidecar.serve(ticket(1, sequence)), "the client says nothing before the end");
    }
    assert!(child.wait().expect("wait").success());
    assert_eq!(sidecar.ring.slots_by_state(), SlotCounts { free: SLOTS, ..SlotCounts::default() });
    assert!(!sidecar.ring.poisoned());
}

#[test]
#[ignore = "the other process of thousands_of_batches_arrive_whole"]
fn client_checks_all() {
    let client = Client::new(standard_input());
    // Held for a while and given back out of order, as a trainer does.
    let mut kept = Vec::new();
    for sequence in 0..BATCHES {
        kept.push(client.next(ticket(1, sequence)).expect("the sidecar lives"));
        if kept.len() == 3 {
            check(&kept.swap_remove(sequence as usize % 3));
        }
    }
    kept.iter().for_each(check);
}

const STREAMS: u32 = 60;

#[test]
fn streams_given_up_half_way_leave_nothing_behind() {
    let (mut child, socket) = start("client_leaves_streams");
    let sidecar = Sidecar::new(&socket);
    for generation in 0..STREAMS {
        sidecar.ring.reclaim_ready(generation);
        let mut sequence = 0;
        // Until the client asks for the next stream.
        while sidecar.serve(ticket(generation, sequence)) {
            sequence += 1;
        }
        assert_eq!((&socket).read(&mut [0]).expect("read"), 1);
    }
    assert!(child.wait().expect("wait").success());
    sidecar.ring.reclaim_ready(STREAMS);
    assert_eq!(sidecar.ring.slots_by_state(), SlotCounts { free: SLOTS, ..SlotCounts::default() });
}

#[test]
#[ignore = "the other process of streams_given_up_half_way_leave_nothing_behind"]
fn client_leaves_streams() {
    let client = Client::new(standard_input());
    let mut kept = None;
    for generation in 0..STREAMS {
        for sequence in 0..u64::from(generation % 5) {
            let held = client.next(ticket(generation, sequence)).expect("the sidecar lives");
            check(&held);
            // One batch outlives its stream.
            kept = Some(held);
        }
        kept.iter().for_each(check);
        assert_eq!(socket::send(client.socket.as_fd(), b"N", &[]).expect("send"), 1);
    }
}

#[test]
fn a_killed_client_leaves_no_memory_and_the_next_is_served() {
    for _ in 0..3 {
        let (mut child, socket) = start("client_holds_and_sleeps");
        let sidecar = Sidecar::new(&socket);
        let mut sequence = 0;
        while sidecar.serve(ticket(1, sequence)) {
            sequence += 1;
        }
        // It holds two batches, and sleeps for one that will not come.
        assert_eq!((&socket).read(&mut [0]).expect("read"), 1);
        while !sidecar.ring.client_waiting() {
            std::thread::yield_now();
        }
        assert_eq!(sidecar.ring.slots_by_state().held, 2);
        child.kill().expect("kill");
        child.wait().expect("wait");
        assert_eq!((&socket).read(&mut [0]).expect("the end"), 0);
        let inode = format!(" {} ", sidecar.payload_inode);
        let mapped = || {
            let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
            maps.lines().any(|line| line.contains(&inode) && line.contains("memfd:feedline-payload"))
        };
        assert!(mapped());
        drop(sidecar);
        assert!(!mapped(), "the ring dies with its last holder");
    }
}

#[test]
#[ignore = "the other process of a_killed_client_leaves_no_memory_and_the_next_is_served"]
fn client_holds_and_sleeps() {
    let client = Client::new(standard_input());
    let held = [0, 1].map(|sequence| client.next(ticket(1, sequence)).expect("the sidecar lives"));
    held.iter().for_each(check);
    assert_eq!(socket::send(client.socket.as_fd(), b"H", &[]).expect("send"), 1);
    assert!(client.next(ticket(9, 0)).is_none(), "killed by the test, or left alone by its death");
}

#[test]
fn a_killed_sidecar_ends_the_wait_and_leaves_held_batches() {
    let (mut child, socket) = start("sidecar_serves_for_ever");
    let client = Client::new(socket);
    let mut kept = Vec::new();
    for sequence in 0..50 {
        kept.push(client.next(ticket(1, sequence)).expect("the sidecar lives"));
        if kept.len() == 3 {
            kept.remove(0);
        }
    }
    child.kill().expect("kill");
    child.wait().expect("wait");
    // What was ready may still be taken; then the wait ends, though nobody wakes us.
    let mut sequence = 50;
    while let Some(held) = client.next(ticket(1, sequence)) {
        check(&held);
        sequence += 1;
    }
    assert!(sequence <= 50 + u64::from(SLOTS));
    kept.iter().for_each(check);
    drop(kept);
    assert_eq!(client.ring.slots_held(), 0);
}

#[test]
#[ignore = "the other process of a_killed_sidecar_ends_the_wait_and_leaves_held_batches"]
fn sidecar_serves_for_ever() {
    let socket = standard_input();
    let sidecar = Sidecar::new(&socket);
    let mut sequence = 0;
    while sidecar.serve(ticket(1, sequence)) {
        sequence += 1;
    }
}
