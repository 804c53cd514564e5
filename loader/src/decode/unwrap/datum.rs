//! Caffe's Datum: a protobuf message of an image, encoded or as raw pixels, and a label.
//!
//! Raw pixels are planes in the order blue, green, red, as OpenCV gave them to Caffe's tools. They become a PPM or PGM
//! in the worker's memory, so that the ordinary decoder takes them.

use std::io::Write;

use crate::decode::sniff;
use crate::error::{FaultClass, SampleFault};

/// Field 4, with a length.
const DATA_TAG: u8 = 0x22;

/// The fields of a Datum, by their numbers in caffe.proto.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Datum<'a> {
    /// 1.
    pub channels: i64,
    /// 2.
    pub height: i64,
    /// 3.
    pub width: i64,
    /// 4: pixels, or an encoded image.
    pub data: &'a [u8],
    /// 5.
    pub label: i64,
    /// Whether 6, pixels as fractions, are there.
    pub has_floats: bool,
    /// 7: whether `data` is an encoded image.
    pub is_encoded: bool,
}

/// Whether `head`, the first bytes of a value, starts like a Datum: its numbered fields in their order, or, as Caffe
/// writes encoded images, its data at once.
pub fn is_likely(head: &[u8]) -> bool {
    let mut reader = Reader { bytes: head, at: 0 };
    if head.first() == Some(&DATA_TAG) {
        reader.at = 1;
        return reader.varint().is_ok() && sniff::sniff(&head[reader.at..]).is_ok();
    }
    let mut last = 0;
    // A head of 64 bytes may end in the middle of a field; two whole fields are enough.
    for _ in 0..2 {
        match reader.field() {
            Ok(Some((number, Content::Number(_)))) if (1..=7).contains(&number) && number > last => last = number,
            Ok(Some((4, Content::Bytes(_)))) => return true,
            Err(_) if last > 0 && head.get(reader.at) == Some(&DATA_TAG) => return true,
            _ => return false,
        }
    }
    true
}

impl<'a> Datum<'a> {
    /// Reads the message; fields that Caffe does not have are passed over.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, SampleFault> {
        let mut datum = Self::default();
        let mut reader = Reader { bytes, at: 0 };
        while let Some((number, content)) = reader.field()? {
            match (number, content) {
                (1, Content::Number(value)) => datum.channels = value,
                (2, Content::Number(value)) => datum.height = value,
                (3, Content::Number(value)) => datum.width = value,
                (4, Content::Bytes(data)) => datum.data = data,
                (5, Content::Number(value)) => datum.label = value,
                (6, _) => datum.has_floats = true,
                (7, Content::Number(value)) => datum.is_encoded = value != 0,
                _ => {}
            }
        }
        Ok(datum)
    }

    /// The image as a decoder takes it; raw pixels are put into `scratch`.
    pub fn image(&self, scratch: &'a mut Vec<u8>) -> Result<&'a [u8], SampleFault> {
        let Self { channels, height, width, data, .. } = *self;
        let fault = |class, message: String| Err(SampleFault::new(class, message));
        if data.is_empty() {
            return match self.has_floats {
                true => fault(FaultClass::Unsupported, "a Datum of float_data, not of bytes: it is no image".into()),
                false => fault(FaultClass::Empty, "a Datum without data".into()),
            };
        }
        if self.is_encoded {
            return Ok(data);
        }
        let bytes = channels.checked_mul(height).and_then(|bytes| bytes.checked_mul(width));
        if channels < 1 || height < 1 || width < 1 || bytes != i64::try_from(data.len()).ok() {
            return fault(
                FaultClass::Corrupt,
                format!(
                    "a raw Datum of {channels} x {height} x {width} (channels, height, width) with {} bytes of data",
                    data.len()
                ),
            );
        }
        let plane = data.len() / usize::try_from(channels).expect("checked above");
        scratch.clear();
        let magic = match channels {
            1 => "P5",
            3 => "P6",
            _ => {
                return fault(FaultClass::Unsupported, format!("a raw Datum of {channels} channels: 1 or 3 are taken"));
            }
        };
        write!(scratch, "{magic}\n{width} {height}\n255\n").expect("memory takes what is written");
        if channels == 1 {
            scratch.extend_from_slice(data);
        } else {
            let (blue, rest) = data.split_at(plane);
            let (green, red) = rest.split_at(plane);
            let start = scratch.len();
            scratch.resize(start + data.len(), 0);
            let pixels = scratch[start..].chunks_exact_mut(3);
            for (pixel, ((red, green), blue)) in pixels.zip(red.iter().zip(green).zip(blue)) {
                pixel.copy_from_slice(&[*red, *green, *blue]);
            }
        }
        Ok(scratch)
    }

    /// The label, in decimal in `scratch`.
    pub fn label<'s>(&self, scratch: &'s mut Vec<u8>) -> Result<&'s [u8], SampleFault> {
        scratch.clear();
        write!(scratch, "{}", self.label).expect("memory takes what is written");
        Ok(scratch)
    }
}

