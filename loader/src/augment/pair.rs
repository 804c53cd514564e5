//! Steps of the larger image of a pair: those of the smaller one, with every place and length times a whole number.
//!
//! Super-resolution pairs a picture with one of 2, 3, 4, … times its size. What is drawn for the smaller one, on its
//! pixels, holds for the larger one on blocks of as many pixels, so that a crop at (y, x) of one is a crop at
//! (scale y, scale x) of the other. Colours are changed alike; a blur and a change of sharpness work on the pixels that they
//! meet.

use crate::decode::Region;
use crate::error::{FaultClass, SampleFault};

use super::geometry::{Stage, Window};
use super::operation::{Erase, Extend, Operation, Warp};
use super::plan::Step;

/// (width, height) of the smaller image of a pair, by that of the larger one.
pub fn smaller((width, height): (u32, u32), scale: u32) -> Result<(u32, u32), SampleFault> {
    if width.is_multiple_of(scale) && height.is_multiple_of(scale) {
        return Ok((width / scale, height / scale));
    }
    let message = format!("{width}x{height} pixels, which are no whole number of blocks of {scale}x{scale}");
    Err(SampleFault::new(FaultClass::Corrupt, message))
}

/// Makes steps of the smaller image those of the larger one.
pub fn enlarge(steps: &mut [Step], scale: u32) {
    for step in steps {
        *step = match *step {
            Step::Resample(stage) => Step::Resample(stage_of(stage, scale)),
            Step::EraseFloats(erase) => Step::EraseFloats(erase_of(erase, scale)),
            Step::Operation(Operation::Erase(erase)) => Step::Operation(Operation::Erase(erase_of(erase, scale))),
            Step::Operation(Operation::Warp(warp)) => Step::Operation(Operation::Warp(warp_of(warp, scale))),
            Step::Operation(Operation::Extend(Extend { window, mode })) => {
                Step::Operation(Operation::Extend(Extend { window: window_of(window, scale), mode }))
            }
            Step::Operation(colours) => Step::Operation(colours),
        };
    }
}

fn stage_of(stage: Stage, scale: u32) -> Stage {
    let Region { left, top, width, height } = stage.source;
    Stage {
        source: Region { left: left * scale, top: top * scale, width: width * scale, height: height * scale },
        resized: (stage.resized.0 * scale, stage.resized.1 * scale),
        window: window_of(stage.window, scale),
        visible: stage.visible.map(|visible| window_of(visible, scale)),
        ..stage
    }
}

fn window_of(Window { left, top, width, height }: Window, scale: u32) -> Window {
    let times = i64::from(scale);
    Window { left: left * times, top: top * times, width: width * scale, height: height * scale }
}

fn erase_of(erase: Erase, scale: u32) -> Erase {
    let Erase { left, top, width, height, .. } = erase;
    Erase { left: left * scale, top: top * scale, width: width * scale, height: height * scale, ..erase }
}

/// The projection between places that are both `scale` times as far from the corner.
fn warp_of(warp: Warp, scale: u32) -> Warp {
    let [a, b, c, d, e, f, g, h] = warp.coefficients;
    let times = f64::from(scale);
    Warp { coefficients: [a, b, c * times, d, e, f * times, g / times, h / times], ..warp }
}
