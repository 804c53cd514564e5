//! Both ends of a ring in one process: contents, the life of slots, and what happens when somebody breaks the rules.
#![expect(unsafe_code, reason = "plays a client that writes where it should not; forks")]

use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::fs::FallocateFlags;

use super::layout::Control;
use super::*;
use crate::batch::{BatchLayout, Dtype, FieldLayout, REPORT_BYTES_MAX};
use crate::plan::trace::Trace;
use crate::sys::epoll::{Epoll, Trigger};
use crate::sys::memory::{GroupMemory, MemoryReport};
use crate::sys::shared::{OnFork, SharedMapping};
use crate::sys::testing::in_child;
use crate::sys::{eventfd, memfd};

const SLOTS: u32 = 4;
const ROWS: u32 = 3;

fn layout() -> BatchLayout {
    let fields = vec![
        FieldLayout::new("image", Dtype::Uint8, [5, 7, 3]).expect("field"),
        FieldLayout::new("label", Dtype::Int64, []).expect("field"),
        FieldLayout::new("nothing", Dtype::Float32, [0]).expect("field"),
    ];
    BatchLayout::new(fields, ROWS, 8).expect("layout")
}

struct Ring {
    writer: Arc<RingWriter>,
    reader: Arc<RingReader>,
    /// The client's descriptors, for one that does not keep to the reader.
    payload: OwnedFd,
    control: Control,
}

fn ring() -> Ring {
    let (writer, descriptors) = RingWriter::create(&layout(), SLOTS).expect("create");
    let payload = descriptors.payload.try_clone().expect("duplicate");
    let control = Control::map(descriptors.control.as_fd(), SLOTS, OnFork::Keep).expect("map");
    let reader = RingReader::map(descriptors, &layout(), SLOTS).expect("map");
    Ring { writer: Arc::new(writer), reader, payload, control }
}

fn ticket(generation: u32, sequence: u64) -> BatchTicket {
    BatchTicket::new(generation, sequence).expect("small")
}

fn descriptor(generation: u32, sequence: u64, row_count: u32) -> BatchDescriptor {
    BatchDescriptor {
        ticket: ticket(generation, sequence),
        epoch: 3,
        batch_index: 1 << 40,
        first_position: 100,
        end_position: 103,
        row_count,
        status: BatchStatus::Ok,
        fault_count: 2,
        trace: Trace::default(),
    }
}

fn counts(free: u32, filling: u32, ready: u32, held: u32) -> SlotCounts {
    SlotCounts { free, filling, ready, held }
}

fn acquire(ring: &Ring) -> WritableSlot {
    ring.writer.acquire().expect("sound").expect("a free slot")
}

fn panics(what: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(what)).is_err()
}

