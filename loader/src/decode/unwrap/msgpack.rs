//! The one thing that is read of msgpack: an element of the array at the top. No recursion, no memory.

use super::value::{Kind, Value};
use crate::error::{FaultClass, SampleFault};

/// Finds element `element` of the array in `bytes`.
pub fn element(bytes: &[u8], element: usize) -> Result<Value, SampleFault> {
    let mut reader = Reader { bytes, at: 0 };
    let (top, items) = reader.value()?;
    if !matches!(top, Value::Container(Kind::Tuple, _)) {
        return Err(SampleFault::new(FaultClass::WrongWrapper, "a value of msgpack that is no array"));
    }
    if element as u64 >= items {
        return Err(SampleFault::new(
            FaultClass::MissingField,
            format!("an array of {items} elements, none is {element}"),
        ));
    }
    for _ in 0..element {
        reader.skip()?;
    }
    reader.value().map(|(value, _)| value)
}

/// The integer that `bytes` are, and nothing after it.
pub fn integer(bytes: &[u8]) -> Option<i64> {
    let mut reader = Reader { bytes, at: 0 };
    match reader.value() {
        Ok((Value::Int(value), _)) if reader.at == bytes.len() => Some(value),
        _ => None,
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    /// Passes one value with all that it holds.
    fn skip(&mut self) -> Result<(), SampleFault> {
        let mut pending = 1_u64;
        while pending > 0 {
            let (_, items) = self.value()?;
            pending = (pending - 1).saturating_add(items);
        }
        Ok(())
    }

    /// The next value, and how many values follow that belong to it.
    fn value(&mut self) -> Result<(Value, u64), SampleFault> {
        let tag = self.take(1)?[0];
        let leaf = |value| Ok((value, 0));
        match tag {
            0x00..=0x7f => leaf(Value::Int(i64::from(tag))),
            0xe0..=0xff => leaf(Value::Int(i64::from(tag.cast_signed()))),
            0x80..=0x8f => Ok((Value::Container(Kind::Dict, 0), 2 * u64::from(tag & 0x0f))),
            0x90..=0x9f => Ok((Value::Container(Kind::Tuple, 0), u64::from(tag & 0x0f))),
            0xa0..=0xbf => self.run(u64::from(tag & 0x1f)),
            0xc0 => leaf(Value::None),
            0xc2 | 0xc3 => leaf(Value::Bool(tag == 0xc3)),
            0xc4..=0xc6 => self.unsigned(1 << (tag - 0xc4)).and_then(|len| self.run(len)),
            0xd9..=0xdb => self.unsigned(1 << (tag - 0xd9)).and_then(|len| self.run(len)),
            0xca => {
                let bits = self.unsigned(4)? as u32;
                leaf(Value::Float(f64::from(f32::from_bits(bits))))
            }
            0xcb => self.unsigned(8).and_then(|bits| leaf(Value::Float(f64::from_bits(bits)))),
            0xcc..=0xcf => {
                let value = self.unsigned(1 << (tag - 0xcc))?;
                leaf(i64::try_from(value).map_or(Value::BigInt, Value::Int))
            }
            0xd0..=0xd3 => {
                let width = 1 << (tag - 0xd0);
                let unused = 64 - 8 * width as u32;
                leaf(Value::Int(self.unsigned(width)?.cast_signed() << unused >> unused))
            }
            0xdc | 0xdd => Ok((Value::Container(Kind::Tuple, 0), self.unsigned(if tag == 0xdc { 2 } else { 4 })?)),
            0xde | 0xdf => Ok((Value::Container(Kind::Dict, 0), 2 * self.unsigned(if tag == 0xde { 2 } else { 4 })?)),
            0xc7..=0xc9 => {
                let len = self.unsigned(1 << (tag - 0xc7))?;
                self.extension(len)
            }
            0xd4..=0xd8 => self.extension(1 << (tag - 0xd4)),
            0xc1 => {
                Err(SampleFault::new(FaultClass::Corrupt, format!("msgpack: byte {}: 0xc1 is never used", self.at - 1)))
            }
        }
    }

    fn run(&mut self, len: u64) -> Result<(Value, u64), SampleFault> {
        let start = self.at;
        let len = self.take(len)?.len();
        Ok((Value::Bytes { start, len }, 0))
    }

    fn extension(&mut self, len: u64) -> Result<(Value, u64), SampleFault> {
        self.take(1 + len)?;
        Ok((Value::Container(Kind::Extension, 0), 0))
    }

    /// A big-endian number.
    fn unsigned(&mut self, width: u64) -> Result<u64, SampleFault> {
        Ok(self.take(width)?.iter().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    fn take(&mut self, len: u64) -> Result<&[u8], SampleFault> {
        let start = self.at;
        let end = usize::try_from(len).ok().and_then(|len| start.checked_add(len));
        let Some((end, taken)) = end.and_then(|end| Some((end, self.bytes.get(start..end)?))) else {
            let message =
                format!("msgpack: {len} bytes wanted at byte {start}, {} are there", self.bytes.len() - start);
            return Err(SampleFault::new(FaultClass::Truncated, message));
        };
        self.at = end;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn elements_of_arrays() {
        let check = |bytes: &[u8], at: usize, expected: Result<Value, FaultClass>| {
            assert_eq!(element(bytes, at).map_err(|fault| fault.class), expected, "{bytes:x?}");
        };
        let pair = b"\x92\xc4\x02ab\xcd\x01\x00";
        check(pair, 0, Ok(Value::Bytes { start: 3, len: 2 }));
        check(pair, 1, Ok(Value::Int(256)));
        check(pair, 2, Err(FaultClass::MissingField));
        check(b"\x92\xa2ab\xd0\xff", 1, Ok(Value::Int(-1)));
        check(b"\x92\x92\x81\x01\x90\x02\x03", 1, Ok(Value::Int(3)));
        check(b"\x92\xd4\x01\x00\xcb\x3f\xe0\0\0\0\0\0\0", 1, Ok(Value::Float(0.5)));
        check(b"\x92\xc0\xcf\xff\xff\xff\xff\xff\xff\xff\xff", 1, Ok(Value::BigInt));
        check(b"\x91\xc4\x05ab", 0, Err(FaultClass::Truncated));
        check(b"\x92\xdd\xff\xff\xff\xff\x01", 1, Err(FaultClass::Truncated));
        check(b"\x91\xc1", 0, Err(FaultClass::Corrupt));
        check(b"\x05", 0, Err(FaultClass::WrongWrapper));
        check(b"\xdd\xff\xff\xff\xff", 70_000, Err(FaultClass::Truncated));
        assert_eq!((integer(b"\xcd\x01\x00"), integer(b"\x05\x05"), integer(b"")), (Some(256), None, None));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0_usize..5) {
            if let Ok(Value::Bytes { start, len }) = element(&bytes, at) {
                prop_assert!(bytes.get(start..start + len).is_some());
            }
        }
    }
}
