//! A plain value in serialised bytes: numbers as they are, texts and bytes by where they lie.

use std::io::Write;

use crate::error::{FaultClass, SampleFault};

/// A value. Places are in the bytes that were read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    /// `None`, `nil`.
    None,
    /// A truth value.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// An integer of more than 64 bits.
    BigInt,
    /// A fraction.
    Float(f64),
    /// Bytes, or UTF-8 text, as they lie there.
    Bytes {
        /// Where they start.
        start: usize,
        /// How many.
        len: usize,
    },
    /// Bytes that lie there in another form.
    Coded {
        /// Where they start.
        start: usize,
        /// How many there are, in that form.
        len: usize,
        /// The form.
        coding: Coding,
    },
    /// Something that holds values.
    Container(Kind, u32),
}

/// Forms of bytes in pickles of old protocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// Bytes 0 to 255 as the characters of a UTF-8 text: how Python 3 writes bytes below protocol 3.
    Latin1,
    /// The inside of a Python 2 string literal, with its escapes.
    Escaped,
    /// Latin-1 with `\uXXXX` and `\UXXXXXXXX`: Unicode text of protocol 0.
    RawUnicode,
    /// As `RawUnicode`, and each character is a byte.
    RawLatin1,
}

/// Kinds of containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A tuple, or an array of msgpack.
    Tuple,
    /// A list.
    List,
    /// A dict.
    Dict,
    /// A set.
    Set,
    /// Bytes of a type that has no place in a field (a msgpack extension).
    Extension,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Tuple => "a tuple",
            Self::List => "a list",
            Self::Dict => "a dict",
            Self::Set => "a set",
            Self::Extension => "an extension type of msgpack",
        }
    }
}

impl Value {
    /// The bytes that a field's decoder takes: bytes and text as they are, numbers in decimal, truth as 1 or 0.
    pub fn render<'a>(self, bytes: &'a [u8], scratch: &'a mut Vec<u8>) -> Result<&'a [u8], SampleFault> {
        let bad = |message: String| Err(SampleFault::new(FaultClass::BadValue, message));
        scratch.clear();
        let written = match self {
            Self::Bytes { start, len } => return Ok(slice(bytes, start, len)),
            Self::Coded { start, len, coding } => {
                decode(slice(bytes, start, len), coding, scratch)?;
                return Ok(scratch);
            }
            Self::Bool(value) => write!(scratch, "{}", u8::from(value)),
            Self::Int(value) => write!(scratch, "{value}"),
            Self::Float(value) => write!(scratch, "{value:?}"),
            Self::BigInt => return bad("an integer of more than 64 bits".into()),
            Self::None => return bad("None, where bytes or a number is expected".into()),
            Self::Container(kind, _) => {
                return bad(format!("{}, where bytes, text or a number is expected", kind.name()));
            }
        };
        written.expect("memory takes what is written");
        Ok(scratch)
    }
}

/// Places were checked when they were made.
fn slice(bytes: &[u8], start: usize, len: usize) -> &[u8] {
    bytes.get(start..start + len).unwrap_or_default()
}

/// Appends the bytes that `coded` stands for.
fn decode(coded: &[u8], coding: Coding, out: &mut Vec<u8>) -> Result<(), SampleFault> {
    let corrupt = |message: &str| SampleFault::new(FaultClass::Corrupt, message);
    match coding {
        Coding::Latin1 => {
            let text = std::str::from_utf8(coded).map_err(|_| corrupt("bytes in a pickle that are no UTF-8 text"))?;
            for letter in text.chars() {
                let byte = u8::try_from(u32::from(letter));
                out.push(byte.map_err(|_| corrupt("bytes in a pickle with a character above 255"))?);
            }
        }
        Coding::Escaped => {
            let mut rest = coded;
            while let [first, after @ ..] = rest {
                rest = after;
                if *first != b'\\' {
                    out.push(*first);
                    continue;
                }
                let (byte, used) = match rest {
                    [b'x', high, low, ..] => (hex(&[*high, *low]).map(|value| value as u8), 3),
                    [b'n', ..] => (Some(b'\n'), 1),
                    [b'r', ..] => (Some(b'\r'), 1),
                    [b't', ..] => (Some(b'\t'), 1),
                    [byte @ (b'\\' | b'\'' | b'"'), ..] => (Some(*byte), 1),
                    _ => (None, 0),
                };
                out.push(
                    byte.ok_or_else(|| corrupt("a string in a pickle with an escape that Python does not write"))?,
                );
                rest = &rest[used..];
            }
        }
        Coding::RawUnicode | Coding::RawLatin1 => {
            let mut rest = coded;
            while let [first, after @ ..] = rest {
                let digits = match (first, after.first()) {
                    (b'\\', Some(b'u')) => 4,
                    (b'\\', Some(b'U')) => 8,
                    _ => 0,
                };
                let code = if digits == 0 { Some(u32::from(*first)) } else { after.get(1..=digits).and_then(hex) };
                rest = if digits == 0 { after } else { after.get(1 + digits..).unwrap_or_default() };
                let letter = code.and_then(char::from_u32);
                let letter = letter.ok_or_else(|| corrupt("text in a pickle with a character that cannot be"))?;
                if coding == Coding::RawUnicode {
                    out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
                } else {
                    let byte = u8::try_from(u32::from(letter));
                    out.push(byte.map_err(|_| corrupt("bytes in a pickle with a character above 255"))?);
                }
            }
        }
    }
    Ok(())
}

fn hex(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |value, &digit| Some(value << 4 | char::from(digit).to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coded_bytes() {
        let check = |coded: &[u8], coding, expected: Option<&[u8]>| {
            let value = Value::Coded { start: 0, len: coded.len(), coding };
            let mut scratch = Vec::new();
            assert_eq!(value.render(coded, &mut scratch).ok(), expected, "{coded:?}");
        };
        check("a\u{ff}\u{80}".as_bytes(), Coding::Latin1, Some(b"a\xff\x80"));
        check("\u{100}".as_bytes(), Coding::Latin1, None);
        check(b"\xff", Coding::Latin1, None);
        check(br"\xff\xd8\n\\'", Coding::Escaped, Some(b"\xff\xd8\n\\'"));
        check(br"\xf", Coding::Escaped, None);
        check(br"\q", Coding::Escaped, None);
        check(b"\\u00e9\xe9\\U0001f600", Coding::RawUnicode, Some("éé😀".as_bytes()));
        check(b"\xff\\u005c\\u000a", Coding::RawLatin1, Some(b"\xff\\\n"));
        check(br"\u0100", Coding::RawLatin1, None);
        check(br"\ud800", Coding::RawUnicode, None);
        check(br"\u12", Coding::RawUnicode, None);
    }

    #[test]
    fn numbers_are_written_in_decimal() {
        let check = |value: Value, expected: &str| {
            assert_eq!(value.render(b"", &mut Vec::new()).expect(expected), expected.as_bytes());
        };
        check(Value::Int(-7), "-7");
        check(Value::Bool(true), "1");
        check(Value::Float(1e300), "1e300");
        check(Value::Float(0.5), "0.5");
        assert!(Value::None.render(b"", &mut Vec::new()).is_err());
        assert!(Value::Container(Kind::Dict, 0).render(b"", &mut Vec::new()).is_err());
    }
}