#[test]
fn what_is_stored_arrives() {
    let ring = ring();
    let image = |row: u32| (0..105).map(|index| (index * 7 + row * 13) as u8).collect::<Vec<_>>();
    let slot = acquire(&ring);
    for row in 0..ROWS {
        slot.store(0, row, &image(row));
        slot.store(1, row, &i64::from(row).to_ne_bytes());
        slot.store(2, row, &[]);
    }
    slot.store_strip(0, 1, 100, b"strip");
    assert!(slot.store_key(0, "n01440764/ü"));
    assert!(slot.store_key(2, ""));
    slot.set_valid(2, false);
    let expected = descriptor(7, 9, ROWS);
    slot.publish(expected, Some(b"{\"faults\":[]}"));

    assert!(ring.reader.take(ticket(7, 8)).expect("take").is_none());
    let held = ring.reader.take(ticket(7, 9)).expect("take").expect("ready");
    assert_eq!(held.descriptor(), expected);
    let mut pixels = vec![0; 315];
    held.copy_field(0, &mut pixels).expect("here");
    let mut strip = image(1);
    strip[100..].copy_from_slice(b"strip");
    assert_eq!(pixels, [image(0), strip, image(2)].concat());
    let mut labels = [0; 24];
    held.copy_field(1, &mut labels).expect("here");
    assert_eq!(labels.map(usize::from)[..24].iter().sum::<usize>(), 3);
    assert_eq!(held.field(2).expect("here").1, 0);
    assert_eq!([0, 1, 2].map(|row| held.key(row).expect("here")), ["n01440764/ü", "", ""]);
    assert_eq!(held.keys().expect("here"), ["n01440764/ü", "", ""]);
    assert_eq!([0, 1, 2].map(|row| held.valid(row).expect("here")), [true, true, false]);
    assert_eq!(held.valid_rows().expect("here"), [true, true, false]);
    assert_eq!(held.report().expect("here"), b"{\"faults\":[]}");
    let (start, bytes) = held.field(0).expect("here");
    assert_eq!((start.addr().get() % 64, bytes), (0, 315));

    // The slot's next life starts clean, and a short batch shows its rows only.
    drop(held);
    let slot = acquire(&ring);
    slot.publish(descriptor(7, 10, 1), None);
    let held = ring.reader.take(ticket(7, 10)).expect("take").expect("ready");
    assert_eq!((held.key(0).expect("here"), held.valid(0).expect("here")), (String::new(), true));
    assert_eq!((held.field(0).expect("here").1, held.report().expect("here")), (105, vec![]));
    assert!(panics(|| drop(held.key(1))), "a row that the batch has not");
}

#[test]
fn a_slot_goes_round() {
    let ring = ring();
    let freed = Epoll::new().expect("epoll");
    freed.add(ring.writer.freed_fd(), 0, Trigger::Edge).expect("add");
    let edges = || freed.wait(Duration::ZERO, |_| ()).expect("wait");
    assert_eq!(ring.writer.slots_by_state(), counts(4, 0, 0, 0));
    let slots = [0, 1, 2, 3].map(|_| acquire(&ring));
    assert!(ring.writer.acquire().expect("sound").is_none());
    assert_eq!(ring.writer.slots_by_state(), counts(0, 4, 0, 0));
    let [first, second, third, fourth] = slots;
    drop(fourth);
    assert_eq!(ring.writer.slots_by_state(), counts(1, 3, 0, 0));
    for (sequence, slot) in [&first, &second, &third].into_iter().enumerate() {
        slot.publish(descriptor(1, sequence as u64, ROWS), None);
    }
    // Its holders may keep it for a while; the client does not wait for that.
    let held = ring.reader.take(ticket(1, 1)).expect("take").expect("ready");
    assert!(ring.reader.take(ticket(1, 1)).expect("take").is_none(), "taken twice");
    assert_eq!(ring.writer.slots_by_state(), counts(1, 0, 2, 1));
    assert_eq!((ring.reader.slots_held(), ring.reader.slot_count(), edges()), (1, 4, 0));
    drop(held);
    assert_eq!((ring.reader.slots_held(), edges(), edges()), (0, 1, 0));
    assert_eq!(ring.writer.slots_by_state(), counts(2, 0, 2, 0));
    drop([first, second, third]);
    assert_eq!(ring.writer.slots_by_state(), counts(2, 0, 2, 0));
}

#[test]
fn older_streams_make_room() {
    let ring = ring();
    for (generation, sequence) in [(1, 0), (1, 1), (2, 0)] {
        acquire(&ring).publish(descriptor(generation, sequence, ROWS), None);
    }
    let held = ring.reader.take(ticket(1, 0)).expect("take").expect("ready");
    assert_eq!(ring.writer.reclaim_ready(2), 1);
    assert_eq!(ring.writer.slots_by_state(), counts(2, 0, 1, 1));
    // Published late, after the sidecar looked: the client finds it.
    acquire(&ring).publish(descriptor(1, 2, ROWS), None);
    acquire(&ring).publish(descriptor(3, 0, ROWS), None);
    assert!(ring.writer.acquire().expect("sound").is_none());
    let next = ring.reader.take(ticket(2, 0)).expect("take").expect("ready");
    assert_eq!(ring.writer.slots_by_state(), counts(1, 0, 1, 2), "1/2 is discarded, 3/0 is not");
    drop((held, next));
    assert_eq!(ring.writer.slots_by_state(), counts(3, 0, 1, 0));
}

