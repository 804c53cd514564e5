//! Rings with names: found, read and given back by name alone; cut under both sides; too large for their file system.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::layout::{Control, MAGIC, VERSION};
use super::named::Label;
use super::*;
use crate::batch::{BatchLayout, Dtype, FieldLayout};
use crate::sys::epoll::{Epoll, Trigger};
use crate::sys::shared::OnFork;
use crate::sys::testing::in_child;
use crate::sys::{futex, segment};

const SLOTS: u32 = 4;
const ROWS: u32 = 2;

fn layout() -> BatchLayout {
    let fields = vec![
        FieldLayout::new("image", Dtype::Uint8, [40]).expect("field"),
        FieldLayout::new("label", Dtype::Int64, []).expect("field"),
    ];
    BatchLayout::new(fields, ROWS, 8).expect("layout")
}

fn label(job: &str) -> Label<'_> {
    Label { job, rank: 1, batches_per_epoch: 9 }
}

fn ring(job: &str) -> (Arc<RingWriter>, RingDescriptors) {
    let (writer, descriptors) = RingWriter::create_named(&layout(), SLOTS, &label(job)).expect("create");
    (Arc::new(writer), descriptors)
}

fn ticket(sequence: u64) -> BatchTicket {
    BatchTicket::new(0, sequence).expect("small")
}

fn publish(writer: &Arc<RingWriter>, sequence: u64) {
    let slot = writer.acquire().expect("sound").expect("a free slot");
    slot.store(1, 0, &(sequence as i64).to_ne_bytes());
    let descriptor = BatchDescriptor {
        ticket: ticket(sequence),
        epoch: 0,
        batch_index: sequence,
        first_position: 0,
        end_position: 2,
        row_count: ROWS,
        status: BatchStatus::Ok,
        fault_count: 0,
        trace: crate::plan::trace::Trace::default(),
    };
    slot.publish(descriptor, None);
}

fn path(name: &str, part: &str) -> PathBuf {
    Path::new(segment::FOLDER).join(format!("{}.{part}", name.trim_start_matches('/')))
}

#[test]
fn everything_is_found_by_name() {
    let (writer, _) = ring("Everything Found");
    let name = writer.name().expect("named").to_owned();
    assert!(name.starts_with(&format!("/feedline.everything-found.1.{}.", std::process::id())), "{name}");
    let bytes = std::fs::read(path(&name, "control")).expect("read");
    let word = |offset: usize| u32::from_ne_bytes(bytes[offset..][..4].try_into().expect("4 bytes"));
    let long = |offset: usize| u64::from_ne_bytes(bytes[offset..][..8].try_into().expect("8 bytes"));
    assert_eq!((long(0), word(8), word(12), long(16)), (MAGIC, VERSION, SLOTS, layout().slot_bytes));
    let (start, len) = (word(24) as usize, word(28) as usize);
    assert_eq!(start, 192 + 128 * SLOTS as usize);
    let description: serde_json::Value = serde_json::from_slice(&bytes[start..start + len]).expect("JSON");
    assert_eq!(description["job"], "Everything Found");
    assert_eq!(description["batches_per_epoch"], 9);
    assert_eq!(description["slots_segment"], format!("{name}.slots"));
    let found: BatchLayout = serde_json::from_value(description["layout"].clone()).expect("a layout");
    assert_eq!(found, layout());
    // The words of a batch lie where the table says.
    publish(&writer, 7);
    let bytes = std::fs::read(path(&name, "control")).expect("read");
    let long = |offset: usize| u64::from_ne_bytes(bytes[offset..][..8].try_into().expect("8 bytes"));
    assert_eq!((long(192), long(192 + 72), long(192 + 88)), (7 << 4 | 3, 7, 2));
    let word = |offset: usize| u32::from_ne_bytes(bytes[offset..][..4].try_into().expect("4 bytes"));
    assert_eq!((word(192 + 96), word(192 + 100), word(64), word(72)), (ROWS, 1, 1, 0));
    let slots = std::fs::read(path(&name, "slots")).expect("read");
    let label = layout().fields[1].offset as usize;
    assert_eq!(slots[label..label + 8], 7_i64.to_ne_bytes());
    drop(writer);
    assert!(!path(&name, "control").exists() && !path(&name, "slots").exists(), "the names end with the ring");
}

