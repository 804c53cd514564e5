//! The client's side of a ring whose other side writes anything: the first 64 bytes are the record of a batch, the rest
//! the slot. Whatever they are, reading the batch is an error or stays within the slot.
#![no_main]

use std::cell::RefCell;
use std::sync::Arc;

use feedline_loader::batch::{BatchLayout, Dtype, FieldLayout, RowForm};
use feedline_loader::ring::{
    BatchDescriptor, BatchStatus, BatchTicket, HeldSlot, RingDescriptors, RingReader, RingWriter,
};
use libfuzzer_sys::fuzz_target;

const ROWS: u32 = 5;
/// Where the record of the first slot's batch lies in the control memory.
const RECORD_OFFSET: u64 = 192 + 64;
const RECORD_BYTES: usize = 64;

struct Ring {
    writer: Arc<RingWriter>,
    reader: Arc<RingReader>,
    descriptors: RingDescriptors,
    sequence: u64,
}

impl Ring {
    fn new() -> Self {
        let fields = vec![
            FieldLayout::new("image", Dtype::Uint8, [7, 3]).expect("field"),
            FieldLayout::varying("words", Dtype::Uint8, RowForm::Bytes),
            FieldLayout::varying("arrays", Dtype::Float32, RowForm::Arrays),
        ];
        let layout = BatchLayout::with_values(fields, ROWS, 16, 512).expect("layout");
        let (writer, descriptors) = RingWriter::create(&layout, 1).expect("memory");
        let copy = |memory: &std::os::fd::OwnedFd| memory.try_clone().expect("duplicate");
        let kept = RingDescriptors {
            payload: copy(&descriptors.payload),
            control: copy(&descriptors.control),
            freed: copy(&descriptors.freed),
        };
        let reader = RingReader::map(descriptors, &layout, 1).expect("sound");
        Self { writer: Arc::new(writer), reader, descriptors: kept, sequence: 0 }
    }
}

thread_local! {
    static RING: RefCell<Ring> = RefCell::new(Ring::new());
}

fn read(held: &HeldSlot) {
    let rows = held.descriptor().row_count;
    assert!(rows <= ROWS);
    let (_, bytes) = held.field(0).expect("this process's");
    let mut copy = vec![0; bytes];
    held.copy_field(0, &mut copy).expect("within the slot");
    let _ = held.valid_rows();
    let _ = held.keys();
    let _ = held.report();
    for field in [1, 2] {
        let Ok(entries) = held.entries(field) else { continue };
        for entry in entries {
            let mut value = vec![0; entry.len as usize];
            held.copy_value(entry, &mut value).expect("checked by entries");
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    RING.with_borrow_mut(|ring| {
        ring.sequence = (ring.sequence + 1) % u64::from(u32::MAX);
        let ticket = BatchTicket::new(0, ring.sequence).expect("in bounds");
        let slot = ring.writer.acquire().expect("sound").expect("free");
        let descriptor = BatchDescriptor {
            ticket,
            epoch: 0,
            batch_index: 0,
            first_position: 0,
            end_position: 0,
            row_count: ROWS,
            status: BatchStatus::Ok,
            fault_count: 0,
            trace: feedline_loader::plan::trace::Trace::default(),
        };
        slot.publish(descriptor, None);
        let (record, payload) = bytes.split_at(bytes.len().min(RECORD_BYTES));
        let room = ring.reader.layout().slot_bytes as usize;
        rustix::io::pwrite(&ring.descriptors.control, record, RECORD_OFFSET).expect("write");
        rustix::io::pwrite(&ring.descriptors.payload, &payload[..payload.len().min(room)], 0).expect("write");
        if let Ok(Some(held)) = ring.reader.take(ticket) {
            read(&held);
        }
        // Given back whatever it held.
        assert_eq!(ring.writer.slots_by_state().free, 1);
    });
});