#[test]
fn waits_end_by_signal_or_time() {
    let ring = ring();
    let seen = ring.reader.signal();
    assert_eq!(ring.reader.wait(seen, Duration::ZERO).expect("wait"), WaitOutcome::TimedOut);
    acquire(&ring).publish(descriptor(1, 0, 0), None);
    assert_eq!(ring.reader.wait(seen, Duration::from_secs(600)).expect("wait"), WaitOutcome::Signalled);
    let (seen, events) = (ring.reader.signal(), ring.reader.events());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            while ring.reader.events() == events {
                ring.reader.wait(seen, Duration::from_secs(600)).expect("wait");
            }
        });
        while !ring.writer.client_waiting() {
            std::thread::yield_now();
        }
        ring.writer.notify_events();
        waiter.join().expect("waiter");
    });
    assert!(!ring.writer.client_waiting());
    assert_eq!(ring.reader.events(), events + 1);
}

#[test]
fn misuse_by_our_own_code_panics() {
    let ring = ring();
    let slot = acquire(&ring);
    assert!(panics(|| slot.store(0, 0, &[0; 104])), "not a whole row");
    assert!(panics(|| slot.store(0, ROWS, &[0; 105])), "no such row");
    assert!(panics(|| slot.store(3, 0, &[])), "no such field");
    assert!(panics(|| slot.store_strip(0, 0, 100, &[0; 6])), "over the end of the row");
    assert!(panics(|| slot.store_strip(0, 0, usize::MAX, &[0; 6])), "overflow");
    assert!(panics(|| slot.publish(descriptor(1, 0, ROWS + 1), None)), "too many rows");
    let report = vec![b' '; layout().arena_bytes as usize + 1];
    assert!(panics(|| slot.publish(descriptor(1, 0, ROWS), Some(&report))), "report over the arena");
    slot.publish(descriptor(1, 0, ROWS), None);
    assert!(panics(|| slot.publish(descriptor(1, 1, ROWS), None)), "published twice");
    assert!(panics(|| slot.store(0, 0, &[0; 105])), "stored after publishing");
    assert!(panics(|| assert!(slot.store_key(0, "k"))), "key after publishing");
    assert!(!ring.writer.poisoned());
}

#[test]
fn keys_fill_their_part_and_the_report_always_fits() {
    let ring = ring();
    let slot = acquire(&ring);
    assert!(slot.store_key(0, "0123456789"));
    assert!(!slot.store_key(1, "0123456789abcde"), "25 of 24 bytes");
    assert!(slot.store_key(2, "0123456789abcd"));
    let report = vec![b'r'; REPORT_BYTES_MAX];
    slot.publish(descriptor(1, 0, ROWS), Some(&report));
    let held = ring.reader.take(ticket(1, 0)).expect("take").expect("ready");
    assert_eq!([0, 1, 2].map(|row| held.key(row).expect("here")), ["0123456789", "", "0123456789abcd"]);
    assert_eq!(held.report().expect("here"), report);
}

#[test]
fn broken_state_words_end_the_ring() {
    for broken in [0, 5, u64::MAX, state::ready(ticket(1, 1)), state::held(ticket(2, 0))] {
        let ring = ring();
        acquire(&ring).publish(descriptor(1, 0, ROWS), None);
        ring.control.slot(0).state.store(broken, Ordering::Relaxed);
        let fault = RingFault::State { slot: SlotIndex(0), found: broken, expected: state::ready(ticket(1, 0)) };
        assert_eq!(ring.writer.acquire().map(drop), Err(fault));
        assert!(ring.writer.poisoned());
        assert_eq!(ring.writer.acquire().map(drop), Err(fault), "stays so");
        assert!(Error::from(fault).to_string().contains("slot 0: state word"), "{fault}");
    }
    // While the sidecar fills.
    let ring = ring();
    let slot = acquire(&ring);
    ring.control.slot(0).state.store(state::held(ticket(1, 0)), Ordering::Relaxed);
    slot.publish(descriptor(1, 0, ROWS), None);
    assert!(ring.writer.poisoned());
    // Giving back early hurts only the client itself.
    let ring = self::ring();
    acquire(&ring).publish(descriptor(1, 0, ROWS), None);
    ring.control.slot(0).state.store(state::FREE, Ordering::Relaxed);
    assert_eq!(acquire(&ring).index(), SlotIndex(0));
    assert!(!ring.writer.poisoned());
}

