//! The transforms of an image, as a client names them: names, arguments and defaults of torchvision v2.

use serde::{Deserialize, Serialize};

/// One augmentation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Transform {
    /// A random box of the image, resized.
    RandomResizedCrop {
        /// (height, width) of the output.
        size: [u32; 2],
        /// Range of the box's share of the image's area.
        scale: [f64; 2],
        /// Range of the box's width / height, drawn uniformly in its logarithm.
        ratio: [f64; 2],
        /// How pixels are mixed.
        #[serde(default)]
        resampling: Resampling,
    },
    /// The whole image resized.
    Resize {
        /// The size it gets.
        to: ResizeTo,
        /// How pixels are mixed.
        #[serde(default)]
        resampling: Resampling,
    },
    /// The middle of the image, padded with zeros where the image is smaller.
    CenterCrop {
        /// (height, width) of the output.
        size: [u32; 2],
    },
    /// A random box of fixed size, of the image with borders added.
    RandomCrop {
        /// (height, width) of the output.
        size: [u32; 2],
        /// Pixels added at the left, top, right and bottom.
        padding: [u32; 4],
        /// Whether images that are still too small get wider borders; else they are bad samples.
        pad_if_needed: bool,
        /// Colour of the borders in mode constant.
        fill: Channels,
        /// What the borders show.
        mode: PaddingMode,
    },
    /// Borders added.
    Pad {
        /// Pixels added at the left, top, right and bottom.
        padding: [u32; 4],
        /// Colour of the borders in mode constant.
        fill: Channels,
        /// What the borders show.
        mode: PaddingMode,
    },
    /// Mirrored left to right with probability `p`.
    RandomHorizontalFlip {
        /// Probability.
        p: f64,
    },
    /// Turned upside down, as in a mirror, with probability `p`.
    RandomVerticalFlip {
        /// Probability.
        p: f64,
    },
    /// Brightness, contrast, saturation and hue changed in random order, each by a factor from its range.
    ColorJitter {
        /// Range of the factor; `None`: unchanged.
        brightness: Option<[f64; 2]>,
        /// Range of the factor; `None`: unchanged.
        contrast: Option<[f64; 2]>,
        /// Range of the factor; `None`: unchanged.
        saturation: Option<[f64; 2]>,
        /// Range of the turn of the colour circle, within -0.5 to 0.5; `None`: unchanged.
        hue: Option<[f64; 2]>,
    },
    /// All channels become the luma, with probability `p`. Probability 1 is torchvision's Grayscale.
    RandomGrayscale {
        /// Probability.
        p: f64,
    },
    /// Blurred by a Gaussian of random width.
    GaussianBlur {
        /// Columns and rows of the kernel, odd.
        kernel: [u32; 2],
        /// Range of the standard deviation, in pixels.
        sigma: [f64; 2],
    },
    /// A random box painted over, with probability `p`.
    RandomErasing {
        /// Probability.
        p: f64,
        /// Range of the box's share of the image's area.
        scale: [f64; 2],
        /// Range of the box's height / width, drawn uniformly in its logarithm.
        ratio: [f64; 2],
        /// Its colour; `None`: noise.
        value: Option<[f32; 3]>,
    },
    /// Values of at least `threshold` inverted, with probability `p`.
    RandomSolarize {
        /// Threshold, at most 255.
        threshold: f64,
        /// Probability.
        p: f64,
    },
    /// Only the upper `bits` of each value kept, with probability `p`.
    RandomPosterize {
        /// Bits, at most 8.
        bits: u32,
        /// Probability.
        p: f64,
    },
    /// The histogram of each channel made even, with probability `p`.
    RandomEqualize {
        /// Probability.
        p: f64,
    },
    /// Each channel stretched to the full range, with probability `p`.
    RandomAutocontrast {
        /// Probability.
        p: f64,
    },
    /// Sharpened (factor over 1) or softened (below 1), with probability `p`.
    RandomAdjustSharpness {
        /// 0 is the softened image, 1 the image as it is.
        factor: f64,
        /// Probability.
        p: f64,
    },
    /// Colours inverted, with probability `p`.
    RandomInvert {
        /// Probability.
        p: f64,
    },
    /// Turned by a random angle, counter-clockwise; the size stays.
    RandomRotation {
        /// Range of the angle, in degrees.
        degrees: [f64; 2],
        /// How the image is moved.
        warp: WarpSpec,
    },
    /// Turned, moved, scaled and sheared at random; the size stays.
    RandomAffine {
        /// Range of the angle, in degrees.
        degrees: [f64; 2],
        /// Largest shift as a share of width and height.
        translate: Option<[f64; 2]>,
        /// Range of the scale.
        scale: Option<[f64; 2]>,
        /// Range of the shear along x (two numbers), or along x and along y (four), in degrees.
        shear: Option<[f64; 4]>,
        /// How the image is moved.
        warp: WarpSpec,
    },
    /// The corners moved inwards at random, with probability `p`; the size stays.
    RandomPerspective {
        /// Largest shift of a corner as a share of half the side.
        distortion: f64,
        /// Probability.
        p: f64,
        /// How the image is moved.
        warp: WarpSpec,
    },
    /// One of a policy's 25 pairs of operations.
    AutoAugment {
        /// Which policy.
        policy: Policy,
        /// How the image is moved.
        warp: WarpSpec,
    },
    /// Some operations of one strength.
    RandAugment {
        /// How many.
        operations: u32,
        /// Their strength, below `bins`.
        magnitude: u32,
        /// Steps of the strength.
        bins: u32,
        /// How the image is moved.
        warp: WarpSpec,
    },
    /// One operation of random strength.
    TrivialAugmentWide {
        /// Steps of the strength.
        bins: u32,
        /// How the image is moved.
        warp: WarpSpec,
    },
    /// All of a list, with probability `p`.
    RandomApply {
        /// The list.
        transforms: Vec<Transform>,
        /// Probability.
        p: f64,
    },
    /// One of a list.
    RandomChoice {
        /// The list.
        transforms: Vec<Transform>,
        /// Weight of each.
        p: Vec<f64>,
    },
    /// Values become floating-point numbers; only Normalize and RandomErasing may follow.
    ToDtype {
        /// Their type.
        dtype: FloatType,
        /// Whether 0 to 255 become 0 to 1.
        scale: bool,
    },
    /// From each channel its mean is taken, and the rest divided by its deviation.
    Normalize {
        /// Means.
        mean: [f64; 3],
        /// Deviations.
        std: [f64; 3],
    },
}

