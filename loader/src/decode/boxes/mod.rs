//! Boxes of a sample, from JSON, a `.npy` or a `.npz`, as a table of numbers; what they mean is for others.
//!
//! A row of the table is a box: its four numbers, then one for each further column that was asked for.

mod json;

use std::borrow::Cow;

use super::npy;
use super::npz::NpzReader;
use crate::batch::Dtype;
use crate::error::{FaultClass, SampleFault};
use crate::spec::{BOX_COLUMNS_MAX, BoxesSpec};

/// Numbers of a box itself.
pub const SIDES: usize = 4;

/// Bytes of a `.npy` besides its elements, generously.
const NPY_HEADER_BYTES: u64 = 64 << 10;

/// Largest element of an array.
const ELEMENT_BYTES_MAX: u64 = 8;

/// What is read of a value, and under which names.
#[derive(Debug)]
pub struct Columns {
    within: Option<String>,
    boxes: String,
    rest: Vec<String>,
    rows_max: usize,
}

impl Columns {
    /// Those that `spec` names: label, extra numbers and the one that leaves a box out, as far as there are any.
    pub fn new(spec: &BoxesSpec) -> Self {
        let rest = spec.labels.iter().chain(&spec.extra).chain(&spec.leave_out).cloned().collect();
        Self { within: spec.within.clone(), boxes: spec.boxes.clone(), rest, rows_max: spec.max_boxes as usize }
    }

    /// Numbers of a row.
    pub fn width(&self) -> usize {
        SIDES + self.rest.len()
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        [self.boxes.as_str()].into_iter().chain(self.rest.iter().map(String::as_str))
    }

    /// The place among the names: 0 for the boxes, then the rest.
    fn place(&self, name: &[u8]) -> Option<usize> {
        self.names().position(|own| own.as_bytes() == name)
    }

    fn name(&self, place: usize) -> &str {
        self.names().nth(place).unwrap_or_default()
    }
}

/// The numbers of a sample's boxes; its memory is reused.
#[derive(Debug, Default)]
pub struct BoxTable {
    numbers: Vec<f64>,
    width: usize,
    rows: usize,
    elements: Vec<u8>,
}

impl BoxTable {
    /// Reads the boxes that `bytes` hold.
    pub fn read(&mut self, bytes: &[u8], columns: &Columns, archives: &mut NpzReader) -> Result<(), SampleFault> {
        self.numbers.clear();
        (self.width, self.rows) = (columns.width(), 0);
        match bytes {
            [0x93, b'N', ..] => self.read_array(bytes, columns, 0, self.width),
            [b'P', b'K', ..] => {
                let most = columns.rows_max as u64 * SIDES as u64 * ELEMENT_BYTES_MAX + NPY_HEADER_BYTES;
                let mut counts = Counts::default();
                for (place, name) in columns.names().enumerate() {
                    let array = archives.member(bytes, name, most)?;
                    self.read_array(array, columns, first(place), count(place))?;
                    counts.set(place, npy::open(array)?.sides.as_slice().first().map_or(0, |&rows| rows as usize));
                }
                counts.check(columns).map(drop)
            }
            _ => json::read(bytes, columns, self),
        }
    }

    /// How many boxes there are.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The numbers of box number `row`.
    pub fn row(&self, row: usize) -> &[f64] {
        &self.numbers[row * self.width..][..self.width]
    }

    /// Fills `width` columns from number `first` on with the elements of a `.npy`.
    fn read_array(&mut self, bytes: &[u8], columns: &Columns, first: usize, width: usize) -> Result<(), SampleFault> {
        let header = npy::open(bytes)?;
        let rows = match *header.sides.as_slice() {
            [rows] if width == 1 || rows == 0 => rows as usize,
            [rows, found] if found as usize == width => rows as usize,
            ref sides => {
                let wanted = if width == 1 { "(N,)".into() } else { Cow::from(format!("(N, {width})")) };
                let mut words = format!("the array has shape {sides:?}, wanted is {wanted}");
                if width > SIDES {
                    words += &format!(": a box, then {}", columns.rest.join(", "));
                }
                return Err(bad(words));
            }
        };
        self.elements.clear();
        header.append_elements(bytes, &mut self.elements)?;
        let Some(read) = reader(header.dtype) else {
            return Err(bad(format!(
                "the array is of {}, wanted are integers, float32 or float64",
                header.dtype.name()
            )));
        };
        if rows > 0 {
            self.reach(rows - 1, columns)?;
        }
        let table_width = self.width;
        for (index, element) in self.elements.chunks_exact(header.dtype.bytes() as usize).enumerate() {
            let (row, column) = (index / width, index % width);
            self.numbers[row * table_width + first + column] = read(element);
        }
        Ok(())
    }

    /// Makes sure that there is a row number `row`.
    fn reach(&mut self, row: usize, columns: &Columns) -> Result<(), SampleFault> {
        if row >= columns.rows_max {
            let words = format!("more boxes than the limit of {} (max_boxes)", columns.rows_max);
            return Err(SampleFault::new(FaultClass::TooLarge, words));
        }
        if row >= self.rows {
            self.rows = row + 1;
            self.numbers.resize(self.rows * self.width, f64::NAN);
        }
        Ok(())
    }

    fn row_mut(&mut self, row: usize) -> &mut [f64] {
        &mut self.numbers[row * self.width..][..self.width]
    }
}

/// The first number of a row that belongs to the name at `place`.
fn first(place: usize) -> usize {
    if place == 0 { 0 } else { SIDES + place - 1 }
}

/// How many numbers of a row belong to it.
fn count(place: usize) -> usize {
    if place == 0 { SIDES } else { 1 }
}

/// How long each column is, where they come apart.
#[derive(Default)]
struct Counts([Option<usize>; 1 + BOX_COLUMNS_MAX]);

impl Counts {
    fn set(&mut self, place: usize, count: usize) {
        self.0[place] = Some(count);
    }

    /// How many boxes there are. Refuses columns that are missing, or longer or shorter than that of the boxes.
    fn check(&self, columns: &Columns) -> Result<usize, SampleFault> {
        for (name, count) in columns.names().zip(self.0) {
            match (count, self.0[0]) {
                (None, _) => return Err(bad(format!("there is no column {name:?}"))),
                (Some(count), Some(boxes)) if count != boxes => {
                    let own = &columns.boxes;
                    return Err(bad(format!("{count} values in {name:?} for {boxes} boxes in {own:?}")));
                }
                _ => {}
            }
        }
        Ok(self.0[0].unwrap_or_default())
    }
}

fn reader(dtype: Dtype) -> Option<fn(&[u8]) -> f64> {
    macro_rules! read {
        ($type:ty) => {
            Some(|bytes| <$type>::from_ne_bytes(bytes.try_into().expect("one element")) as f64)
        };
    }
    match dtype {
        Dtype::Uint8 => read!(u8),
        Dtype::Uint16 => read!(u16),
        Dtype::Uint32 => read!(u32),
        Dtype::Uint64 => read!(u64),
        Dtype::Int8 => read!(i8),
        Dtype::Int16 => read!(i16),
        Dtype::Int32 => read!(i32),
        Dtype::Int64 => read!(i64),
        Dtype::Float32 => read!(f32),
        Dtype::Float64 => read!(f64),
        Dtype::Bool => Some(|bytes| f64::from(bytes[0])),
        Dtype::Float16 | Dtype::Bfloat16 => None,
    }
}

fn bad(words: impl Into<String>) -> SampleFault {
    SampleFault::new(FaultClass::BadValue, words)
}