#[test]
fn broken_descriptors_and_entries_are_refused_by_the_client() {
    let ring = ring();
    let slot = acquire(&ring);
    assert!(slot.store_key(0, "key"));
    slot.publish(descriptor(1, 0, ROWS), None);
    let held = ring.reader.take(ticket(1, 0)).expect("take").expect("ready");
    let (layout, bytes) = (layout(), (layout().slot_bytes * u64::from(SLOTS)) as usize);
    let payload = SharedMapping::map(ring.payload.as_fd(), bytes, OnFork::Keep).expect("map");
    let write = |offset: u64, bytes: &[u8]| {
        // SAFETY: within the first slot of the mapping.
        let target = unsafe { payload.start().add(offset as usize) };
        // SAFETY: as above, and private memory does not overlap it.
        unsafe { target.copy_from_nonoverlapping(std::ptr::NonNull::from(bytes).cast(), bytes.len()) };
    };
    for entry in [(0_u64, 4_u64), (1, 3), (u64::from(u32::MAX), 1), (0, u64::from(u32::MAX)), (4, 0)] {
        write(layout.entries_offset, &(entry.0 << 32 | entry.1).to_ne_bytes());
        let refused = held.key(0).expect_err("out of bounds");
        assert!(refused.to_string().contains("key of row 0"), "{refused}");
    }
    write(layout.entries_offset, &3_u64.to_ne_bytes());
    write(layout.arena_offset, b"\xffey");
    assert_eq!(held.key(0).expect("here"), "\u{fffd}ey");
    drop(held);

    let taken = |break_it: &dyn Fn(&super::layout::SlotRecord)| {
        acquire(&ring).publish(descriptor(1, 1, ROWS), None);
        break_it(ring.control.slot(0));
        ring.reader.take(ticket(1, 1)).map(drop)
    };
    let rows = taken(&|record| record.write(&descriptor(1, 1, ROWS + 1), Default::default()));
    assert!(rows.expect_err("rows").to_string().contains("row count 4"));
    let arena = super::layout::ArenaUse { used: 4, report_offset: 3, report_bytes: 2, values_used: 0, spill_bytes: 0 };
    let report = taken(&|record| record.write(&descriptor(1, 1, ROWS), arena));
    assert!(report.expect_err("report").to_string().contains("report at 3"));
    let arena = super::layout::ArenaUse { used: layout.arena_bytes + 1, ..Default::default() };
    assert!(taken(&|record| record.write(&descriptor(1, 1, ROWS), arena)).is_err());
    assert_eq!((ring.reader.slots_held(), ring.writer.slots_by_state()), (0, counts(4, 0, 0, 0)));
}

#[test]
fn holes_in_the_ring_are_survived() {
    let punch = |memory: &OwnedFd, offset: u64, bytes: u64| {
        rustix::fs::fallocate(memory, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, bytes)
            .expect("the seals allow it");
    };
    // In the payload: the kernel supplies a new page, or the store would fault.
    let ring = ring();
    let slot = acquire(&ring);
    punch(&ring.payload, 0, layout().slot_bytes);
    slot.store(0, 0, &[1; 105]);
    slot.publish(descriptor(1, 0, ROWS), None);
    assert!(ring.reader.take(ticket(1, 0)).expect("take").is_some());
    // In the control memory: the words are zeros, which are no state.
    let (writer, descriptors) = RingWriter::create(&layout(), SLOTS).expect("create");
    let writer = Arc::new(writer);
    punch(&descriptors.control, 0, 1 << 16);
    assert!(matches!(writer.acquire(), Err(RingFault::State { found: 0, .. })));
    assert!(RingReader::map(descriptors, &layout(), SLOTS).expect_err("no magic").to_string().contains("magic"));
}

