//! The boxes that a sample's transforms draw, for tests that repeat them with another library.

use feedline_loader::augment::geometry::{Stage, Window};
use feedline_loader::augment::{Draw, ImageRecipe};
use feedline_loader::spec::{DecodeSpec, ImageSpec, PixelLayout, Transform};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde_json::{Value, json};

use crate::errors::to_python;

/// What the `transforms` (JSON list) do to an image of `width` x `height` that is number `sample` of its dataset: a JSON
/// list of resamples, each a ``source`` box (left, top, width, height) that is resized to ``resized`` (width, height), of
/// which ``window`` (left, top, width, height) is kept, ``mirrored`` or not.
#[pyfunction]
pub fn draw_geometry(
    py: Python<'_>,
    transforms: &str,
    width: u32,
    height: u32,
    seed: u64,
    epoch: u64,
    sample: u64,
) -> PyResult<String> {
    let transforms: Vec<Transform> = serde_json::from_str(transforms)
        .map_err(|error| PyValueError::new_err(format!("the transforms are malformed: {error}")))?;
    let spec = ImageSpec { transforms, layout: PixelLayout::Nhwc, max_pixels: u64::MAX, decode: DecodeSpec::default() };
    let recipe = ImageRecipe::compile(&spec).map_err(|error| to_python(py, &error, None))?;
    let stages = recipe
        .stages(width, height, Draw { seed, epoch, sample })
        .map_err(|fault| PyValueError::new_err(fault.to_string()))?;
    Ok(Value::from_iter(stages.iter().map(described)).to_string())
}

fn described(stage: &Stage) -> Value {
    let Stage { source, resized, window: Window { left, top, width, height }, mirrored, .. } = stage;
    json!({
        "source": [source.left, source.top, source.width, source.height],
        "resized": resized,
        "window": [left, top, width, height],
        "mirrored": mirrored,
    })
}
