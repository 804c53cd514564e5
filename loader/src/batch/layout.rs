//! The layout of one batch in a slot: pure arithmetic, the same on both sides of the ring.
//!
//! A slot holds, each part aligned to 64 bytes: the fields one after the other (all rows of the first, then all rows
//! of the second), one `valid` byte a row, one [`RowEntry`] a row for the keys, the arena that those point into, and
//! room for values of varying length. A field of such values is a [`RowEntry`] a row, which points into that room or,
//! past its end, into memory of the batch's own (its spill). The sidecar sends the layout to the client as JSON; the
//! client recomputes it ([`BatchLayout::check`]) before it believes any offset.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::spec::BATCH_SIZE_MAX;

/// Alignment of every part of a slot: a cache line, and more than any element or vector instruction wants.
pub const FIELD_ALIGN_BYTES: u64 = 64;

/// Alignment of slots: the largest base page of the machines that Linux runs GPUs on (64 KiB on some of aarch64), so
/// that a slot can be page-locked by itself everywhere.
pub const SLOT_ALIGN_BYTES: u64 = 64 << 10;

/// Largest slot.
pub const SLOT_BYTES_MAX: u64 = 16 << 30;

/// Room for a batch's fault report that keys never take.
pub const REPORT_BYTES_MAX: usize = 64 << 10;

/// Most dimensions of one row.
pub const DIMENSIONS_MAX: usize = 8;

/// Most bytes of all values of varying length of one batch, in the slot and spilled together; entries are 32-bit.
pub const VALUES_BYTES_MAX: u64 = 2 << 30;

/// Element type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "NumPy's names")]
pub enum Dtype {
    Bool,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Int8,
    Int16,
    Int32,
    Int64,
    Float16,
    Bfloat16,
    Float32,
    Float64,
}

impl Dtype {
    /// Every type.
    pub const ALL: [Self; 13] = [
        Self::Bool,
        Self::Uint8,
        Self::Uint16,
        Self::Uint32,
        Self::Uint64,
        Self::Int8,
        Self::Int16,
        Self::Int32,
        Self::Int64,
        Self::Float16,
        Self::Bfloat16,
        Self::Float32,
        Self::Float64,
    ];

    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Bool | Self::Uint8 | Self::Int8 => 1,
            Self::Uint16 | Self::Int16 | Self::Float16 | Self::Bfloat16 => 2,
            Self::Uint32 | Self::Int32 | Self::Float32 => 4,
            Self::Uint64 | Self::Int64 | Self::Float64 => 8,
        }
    }

    /// NumPy's and torch's name of it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Uint8 => "uint8",
            Self::Uint16 => "uint16",
            Self::Uint32 => "uint32",
            Self::Uint64 => "uint64",
            Self::Int8 => "int8",
            Self::Int16 => "int16",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::Float16 => "float16",
            Self::Bfloat16 => "bfloat16",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
        }
    }
}

/// What a row of a field is in the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RowForm {
    /// Elements of the field's shape.
    Fixed,
    /// A [`RowEntry`] of a value of any length.
    Bytes,
    /// A [`RowEntry`] of an array with its own shape, as [`super::arrays`] has it.
    Arrays,
}

impl RowForm {
    /// Alignment of a value; a power of two.
    pub const fn align(self) -> u64 {
        match self {
            Self::Fixed | Self::Bytes => 1,
            Self::Arrays => FIELD_ALIGN_BYTES,
        }
    }

    /// NumPy-like word for it, part of the layout's hash.
    const fn name(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Bytes => "bytes",
            Self::Arrays => "arrays",
        }
    }
}

/// One field: a contiguous array of `batch_size` rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FieldLayout {
    /// Its name in the batch.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Shape of one row, in memory order; empty for a scalar, and where the rows vary.
    pub shape: Vec<u32>,
    /// Whether rows lie here, or entries of values that lie elsewhere.
    pub form: RowForm,
    /// Bytes of one row.
    pub row_bytes: u64,
    /// Where the first row starts in the slot, in bytes; set by [`BatchLayout::new`].
    pub offset: u64,
}

impl FieldLayout {
    /// A field that has no place yet. A dimension of 0 is legal.
    pub fn new(name: impl Into<String>, dtype: Dtype, shape: impl Into<Vec<u32>>) -> Result<Self> {
        let (name, shape) = (name.into(), shape.into());
        if shape.len() > DIMENSIONS_MAX {
            return Err(Error::config(format!(
                "field {name:?}: a row has at most {DIMENSIONS_MAX} dimensions, got {shape:?}"
            )));
        }
        let row_bytes = shape
            .iter()
            .try_fold(dtype.bytes(), |bytes, &side| bytes.checked_mul(u64::from(side)))
            .filter(|&bytes| bytes <= SLOT_BYTES_MAX)
            .ok_or_else(|| {
                Error::config(format!("field {name:?}: a row of {shape:?} {} is over 16 GiB", dtype.name()))
            })?;
        Ok(Self { name, dtype, shape, form: RowForm::Fixed, row_bytes, offset: 0 })
    }

