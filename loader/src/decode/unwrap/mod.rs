//! Takes wrappers off: values of a database that are no field yet, but a serialised tuple or a Caffe Datum with fields
//! in it. Each value is sniffed by itself, because one database may hold the values of several writers.
//!
//! Nothing is executed and nothing is trusted: [`pickle`] reads plain values only, and every length is checked. The
//! result is what a field's decoder takes: an image's bytes, or a label in decimal.

pub mod datum;
pub mod msgpack;
pub mod pickle;
mod value;

use crate::error::{FaultClass, SampleFault};
use crate::shard::Encoding;

pub use value::{Coding, Kind, Value};

use super::sniff;

/// What the first bytes of a value say that it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrapper {
    /// An image by itself, whether it can be decoded or not.
    Image,
    /// A pickle.
    Pickle,
    /// A msgpack array.
    Msgpack,
    /// An Arrow message, as `pyarrow.serialize` wrote it.
    Arrow,
    /// A Caffe Datum.
    Datum,
    /// None of these.
    Unknown,
}

impl Wrapper {
    /// Looks at the first bytes of a value, 64 of them or all.
    pub fn of(head: &[u8]) -> Self {
        match sniff::sniff(head) {
            Ok(_) => return Self::Image,
            Err(fault) if fault.class == FaultClass::Unsupported => return Self::Image,
            Err(_) => {}
        }
        match head {
            [0x80, 0..=5, _, ..] => Self::Pickle,
            [0xff, 0xff, 0xff, 0xff, ..] => Self::Arrow,
            [0x08 | 0x22, ..] if datum::is_likely(head) => Self::Datum,
            // A pickle of protocol 0 or 1 that is a tuple, and one that is a list.
            [b'(', b'S' | b'V' | b'I' | b'c' | b'T' | b'U' | b'X' | b'K' | b'l' | b'L' | b'F', ..] => Self::Pickle,
            [0x91..=0x9f | 0xdc | 0xdd, _, ..] => Self::Msgpack,
            _ => Self::Unknown,
        }
    }

    /// Its name, for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Image => "a plain image",
            Self::Pickle => "a pickle",
            Self::Msgpack => "a msgpack array",
            Self::Arrow => "a value that pyarrow.serialize wrote",
            Self::Datum => "a Caffe Datum",
            Self::Unknown => "no wrapper that is known",
        }
    }
}

/// A worker's memory for taking wrappers off; nothing is allocated once it is warm.
#[derive(Debug, Default)]
pub struct Unwrapper {
    pickle: pickle::PickleReader,
    scratch: Vec<u8>,
}

impl Unwrapper {
    /// The field in `bytes`, which are wrapped by `encoding`.
    pub fn unwrap<'a>(&'a mut self, encoding: Encoding, bytes: &'a [u8]) -> Result<&'a [u8], SampleFault> {
        match encoding {
            Encoding::Plain => Ok(bytes),
            Encoding::Value => plain_value(bytes),
            Encoding::Element(element) => self.element(bytes, usize::from(element)),
            Encoding::DatumImage => match Wrapper::of(bytes) {
                Wrapper::Datum => datum::Datum::parse(bytes)?.image(&mut self.scratch),
                Wrapper::Image => Ok(bytes),
                other => Err(wrong("a Caffe Datum", other, bytes)),
            },
            Encoding::DatumLabel => match Wrapper::of(bytes) {
                Wrapper::Datum => datum::Datum::parse(bytes)?.label(&mut self.scratch),
                other => Err(wrong("a Caffe Datum", other, bytes)),
            },
        }
    }

    fn element<'a>(&'a mut self, bytes: &'a [u8], element: usize) -> Result<&'a [u8], SampleFault> {
        let value = match Wrapper::of(bytes) {
            Wrapper::Pickle => self.pickle.element(bytes, element)?,
            Wrapper::Msgpack => msgpack::element(bytes, element)?,
            // Writers that let some images through as they are lose no more than the label.
            Wrapper::Image if element == 0 => return Ok(bytes),
            other => return Err(wrong("a serialised tuple", other, bytes)),
        };
        value.render(bytes, &mut self.scratch)
    }
}

