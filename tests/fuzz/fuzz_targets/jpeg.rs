//! JPEGs by our own engine and by libjpeg-turbo alone: the same pixels, faults and warnings. The first five bytes choose
//! the region and how far it is reduced.
#![no_main]

use std::cell::RefCell;

use feedline_loader::decode::Region;
use feedline_loader::decode::jpeg::JpegDecoder;
use feedline_loader::error::{FaultClass, SampleFault};
use feedline_loader::spec::{DecodeMode, DecodeSpec};
use libfuzzer_sys::fuzz_target;

const PIXELS_MAX: u64 = 1 << 20;

type Outcome = (Result<Vec<u8>, (FaultClass, String)>, u32);

fn outcome(decoder: &mut JpegDecoder, [left, top, right, bottom, choice]: [u8; 5], bytes: &[u8]) -> Outcome {
    let mut decode = || -> Result<Vec<u8>, SampleFault> {
        let spec = DecodeSpec { mode: DecodeMode::Scaled, ..DecodeSpec::default() };
        let image = decoder.open(bytes, PIXELS_MAX, &spec)?;
        let reduction = [1, 1, 1, 1, 1, 2, 4, 8][usize::from(choice % 8)];
        let (width, height) = image.size();
        let (width, height) = (width.div_ceil(reduction), height.div_ceil(reduction));
        let place = |side: u32, part: u8| side * u32::from(part) / 255;
        let (left, top) = (place(width - 1, left), place(height - 1, top));
        let (right, bottom) = (place(width, right).max(left + 1), place(height, bottom).max(top + 1));
        let region = Region { left, top, width: right - left, height: bottom - top };
        let mut rows = image.region(region, reduction)?;
        let mut pixels = Vec::new();
        while let Some(strip) = rows.next_strip()? {
            for row in strip.bytes.chunks(strip.stride).take(strip.rows as usize) {
                pixels.extend_from_slice(&row[..region.width as usize * 3]);
            }
        }
        Ok(pixels)
    };
    let found = decode().map_err(|fault| (fault.class, fault.message));
    (found, decoder.warnings())
}

thread_local! {
    static DECODERS: RefCell<[JpegDecoder; 2]> =
        RefCell::new([JpegDecoder::new(), JpegDecoder::of_library()].map(|decoder| decoder.expect("memory")));
}

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, bytes)) = bytes.split_first_chunk() else { return };
    DECODERS.with_borrow_mut(|[own, library]| {
        assert!(outcome(own, *choice, bytes) == outcome(library, *choice, bytes));
    });
});
