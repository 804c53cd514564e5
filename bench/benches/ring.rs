//! What does the ring cost? Storing one row of 224 x 224 x 3 bytes, and a slot's whole round without waiting.
//!
//! Nanoseconds for one row, one round. The memory is warm: page faults of a ring's first round are left out, and so is
//! everything that happens before and after (decoding, the trainer's copy to the device). How long a sleeping process waits
//! for its batch is measured by `hand_over`.

use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use feedline_loader::batch::{BatchLayout, Dtype, FieldLayout};
use feedline_loader::plan::trace::Trace;
use feedline_loader::ring::{BatchDescriptor, BatchStatus, BatchTicket, RingReader, RingWriter, WritableSlot};

const SLOTS: u32 = 4;
const ROWS: u32 = 256;
const ROW_BYTES: usize = 224 * 224 * 3;

fn ring() -> (Arc<RingWriter>, Arc<RingReader>) {
    let fields = vec![
        FieldLayout::new("image", Dtype::Uint8, [224, 224, 3]).expect("field"),
        FieldLayout::new("label", Dtype::Int64, []).expect("field"),
    ];
    let layout = BatchLayout::new(fields, ROWS, 64).expect("layout");
    let (writer, descriptors) = RingWriter::create(&layout, SLOTS).expect("ring");
    (Arc::new(writer), RingReader::map(descriptors, &layout, SLOTS).expect("ring"))
}

fn ticket(sequence: u64) -> BatchTicket {
    BatchTicket::new(1, sequence).expect("in bounds")
}

fn publish(slot: &WritableSlot, sequence: u64) {
    let descriptor = BatchDescriptor {
        ticket: ticket(sequence),
        epoch: 0,
        batch_index: sequence,
        first_position: 0,
        end_position: 0,
        row_count: ROWS,
        status: BatchStatus::Ok,
        fault_count: 0,
        trace: Trace::default(),
    };
    slot.publish(descriptor, None);
}

fn acquire(writer: &Arc<RingWriter>) -> WritableSlot {
    writer.acquire().expect("sound").expect("a free slot")
}

fn store(criterion: &mut Criterion) {
    let (writer, _reader) = ring();
    let slot = acquire(&writer);
    let row = vec![7_u8; ROW_BYTES];
    (0..ROWS).for_each(|index| slot.store(0, index, &row));
    let mut group = criterion.benchmark_group("ring");
    group.throughput(Throughput::Bytes(ROW_BYTES as u64));
    let mut index = 0;
    group.bench_function("store one row of 150528 bytes", |bencher| {
        bencher.iter(|| {
            index = (index + 1) % ROWS;
            slot.store(0, index, &row);
        });
    });
    let mut private = vec![0_u8; ROW_BYTES * ROWS as usize];
    private.fill(1);
    group.bench_function("speed of light: the same copy into private memory", |bencher| {
        bencher.iter(|| {
            index = (index + 1) % ROWS;
            private[index as usize * ROW_BYTES..][..ROW_BYTES].copy_from_slice(std::hint::black_box(&row));
        });
    });
    group.throughput(Throughput::Elements(1));
    group.bench_function("store one label and one key", |bencher| {
        bencher.iter(|| {
            index = (index + 1) % ROWS;
            slot.store(1, index, &7_i64.to_ne_bytes());
            // The arena soon is full; a key without room saves its few bytes' copy, no more.
            slot.store_key(index, "n01440764/n01440764_10026")
        });
    });
    group.finish();
}

fn round(criterion: &mut Criterion) {
    let (writer, reader) = ring();
    let mut sequence = 0;
    criterion.bench_function("ring/acquire, publish, take, give back", |bencher| {
        bencher.iter(|| {
            sequence += 1;
            publish(&acquire(&writer), sequence);
            drop(reader.take(ticket(sequence)).expect("sound").expect("ready"));
        });
    });
}

criterion_group!(benches, store, round);
criterion_main!(benches);