/// A value that is taken as it is, unless it is plainly wrapped.
fn plain_value(bytes: &[u8]) -> Result<&[u8], SampleFault> {
    let wrapper = match bytes {
        [0x80, 2..=5, .., b'.'] => Wrapper::Pickle,
        [0xff, 0xff, 0xff, 0xff, ..] => Wrapper::Arrow,
        _ => return Ok(bytes),
    };
    Err(wrong("a plain value", wrapper, bytes))
}

#[cold]
fn wrong(wanted: &str, found: Wrapper, bytes: &[u8]) -> SampleFault {
    let way_out = match found {
        Wrapper::Image => "; if all are so, open it with profile=\"plain\"",
        Wrapper::Pickle | Wrapper::Msgpack => "; if all are so, open it with profile=\"folder\"",
        Wrapper::Datum => "; if all are so, open it with profile=\"datum\"",
        Wrapper::Arrow => {
            ", which no pyarrow since 14 reads: write the values again, as images or pickled (bytes, int)"
        }
        Wrapper::Unknown => "",
    };
    if bytes.is_empty() {
        return SampleFault::new(FaultClass::Empty, format!("a value without a byte, where {wanted} is expected"));
    }
    let first = &bytes[..bytes.len().min(8)];
    let message = format!("{}, starting with {first:02x?}, where {wanted} is expected{way_out}", found.name());
    SampleFault::new(FaultClass::WrongWrapper, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_tell_the_wrapper() {
        let check = |head: &[u8], expected| assert_eq!(Wrapper::of(head), expected, "{head:x?}");
        check(b"\xff\xd8\xff\xe0....", Wrapper::Image);
        check(b"\x89PNG\r\n\x1a\n", Wrapper::Image);
        check(b"\0\0\0\x18ftypheic\0\0", Wrapper::Image);
        check(b"\x80\x04\x95\x10", Wrapper::Pickle);
        check(b"(S'abc'\np0\nI5\ntp1\n.", Wrapper::Pickle);
        check(b"\x92\xc4\x02ab\x05", Wrapper::Msgpack);
        check(b"\xff\xff\xff\xff\x10\0", Wrapper::Arrow);
        check(&[0x08, 3, 0x10, 2, 0x18, 4, 0x22, 0x18], Wrapper::Datum);
        check(&[0x08, 3, 0x99], Wrapper::Unknown);
        check(b"", Wrapper::Unknown);
        check(b"hello", Wrapper::Unknown);
    }

    #[test]
    fn wrong_wrappers_say_how() {
        let mut unwrapper = Unwrapper::default();
        let mut check = |encoding, bytes: &[u8], class, words: &str| {
            let fault = unwrapper.unwrap(encoding, bytes).expect_err(words);
            assert_eq!(fault.class, class, "{fault}");
            assert!(fault.message.contains(words), "{fault}");
        };
        check(Encoding::Element(1), b"\xff\xd8\xff\xe0....", FaultClass::WrongWrapper, "profile=\"plain\"");
        check(Encoding::Element(0), b"\xff\xff\xff\xff\x10\0", FaultClass::WrongWrapper, "pyarrow since 14");
        check(Encoding::Element(0), b"", FaultClass::Empty, "without a byte");
        check(Encoding::Element(0), b"hello", FaultClass::WrongWrapper, "[68, 65, 6c, 6c, 6f]");
        check(Encoding::DatumLabel, b"\x80\x04K\x05.", FaultClass::WrongWrapper, "profile=\"folder\"");
        check(Encoding::Value, b"\x80\x04K\x05.", FaultClass::WrongWrapper, "a plain value is expected");
        assert_eq!(Unwrapper::default().unwrap(Encoding::Value, b"\x93NUMPY").expect("plain"), b"\x93NUMPY");
        assert_eq!(Unwrapper::default().unwrap(Encoding::Element(0), b"\x89PNG\r\n\x1a\n").expect("bare").len(), 8);
    }
}
