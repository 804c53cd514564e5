//! Boxes from bytes to records, by rule and by fault.

use proptest::prelude::*;

use super::*;
use crate::batch::FieldRecipe;
use crate::decode::orientation::Orientation;
use crate::spec::{Resampling, ResizeTo};

const SIZE: (u32, u32) = (100, 80);
const DRAW: Draw = Draw { seed: 3, epoch: 0, sample: 5 };

fn spec() -> BoxesSpec {
    BoxesSpec {
        of: "image".into(),
        format: BoxFormat::Xyxy,
        normalized: false,
        within: None,
        boxes: "bbox".into(),
        labels: Some("category_id".into()),
        extra: Vec::new(),
        leave_out: None,
        outside: Outside::Fault,
        min_size: 1.0,
        min_area: 1.0,
        min_visibility: 0.0,
        max_boxes: 4,
    }
}

fn plain() -> BoxesSpec {
    BoxesSpec { labels: None, ..spec() }
}

fn columns() -> BoxesSpec {
    let (within, extra) = (Some("annotations".into()), vec!["area".into()]);
    BoxesSpec { within, extra, leave_out: Some("iscrowd".into()), ..spec() }
}

fn whole() -> Vec<Transform> {
    vec![Transform::Resize { to: ResizeTo::Exact([SIZE.1, SIZE.0]), resampling: Resampling::Bilinear }]
}

fn fields(spec: &BoxesSpec, transforms: Vec<Transform>) -> [FieldSpec; 2] {
    let image = FieldKind::Image(ImageSpec { transforms, ..ImageSpec::default() });
    [("image", image), ("boxes", FieldKind::Boxes(spec.clone()))].map(|(name, kind)| FieldSpec {
        name: name.into(),
        sources: vec![name.into()],
        kind,
        default: None,
    })
}

fn compile(spec: &BoxesSpec, transforms: Vec<Transform>) -> Result<BoxesRecipe> {
    BoxesRecipe::compile(spec, "boxes", &fields(spec, transforms))
}

/// A box, its label, its extra numbers.
type Record = ([f32; 4], i64, Vec<f64>);

fn records(values: &[u8], extra: usize) -> Vec<Record> {
    let record = |bytes: &[u8]| {
        let sides = std::array::from_fn(|side| f32::from_ne_bytes(bytes[4 * side..][..4].try_into().expect("4")));
        let label = i64::from_ne_bytes(bytes[16..24].try_into().expect("8"));
        let numbers = bytes[24..].chunks_exact(8).map(|number| f64::from_ne_bytes(number.try_into().expect("8")));
        (sides, label, numbers.collect())
    };
    values.chunks_exact(BOX_RECORD_BYTES + 8 * extra).map(record).collect()
}

fn run(spec: &BoxesSpec, bytes: &[u8], form: ImageForm) -> Result<Vec<Record>, SampleFault> {
    let recipe = compile(spec, whole()).expect("sound");
    let (mut worker, mut archives, mut values) = (BoxesWorker::default(), NpzReader::default(), Vec::new());
    worker.run((1, &recipe), bytes, &mut archives, DRAW, Some(form), &mut values)?;
    assert_eq!(values.len() % recipe.record_bytes(), 0);
    assert!(values.len() <= recipe.value_max() as usize);
    Ok(records(&values, spec.extra.len()))
}

const UPRIGHT: ImageForm = ImageForm { size: SIZE, orientation: Orientation::UPRIGHT };

fn check(spec: &BoxesSpec, text: &str, expected: &[Record]) {
    assert_eq!(run(spec, text.as_bytes(), UPRIGHT).as_deref(), Ok(expected), "{text}");
}

fn check_fault(spec: &BoxesSpec, text: &str, class: FaultClass, words: &str) {
    let fault = run(spec, text.as_bytes(), UPRIGHT).expect_err(text);
    assert!(fault.class == class && fault.message.contains(words), "{text}: {fault}");
}

fn record(sides: [f32; 4], label: i64) -> Record {
    (sides, label, Vec::new())
}

