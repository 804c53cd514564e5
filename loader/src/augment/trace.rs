//! What a trace takes in of a sample's steps: every drawn number, floats by their bits.

use std::hash::{Hash, Hasher};

use super::operation::{Erase, Operation, Warp};
use super::plan::Step;

impl Hash for Step {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Self::Resample(stage) => {
                state.write_u8(0);
                stage.hash(state);
            }
            Self::Operation(operation) => {
                state.write_u8(1);
                operation.hash(state);
            }
            Self::EraseFloats(erase) => {
                state.write_u8(2);
                erase.hash(state);
            }
        }
    }
}

impl Hash for Operation {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::mem::discriminant(self).hash(state);
        match self {
            Self::Brightness(number)
            | Self::Contrast(number)
            | Self::Saturation(number)
            | Self::Hue(number)
            | Self::Solarize(number)
            | Self::Sharpness(number) => number.to_bits().hash(state),
            Self::Posterize(bits) => bits.hash(state),
            Self::Grayscale | Self::Equalize | Self::Autocontrast | Self::Invert => {}
            Self::Blur { kernel, sigma } => {
                kernel.hash(state);
                sigma.to_bits().hash(state);
            }
            Self::Erase(erase) => erase.hash(state),
            Self::Warp(warp) => warp.hash(state),
            Self::Extend(extend) => extend.hash(state),
        }
    }
}

impl Hash for Erase {
    /// Without the noise, which is a function of the sample's place.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { left, top, width, height, value, noise: _ } = self;
        [*left, *top, *width, *height].hash(state);
        value.map(|value| value.map(f32::to_bits)).hash(state);
    }
}

impl Hash for Warp {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { coefficients, interpolation, fill } = self;
        coefficients.map(f64::to_bits).hash(state);
        (interpolation, fill).hash(state);
    }
}