#[test]
fn the_room_of_holes_is_not_given_to_another_ring() {
    // Other tests of this process make rings and holes at the same time.
    if !in_child("ring::tests::the_room_of_holes_is_not_given_to_another_ring") {
        return;
    }
    let ring = ring();
    let bytes = layout().slot_bytes * u64::from(SLOTS);
    let memory = |bytes| MemoryReport { machine_free_bytes: Some(bytes), group: None };
    let another = |free_bytes| RingWriter::create_within(&layout(), SLOTS, &memory(free_bytes));
    let room = bytes + Control::bytes(SLOTS);
    drop(another(room).expect("enough"));
    rustix::fs::fallocate(&ring.payload, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, bytes)
        .expect("punch");
    let refused = another(room).expect_err("the hole counts").to_string();
    assert!(refused.contains("holes that clients made in other rings will take"), "{refused}");
    drop(another(room + bytes).expect("enough for both"));
    drop(ring);
    drop(another(room).expect("a ring that is gone takes nothing back"));
}

#[test]
fn a_full_ring_is_looked_at() {
    let ring = ring();
    for sequence in 0..u64::from(SLOTS) {
        acquire(&ring).publish(descriptor(1, sequence, ROWS), None);
    }
    ring.writer.look().expect("sound");
    let held = ring.reader.take(ticket(1, 2)).expect("take").expect("ready");
    ring.writer.look().expect("sound");
    assert_eq!(ring.writer.slots_by_state(), counts(0, 0, 3, 1));
    ring.control.slot(3).state.store(0xdead, Ordering::Relaxed);
    assert_eq!(ring.writer.slots_by_state(), counts(0, 0, 2, 2));
    assert!(!ring.writer.poisoned(), "counting alone says nothing");
    assert!(matches!(ring.writer.look(), Err(RingFault::State { slot: SlotIndex(3), found: 0xdead, .. })));
    assert!(ring.writer.poisoned());
    drop(held);
}

#[test]
fn lost_pages_end_the_ring_and_nothing_else() {
    // The handler is the whole process's, and the model checker's coroutines put another in its place.
    if !in_child("ring::tests::lost_pages_end_the_ring_and_nothing_else") {
        return;
    }
    // A sealed memfd cannot be cut, so the ring lies in an ordinary file here; the fault is the same.
    let bytes = layout().slot_bytes * u64::from(SLOTS);
    let (payload, control) = (tempfile::tempfile().expect("file"), tempfile::tempfile().expect("file"));
    payload.set_len(bytes).expect("size");
    control.set_len(Control::bytes(SLOTS)).expect("size");
    let over = |payload: &std::fs::File| {
        let freed = eventfd::create().expect("eventfd");
        Arc::new(RingWriter::over(&layout(), SLOTS, payload.as_fd(), control.as_fd(), freed).expect("map"))
    };
    let (writer, other) = (over(&payload), self::ring());
    let slot = writer.acquire().expect("sound").expect("free");
    payload.set_len(0).expect("cut");
    slot.store(0, 0, &[1; 105]);
    slot.publish(descriptor(1, 0, ROWS), None);
    assert!(writer.poisoned());
    assert!(matches!(writer.acquire(), Err(RingFault::Memory { pages: 1 })));
    acquire(&other).store(0, 0, &[1; 105]);
    assert!(!other.writer.poisoned());
    // The control memory goes too.
    payload.set_len(bytes).expect("size");
    let writer = over(&payload);
    control.set_len(0).expect("cut");
    assert!(matches!(writer.acquire(), Err(RingFault::Memory { .. })));
}

