//! Samples that a job leaves out because they lack one of its fields.
//!
//! Which they are is a function of job and dataset, so all ranks leave out the same ones, and, as with a quarantine, all
//! others keep their relative order.

use std::fmt::Write;

use super::quarantine::LeftOut;
use crate::error::{FaultClass, Result};
use crate::shard::Dataset;
use crate::spec::JobSpec;

/// The samples of `dataset` that lack a part of a join, or a field which `spec` drops them for. The dataset's own notices
/// tell of the former.
pub(super) fn find_lacking(spec: &JobSpec, dataset: &Dataset) -> Result<LeftOut> {
    let mut left_out = LeftOut { samples: dataset.unpaired().to_vec(), notices: Vec::new() };
    left_out.join(lacking_fields(spec, dataset)?);
    Ok(left_out)
}

fn lacking_fields(spec: &JobSpec, dataset: &Dataset) -> Result<LeftOut> {
    let wanted: Vec<usize> =
        (0..spec.fields.len()).filter(|&field| spec.drop_missing.contains(&spec.fields[field].name)).collect();
    if wanted.is_empty() {
        return Ok(LeftOut::default());
    }
    let sources: Vec<_> = spec.fields.iter().map(|field| field.sources.clone()).collect();
    let lacking = dataset.selector(&sources)?.lacking(dataset, &wanted);
    let mut words = format!(
        "missing=\"drop\": {} of {} samples lack a field and are left out of every epoch (class {})",
        lacking.samples.len(),
        dataset.sample_count(),
        FaultClass::MissingField.name()
    );
    for (&field, (count, first)) in wanted.iter().zip(&lacking.fields) {
        let Some(first) = *first else { continue };
        let field = &spec.fields[field];
        let (shard, _) = dataset.locate(first);
        let key = dataset.with_key(first, str::to_owned);
        let _ = write!(
            words,
            "; field {:?}, none of {}: {count}, the first: {}, key {key:?}",
            field.name,
            field.sources.join(", "),
            dataset.shard_path(shard).display()
        );
    }
    let notices = if lacking.samples.is_empty() { Vec::new() } else { vec![words] };
    Ok(LeftOut { samples: lacking.samples, notices })
}
