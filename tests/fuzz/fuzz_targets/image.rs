//! Images of every format, decoded through a recipe as a worker does.
#![no_main]

use feedline_loader::augment::Draw;
use feedline_loader::batch::{FieldRecipe, FieldWorker};
use feedline_loader::spec::FieldSpec;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let spec = r#"{"name": "image", "sources": ["jpg"], "kind": {"image": {"layout": "nhwc", "max_pixels": 4000000,
        "transforms": [{"random_resized_crop": {"size": [16, 16], "scale": [0.08, 1.0], "ratio": [0.75, 1.34]}}]}}}"#;
    let spec: FieldSpec = serde_json::from_str(spec).expect("a spec");
    let (recipes, _) = FieldRecipe::compile_all(&[spec], 1).expect("compiles");
    let mut worker = FieldWorker::new().expect("memory");
    worker.begin_row();
    let _ = worker.run(0, &recipes[0], bytes, Draw { seed: 1, epoch: 2, sample: 3 }, |row| assert_eq!(row.len(), 16 * 16 * 3));
});