/// Room of the small file system below: the ring of 4 slots and 64 KiB of control memory fit, not much more.
const TMPFS_BYTES: u64 = 1 << 20;

#[test]
fn holes_that_nothing_can_fill_are_survived() {
    let folder = tempfile::tempdir().expect("folder");
    let test = std::env::current_exe().expect("this test");
    let mounted = |unshare: &str| {
        let script = format!("mount -t tmpfs -o size={TMPFS_BYTES} none \"$0\" && exec \"$@\"");
        let name = "ring::tests::holes_in_a_full_tmpfs";
        let mut command = std::process::Command::new("unshare");
        command.args([unshare, "sh", "-c", &script]).arg(folder.path()).arg(&test);
        command.args(["--exact", name, "--ignored", "--nocapture"]).env("FEEDLINE_TEST_TMPFS", folder.path()).output()
    };
    // As root in the container's own user namespace, else in a new one.
    for unshare in ["-m", "-rm"] {
        let Ok(output) = mounted(unshare) else { continue };
        let words = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        if words.contains("running 1 test") {
            assert!(output.status.success() && words.contains("faulted and lives"), "{words}");
            return;
        }
    }
    eprintln!("skipped: no small tmpfs can be mounted here (needs unshare and mount)");
}

#[test]
#[ignore = "run by holes_that_nothing_can_fill_are_survived, with a small tmpfs"]
fn holes_in_a_full_tmpfs() {
    let folder = std::path::PathBuf::from(std::env::var_os("FEEDLINE_TEST_TMPFS").expect("a folder"));
    let create = |name: &str| {
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).open(folder.join(name)).expect("file")
    };
    let (payload, control, rest) = (create("payload"), create("control"), create("rest"));
    let bytes = layout().slot_bytes * u64::from(SLOTS);
    for (memory, bytes) in [(&payload, bytes), (&control, Control::bytes(SLOTS))] {
        memory.set_len(bytes).expect("size");
        memfd::reserve(memory.as_fd(), bytes).expect("fits");
    }
    let freed = eventfd::create().expect("eventfd");
    let ring = RingWriter::over(&layout(), SLOTS, payload.as_fd(), control.as_fd(), freed).expect("map");
    let slot = Arc::new(ring).acquire().expect("sound").expect("free");
    // The client gives the slot's pages back to the system, and they are gone before the sidecar stores.
    use rustix::fs::FallocateFlags;
    rustix::fs::fallocate(&payload, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, layout().slot_bytes)
        .expect("punch");
    let mut offset = 0;
    while rustix::fs::fallocate(&rest, FallocateFlags::empty(), offset, 4096).is_ok() {
        offset += 4096;
    }
    slot.store(0, 0, &[1; 105]);
    slot.publish(descriptor(1, 0, ROWS), Some(&vec![b' '; 9000]));
    assert!(matches!(slot.ring().acquire(), Err(RingFault::Memory { pages: 3.. })));
    println!("faulted and lives");
}

#[test]
fn too_large_is_refused_with_the_sum() {
    let memory = MemoryReport {
        machine_free_bytes: Some(1 << 30),
        group: Some(GroupMemory { folder: "/cg/pod".into(), limit_bytes: 1 << 20, used_bytes: 1 << 19 }),
    };
    let refused = RingWriter::create_within(&layout(), SLOTS, &memory).expect_err("half a MiB");
    assert!(matches!(refused, Error::Resources { .. }));
    assert_eq!(
        refused.to_string(),
        "the ring needs 4 slots x 0.1 MiB = 0.5 MiB, but only 0.5 MiB can be had (the machine has 1024.0 MiB available, \
         the control group /cg/pod allows 1.0 MiB and uses 0.5 MiB): lower the number of slots or the batch size, or \
         raise the memory limit"
    );
    RingWriter::create_within(&layout(), 2, &memory).expect("fits");
    assert!(matches!(RingWriter::create(&layout(), 0), Err(Error::Config { .. })));
    assert!(matches!(RingWriter::create(&layout(), 65), Err(Error::Config { .. })));
}

