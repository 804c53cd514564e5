//! JPEGs by our own engine and by libjpeg-turbo alone: the same pixels, faults and warnings. The first five bytes choose
//! the region, how far it is reduced, and whether the file is made one whose rows of MCUs end at restart markers. Of such,
//! segments that a region does not need are not looked at, so there libjpeg may have warnings that we have not.
#![no_main]

use std::cell::RefCell;

use feedline_loader::decode::Region;
use feedline_loader::decode::jpeg::JpegDecoder;
use feedline_loader::decode::jpeg::frame::Frame;
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

/// Makes the restart interval of an ordinary file a row of MCUs, and what restart markers it has come in turn.
fn with_restart_rows(bytes: &[u8], frame: &Frame) -> Vec<u8> {
    let interval = (frame.mcus_across as u16).to_be_bytes();
    let (header, scan) = bytes.split_at(frame.scan_start);
    let components = frame.count;
    // Before the segment that starts the scan.
    let (before, start) = header.split_at(header.len() - (8 + 2 * components));
    let mut file = [before, &[0xff, 0xdd, 0, 4], &interval, start, scan].concat();
    let mut number = 0;
    for place in file.len() - scan.len()..file.len() - 1 {
        if file[place] == 0xff && (0xd0..0xd8).contains(&file[place + 1]) {
            file[place + 1] = 0xd0 + number % 8;
            number = number.wrapping_add(1);
        }
    }
    file
}

thread_local! {
    static DECODERS: RefCell<[JpegDecoder; 2]> =
        RefCell::new([JpegDecoder::new(), JpegDecoder::of_library()].map(|decoder| decoder.expect("memory")));
}

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, bytes)) = bytes.split_first_chunk::<5>() else { return };
    let mut bytes = bytes.to_vec();
    if choice[4] & 0x80 != 0
        && let Some(frame) = Frame::parse(&bytes)
        && frame.scan_start + 1 < bytes.len()
    {
        bytes = with_restart_rows(&bytes, &frame);
    }
    DECODERS.with_borrow_mut(|[own, library]| {
        let regions = own.regions_own();
        let (pixels, mut warnings) = outcome(own, *choice, &bytes);
        let expected = outcome(library, *choice, &bytes);
        let passes = own.regions_own() > regions
            && choice[..4] != [0, 0, 255, 255]
            && Frame::parse(&bytes).is_some_and(|frame| frame.restart_interval > 0);
        if passes && warnings == 0 {
            warnings = expected.1;
        }
        assert!((pixels, warnings) == expected);
    });
});
