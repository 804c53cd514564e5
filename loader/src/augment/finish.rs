//! The last pass of a row: bytes to floating-point numbers, scaled and normalised, and pixels to planes.
//!
//! A byte has 256 values, so each channel has a table of what becomes of them, worked out once per recipe in 32-bit
//! floats as torch does it, and rounded once to the row's type.

use super::operation::{Erase, Noise};
use crate::spec::{FloatType, PixelLayout, Transform};

/// A recipe's conversion.
#[derive(Debug, Clone)]
pub struct Finish {
    dtype: FloatType,
    /// Bits of the number that each byte becomes, by channel.
    tables: [[u32; 256]; 3],
    /// Bits of normal noise.
    noise: [u32; 256],
}

impl Finish {
    /// The conversion that a list of transforms asks for, if any.
    pub fn of(transforms: &[Transform]) -> Option<Self> {
        let mut dtype = None;
        let mut values: [[f32; 256]; 3] = [std::array::from_fn(|value| value as f32); 3];
        let mut change = |to: &dyn Fn(usize, f32) -> f32| {
            for (channel, table) in values.iter_mut().enumerate() {
                table.iter_mut().for_each(|value| *value = to(channel, *value));
            }
        };
        for transform in transforms {
            match transform {
                Transform::ToDtype { dtype: float_type, scale } => {
                    dtype = Some(*float_type);
                    if *scale {
                        change(&|_, value| value * (1.0 / 255.0) as f32);
                    }
                }
                Transform::Normalize { mean, std } => {
                    change(&|channel, value| (value - mean[channel] as f32) / std[channel] as f32);
                }
                _ => {}
            }
        }
        let dtype = dtype?;
        let tables = values.map(|table| table.map(|value| bits(value, dtype)));
        Some(Self { dtype, tables, noise: normal_values().map(|value| bits(value, dtype)) })
    }

    /// Type of the numbers.
    pub fn dtype(&self) -> FloatType {
        self.dtype
    }

    /// Converts RGB `pixels` into all of `row`.
    #[inline(always)]
    pub fn run(&self, pixels: &[u8], layout: PixelLayout, row: &mut Vec<u8>) {
        match self.dtype {
            FloatType::Float32 => self.convert(pixels, layout, row, u32::to_ne_bytes),
            FloatType::Float16 | FloatType::Bfloat16 => {
                self.convert(pixels, layout, row, |bits| (bits as u16).to_ne_bytes());
            }
        }
    }

    #[inline(always)]
    fn convert<const N: usize>(
        &self,
        pixels: &[u8],
        layout: PixelLayout,
        row: &mut Vec<u8>,
        bytes: impl Fn(u32) -> [u8; N],
    ) {
        row.resize(N * pixels.len(), 0);
        let pixels = pixels.as_chunks::<3>().0;
        let numbers = row.as_chunks_mut::<N>().0;
        let [red, green, blue] = &self.tables;
        match layout {
            PixelLayout::Nhwc => {
                for (pixel, numbers) in pixels.iter().zip(numbers.as_chunks_mut::<3>().0) {
                    *numbers = [red[pixel[0] as usize], green[pixel[1] as usize], blue[pixel[2] as usize]].map(&bytes);
                }
            }
            PixelLayout::Nchw => {
                for (channel, plane) in numbers.chunks_exact_mut(pixels.len()).enumerate() {
                    let table = &self.tables[channel];
                    for (pixel, number) in pixels.iter().zip(plane) {
                        *number = bytes(table[pixel[channel] as usize]);
                    }
                }
            }
        }
    }

    /// Paints a box over in a finished row of (width, height) `size`. Noise is normal, of 256 values, mean 0 and
    /// deviation 1.
    pub fn erase(&self, erase: &Erase, row: &mut [u8], (width, height): (u32, u32), layout: PixelLayout) {
        let number_bytes = if self.dtype == FloatType::Float32 { 4 } else { 2 };
        let mut noise = Noise::new(erase.noise);
        let plane = width as usize * height as usize;
        for pixels in erase.rows(width) {
            for pixel in pixels {
                for channel in 0..3 {
                    let bits = match erase.value {
                        Some(value) => bits(value[channel], self.dtype),
                        None => self.noise[noise.byte() as usize],
                    };
                    let index = match layout {
                        PixelLayout::Nhwc => 3 * pixel + channel,
                        PixelLayout::Nchw => channel * plane + pixel,
                    };
                    let place = &mut row[number_bytes * index..][..number_bytes];
                    match self.dtype {
                        FloatType::Float32 => place.copy_from_slice(&bits.to_ne_bytes()),
                        _ => place.copy_from_slice(&(bits as u16).to_ne_bytes()),
                    }
                }
            }
        }
    }
}

/// RGB `pixels` as three planes, all of `planes`.
#[inline(always)]
pub fn to_planes(pixels: &[u8], planes: &mut Vec<u8>) {
    planes.resize(pixels.len(), 0);
    let pixels = pixels.as_chunks::<3>().0;
    let (red, rest) = planes.split_at_mut(pixels.len());
    let (green, blue) = rest.split_at_mut(pixels.len());
    for (((pixel, red), green), blue) in pixels.iter().zip(red).zip(green).zip(blue) {
        [*red, *green, *blue] = *pixel;
    }
}

