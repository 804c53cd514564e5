//! What travels over the socket, either way: any bytes are a message, an error, or wait for more, and no message makes
//! its checks panic, or reserve what nobody sent. Inputs are tried as they are, and as the text of one frame.
#![no_main]

use feedline_loader::batch::{BatchLayout, FieldRecipe};
use feedline_loader::serve::protocol::{
    ClientMessage, FRAME_BYTES_MAX, FRAME_HEADER_BYTES, ServerMessage, StreamInfo, decode, encode,
};
use feedline_loader::spec::JobSpec;
use libfuzzer_sys::fuzz_target;

/// What the sidecar does with a job before it opens anything.
fn check_job(spec: &JobSpec) {
    if spec.check().is_err() {
        return;
    }
    if let Ok((_, layouts)) = FieldRecipe::compile_all(&spec.fields, spec.batch_size)
        && let Ok(layout) = BatchLayout::new(layouts, spec.batch_size, 100)
    {
        layout.check().expect("what was just made is sound");
    }
}

/// What a client does with the description of its stream.
fn check_info(info: &StreamInfo) {
    for position in [0, 1, info.epoch_positions, u64::MAX] {
        let _ = info.batches_from(position);
    }
    if info.layout.check().is_ok() {
        let _ = info.layout.layout_hash();
    }
}

fn run(bytes: &[u8]) {
    let mut received = bytes.to_vec();
    while let Ok(Some(message)) = decode::<ClientMessage>(&mut received) {
        if let ClientMessage::Open { spec, .. } = &message {
            check_job(spec);
        }
        let again = encode(&message).expect("what was read can be written");
        assert!(again.len() <= FRAME_BYTES_MAX + FRAME_HEADER_BYTES);
    }
    let mut received = bytes.to_vec();
    while let Ok(Some(message)) = decode::<ServerMessage>(&mut received) {
        if let ServerMessage::Opened { info } = &message {
            check_info(info);
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    run(bytes);
    let length = u32::try_from(bytes.len()).expect("a small input");
    run(&[&length.to_le_bytes(), bytes].concat());
});
