//! Values of databases: pickles, msgpack, Datums.
#![no_main]

use feedline_loader::decode::unwrap::Unwrapper;
use feedline_loader::decode::unwrap::pickle::PickleReader;
use feedline_loader::shard::Encoding;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut unwrapper = Unwrapper::default();
    for encoding in [Encoding::Value, Encoding::Element(0), Encoding::Element(1), Encoding::DatumImage, Encoding::DatumLabel] {
        let _ = unwrapper.unwrap(encoding, bytes);
    }
    let _ = PickleReader::default().value(bytes);
});