#[test]
fn a_reader_without_descriptors_gives_slots_back() {
    let (writer, _) = ring("without descriptors");
    let memory = segment::open(&format!("{}.control", writer.name().expect("named"))).expect("open");
    let control = Control::map(memory.as_fd(), SLOTS, OnFork::Leave).expect("map");
    let freed = Epoll::new().expect("epoll");
    freed.add(writer.freed_fd(), 0, Trigger::Edge).expect("add");
    for sequence in 0..3 * u64::from(SLOTS) {
        publish(&writer, sequence);
        let slot = (0..SLOTS).find(|&slot| state::take(&control.slot(slot).state, ticket(sequence))).expect("ready");
        assert_eq!(writer.slots_by_state().held, 1);
        state::release(&control.slot(slot).state, ticket(sequence)).expect("held");
        control.client().freed_signal.fetch_add(1, Ordering::Release);
        futex::wake_all(&control.client().freed_signal).expect("wake");
        assert_eq!(freed.wait(Duration::from_secs(60), |_| ()).expect("wait"), 1, "the doorbell rings");
    }
    assert_eq!(writer.slots_by_state().free, SLOTS);
    assert_eq!(control.sidecar().ended.load(Ordering::Acquire), 0);
    writer.reclaim_ready(5);
    assert_eq!(control.sidecar().generation.load(Ordering::Acquire), 5);
    let seen = control.sidecar().ready_signal.load(Ordering::Acquire);
    drop(writer);
    assert_eq!(control.sidecar().ended.load(Ordering::Acquire), 1);
    assert_ne!(control.sidecar().ready_signal.load(Ordering::Acquire), seen, "and is woken to see it");
}

#[test]
fn one_process_takes_the_batches() {
    let (writer, descriptors) = ring("one process");
    let memory = segment::open(&format!("{}.control", writer.name().expect("named"))).expect("open");
    let control = Control::map(memory.as_fd(), SLOTS, OnFork::Leave).expect("map");
    let reader = RingReader::map_named(descriptors, &layout(), SLOTS).expect("map");
    assert_eq!(control.client().consumer.load(Ordering::Acquire), 0, "mapping alone claims nothing");
    publish(&writer, 0);
    drop(reader.take(ticket(0)).expect("take").expect("ready"));
    assert_eq!(control.client().consumer.load(Ordering::Acquire), std::process::id());
    assert_eq!(control.client().next_ticket.load(Ordering::Acquire), 1);
    control.client().consumer.store(1, Ordering::Release);
    let refused = reader.take(ticket(1)).expect_err("another's").to_string();
    assert!(refused.contains("process 1 takes the batches of this named ring"), "{refused}");
}

#[test]
fn a_ring_that_is_not_sealed_is_no_nameless_one() {
    let (_writer, descriptors) = ring("not sealed");
    let refused = RingReader::map(descriptors, &layout(), SLOTS).expect_err("not sealed").to_string();
    assert!(refused.contains("refused the ring's memory"), "{refused}");
}