#[test]
fn what_is_not_the_agreed_ring_is_refused() {
    let check = |slot_count: u32, layout: &BatchLayout, change: &dyn Fn(&mut RingDescriptors), words: &str| {
        let (_writer, mut descriptors) = RingWriter::create(&self::layout(), SLOTS).expect("create");
        change(&mut descriptors);
        let refused = RingReader::map(descriptors, layout, slot_count).expect_err(words);
        assert!(refused.to_string().contains(words), "{refused}");
    };
    let same = |_: &mut RingDescriptors| ();
    check(0, &layout(), &same, "1 to 64 slots");
    check(3, &layout(), &same, "needs 393216");
    let mut other = layout();
    other.fields[1].dtype = Dtype::Float64;
    check(SLOTS, &other, &same, "layout hash");
    other.fields[1].offset += 64;
    check(SLOTS, &other, &same, "is not what its fields give");
    let swap = |descriptors: &mut RingDescriptors| std::mem::swap(&mut descriptors.payload, &mut descriptors.control);
    check(SLOTS, &layout(), &swap, "bytes, needs");
    let event = |descriptors: &mut RingDescriptors| descriptors.payload = eventfd::create().expect("eventfd");
    check(SLOTS, &layout(), &event, "refused the ring's memory");
    let zeros = |descriptors: &mut RingDescriptors| {
        descriptors.control = memfd::create_reserved("zeros", Control::bytes(SLOTS)).expect("memfd");
    };
    check(SLOTS, &layout(), &zeros, "magic is 0x0");
}

#[test]
fn a_forked_child_is_refused_by_name() {
    let ring = ring();
    acquire(&ring).publish(descriptor(1, 0, ROWS), None);
    let held = ring.reader.take(ticket(1, 0)).expect("take").expect("ready");
    // SAFETY: the child allocates (glibc keeps its allocator usable after fork), touches no lock of ours, and leaves
    // by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let words = "cannot be used in process";
        let refused = [
            held.field(0).map(drop),
            held.key(0).map(drop),
            held.keys().map(drop),
            held.valid(0).map(|_| ()),
            held.valid_rows().map(drop),
            held.report().map(drop),
            ring.reader.take(ticket(1, 1)).map(drop),
            ring.reader.wait(0, Duration::ZERO).map(drop),
        ];
        let refused = refused.into_iter().all(|result| result.is_err_and(|error| error.to_string().contains(words)));
        let silent = ring.reader.signal() == 0 && ring.reader.events() == 0;
        let Ring { reader, .. } = ring;
        drop((held, reader));
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(if refused && silent { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child; `status` is valid.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0), "the child was refused everywhere and died of nothing");
    assert_eq!(ring.writer.slots_by_state(), counts(3, 0, 0, 1), "still held here");
    drop(held);
    assert_eq!(ring.writer.slots_by_state(), counts(4, 0, 0, 0));
}

#[test]
fn any_thread_may_have_them() {
    fn check<T: Send + Sync>() {}
    check::<RingWriter>();
    check::<WritableSlot>();
    check::<RingReader>();
    check::<HeldSlot>();
}

#[test]
fn tickets_have_bounds() {
    assert!(BatchTicket::new(BatchTicket::GENERATION_MAX, BatchTicket::SEQUENCE_MAX).is_ok());
    assert!(BatchTicket::new(BatchTicket::GENERATION_MAX + 1, 0).is_err());
    assert!(BatchTicket::new(0, BatchTicket::SEQUENCE_MAX + 1).is_err());
    let last = ticket(BatchTicket::GENERATION_MAX, BatchTicket::SEQUENCE_MAX);
    assert_eq!(state::ready_generation(state::ready(last)), Some(BatchTicket::GENERATION_MAX));
    assert_eq!(state::ready_generation(state::held(last)), None);
}
