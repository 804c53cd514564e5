//! AutoAugment, RandAugment and TrivialAugment: which operations, how strong. Spaces and policies are torchvision's.

use super::operation::{Operation, Warp};
use super::philox::{OperationStream, below, unit};
use super::warp::affine;
use crate::spec::{Policy, WarpSpec};

/// An operation of the policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
    Invert,
}

use Kind::*;

/// What RandAugment and TrivialAugmentWide choose from, evenly.
const SPACE: [Kind; 14] = [
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
];

/// How far the strengths go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// AutoAugment's and RandAugment's.
    Usual,
    /// TrivialAugmentWide's.
    Wide,
}

/// One operation with its strength.
#[derive(Debug, Clone, Copy)]
struct Choice {
    kind: Kind,
    reach: Reach,
    /// Step of the strength among `bins`.
    step: u32,
    bins: u32,
    /// Where the strength has a sign: whether it is negative.
    is_negative: bool,
}

/// Steps of the strength in AutoAugment's policies.
const AUTO_BINS: u32 = 10;

/// AutoAugment: block 0 chooses the pair, block 1 + i whether operation i happens, and its sign.
pub fn auto_augment(
    policy: Policy,
    warp: &WarpSpec,
    size: (u32, u32),
    stream: OperationStream,
    mut emit: impl FnMut(Operation),
) {
    let pairs = match policy {
        Policy::Imagenet => &IMAGENET,
        Policy::Cifar10 => &CIFAR10,
        Policy::Svhn => &SVHN,
    };
    let pair = pairs[below(stream.block(0)[0], pairs.len() as u32) as usize];
    for (index, (kind, probability, step)) in pair.into_iter().enumerate() {
        let words = stream.block(1 + index as u64);
        if unit(words[0]) < probability {
            let is_negative = unit(words[1]) < 0.5;
            let choice = Choice { kind, reach: Reach::Usual, step, bins: AUTO_BINS, is_negative };
            choice.operation(warp, size).into_iter().for_each(&mut emit);
        }
    }
}

/// RandAugment: block i chooses operation i and its sign.
pub fn rand_augment(
    operations: u32,
    magnitude: u32,
    bins: u32,
    warp: &WarpSpec,
    size: (u32, u32),
    stream: OperationStream,
    mut emit: impl FnMut(Operation),
) {
    for index in 0..operations {
        let words = stream.block(index.into());
        let kind = SPACE[below(words[0], SPACE.len() as u32) as usize];
        let is_negative = unit(words[1]) < 0.5;
        let choice = Choice { kind, reach: Reach::Usual, step: magnitude, bins, is_negative };
        choice.operation(warp, size).into_iter().for_each(&mut emit);
    }
}

/// TrivialAugmentWide: one block chooses the operation, the strength and its sign.
pub fn trivial_augment(bins: u32, warp: &WarpSpec, size: (u32, u32), stream: OperationStream) -> Option<Operation> {
    let words = stream.block(0);
    let kind = SPACE[below(words[0], SPACE.len() as u32) as usize];
    let step = below(words[1], bins);
    let is_negative = unit(words[2]) < 0.5;
    Choice { kind, reach: Reach::Wide, step, bins, is_negative }.operation(warp, size)
}

/// `torch.linspace(start, end, bins)[step]`: 32-bit, from the nearer end, rounded once as torch's vectors do it.
fn linspace(start: f32, end: f32, bins: u32, step: u32) -> f32 {
    if bins == 1 {
        return start;
    }
    let stride = (end - start) / (bins - 1) as f32;
    let (start, end, stride) = (f64::from(start), f64::from(end), f64::from(stride));
    let value =
        if step < bins / 2 { start + stride * f64::from(step) } else { end - stride * f64::from(bins - 1 - step) };
    value as f32
}