/// The bits of `value` in a type, rounded to the nearest, ties to even.
fn bits(value: f32, dtype: FloatType) -> u32 {
    match dtype {
        FloatType::Float32 => value.to_bits(),
        FloatType::Bfloat16 => {
            // Values are finite, and rounding up may end at infinity, as it should.
            let bits = value.to_bits();
            (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        }
        FloatType::Float16 => half_bits(value),
    }
}

/// A finite number as IEEE half.
fn half_bits(value: f32) -> u32 {
    let sign = (value.to_bits() >> 16) & 0x8000;
    let magnitude = value.abs();
    // From 65520 on, the nearest half is infinity.
    if magnitude >= 65_520.0 {
        return sign | 0x7C00;
    }
    // The spacing of halves around the value: 2^(exponent - 10), and 2^-24 below 2^-14.
    let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(-14);
    let spacing = libm::ldexpf(1.0, exponent - 10);
    // Exact: a power of two, and at most 2^11 steps.
    let steps = (magnitude / spacing).round_ties_even() as u32;
    // Steps of a normal number start at 2^10, which carries into the exponent, as does rounding up to 2^11.
    sign | ((((exponent + 14) as u32) << 10) + steps)
}

/// The middles of the parts of a normal distribution cut into 256 of one probability, stretched to deviation 1.
fn normal_values() -> [f32; 256] {
    let half: [f64; 128] = std::array::from_fn(|index| {
        let share = (index as f64 + 0.5) / 128.0;
        // Where the part of the distribution within so far from the middle has this share: by halving.
        let (mut low, mut high) = (0.0, 16.0);
        for _ in 0..60 {
            let middle = 0.5 * (low + high);
            if libm::erf(middle * std::f64::consts::FRAC_1_SQRT_2) < share { low = middle } else { high = middle }
        }
        low
    });
    let deviation = (half.iter().map(|value| value * value).sum::<f64>() / 128.0).sqrt();
    std::array::from_fn(|byte| {
        let value = half[byte / 2] / deviation;
        (if byte % 2 == 0 { value } else { -value }) as f32
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_rounded_once() {
        // Pairs of value and bits by NumPy 2.4: numpy.float32(value).astype(numpy.float16).view(numpy.uint16).
        for (value, expected) in [
            (0.0, 0x0000),
            (-0.0, 0x8000),
            (1.0, 0x3C00),
            (-2.117_904, 0xC03C),
            (0.1, 0x2E66),
            (65_504.0, 0x7BFF),
            (65_519.9, 0x7BFF),
            (65_520.0, 0x7C00),
            (6.1e-5, 0x03FF),
            (6.103_515_6e-5, 0x0400),
            (5.96e-8, 0x0001),
            (2.98e-8, 0x0000),
            (2.99e-8, 0x0001),
            (2.999_51, 0x4200),
            (1.000_488_3, 0x3C00),
            (1.001_464_8, 0x3C02),
        ] {
            assert_eq!(half_bits(value), expected, "{value}: {:#06x}", half_bits(value));
        }
    }

    #[test]
    fn noise_is_normal() {
        let values = normal_values();
        let mean: f32 = values.iter().sum::<f32>() / 256.0;
        let square: f32 = values.iter().map(|value| value * value).sum::<f32>() / 256.0;
        assert!(mean.abs() < 1e-6 && (square - 1.0).abs() < 1e-5, "{mean} {square}");
        let within = values.iter().filter(|value| value.abs() < 1.0).count();
        assert!((172..=178).contains(&within), "68 % lie within one deviation, found {within} of 256");
    }

    #[test]
    fn conversions_are_torch_s() {
        let dtype = |dtype| Transform::ToDtype { dtype, scale: true };
        let normalize = Transform::Normalize { mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225] };
        let finish = Finish::of(&[dtype(FloatType::Float32), normalize.clone()]).expect("floats");
        let mut row = Vec::new();
        finish.run(&[0, 128, 255, 1, 2, 3], PixelLayout::Nchw, &mut row);
        let found: Vec<f32> = row.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect();
        let one = |value: f32, mean: f64, std: f64| (value * (1.0 / 255.0) as f32 - mean as f32) / std as f32;
        let expected = [(0.0, 0), (1.0, 0), (128.0, 1), (2.0, 1), (255.0, 2), (3.0, 2)];
        let expected =
            expected.map(|(value, channel)| one(value, [0.485, 0.456, 0.406][channel], [0.229, 0.224, 0.225][channel]));
        assert_eq!(found, expected);
        let finish = Finish::of(&[dtype(FloatType::Bfloat16)]).expect("floats");
        finish.run(&[255, 0, 1], PixelLayout::Nhwc, &mut row);
        assert_eq!(row, [0x3F80_u16, 0x0000, 0x3B81].map(u16::to_ne_bytes).concat());
    }
}