/// Red, green and blue.
pub type Channels = [u8; 3];

/// Target of a resize.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResizeTo {
    /// The shorter side gets this length, the other keeps the ratio (rounded down, as torchvision does).
    ShortSide(u32),
    /// (height, width), whatever the ratio.
    Exact([u32; 2]),
}

/// How a resize mixes pixels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resampling {
    /// A triangle, widened when shrinking: bilinear with antialias.
    #[default]
    Bilinear,
    /// The four nearest pixels, even when shrinking: bilinear without antialias.
    BilinearAliased,
    /// A cubic curve (a = -0.5), widened when shrinking: bicubic with antialias.
    Bicubic,
    /// The pixel under the middle.
    Nearest,
}

/// How a rotation, a shear and their like pick pixels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interpolation {
    /// The nearest.
    #[default]
    Nearest,
    /// The four nearest, weighted.
    Bilinear,
}

/// What is common to the operations that move pixels freely.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WarpSpec {
    /// How pixels are picked.
    pub interpolation: Interpolation,
    /// Colour of what comes from outside the image. `None` is black too, and differs where an outermost pixel is mixed.
    pub fill: Option<Channels>,
    /// (x, y) that stays in place, from the upper left corner; `None`: the middle.
    pub center: Option<[f64; 2]>,
}

/// What the borders of a padded image show.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PaddingMode {
    /// One colour.
    #[default]
    Constant,
    /// The outermost pixel.
    Edge,
    /// The image mirrored at its outermost pixel.
    Reflect,
    /// The image mirrored at its edge.
    Symmetric,
}

/// Policies of AutoAugment, named by the data that they were found on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// ImageNet.
    Imagenet,
    /// CIFAR-10.
    Cifar10,
    /// Street View House Numbers.
    Svhn,
}

/// Floating-point types of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FloatType {
    /// 32 bits.
    Float32,
    /// 16 bits, IEEE half.
    Float16,
    /// 16 bits, the upper half of 32.
    Bfloat16,
}