impl Choice {
    /// The operation on an image of `size`; nothing for the identity.
    fn operation(self, spec: &WarpSpec, (width, height): (u32, u32)) -> Option<Operation> {
        let Self { kind, reach, step, bins, is_negative } = self;
        let is_wide = reach == Reach::Wide;
        let range = |usual: f32, wide: f32| linspace(0.0, if is_wide { wide } else { usual }, bins, step);
        let signed = |strength: f32| if is_negative { -strength } else { strength };
        let factor = || (1.0 + f64::from(signed(range(0.9, 0.99)))) as f32;
        let shear = || libm::atan(signed(range(0.3, 0.99)).into()) * (180.0 / std::f64::consts::PI);
        // Whole pixels, cut towards zero.
        let shift = |side: u32| f64::from(signed(range((150.0 / 331.0 * f64::from(side)) as f32, 32.0))).trunc();
        let size = (width, height);
        let moved = |centre, angle, translate, shear| {
            let coefficients = affine(size, centre, angle, translate, 1.0, shear);
            Some(Operation::Warp(Warp { coefficients, interpolation: spec.interpolation, fill: spec.fill }))
        };
        let corner = Some([0.0; 2]);
        match kind {
            Identity => None,
            ShearX => moved(corner, 0.0, [0.0; 2], [shear(), 0.0]),
            ShearY => moved(corner, 0.0, [0.0; 2], [0.0, shear()]),
            TranslateX => moved(None, 0.0, [shift(width), 0.0], [0.0; 2]),
            TranslateY => moved(None, 0.0, [0.0, shift(height)], [0.0; 2]),
            // torchvision's rotate turns the other way than its affine.
            Rotate => moved(None, -f64::from(signed(range(30.0, 135.0))), [0.0; 2], [0.0; 2]),
            Brightness => Some(Operation::Brightness(factor())),
            Color => Some(Operation::Saturation(factor())),
            Contrast => Some(Operation::Contrast(factor())),
            Sharpness => Some(Operation::Sharpness(factor())),
            Posterize => {
                let steps = (f64::from(bins) - 1.0) / if is_wide { 6.0 } else { 4.0 };
                let bits = (8.0 - step as f32 / steps as f32).round_ties_even();
                Some(Operation::Posterize(bits as u32))
            }
            Solarize => Some(Operation::Solarize((255.0 * f64::from(linspace(1.0, 0.0, bins, step))) as f32)),
            AutoContrast => Some(Operation::Autocontrast),
            Equalize => Some(Operation::Equalize),
            Invert => Some(Operation::Invert),
        }
    }
}

/// Operation, probability, step of its strength (0 where it has none).
type Pair = [(Kind, f64, u32); 2];

#[rustfmt::skip]
const IMAGENET: [Pair; 25] = [
    [(Posterize, 0.4, 8), (Rotate, 0.6, 9)],
    [(Solarize, 0.6, 5), (AutoContrast, 0.6, 0)],
    [(Equalize, 0.8, 0), (Equalize, 0.6, 0)],
    [(Posterize, 0.6, 7), (Posterize, 0.6, 6)],
    [(Equalize, 0.4, 0), (Solarize, 0.2, 4)],
    [(Equalize, 0.4, 0), (Rotate, 0.8, 8)],
    [(Solarize, 0.6, 3), (Equalize, 0.6, 0)],
    [(Posterize, 0.8, 5), (Equalize, 1.0, 0)],
    [(Rotate, 0.2, 3), (Solarize, 0.6, 8)],
    [(Equalize, 0.6, 0), (Posterize, 0.4, 6)],
    [(Rotate, 0.8, 8), (Color, 0.4, 0)],
    [(Rotate, 0.4, 9), (Equalize, 0.6, 0)],
    [(Equalize, 0.0, 0), (Equalize, 0.8, 0)],
    [(Invert, 0.6, 0), (Equalize, 1.0, 0)],
    [(Color, 0.6, 4), (Contrast, 1.0, 8)],
    [(Rotate, 0.8, 8), (Color, 1.0, 2)],
    [(Color, 0.8, 8), (Solarize, 0.8, 7)],
    [(Sharpness, 0.4, 7), (Invert, 0.6, 0)],
    [(ShearX, 0.6, 5), (Equalize, 1.0, 0)],
    [(Color, 0.4, 0), (Equalize, 0.6, 0)],
    [(Equalize, 0.4, 0), (Solarize, 0.2, 4)],
    [(Solarize, 0.6, 5), (AutoContrast, 0.6, 0)],
    [(Invert, 0.6, 0), (Equalize, 1.0, 0)],
    [(Color, 0.6, 4), (Contrast, 1.0, 8)],
    [(Equalize, 0.8, 0), (Equalize, 0.6, 0)],
];