#[test]
fn a_ring_cut_by_others_ends_on_both_sides() {
    // The handler is the whole process's, and the model checker's coroutines put another in its place.
    if !in_child("ring::named_tests::a_ring_cut_by_others_ends_on_both_sides") {
        return;
    }
    for part in ["slots", "control"] {
        let (writer, descriptors) = ring("cut");
        let (other, _) = ring("whole");
        let memory = segment::open(&format!("{}.{part}", writer.name().expect("named"))).expect("open");
        let reader = RingReader::map_named(descriptors, &layout(), SLOTS).expect("map");
        publish(&writer, 0);
        let held = reader.take(ticket(0)).expect("take").expect("ready");
        rustix::fs::ftruncate(&memory, 0).expect("cut");
        held.copy_field(1, &mut [0; 16]).expect("zeros");
        drop(held);
        let refused = reader.take(ticket(1)).expect_err("lost").to_string();
        assert!(refused.contains("pages of the named ring's memory were lost"), "{refused}");
        if let Ok(Some(slot)) = writer.acquire() {
            slot.store(0, 0, &[1; 40]);
        }
        assert!(matches!(writer.acquire(), Err(RingFault::Memory { .. })), "{part}");
        publish(&other, 0);
        assert!(!other.poisoned());
    }
}

/// Runs the ignored test `name` where `/dev/shm` is a tmpfs of `options`; false where that cannot be had.
fn in_small_folder(name: &str, options: &str) -> bool {
    let test = std::env::current_exe().expect("this test");
    let script = format!("mount -t tmpfs -o {options} none {} && exec \"$@\"", segment::FOLDER);
    // As root in the container's own user namespace, else in a new one.
    for unshare in ["-m", "-rm"] {
        let mut command = std::process::Command::new("unshare");
        command.args([unshare, "sh", "-c", &script, "sh"]).arg(&test);
        command.args(["--exact", name, "--ignored", "--nocapture"]);
        let Ok(output) = command.output() else { continue };
        let words = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        if words.contains("running 1 test") {
            assert!(output.status.success() && words.contains("1 passed"), "{words}");
            return true;
        }
    }
    eprintln!("skipped: no tmpfs can be mounted here (needs unshare and mount)");
    false
}

#[test]
fn a_folder_too_small_is_refused_with_the_sum() {
    in_small_folder("ring::named_tests::create_in_a_small_folder", "size=256k");
}

#[test]
#[ignore = "run by a_folder_too_small_is_refused_with_the_sum, with a small tmpfs"]
fn create_in_a_small_folder() {
    let refused = RingWriter::create_named(&layout(), SLOTS, &label("small")).expect_err("256 KiB").to_string();
    for words in ["needs 0.6 MiB in /dev/shm, which has 0.2 MiB free", "--shm-size", "lower slots", "ring=\"memfd\""] {
        assert!(refused.contains(words), "{refused}");
    }
    assert_eq!(std::fs::read_dir(segment::FOLDER).expect("folder").count(), 0, "nothing stays behind");
    // The room is taken between the look and the making.
    std::fs::write(Path::new(segment::FOLDER).join("rest"), [1; 128 << 10]).expect("write");
    let made = segment::create_reserved("/feedline-test.too-large", 192 << 10).map(drop);
    assert!(made.is_err_and(|error| error.raw_os_error() == Some(libc::ENOSPC)));
    assert!(!Path::new(segment::FOLDER).join("feedline-test.too-large").exists());
}

#[test]
fn somebody_elses_name_is_never_taken() {
    in_small_folder("ring::named_tests::create_among_squatters", "size=8m");
}

#[test]
#[ignore = "run by somebody_elses_name_is_never_taken, with a tmpfs of its own"]
fn create_among_squatters() {
    // What comes next is known from what came last.
    let (writer, _) = ring("squat");
    let name = writer.name().expect("named").to_owned();
    drop(writer);
    let (stem, number) = name.rsplit_once('.').expect("a number");
    let next = format!("{stem}.{}", number.parse::<u32>().expect("a number") + 1);
    let target = Path::new(segment::FOLDER).join("target");
    std::fs::write(&target, b"precious").expect("write");
    std::os::unix::fs::symlink(&target, path(&next, "slots")).expect("link");
    let refused = RingWriter::create_named(&layout(), SLOTS, &label("squat")).expect_err("taken").to_string();
    assert!(refused.contains("is there already, made by uid"), "{refused}");
    assert_eq!(std::fs::read(&target).expect("read"), b"precious");
    std::fs::remove_file(path(&next, "slots")).expect("remove");
}
