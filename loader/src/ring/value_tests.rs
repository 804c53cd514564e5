//! Values of varying length through a ring, both ends in one process: whatever the lengths, each row gives back its bytes;
//! and a client believes no entry, size or memory that cannot be.
#![expect(unsafe_code, reason = "plays a sidecar that writes what it should not")]

use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::batch::{BatchLayout, Dtype, FieldLayout, RowEntry, RowForm};
use crate::plan::trace::Trace;
use crate::sys::memfd;
use crate::sys::shared::{OnFork, SharedMapping};

const BYTES: usize = 0;
const ARRAYS: usize = 2;

fn layout(rows: u32, values_bytes: u32) -> BatchLayout {
    let fields = vec![
        FieldLayout::varying("bytes", Dtype::Uint8, RowForm::Bytes),
        FieldLayout::new("label", Dtype::Int64, []).expect("field"),
        FieldLayout::varying("arrays", Dtype::Float32, RowForm::Arrays),
    ];
    BatchLayout::with_values(fields, rows, 8, values_bytes).expect("layout")
}

struct Ring {
    writer: Arc<RingWriter>,
    reader: Arc<RingReader>,
    payload: OwnedFd,
}

fn ring(layout: &BatchLayout) -> Ring {
    let (writer, descriptors) = RingWriter::create(layout, 1).expect("create");
    let payload = descriptors.payload.try_clone().expect("duplicate");
    let reader = RingReader::map(descriptors, layout, 1).expect("map");
    Ring { writer: Arc::new(writer), reader, payload }
}

fn ticket(sequence: u64) -> BatchTicket {
    BatchTicket::new(1, sequence).expect("small")
}

fn descriptor(sequence: u64, row_count: u32) -> BatchDescriptor {
    BatchDescriptor {
        ticket: ticket(sequence),
        epoch: 0,
        batch_index: sequence,
        first_position: 0,
        end_position: 0,
        row_count,
        status: BatchStatus::Ok,
        fault_count: 0,
        trace: Trace::default(),
    }
}

fn acquire(ring: &Ring) -> WritableSlot {
    ring.writer.acquire().expect("sound").expect("a free slot")
}

/// What row `row` of field `field` holds: different for each, and from batch to batch.
fn value(sequence: u64, field: usize, row: usize, len: usize) -> Vec<u8> {
    let first = sequence as usize * 131 + field * 17 + row * 59;
    (first..first + len).map(|byte| (byte * 7 % 251) as u8).collect()
}

/// Takes the batch, with its spill.
fn take(ring: &Ring, sequence: u64, spill: Option<&SealedSpill>) -> HeldSlot {
    let mut held = ring.reader.take(ticket(sequence)).expect("take").expect("ready");
    assert_eq!(held.spill_bytes(), spill.map_or(0, |spill| spill.bytes));
    if let Some(spill) = spill {
        held.attach_spill(spill.memory.as_fd()).expect("attach");
    }
    held
}

proptest! {
    #[test]
    fn each_row_gives_back_its_bytes(
        lengths in prop::collection::vec((0_usize..300, 0_usize..200), 1..40),
        room in 0_u32..6_000,
    ) {
        let ring = ring(&layout(lengths.len() as u32, room));
        let rows = lengths.len();
        // Twice, so that the second batch lies on what the first has left.
        for sequence in 0..2 {
            let slot = acquire(&ring);
            std::thread::scope(|scope| {
                for worker in 0..3 {
                    let (slot, lengths) = (&slot, &lengths);
                    scope.spawn(move || {
                        for row in (worker..rows).step_by(3) {
                            for (field, len) in [(BYTES, lengths[row].0), (ARRAYS, lengths[row].1)] {
                                slot.store_value(field, row as u32, &value(sequence, field, row, len)).expect("memory");
                            }
                        }
                    });
                }
            });
            let spill = slot.seal_spill().expect("seal");
            slot.publish(descriptor(sequence, rows as u32), None);
            drop(slot);
            let held = take(&ring, sequence, spill.as_ref());
            for field in [BYTES, ARRAYS] {
                let entries = held.entries(field).expect("sound");
                prop_assert_eq!(entries.len(), rows);
                for (row, entry) in entries.into_iter().enumerate() {
                    let len = if field == BYTES { lengths[row].0 } else { lengths[row].1 };
                    let mut found = vec![0; entry.len as usize];
                    held.copy_value(entry, &mut found).expect("here");
                    prop_assert_eq!(found, value(sequence, field, row, len));
                    let address = held.value(entry).expect("here").addr().get();
                    prop_assert!(field == BYTES || address.is_multiple_of(64));
                }
            }
        }
    }
}

#[test]
fn a_batch_that_fits_has_no_spill_and_one_that_does_not_is_freed_with_its_slot() {
    let ring = ring(&layout(2, 128));
    let slot = acquire(&ring);
    slot.store_value(BYTES, 0, &[1; 128]).expect("memory");
    slot.store_value(BYTES, 1, &[]).expect("memory");
    assert!(slot.seal_spill().expect("seal").is_none());
    drop(slot);

    let slot = acquire(&ring);
    slot.store_value(BYTES, 0, &[1; 100]).expect("memory");
    slot.store_value(BYTES, 1, &[2; 5000]).expect("memory");
    slot.store_value(ARRAYS, 0, &[3; 64]).expect("memory");
    slot.store_value(ARRAYS, 1, &[4; 64]).expect("memory");
    let spill = slot.seal_spill().expect("seal").expect("5000 bytes have no room");
    slot.publish(descriptor(0, 2), None);
    drop(slot);
    let inode = rustix::fs::fstat(&*spill.memory).expect("stat").st_ino;
    let is_mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        maps.lines().any(|line| line.contains("memfd:feedline-spill") && line.contains(&format!(" {inode} ")))
    };
    let held = take(&ring, 0, Some(&spill));
    drop(spill);
    assert!(is_mapped());
    let bytes: Vec<u8> = [BYTES, ARRAYS]
        .into_iter()
        .flat_map(|field| held.entries(field).expect("sound"))
        .map(|entry| {
            let mut found = vec![0; entry.len as usize];
            held.copy_value(entry, &mut found).expect("here");
            assert!(found.iter().all(|byte| *byte == found[0]));
            found[0]
        })
        .collect();
    assert_eq!(bytes, [1, 2, 3, 4]);
    drop(held);
    assert!(!is_mapped(), "the spill dies with its batch");
}