#[rustfmt::skip]
const CIFAR10: [Pair; 25] = [
    [(Invert, 0.1, 0), (Contrast, 0.2, 6)],
    [(Rotate, 0.7, 2), (TranslateX, 0.3, 9)],
    [(Sharpness, 0.8, 1), (Sharpness, 0.9, 3)],
    [(ShearY, 0.5, 8), (TranslateY, 0.7, 9)],
    [(AutoContrast, 0.5, 0), (Equalize, 0.9, 0)],
    [(ShearY, 0.2, 7), (Posterize, 0.3, 7)],
    [(Color, 0.4, 3), (Brightness, 0.6, 7)],
    [(Sharpness, 0.3, 9), (Brightness, 0.7, 9)],
    [(Equalize, 0.6, 0), (Equalize, 0.5, 0)],
    [(Contrast, 0.6, 7), (Sharpness, 0.6, 5)],
    [(Color, 0.7, 7), (TranslateX, 0.5, 8)],
    [(Equalize, 0.3, 0), (AutoContrast, 0.4, 0)],
    [(TranslateY, 0.4, 3), (Sharpness, 0.2, 6)],
    [(Brightness, 0.9, 6), (Color, 0.2, 8)],
    [(Solarize, 0.5, 2), (Invert, 0.0, 0)],
    [(Equalize, 0.2, 0), (AutoContrast, 0.6, 0)],
    [(Equalize, 0.2, 0), (Equalize, 0.6, 0)],
    [(Color, 0.9, 9), (Equalize, 0.6, 0)],
    [(AutoContrast, 0.8, 0), (Solarize, 0.2, 8)],
    [(Brightness, 0.1, 3), (Color, 0.7, 0)],
    [(Solarize, 0.4, 5), (AutoContrast, 0.9, 0)],
    [(TranslateY, 0.9, 9), (TranslateY, 0.7, 9)],
    [(AutoContrast, 0.9, 0), (Solarize, 0.8, 3)],
    [(Equalize, 0.8, 0), (Invert, 0.1, 0)],
    [(TranslateY, 0.7, 9), (AutoContrast, 0.9, 0)],
];

#[rustfmt::skip]
const SVHN: [Pair; 25] = [
    [(ShearX, 0.9, 4), (Invert, 0.2, 0)],
    [(ShearY, 0.9, 8), (Invert, 0.7, 0)],
    [(Equalize, 0.6, 0), (Solarize, 0.6, 6)],
    [(Invert, 0.9, 0), (Equalize, 0.6, 0)],
    [(Equalize, 0.6, 0), (Rotate, 0.9, 3)],
    [(ShearX, 0.9, 4), (AutoContrast, 0.8, 0)],
    [(ShearY, 0.9, 8), (Invert, 0.4, 0)],
    [(ShearY, 0.9, 5), (Solarize, 0.2, 6)],
    [(Invert, 0.9, 0), (AutoContrast, 0.8, 0)],
    [(Equalize, 0.6, 0), (Rotate, 0.9, 3)],
    [(ShearX, 0.9, 4), (Solarize, 0.3, 3)],
    [(ShearY, 0.8, 8), (Invert, 0.7, 0)],
    [(Equalize, 0.9, 0), (TranslateY, 0.6, 6)],
    [(Invert, 0.9, 0), (Equalize, 0.6, 0)],
    [(Contrast, 0.3, 3), (Rotate, 0.8, 4)],
    [(Invert, 0.8, 0), (TranslateY, 0.0, 2)],
    [(ShearY, 0.7, 6), (Solarize, 0.4, 8)],
    [(Invert, 0.6, 0), (Rotate, 0.8, 4)],
    [(ShearY, 0.3, 7), (TranslateX, 0.9, 3)],
    [(ShearX, 0.1, 6), (Invert, 0.6, 0)],
    [(Solarize, 0.7, 2), (TranslateY, 0.6, 7)],
    [(ShearY, 0.8, 4), (Invert, 0.8, 0)],
    [(ShearX, 0.7, 9), (TranslateY, 0.8, 3)],
    [(ShearY, 0.8, 5), (AutoContrast, 0.7, 0)],
    [(ShearX, 0.7, 2), (Invert, 0.1, 0)],
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strengths_are_torch_s() {
        // torch 2.15: the wide shift in whole pixels, where a hair decides: step 15 is just below 16.
        let shifts: Vec<u32> = (0..31).map(|step| linspace(0.0, 32.0, 31, step) as u32).collect();
        let expected: Vec<u32> = (0..31).map(|step| 32 * step / 30 - u32::from(step == 15)).collect();
        assert_eq!(shifts, expected);
        let bits = |reach, bins| -> Vec<u32> {
            let bits = |step| {
                let choice = Choice { kind: Posterize, reach, step, bins, is_negative: false };
                match choice.operation(&WarpSpec::default(), (8, 8)) {
                    Some(Operation::Posterize(bits)) => bits,
                    other => panic!("{other:?}"),
                }
            };
            (0..bins).map(bits).collect()
        };
        assert_eq!(bits(Reach::Usual, 10), [8, 8, 7, 7, 6, 6, 5, 5, 4, 4]);
        assert_eq!(bits(Reach::Wide, 7), [8, 7, 6, 5, 4, 3, 2]);
    }
}
