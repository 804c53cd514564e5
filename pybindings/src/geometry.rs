//! What a sample's transforms draw, for tests that repeat them with another library.

use feedline_loader::augment::geometry::{Stage, Window};
use feedline_loader::augment::plan::Step;
use feedline_loader::augment::{Draw, ImageRecipe};
use feedline_loader::spec::{ImageSpec, Transform};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde_json::{Value, json};

use crate::errors::to_python;

/// What the `transforms` (JSON list) do to an image of `width` x `height` that is number `sample` of its dataset: a JSON
/// list of resamples, each a ``source`` box (left, top, width, height) that is resized to ``resized`` (width, height), of
/// which ``window`` (left, top, width, height) is kept, ``mirrored`` or not, ``upside_down`` or not, ``fill`` around it.
/// Operations on the whole image are left out.
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
    let recipe = recipe(py, transforms, 0)?;
    let stages = recipe.stages(width, height, Draw { seed, epoch, sample }).map_err(refused)?;
    Ok(Value::from_iter(stages.iter().map(described)).to_string())
}

/// All that the `transforms` (JSON list) do to images of `width` x `height`, for samples number `first` .. `first +
/// count` and view number `view`: a JSON list of lists of steps, each ``{"resample": …}`` as of `draw_geometry`,
/// ``{"operation": …}`` with its drawn parameters, or ``{"erase_floats": …}``.
#[pyfunction]
#[pyo3(signature = (transforms, width, height, seed, epoch, first, count=1, view=0))]
#[expect(clippy::too_many_arguments, reason = "a function for tests, its arguments named in Python")]
pub fn draw_steps(
    py: Python<'_>,
    transforms: &str,
    width: u32,
    height: u32,
    seed: u64,
    epoch: u64,
    first: u64,
    count: u64,
    view: u16,
) -> PyResult<String> {
    let recipe = recipe(py, transforms, view)?;
    let mut samples = Vec::new();
    for sample in first..first.saturating_add(count) {
        let steps = recipe.steps(width, height, Draw { seed, epoch, sample }).map_err(refused)?;
        samples.push(Value::from_iter(steps.iter().map(|step| match step {
            Step::Resample(stage) => json!({ "resample": described(stage) }),
            Step::Operation(operation) => json!({ "operation": operation }),
            Step::EraseFloats(erase) => json!({ "erase_floats": erase }),
        })));
    }
    Ok(Value::Array(samples).to_string())
}

fn recipe(py: Python<'_>, transforms: &str, view: u16) -> PyResult<ImageRecipe> {
    let transforms: Vec<Transform> = serde_json::from_str(transforms)
        .map_err(|error| PyValueError::new_err(format!("the transforms are malformed: {error}")))?;
    let spec = ImageSpec { transforms, max_pixels: u64::MAX, view, ..ImageSpec::default() };
    ImageRecipe::compile(&spec).map_err(|error| to_python(py, &error, None))
}

fn refused(fault: feedline_loader::error::SampleFault) -> PyErr {
    PyValueError::new_err(fault.to_string())
}

fn described(stage: &Stage) -> Value {
    let Stage { source, resized, window: Window { left, top, width, height }, mirrored, upside_down, .. } = stage;
    json!({
        "source": [source.left, source.top, source.width, source.height],
        "resized": resized,
        "window": [left, top, width, height],
        "mirrored": mirrored,
        "upside_down": upside_down,
        "fill": stage.fill,
        "resampling": stage.resampling,
    })
}