    /// A field of values of varying length that has no place yet; `dtype` is that of a value's elements.
    pub fn varying(name: impl Into<String>, dtype: Dtype, form: RowForm) -> Self {
        assert!(form != RowForm::Fixed, "a field of fixed rows has a shape");
        let row_bytes = size_of::<u64>() as u64;
        Self { name: name.into(), dtype, shape: Vec::new(), form, row_bytes, offset: 0 }
    }

    /// The same field before it had a place, recomputed.
    fn without_place(&self) -> Result<Self> {
        match self.form {
            RowForm::Fixed => Self::new(self.name.as_str(), self.dtype, self.shape.as_slice()),
            form => Ok(Self::varying(self.name.as_str(), self.dtype, form)),
        }
    }
}

/// Where a row's key lies in the arena, or a row's value among the batch's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowEntry {
    /// First byte, counted from the start of the arena, or of the values.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
}

impl RowEntry {
    /// The row has no key: none was stored, or the arena was full.
    pub const NONE: Self = Self { offset: u32::MAX, len: u32::MAX };

    /// As one word, written and read atomically.
    pub const fn to_word(self) -> u64 {
        (self.offset as u64) << 32 | self.len as u64
    }

    /// From one word.
    pub const fn from_word(word: u64) -> Self {
        Self { offset: (word >> 32) as u32, len: word as u32 }
    }
}

/// BLAKE3 of a layout: both sides must mean the same bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LayoutHash(pub [u8; 32]);

impl std::fmt::Debug for LayoutHash {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(blake3::Hash::from_bytes(self.0).to_hex().as_str())
    }
}

/// The place of everything in a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchLayout {
    /// The fields, in the order in which a batch presents them.
    pub fields: Vec<FieldLayout>,
    /// Rows of a full batch.
    pub batch_size: u32,
    /// Room in the arena for one key, on average over the rows.
    pub key_bytes_max: u32,
    /// Where the `valid` bytes start in the slot.
    pub valid_offset: u64,
    /// Where the key entries start in the slot.
    pub entries_offset: u64,
    /// Where the arena starts in the slot.
    pub arena_offset: u64,
    /// Size of the arena: the keys' part, then [`REPORT_BYTES_MAX`].
    pub arena_bytes: u32,
    /// Where the values of varying length start in the slot.
    pub values_offset: u64,
    /// Room for them, a multiple of [`FIELD_ALIGN_BYTES`]. What does not fit spills.
    pub values_bytes: u32,
    /// Size of a slot, a multiple of [`SLOT_ALIGN_BYTES`].
    pub slot_bytes: u64,
}

impl BatchLayout {
    /// A layout without room for values of varying length.
    pub fn new(fields: Vec<FieldLayout>, batch_size: u32, key_bytes_max: u32) -> Result<Self> {
        Self::with_values(fields, batch_size, key_bytes_max, 0)
    }

    /// Gives every field its place. Refuses a batch of no rows, no fields, or more than [`SLOT_BYTES_MAX`], and room
    /// for values of more than [`VALUES_BYTES_MAX`].
    pub fn with_values(
        fields: Vec<FieldLayout>,
        batch_size: u32,
        key_bytes_max: u32,
        values_bytes: u32,
    ) -> Result<Self> {
        if batch_size == 0 || batch_size > BATCH_SIZE_MAX {
            return Err(Error::config(format!("batch_size must be 1 to {BATCH_SIZE_MAX}, got {batch_size}")));
        }
        if fields.is_empty() {
            return Err(Error::config("a batch needs at least one field"));
        }
        let names = fields.iter().map(|field| field.name.as_str()).collect::<Vec<_>>().join(", ");
        let too_large = u64::from(values_bytes) > VALUES_BYTES_MAX;
        let placed = if too_large { None } else { Self::place(fields, batch_size, key_bytes_max, values_bytes) };
        placed.ok_or_else(|| {
            Error::config(format!(
                "{batch_size} rows of fields {names} with keys of {key_bytes_max} bytes and {values_bytes} bytes of \
                 values are over the {} GiB of a slot: lower batch_size or the images' size",
                SLOT_BYTES_MAX >> 30
            ))
        })
    }