/// The content of a field of protobuf.
enum Content<'a> {
    Number(i64),
    Bytes(&'a [u8]),
    Other,
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// The next field by its number, `None` at the end. The place stays before a field that is not whole.
    fn field(&mut self) -> Result<Option<(u64, Content<'a>)>, SampleFault> {
        if self.at == self.bytes.len() {
            return Ok(None);
        }
        let start = self.at;
        let field = self.whole_field();
        if field.is_err() {
            self.at = start;
        }
        field.map(Some)
    }

    fn whole_field(&mut self) -> Result<(u64, Content<'a>), SampleFault> {
        let start = self.at;
        let tag = self.varint()?;
        let content = match tag & 7 {
            0 => Content::Number(self.varint()?.cast_signed()),
            1 => self.take(8).map(|_| Content::Other)?,
            2 => {
                let len = self.varint()?;
                Content::Bytes(self.take(len)?)
            }
            5 => self.take(4).map(|_| Content::Other)?,
            wire => {
                let message = format!("Datum: byte {start}: wire type {wire} that protobuf does not have");
                return Err(SampleFault::new(FaultClass::Corrupt, message));
            }
        };
        Ok((tag >> 3, content))
    }

    fn varint(&mut self) -> Result<u64, SampleFault> {
        let mut value = 0;
        for place in 0..10 {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << (7 * place).min(63);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(SampleFault::new(FaultClass::Corrupt, format!("Datum: byte {}: a number without an end", self.at)))
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8], SampleFault> {
        let end = usize::try_from(len).ok().and_then(|len| self.at.checked_add(len));
        let Some((end, taken)) = end.and_then(|end| Some((end, self.bytes.get(self.at..end)?))) else {
            let message = format!("Datum: {len} bytes wanted at byte {}, the value has {}", self.at, self.bytes.len());
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

    /// 3 x 2 x 4, label 5: blue 0 to 7, green 8 to 15, red 16 to 23.
    fn raw() -> Vec<u8> {
        let mut bytes = vec![0x08, 3, 0x10, 2, 0x18, 4, 0x22, 24];
        bytes.extend(0..24);
        bytes.extend([0x28, 5]);
        bytes
    }

    #[test]
    fn raw_planes_become_rgb() {
        let bytes = raw();
        assert!(is_likely(&bytes) && is_likely(&bytes[..10]));
        let datum = Datum::parse(&bytes).expect("sound");
        let mut scratch = Vec::new();
        let image = datum.image(&mut scratch).expect("an image");
        assert_eq!(&image[..17], b"P6\n4 2\n255\n\x10\x08\x00\x11\x09\x01");
        assert_eq!(image.len(), 11 + 24);
        assert_eq!(datum.label(&mut Vec::new()).expect("a label"), b"5");
    }

    #[test]
    fn what_is_no_image() {
        let check = |bytes: &[u8], class| {
            let found = Datum::parse(bytes).and_then(|datum| datum.image(&mut Vec::new()).map(<[u8]>::to_vec));
            assert_eq!(found.expect_err("no image").class, class, "{bytes:x?}");
        };
        check(&[0x08, 3, 0x10, 2, 0x18, 5, 0x22, 1, 7], FaultClass::Corrupt);
        check(&[0x08, 3, 0x10, 2, 0x18, 5, 0x22, 9, 7], FaultClass::Truncated);
        check(&[0x08, 3, 0x10, 2, 0x18, 5, 0x35, 0, 0, 0, 0], FaultClass::Unsupported);
        check(&[0x08, 2, 0x10, 1, 0x18, 1, 0x22, 2, 7, 7], FaultClass::Unsupported);
        check(&[0x08, 3, 0x28, 5], FaultClass::Empty);
        check(&[0x0b], FaultClass::Corrupt);
        check(&[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], FaultClass::Corrupt);
        assert!(is_likely(&[&[0x22, 90][..], b"\x89PNG\r\n\x1a\n"].concat()) && !is_likely(b"\x22\x03abc"));
        let encoded = [&[0x22, 3][..], b"abc", &[0x38, 1]].concat();
        assert_eq!(Datum::parse(&encoded).expect("sound").image(&mut Vec::new()).expect("as it is"), b"abc");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = is_likely(&bytes);
            if let Ok(datum) = Datum::parse(&bytes) {
                let _ = datum.image(&mut Vec::new());
            }
        }
    }
}
