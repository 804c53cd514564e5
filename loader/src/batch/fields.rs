//! From the bytes of a field to the bytes of its row.

use super::layout::{Dtype, FieldLayout};
use crate::augment::{Draw, ImageRecipe, ImageWorker};
use crate::error::{FaultClass, Result, SampleFault};
use crate::spec::{FieldKind, FieldSpec, PixelLayout};

/// Longest text that is tried as a number; longer ones are no number.
const NUMBER_BYTES_MAX: usize = 64;

/// A compiled [`FieldSpec`].
#[derive(Debug)]
pub enum FieldRecipe {
    /// Pixels.
    Image(Box<ImageRecipe>),
    /// A decimal integer.
    Int,
    /// A decimal fraction.
    Float,
}

impl FieldRecipe {
    /// Compiles `field`, with the layout that it has in a batch.
    pub fn compile(field: &FieldSpec) -> Result<(Self, FieldLayout)> {
        Ok(match &field.kind {
            FieldKind::Image(spec) => {
                let recipe = ImageRecipe::compile(spec)?;
                let (height, width) = recipe.output_size();
                let shape = match spec.layout {
                    PixelLayout::Nhwc => [height, width, 3],
                    PixelLayout::Nchw => [3, height, width],
                };
                (Self::Image(Box::new(recipe)), FieldLayout::new(&field.name, Dtype::Uint8, shape)?)
            }
            FieldKind::Int => (Self::Int, FieldLayout::new(&field.name, Dtype::Int64, [])?),
            FieldKind::Float => (Self::Float, FieldLayout::new(&field.name, Dtype::Float64, [])?),
        })
    }
}

/// One worker's memory for turning bytes into rows; nothing is allocated once it is warm.
pub struct FieldWorker {
    images: ImageWorker,
}

impl FieldWorker {
    /// Reserves the memory.
    pub fn new() -> Result<Self> {
        Ok(Self { images: ImageWorker::new()? })
    }

    /// Turns `bytes` into the row of a field and hands it to `store`.
    pub fn run(
        &mut self,
        recipe: &FieldRecipe,
        bytes: &[u8],
        draw: Draw,
        store: impl FnOnce(&[u8]),
    ) -> Result<(), SampleFault> {
        match recipe {
            FieldRecipe::Image(_) if bytes.is_empty() => {
                return Err(SampleFault::new(FaultClass::Empty, "the image has no bytes"));
            }
            FieldRecipe::Image(recipe) => store(self.images.run(recipe, bytes, draw)?),
            FieldRecipe::Int => store(&parse::<i64>(bytes, "an integer")?.to_ne_bytes()),
            FieldRecipe::Float => store(&parse::<f64>(bytes, "a number")?.to_ne_bytes()),
        }
        Ok(())
    }
}

fn parse<T: std::str::FromStr>(bytes: &[u8], wanted: &str) -> Result<T, SampleFault> {
    let text = bytes.trim_ascii();
    let value = (text.len() <= NUMBER_BYTES_MAX).then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten();
    value.ok_or_else(|| {
        let shown = String::from_utf8_lossy(&text[..text.len().min(NUMBER_BYTES_MAX)]);
        SampleFault::new(FaultClass::BadValue, format!("expected {wanted}, found {shown:?} ({} bytes)", bytes.len()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Option<i64>) {
        assert_eq!(parse::<i64>(text.as_bytes(), "an integer").ok(), expected, "{text:?}");
    }

    #[test]
    fn labels_are_decimal_integers_with_white_space_around() {
        check("7", Some(7));
        check(" -12\r\n", Some(-12));
        check("9223372036854775807", Some(i64::MAX));
        check("9223372036854775808", None);
        check("7.0", None);
        check("", None);
        check("cat", None);
        check(&"1".repeat(100), None);
    }
}