    /// `None` on overflow or above the limit.
    fn place(mut fields: Vec<FieldLayout>, batch_size: u32, key_bytes_max: u32, values_bytes: u32) -> Option<Self> {
        let rows = u64::from(batch_size);
        let mut end = 0_u64;
        let mut part = |bytes: u64| {
            let start = end.checked_next_multiple_of(FIELD_ALIGN_BYTES)?;
            end = start.checked_add(bytes)?;
            Some(start)
        };
        for field in &mut fields {
            field.offset = part(field.row_bytes.checked_mul(rows)?)?;
        }
        let valid_offset = part(rows)?;
        let entries_offset = part(rows.checked_mul(size_of::<u64>() as u64)?)?;
        let keys_bytes = batch_size.checked_mul(key_bytes_max)?;
        let arena_bytes = keys_bytes.checked_add(REPORT_BYTES_MAX as u32)?;
        let arena_offset = part(u64::from(arena_bytes))?;
        // Whole lines: what is spilled goes on counting from the end of the room, and its alignment must hold there.
        let values_bytes = values_bytes.checked_next_multiple_of(FIELD_ALIGN_BYTES as u32)?;
        let values_offset = part(u64::from(values_bytes))?;
        let slot_bytes = end.checked_next_multiple_of(SLOT_ALIGN_BYTES).filter(|&bytes| bytes <= SLOT_BYTES_MAX)?;
        Some(Self {
            fields,
            batch_size,
            key_bytes_max,
            valid_offset,
            entries_offset,
            arena_offset,
            arena_bytes,
            values_offset,
            values_bytes,
            slot_bytes,
        })
    }

    /// Recomputes a layout that came from outside and refuses any difference.
    pub fn check(&self) -> Result<()> {
        let fields = self.fields.iter().map(FieldLayout::without_place).collect::<Result<Vec<_>>>()?;
        let expected = Self::with_values(fields, self.batch_size, self.key_bytes_max, self.values_bytes)?;
        if expected != *self {
            return Err(Error::protocol(format!(
                "the batch layout {self:?} is not what its fields give, {expected:?}: install the same Feedline on both \
                 sides"
            )));
        }
        Ok(())
    }

    /// Hash of everything that decides where a byte lies and what it means.
    pub fn layout_hash(&self) -> LayoutHash {
        let mut hasher = blake3::Hasher::new_derive_key("feedline batch layout v2");
        let mut word = |value: u64| {
            hasher.update(&value.to_le_bytes());
        };
        for value in [
            u64::from(self.batch_size),
            u64::from(self.key_bytes_max),
            self.valid_offset,
            self.entries_offset,
            self.arena_offset,
            u64::from(self.arena_bytes),
            self.values_offset,
            u64::from(self.values_bytes),
            self.slot_bytes,
            self.fields.len() as u64,
        ] {
            word(value);
        }
        for field in &self.fields {
            word(field.name.len() as u64);
            field.name.bytes().for_each(|byte| word(u64::from(byte)));
            for text in [field.dtype.name(), field.form.name()] {
                word(text.len() as u64);
                text.bytes().for_each(|byte| word(u64::from(byte)));
            }
            word(field.shape.len() as u64);
            field.shape.iter().for_each(|&side| word(u64::from(side)));
            word(field.row_bytes);
            word(field.offset);
        }
        LayoutHash(*hasher.finalize().as_bytes())
    }

    /// The arena's part for keys; the rest belongs to the report.
    pub fn keys_bytes(&self) -> u32 {
        self.arena_bytes - REPORT_BYTES_MAX as u32
    }

    /// Index of the field `name`.
    pub fn field_index(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.name == name)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn image(side: u32) -> FieldLayout {
        FieldLayout::new("image", Dtype::Uint8, [side, side, 3]).expect("field")
    }

    fn label() -> FieldLayout {
        FieldLayout::new("label", Dtype::Int64, []).expect("field")
    }

    #[test]
    fn the_layout_of_an_ordinary_batch() {
        let layout = BatchLayout::new(vec![image(224), label()], 256, 64).expect("layout");
        assert_eq!((layout.fields[0].offset, layout.fields[0].row_bytes), (0, 150_528));
        assert_eq!((layout.fields[1].offset, layout.fields[1].row_bytes), (256 * 150_528, 8));
        assert_eq!(layout.valid_offset, 256 * 150_528 + 2_048);
        assert_eq!(layout.entries_offset, layout.valid_offset + 256);
        assert_eq!(layout.arena_offset, layout.entries_offset + 2_048);
        assert_eq!((layout.arena_bytes, layout.keys_bytes()), (16_384 + 65_536, 16_384));
        assert_eq!(layout.slot_bytes, 590 << 16);
        assert_eq!((layout.field_index("label"), layout.field_index("mask")), (Some(1), None));
    }

