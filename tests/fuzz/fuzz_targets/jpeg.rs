//! JPEGs by our own engine and by libjpeg-turbo: the same pixels, or the same fault, and the same warnings.
//!
//! The first five bytes choose the region and the reduction, the others are the file.
#![no_main]

use std::cell::RefCell;

use feedline_loader::decode::Region;
use feedline_loader::decode::jpeg::JpegDecoder;
use feedline_loader::error::SampleFault;
use feedline_loader::spec::DecodeSpec;
use libfuzzer_sys::fuzz_target;

thread_local! {
    /// Kept from file to file, as a worker does.
    static BOTH: RefCell<[JpegDecoder; 2]> =
        RefCell::new([JpegDecoder::new().expect("memory"), JpegDecoder::of_library().expect("memory")]);
}

fn pixels(decoder: &mut JpegDecoder, choice: [u8; 5], file: &[u8]) -> Result<Vec<u8>, SampleFault> {
    let image = decoder.open(file, 1 << 20, &DecodeSpec::default())?;
    let reduction = 1 << (choice[4] % 4);
    let [width, height] = <[u32; 2]>::from(image.size()).map(|side| side.div_ceil(reduction));
    let place = |side: u32, part: u8| (u64::from(side) * u64::from(part) / 256) as u32;
    let (left, top) = (place(width, choice[0]), place(height, choice[1]));
    let (wide, high) = (place(width - left, choice[2]).max(1), place(height - top, choice[3]).max(1));
    let mut rows = image.region(Region { left, top, width: wide, height: high }, reduction)?;
    let mut pixels = Vec::new();
    while let Some(strip) = rows.next_strip()? {
        for row in strip.bytes.chunks(strip.stride).take(strip.rows as usize) {
            pixels.extend_from_slice(&row[..3 * wide as usize]);
        }
    }
    Ok(pixels)
}

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, file)) = bytes.split_first_chunk::<5>() else { return };
    BOTH.with_borrow_mut(|both| {
        let [own, library] = both.each_mut().map(|decoder| {
            let found = pixels(decoder, *choice, file).map_err(|fault| (fault.class, fault.message));
            (found, decoder.warnings())
        });
        assert!(own == library, "the two ways differ");
    });
});