#[test]
fn our_own_mistakes_panic() {
    let panics = |what: &dyn Fn(&WritableSlot)| {
        let ring = ring(&layout(1, 64));
        let slot = acquire(&ring);
        catch_unwind(AssertUnwindSafe(|| what(&slot))).is_err()
    };
    assert!(panics(&|slot| drop(slot.store_value(1, 0, &[0; 8]))), "a fixed field");
    assert!(panics(&|slot| slot.store(BYTES, 0, &[])), "no row");
    assert!(panics(&|slot| drop(slot.store_value(BYTES, 1, &[]))), "no such row");
    assert!(
        panics(&|slot| {
            slot.store_value(BYTES, 0, &[0; 65]).expect("memory");
            slot.publish(descriptor(0, 1), None);
        }),
        "published before the spill is sealed"
    );
    assert!(
        panics(&|slot| {
            slot.store_value(BYTES, 0, &[0; 65]).expect("memory");
            drop(slot.seal_spill());
            drop(slot.store_value(BYTES, 0, &[0; 65]));
        }),
        "stored after"
    );
    assert!(!panics(&|slot| {
        slot.store_value(BYTES, 0, &[0; 65]).expect("memory");
        drop(slot.seal_spill());
        slot.publish(descriptor(0, 1), None);
    }));
}

#[test]
fn entries_that_cannot_be_are_refused() {
    let layout = layout(1, 256);
    let ring = ring(&layout);
    let bytes = layout.slot_bytes as usize;
    let payload = SharedMapping::map(ring.payload.as_fd(), bytes, OnFork::Keep).expect("map");
    let write = |field: usize, offset: u32, len: u32| {
        let word = RowEntry { offset, len }.to_word().to_ne_bytes();
        // SAFETY: within the only slot of the mapping.
        let target = unsafe { payload.start().add(layout.fields[field].offset as usize) };
        // SAFETY: as above, and private memory does not overlap it.
        unsafe { target.copy_from_nonoverlapping(std::ptr::NonNull::from(&word).cast(), 8) };
    };
    // 128 + 64 bytes in the slot; then, in the second batch, 100 more in a spill.
    for (sequence, spilled) in [(0, 0), (1, 100)] {
        let slot = acquire(&ring);
        slot.store_value(BYTES, 0, &[1; 128]).expect("memory");
        slot.store_value(ARRAYS, 0, &[1; 64]).expect("memory");
        if spilled > 0 {
            slot.store_value(BYTES, 0, &vec![1; spilled]).expect("memory");
        }
        let spill = slot.seal_spill().expect("seal");
        assert_eq!(spill.is_some(), spilled > 0);
        slot.publish(descriptor(sequence, 1), None);
        drop(slot);
        let held = take(&ring, sequence, spill.as_ref());
        let check = |field, offset, len, is_sound| {
            write(field, offset, len);
            let found = held.entries(field);
            assert_eq!(found.is_ok(), is_sound, "{field}: {offset} + {len} with {spilled} spilled: {found:?}");
            for entry in found.into_iter().flatten() {
                held.copy_value(entry, &mut vec![0; len as usize]).expect("here");
            }
        };
        check(BYTES, 0, 192, true);
        check(BYTES, 192, 0, true);
        check(BYTES, 0, 193, false);
        check(BYTES, 193, 0, false);
        check(BYTES, 0, u32::MAX, false);
        check(BYTES, u32::MAX, 0, false);
        check(BYTES, u32::MAX, u32::MAX, false);
        check(ARRAYS, 1, 64, false);
        check(ARRAYS, 64, 64, true);
        check(BYTES, 256, spilled as u32, spilled > 0);
        check(BYTES, 256, spilled as u32 + 1, false);
        check(BYTES, 256 + spilled as u32 + 1, 0, false);
        check(BYTES, 200, 100, false);
    }
}

#[test]
fn a_spill_that_is_not_what_was_said_is_refused() {
    let ring = ring(&layout(1, 0));
    let slot = acquire(&ring);
    slot.store_value(BYTES, 0, &[1; 100]).expect("memory");
    slot.seal_spill().expect("seal");
    slot.publish(descriptor(0, 1), None);
    drop(slot);
    let mut held = ring.reader.take(ticket(0)).expect("take").expect("ready");
    let refused = held.entries(BYTES).expect_err("not attached").to_string();
    assert!(refused.contains("0 spilled"), "{refused}");
    let unsealed = memfd::create_growing("feedline-test").expect("memfd");
    memfd::write_at(unsealed.as_fd(), &[1; 100], 0).expect("write");
    let refused = held.attach_spill(unsealed.as_fd()).expect_err("not sealed").to_string();
    assert!(refused.contains("not sealed"), "{refused}");
    memfd::seal(unsealed.as_fd(), 99).expect("seal");
    let refused = held.attach_spill(unsealed.as_fd()).expect_err("too short").to_string();
    assert!(refused.contains("99 bytes, needs 100"), "{refused}");
}