#[test]
fn three_forms_of_json() {
    let expected = [record([1.0, 2.0, 30.5, 40.0], 7), record([0.0, 0.0, 100.0, 80.0], -1)];
    check(&spec(), "[[1, 2, 30.5, 4e1, 7], [0,0,100,80,-1]]", &expected);
    check(
        &spec(),
        r#" [{"bbox":[1,2,30.5,40],"id":{"a":["]}\\\"",{}]},"category_id":7}, {"category_id":-1.0, "bbox":[0,0,100,80]}] "#,
        &expected,
    );
    check(&spec(), r#"{"category_id":[7,-1],"x":null,"bbox":[[1,2,30.5,40],[0,0,100,80]]}"#, &expected);
    check(&spec(), "\u{feff}[]", &[]);
    check(&spec(), r#"{"bbox":[],"category_id":[]}"#, &[]);
    check(&plain(), "[[1,2,30.5,40]]", &[record([1.0, 2.0, 30.5, 40.0], 1)]);
    // Of members with one name the last counts, as in Python.
    check(&plain(), r#"{"bbox":[[1,2,3,4],[1,2,3,4]],"bbox":[[5,6,7,8]]}"#, &[record([5.0, 6.0, 7.0, 8.0], 1)]);
}

#[test]
fn members_within_extra_numbers_and_left_out() {
    let text = r#"{"info": {"annotations": 3}, "annotations": [
        {"bbox": [1, 2, 3, 4], "category_id": 1, "area": 1.5, "iscrowd": 0},
        {"bbox": [1, 2, 3, 4], "category_id": 2, "area": 2.5, "iscrowd": true},
        {"bbox": [5, 6, 7, 8], "category_id": 3, "area": 3.5, "iscrowd": false}], "after": "]"}"#;
    let expected = [([1.0, 2.0, 3.0, 4.0], 1, vec![1.5]), ([5.0, 6.0, 7.0, 8.0], 3, vec![3.5])];
    check(&columns(), text, &expected);
    let text = r#"{"annotations": {"bbox": [[1,2,3,4]], "category_id": [1], "area": [1.5], "iscrowd": [0]}}"#;
    check(&columns(), text, &expected[..1]);
    check(&columns(), r#"{"annotations": [[1,2,3,4,1,1.5,0],[1,2,3,4,2,2.5,1]]}"#, &expected[..1]);
    check_fault(&columns(), r#"{"annotations": [[1,2,3,4,1,1,NaN]]}"#, FaultClass::BadValue, "leave it out");
    check_fault(&columns(), "[]", FaultClass::BadValue, "within \"annotations\" of an object");
    check_fault(&columns(), "{}", FaultClass::BadValue, "the object has no \"annotations\"");
}

#[test]
fn formats() {
    let check = |format, normalized, sides: &str, expected| {
        check(&BoxesSpec { format, normalized, ..plain() }, &format!("[{sides}]"), &[record(expected, 1)]);
    };
    check(BoxFormat::Xywh, false, "[10, 20, 30, 40]", [10.0, 20.0, 40.0, 60.0]);
    check(BoxFormat::Cxcywh, false, "[10, 20, 8, 4]", [6.0, 18.0, 14.0, 22.0]);
    check(BoxFormat::Xyxy, true, "[0.1, 0.25, 0.5, 1]", [10.0, 20.0, 50.0, 80.0]);
    check(BoxFormat::Cxcywh, true, "[0.5, 0.5, 0.5, 0.25]", [25.0, 30.0, 75.0, 50.0]);
}

#[test]
fn bad_boxes_say_which_and_why() {
    let bad = |text, words| check_fault(&spec(), text, FaultClass::BadValue, words);
    bad("[[1,2,3,4,1],[9,2,3,4,1]]", "box 1 of 2, [9.0, 2.0, 3.0, 4.0, 1.0]: its right edge lies left of the left one");
    bad("[[1,9,3,4,1]]", "its bottom edge lies above the top one");
    bad("[[1,2,NaN,4,1]]", "not finite");
    bad("[[1,2,1e999,4,1]]", "not finite");
    bad("[[101,2,120,4,1]]", "outside the image");
    bad("[[-9,2,-3,4,1]]", "outside the image");
    bad("[[1,2,3,4]]", "box 0 has 4 numbers, wanted are 5: its sides, then category_id: rows without a label");
    bad("[[1,2,3,4,5,6]]", "box 0 has 6 numbers");
    bad("[[1,2,3,4,0.5]]", "no integer");
    bad("[[1,2,3,4,NaN]]", "no integer");
    bad("[[1,2,3,4,1e17]]", "no integer");
    bad("[[1,2,3,4,9007199254740993]]", "no integer");
    bad("[[1,2,true,4,1]]", "a number was expected");
    bad("[[1,2,[3],4,1]]", "found \"[3],4,1]]\" at byte 6");
    bad("[5]", "neither a list of numbers nor an object");
    bad("7", "boxes are a list");
    bad(r#"[{"bbox":[1,2,3,4]}]"#, "box 0 has no \"category_id\"");
    bad(r#"[{"category_id":1}]"#, "box 0 has no \"bbox\"");
    bad(r#"[{"bbox":[1,2,3],"category_id":1}]"#, "box 0 has 3 numbers, wanted are 4");
    bad(r#"[{"bbox":7,"category_id":1}]"#, "box 0 is no list of numbers");
    bad(r#"[{"bbox":[1,2,3,4],"category_id":"cat"}]"#, "box 0: a number was expected for category_id");
    bad(r#"{"bbox":[[1,2,3,4]],"category_id":[1,2]}"#, "2 values in \"category_id\" for 1 boxes in \"bbox\"");
    bad(r#"{"bbox":[[1,2,3,4]]}"#, "there is no column \"category_id\"");
    bad(r#"{"bbox":[[1,2,3,4]],"category_id":1}"#, "column \"category_id\" is no list");
    bad("[[1,2,3,4,1]", "not JSON");
    check_fault(&spec(), "", FaultClass::Empty, "no bytes");
    check_fault(&plain(), &format!("[{}[1,2,3,4]]", "[1,2,3,4],".repeat(4)), FaultClass::TooLarge, "limit of 4");
    let sized = BoxesSpec { format: BoxFormat::Xywh, ..plain() };
    check_fault(&sized, "[[1,2,-3,4]]", FaultClass::BadValue, "its width is negative");
    check_fault(&sized, "[[1,2,3,-4]]", FaultClass::BadValue, "its height is negative");
    check(&BoxesSpec { outside: Outside::Drop, ..plain() }, "[[101,2,120,4]]", &[]);
}

#[test]
fn boxes_are_clipped_and_dropped_by_rule() {
    let kept = |spec: BoxesSpec, text: &str| {
        run(&spec, text.as_bytes(), UPRIGHT).expect("sound").into_iter().map(|record| record.0).collect::<Vec<_>>()
    };
    assert_eq!(kept(plain(), "[[-5,-5,10,10]]"), [[0.0, 0.0, 10.0, 10.0]]);
    // Nothing but an edge, a side of 0, a side below the least, an area below it.
    assert_eq!(kept(plain(), "[[100,0,120,10],[5,5,5,20],[5,5,5.5,20],[5,5,9,6]]"), [[5.0, 5.0, 9.0, 6.0]]);
    assert_eq!(kept(BoxesSpec { min_area: 4.5, ..plain() }, "[[5,5,9,6],[5,5,9,6.2]]"), [[5.0, 5.0, 9.0, 6.2]]);
    let none = BoxesSpec { min_size: 0.0, min_area: 0.0, ..plain() };
    assert_eq!(kept(none, "[[5,5,5,20],[5,5,5.5,20]]"), [[5.0, 5.0, 5.5, 20.0]]);
    // Half of the first is left of the middle 60x40, three quarters of the second.
    let seen = |least| {
        let spec = BoxesSpec { min_visibility: least, ..plain() };
        let recipe = compile(&spec, vec![Transform::CenterCrop { size: [40, 60] }]).expect("sound");
        let (mut worker, mut archives, mut values) = (BoxesWorker::default(), NpzReader::default(), Vec::new());
        let text = b"[[10,30,30,40],[70,10,80,50]]";
        worker.run((1, &recipe), text, &mut archives, DRAW, Some(UPRIGHT), &mut values).expect("sound");
        records(&values, 0).into_iter().map(|record| record.0).collect::<Vec<_>>()
    };
    assert_eq!(seen(0.5), [[0.0, 10.0, 10.0, 20.0], [50.0, 0.0, 60.0, 30.0]]);
    assert_eq!(seen(0.75), [[50.0, 0.0, 60.0, 30.0]]);
    assert!(seen(0.76).is_empty());
}

#[test]
fn orientation_turns_boxes() {
    // Stored 80 wide and 100 high, shown 100 wide and 80 high: rows become columns, mirrored left to right.
    let orientation = Orientation { swapped: true, flipped_across: true, flipped_down: false };
    let turned = run(&plain(), b"[[0,0,10,20]]", ImageForm { size: (80, 100), orientation });
    assert_eq!(turned, Ok(vec![record([80.0, 0.0, 100.0, 10.0], 1)]));
}

#[test]
fn specs_that_cannot_be() {
    let check = |spec: BoxesSpec, transforms, words: &str| {
        let error = compile(&spec, transforms).expect_err("not to be compiled").to_string();
        assert!(error.contains(words), "{error}");
    };
    check(BoxesSpec { of: "boxes".into(), ..spec() }, whole(), "of=\"boxes\" names no image field");
    check(BoxesSpec { labels: Some("caté".into()), ..spec() }, whole(), "printable ASCII");
    check(BoxesSpec { extra: vec!["a\"".into()], ..spec() }, whole(), "printable ASCII");
    check(BoxesSpec { extra: vec!["a".into(); 17], ..spec() }, whole(), "at most 16 numbers");
    check(BoxesSpec { max_boxes: 0, ..spec() }, whole(), "max_boxes is 1 to");
    check(BoxesSpec { min_size: -1.0, ..spec() }, whole(), "not negative");
    check(BoxesSpec { min_visibility: 1.5, ..spec() }, whole(), "a share, 0 to 1, got 1.5");
    let pad = |mode| Transform::RandomApply {
        transforms: vec![Transform::Pad { padding: [1; 4], fill: [0; 3], mode }],
        p: 0.5,
    };
    let center = Transform::CenterCrop { size: [8, 8] };
    check(spec(), vec![pad(PaddingMode::Reflect), center.clone()], "shows objects a second time");
    compile(&spec(), vec![pad(PaddingMode::Edge), center]).expect("edges are smears");
}

fn npy(dtype: &str, shape: &str, elements: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    bytes.extend(elements);
    bytes
}

#[test]
fn arrays_of_boxes() {
    let floats: Vec<u8> = [1.0_f32, 2.0, 3.5, 4.0, 9.0].iter().flat_map(|number| number.to_le_bytes()).collect();
    let found = run(&spec(), &npy("<f4", "(1, 5)", &floats), UPRIGHT);
    assert_eq!(found, Ok(vec![record([1.0, 2.0, 3.5, 4.0], 9)]));
    let found = run(&plain(), &npy("<f4", "(1, 4)", &floats[..16]), UPRIGHT);
    assert_eq!(found, Ok(vec![record([1.0, 2.0, 3.5, 4.0], 1)]));
    let found = run(&plain(), &npy("|u1", "(2, 4)", &[1, 2, 3, 4, 5, 6, 7, 8]), UPRIGHT);
    assert_eq!(found.map(|records| records.len()), Ok(2));
    assert_eq!(run(&plain(), &npy("<f4", "(0, 4)", &[]), UPRIGHT), Ok(vec![]));
    assert_eq!(run(&plain(), &npy("<f8", "(0,)", &[]), UPRIGHT), Ok(vec![]));
    let fault =
        |shape, dtype, bytes: &[u8]| run(&plain(), &npy(dtype, shape, bytes), UPRIGHT).expect_err("bad").message;
    assert!(fault("(1, 5)", "<f4", &floats).contains("shape [1, 5], wanted is (N, 4)"));
    assert!(fault("(4,)", "<f4", &floats[..16]).contains("wanted is (N, 4)"));
    assert!(fault("(1, 4)", "<f2", &floats[..8]).contains("float16"));
    assert!(fault("(5, 4)", "|u1", &[0; 20]).contains("limit of 4"));
}

#[test]
fn values_are_dropped_with_their_boxes() {
    let values = |of: &str| BoxValuesSpec { of: of.into(), dtype: Dtype::Int16, shape: vec![2], max_bytes: 100 };
    let specs = |of| {
        let [image, boxes] = fields(&plain(), whole());
        let own = FieldSpec { name: "own".into(), kind: FieldKind::BoxValues(values(of)), ..image.clone() };
        [own, boxes, image]
    };
    let error = FieldRecipe::compile_all(&specs("image"), 4).expect_err("no boxes").to_string();
    assert!(error.contains("of=\"image\" names no field of boxes"), "{error}");
    let (recipes, _) = FieldRecipe::compile_all(&specs("boxes"), 4).expect("sound");
    assert!(recipes[0].turn() > recipes[1].turn() && recipes[1].turn() > recipes[2].turn());
    let recipe = BoxValuesRecipe::compile(&values("boxes"), "own", &specs("boxes")).expect("sound");
    let boxes = BoxesRecipe::compile(&plain(), "boxes", &specs("boxes")).expect("sound");
    let (mut worker, mut archives) = (BoxesWorker::default(), NpzReader::default());
    let mut check = |text: &[u8], entries: &[i16], expected: Result<&[i16], &str>| {
        worker.begin_row();
        worker.run((1, &boxes), text, &mut archives, DRAW, Some(UPRIGHT), &mut Vec::new()).expect("sound");
        let bytes: Vec<u8> = entries.iter().flat_map(|number| number.to_le_bytes()).collect();
        let mut made = Vec::new();
        let array = npy("<i2", &format!("({}, 2)", entries.len() / 2), &bytes);
        match (worker.run_values(&recipe, &array, &mut made), expected) {
            (Ok(()), Ok(expected)) => {
                assert_eq!(made[..ARRAY_HEADER_BYTES], recipe.header(expected.len() as u32 / 2));
                let elements = expected.iter().flat_map(|number| number.to_ne_bytes()).collect::<Vec<_>>();
                assert_eq!(made[ARRAY_HEADER_BYTES..], elements);
            }
            (Err(fault), Err(words)) => assert!(fault.message.contains(words), "{fault}"),
            (found, expected) => panic!("{found:?}, expected {expected:?}"),
        }
    };
    // The second has no area.
    check(b"[[1,2,3,4],[5,5,5,9],[5,6,7,8]]", &[1, 2, 3, 4, 5, 6], Ok(&[1, 2, 5, 6]));
    check(b"[]", &[], Ok(&[]));
    check(b"[[1,2,3,4]]", &[1, 2, 3, 4], Err("2 entries for 1 boxes in \"boxes\""));
    worker.begin_row();
    worker.run((1, &boxes), b"[[1,2,3,4]]", &mut archives, DRAW, None, &mut Vec::new()).expect("sound");
    let mut made = Vec::new();
    worker.run_values(&recipe, &npy("<i2", "(1, 2)", &[0; 4]), &mut made).expect("a picture that a default stands for");
    assert_eq!(made, recipe.header(0));
    let mut fault = |array: &[u8]| worker.run_values(&recipe, array, &mut Vec::new()).expect_err("bad").message;
    assert!(fault(&npy("<i2", "(1, 3)", &[0; 6])).contains("int16 of shape [3]"));
    assert!(fault(&npy("<i4", "(1, 2)", &[0; 8])).contains("int32 of shape [2]"));
    assert!(fault(&npy("<i2", "()", &[0; 2])).contains("no dimension"));
    assert!(fault(&npy("<i2", "(26, 2)", &[0; 104])).contains("the limit is 100"));
}

#[test]
fn a_default_is_no_boxes() {
    let mut specs = fields(&plain(), whole());
    specs[1].default = Some(b"[]".to_vec());
    let (recipes, _) = FieldRecipe::compile_all(&specs, 4).expect("sound");
    assert_eq!(recipes[1].default(), Some(&[][..]));
}

proptest! {
    #[test]
    fn no_bytes_make_a_worker_panic(bytes in prop::collection::vec(any::<u8>(), 0..60), is_array in any::<bool>()) {
        let bytes = if is_array { npy("<f4", "(1, 4)", &bytes) } else { bytes };
        let _ = run(&spec(), &bytes, UPRIGHT);
    }

    #[test]
    fn json_of_any_shape_is_boxes_or_a_fault(text in r#"[\[\]{}":,0-9a-c .\\-]{0,60}"#) {
        for spec in [spec(), plain(), columns()] {
            let _ = run(&spec, text.as_bytes(), UPRIGHT);
        }
    }

    #[test]
    fn what_is_written_is_read(
        rows in prop::collection::vec((0..99u32, 0..79u32, 1..50u32, 1..50u32, -9..9i64), 0..=4),
        is_spaced in any::<bool>(),
    ) {
        let space = if is_spaced { " \n\t" } else { "" };
        let object = |&(left, top, width, height, label): &(u32, u32, u32, u32, i64)| format!(
            r#"{{{space}"bbox"{space}:[{left},{space}{top}{space},{width},{height}]{space},"category_id":{label}{space}}}"#
        );
        let text = format!("[{}]", rows.iter().map(object).collect::<Vec<_>>().join(","));
        let found = run(&BoxesSpec { format: BoxFormat::Xywh, ..spec() }, text.as_bytes(), UPRIGHT);
        let expected: Vec<Record> = rows.iter().map(|&(left, top, width, height, label)| {
            let edges = [left, top, (left + width).min(SIZE.0), (top + height).min(SIZE.1)];
            record(edges.map(|edge| edge as f32), label)
        }).collect();
        prop_assert_eq!(found, Ok(expected));
    }
}