    #[test]
    fn refusals() {
        let check = |fields: Vec<FieldLayout>, batch_size: u32, key_bytes_max: u32, words: &str| {
            let refused = BatchLayout::new(fields, batch_size, key_bytes_max).expect_err(words).to_string();
            assert!(refused.contains(words), "{refused}");
        };
        check(vec![], 1, 0, "at least one field");
        check(vec![label()], 0, 0, "batch_size must be 1 to 1048576, got 0");
        check(vec![label()], (1 << 20) + 1, 0, "got 1048577");
        check(vec![label()], 1 << 20, 4096, "1048576 rows of fields label with keys of 4096 bytes");
        check(vec![label()], 1 << 20, u32::MAX, "over the 16 GiB");
        check(vec![image(20_000), label()], 16, 0, "fields image, label");
        let shape = |shape: &[u32]| FieldLayout::new("f", Dtype::Float64, shape).map(|field| field.row_bytes).ok();
        assert_eq!(shape(&[u32::MAX, u32::MAX, u32::MAX]), None);
        assert_eq!(shape(&[1 << 31]), Some(16 << 30));
        assert_eq!(shape(&[(1 << 31) + 1]), None);
        assert_eq!(shape(&[1; 8]), Some(8));
        assert_eq!(shape(&[1; 9]), None);
        assert_eq!(shape(&[0, 5]), Some(0));
    }

    #[test]
    fn every_difference_changes_the_hash_or_is_refused() {
        let layout = BatchLayout::new(vec![image(8), label()], 4, 16).expect("layout");
        layout.check().expect("sound");
        let changes: [fn(&mut BatchLayout); 14] = [
            |layout| layout.batch_size = 3,
            |layout| layout.key_bytes_max = 17,
            |layout| layout.valid_offset += 64,
            |layout| layout.entries_offset -= 8,
            |layout| layout.arena_offset = u64::MAX,
            |layout| layout.arena_bytes += 1,
            |layout| layout.slot_bytes *= 2,
            |layout| layout.fields[0].name.push('s'),
            |layout| layout.fields[1].dtype = Dtype::Float64,
            |layout| layout.fields[0].shape = vec![8, 24],
            |layout| layout.fields[0].row_bytes = 191,
            |layout| layout.fields[1].form = RowForm::Bytes,
            |layout| layout.values_offset += 64,
            |layout| layout.values_bytes += 64,
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut changed = layout.clone();
            change(&mut changed);
            assert_ne!(changed.layout_hash(), layout.layout_hash(), "change {number}");
            // Names and equal-sized types, shapes and entries, and more room at the end of the slot, give another sound
            // layout; everything else contradicts itself.
            let is_sound = matches!(number, 7..=9 | 11 | 13);
            assert_eq!(changed.check().is_ok(), is_sound, "change {number}: {changed:?}");
        }
    }

    fn any_field() -> impl Strategy<Value = FieldLayout> {
        let dtype = prop::sample::select(Dtype::ALL.to_vec());
        let form = prop::sample::select(vec![RowForm::Fixed, RowForm::Bytes, RowForm::Arrays]);
        (dtype, prop::collection::vec(0_u32..40, 0..4), form).prop_map(|(dtype, shape, form)| match form {
            RowForm::Fixed => FieldLayout::new("field", dtype, shape).expect("small"),
            form => FieldLayout::varying("field", dtype, form),
        })
    }

    proptest! {
        #[test]
        fn parts_are_aligned_disjoint_and_inside(
            fields in prop::collection::vec(any_field(), 1..6),
            batch_size in 1_u32..300,
            key_bytes_max in 0_u32..500,
            values_bytes in 0_u32..5000,
        ) {
            let layout = BatchLayout::with_values(fields, batch_size, key_bytes_max, values_bytes).expect("small");
            prop_assert!(layout.values_bytes >= values_bytes);
            let rows = u64::from(batch_size);
            let mut parts: Vec<_> =
                layout.fields.iter().map(|field| (field.offset, field.row_bytes * rows)).collect();
            parts.push((layout.valid_offset, rows));
            parts.push((layout.entries_offset, 8 * rows));
            parts.push((layout.arena_offset, u64::from(layout.arena_bytes)));
            parts.push((layout.values_offset, u64::from(layout.values_bytes)));
            let mut end = 0;
            for (offset, bytes) in parts {
                prop_assert!(offset >= end && offset % FIELD_ALIGN_BYTES == 0);
                end = offset + bytes;
            }
            prop_assert!(end <= layout.slot_bytes && layout.slot_bytes.is_multiple_of(SLOT_ALIGN_BYTES));
            let text = serde_json::to_string(&layout).expect("JSON");
            let back: BatchLayout = serde_json::from_str(&text).expect("JSON");
            back.check().expect("sound");
            prop_assert_eq!(back.layout_hash(), layout.layout_hash());
            prop_assert_eq!(back, layout);
        }
    }
}
