//! Boxes as JSON, `.npy` or `.npz`: a fault, or a table of the width that was asked for, of no more rows than allowed.
#![no_main]

use std::cell::RefCell;

use feedline_loader::decode::boxes::{BoxTable, Columns, SIDES};
use feedline_loader::decode::npz::NpzReader;
use feedline_loader::spec::BoxesSpec;
use libfuzzer_sys::fuzz_target;

const ROWS_MAX: u32 = 50;

fn spec(within: Option<&str>) -> BoxesSpec {
    let spec = serde_json::json!({
        "of": "image", "format": "xyxy", "normalized": false, "within": within, "boxes": "bbox",
        "labels": "category_id", "extra": ["area"], "leave_out": "iscrowd", "outside": "drop",
        "min_size": 1.0, "min_area": 1.0, "min_visibility": 0.1, "max_boxes": ROWS_MAX,
    });
    serde_json::from_value(spec).expect("a spec")
}

thread_local! {
    static STATE: RefCell<(BoxTable, NpzReader, [Columns; 2])> = RefCell::new((
        BoxTable::default(),
        NpzReader::default(),
        [Columns::new(&spec(None)), Columns::new(&spec(Some("annotations")))],
    ));
}

fuzz_target!(|bytes: &[u8]| {
    STATE.with_borrow_mut(|(table, archives, columns)| {
        for columns in columns {
            assert_eq!(columns.width(), SIDES + 3);
            if table.read(bytes, columns, archives).is_ok() {
                assert!(table.rows() <= ROWS_MAX as usize, "{} rows", table.rows());
                assert!((0..table.rows()).all(|row| table.row(row).len() == columns.width()));
            }
        }
    });
});
