//! NumPy's `.npy` format, versions 1 to 3: a header that is a Python dict as text, then the elements.
//!
//! The header is read by a parser of just that dict, bounds-checked; nothing is evaluated. Arrays of objects are
//! pickles, and refused by name like every type without a number behind it. Elements come out in C order and in this
//! machine's byte order, whatever the file's.

use crate::batch::Dtype;
use crate::batch::arrays::Sides;
use crate::batch::layout::DIMENSIONS_MAX;
use crate::error::{FaultClass, SampleFault};

const MAGIC: &[u8] = b"\x93NUMPY";

/// Longest header that is read: three times what eight dimensions of a structured type would need.
const HEADER_BYTES_MAX: usize = 4096;

/// What an array is, by its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Element type.
    pub dtype: Dtype,
    /// Shape.
    pub sides: Sides,
    /// The file's byte order is not this machine's.
    is_swapped: bool,
    /// The first index runs fastest.
    is_fortran: bool,
    /// Where the elements start.
    start: usize,
}

/// Reads the header of `bytes`, and checks that exactly the elements that it describes follow.
pub fn open(bytes: &[u8]) -> Result<Header, SampleFault> {
    if bytes.is_empty() {
        return Err(fault(FaultClass::Empty, "the array has no bytes"));
    }
    let Some(rest) = bytes.strip_prefix(MAGIC) else {
        let first = &bytes[..bytes.len().min(6)];
        return Err(fault(FaultClass::Corrupt, &format!("not a .npy: starts with {first:02x?}")));
    };
    let (length_at, length) = match rest {
        [1, 0, low, high, ..] => (MAGIC.len() + 2, usize::from(u16::from_le_bytes([*low, *high])) + 2),
        [2 | 3, 0, a, b, c, d, ..] => {
            let length = u32::from_le_bytes([*a, *b, *c, *d]);
            (MAGIC.len() + 2, usize::try_from(length).unwrap_or(usize::MAX).saturating_add(4))
        }
        [major, minor, ..] if !matches!((major, minor), (1..=3, 0)) => {
            let words = format!(".npy version {major}.{minor} is not read, only 1.0, 2.0 and 3.0");
            return Err(fault(FaultClass::Unsupported, &words));
        }
        _ => return Err(early_end(bytes.len(), 12)),
    };
    if length > HEADER_BYTES_MAX {
        return Err(fault(
            FaultClass::Corrupt,
            &format!("a .npy header of {length} bytes, at most {HEADER_BYTES_MAX}"),
        ));
    }
    let start = length_at + length;
    let text = bytes.get(length_at..start).ok_or_else(|| early_end(bytes.len(), start as u64))?;
    let header = Parser { text: &text[if rest[0] == 1 { 2 } else { 4 }..], at: 0 }.header(start)?;
    let have = (bytes.len() - start) as u64;
    match header.sides.bytes(header.dtype) {
        Some(need) if need == have => Ok(header),
        Some(need) if need > have => Err(early_end(bytes.len(), start as u64 + need)),
        Some(need) => Err(fault(
            FaultClass::Corrupt,
            &format!("{} bytes follow the {need} of the array: several arrays belong in a .npz", have - need),
        )),
        None => Err(fault(FaultClass::TooLarge, &format!("an array of shape {:?}", header.sides.as_slice()))),
    }
}

fn fault(class: FaultClass, words: &str) -> SampleFault {
    SampleFault::new(class, words)
}

fn early_end(have: usize, need: u64) -> SampleFault {
    fault(FaultClass::Truncated, &format!(".npy: {have} bytes of {need}"))
}

impl Header {
    /// Appends the elements of `bytes`, whose header this is, to `out`.
    pub fn append_elements(&self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), SampleFault> {
        let elements = &bytes[self.start..];
        if self.dtype == Dtype::Bool
            && let Some(wrong) = elements.iter().find(|&&element| element > 1)
        {
            return Err(fault(FaultClass::Corrupt, &format!("a bool that is {wrong}")));
        }
        let first = out.len();
        let size = self.dtype.bytes() as usize;
        let sides = self.sides.as_slice();
        if self.is_fortran && sides.len() > 1 && !elements.is_empty() {
            out.reserve(elements.len());
            append_transposed(elements, size, sides, out);
        } else {
            out.extend_from_slice(elements);
        }
        if self.is_swapped {
            out[first..].chunks_exact_mut(size).for_each(<[u8]>::reverse);
        }
        Ok(())
    }
}

/// Appends elements that lie first index fastest with the last index fastest.
fn append_transposed(elements: &[u8], size: usize, sides: &[u32], out: &mut Vec<u8>) {
    let mut strides = [0; DIMENSIONS_MAX];
    let mut stride = size;
    for (place, &side) in strides.iter_mut().zip(sides) {
        *place = stride;
        stride *= side as usize;
    }
    let mut index = [0_u32; DIMENSIONS_MAX];
    let mut at = 0;
    for _ in 0..elements.len() / size {
        out.extend_from_slice(&elements[at..at + size]);
        for axis in (0..sides.len()).rev() {
            index[axis] += 1;
            at += strides[axis];
            if index[axis] < sides[axis] {
                break;
            }
            at -= strides[axis] * sides[axis] as usize;
            index[axis] = 0;
        }
    }
}

/// Reads `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`.
struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Parser<'a> {
    fn header(mut self, start: usize) -> Result<Header, SampleFault> {
        let (mut descr, mut order, mut sides) = (None, None, None);
        self.expect(b'{')?;
        loop {
            if self.take(b'}') {
                break;
            }
            let key = self.string()?;
            self.expect(b':')?;
            match key {
                b"descr" if descr.is_none() => descr = Some(self.descr()?),
                b"fortran_order" if order.is_none() => order = Some(self.truth()?),
                b"shape" if sides.is_none() => sides = Some(self.shape()?),
                _ => return Err(self.broken("a key that does not belong there, or twice")),
            }
            if !self.take(b',') {
                self.expect(b'}')?;
                break;
            }
        }
        self.space();
        if self.at < self.text.len() {
            return Err(self.broken("text after the dict"));
        }
        match (descr, order, sides) {
            (Some((dtype, is_swapped)), Some(is_fortran), Some(sides)) => {
                Ok(Header { dtype, sides, is_swapped, is_fortran, start })
            }
            _ => Err(self.broken("descr, fortran_order or shape missing")),
        }
    }

    fn broken(&self, what: &str) -> SampleFault {
        let shown = String::from_utf8_lossy(&self.text[..self.text.len().min(120)]);
        fault(FaultClass::Corrupt, &format!(".npy header: {what} at {}: {shown:?}", self.at))
    }

    fn space(&mut self) {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
    }

    /// Takes `byte`, after white space, if it comes next.
    fn take(&mut self, byte: u8) -> bool {
        self.space();
        let is_next = self.text.get(self.at) == Some(&byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, byte: u8) -> Result<(), SampleFault> {
        if self.take(byte) { Ok(()) } else { Err(self.broken(&format!("no {:?}", char::from(byte)))) }
    }

    fn string(&mut self) -> Result<&'a [u8], SampleFault> {
        let quote = if self.take(b'\'') {
            b'\''
        } else if self.take(b'"') {
            b'"'
        } else {
            return Err(self.broken("no string"));
        };
        let rest = &self.text[self.at..];
        let end = rest.iter().position(|&byte| byte == quote).ok_or_else(|| self.broken("a string without end"))?;
        if rest[..end].contains(&b'\\') {
            return Err(self.broken("an escape"));
        }
        self.at += end + 1;
        Ok(&rest[..end])
    }

    fn truth(&mut self) -> Result<bool, SampleFault> {
        self.space();
        for (word, value) in [(b"True".as_slice(), true), (b"False", false)] {
            if self.text[self.at..].starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err(self.broken("neither True nor False"))
    }

    fn shape(&mut self) -> Result<Sides, SampleFault> {
        let mut sides = [0; DIMENSIONS_MAX];
        let mut count = 0;
        self.expect(b'(')?;
        while !self.take(b')') {
            let side = self.side()?;
            *sides.get_mut(count).ok_or_else(|| {
                fault(FaultClass::Unsupported, &format!("arrays of more than {DIMENSIONS_MAX} dimensions are not read"))
            })? = side;
            count += 1;
            if !self.take(b',') {
                self.expect(b')')?;
                break;
            }
        }
        Ok(Sides::new(&sides[..count]).expect("counted above"))
    }

    /// A number, perhaps with the L of Python 2's long integers.
    fn side(&mut self) -> Result<u32, SampleFault> {
        self.space();
        let rest = &self.text[self.at..];
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let number = std::str::from_utf8(&rest[..digits]).expect("digits");
        if digits == 0 {
            return Err(self.broken("no number"));
        }
        let side = number
            .parse()
            .map_err(|_| fault(FaultClass::TooLarge, &format!("an array with a side of {number} elements")))?;
        self.at += digits;
        self.take(b'L');
        Ok(side)
    }

    fn descr(&mut self) -> Result<(Dtype, bool), SampleFault> {
        self.space();
        if matches!(self.text.get(self.at), Some(b'[' | b'(')) {
            return Err(unsupported("a structured type", "save each of its fields as an array of its own"));
        }
        let descr = self.string()?;
        let (is_big, rest) = match descr {
            [b'>', rest @ ..] => (true, rest),
            [b'<', rest @ ..] => (false, rest),
            [b'|' | b'=', rest @ ..] | rest => (cfg!(target_endian = "big"), rest),
        };
        let dtype = match rest {
            b"b1" => Dtype::Bool,
            b"u1" => Dtype::Uint8,
            b"u2" => Dtype::Uint16,
            b"u4" => Dtype::Uint32,
            b"u8" => Dtype::Uint64,
            b"i1" => Dtype::Int8,
            b"i2" => Dtype::Int16,
            b"i4" => Dtype::Int32,
            b"i8" => Dtype::Int64,
            b"f2" => Dtype::Float16,
            b"f4" => Dtype::Float32,
            b"f8" => Dtype::Float64,
            _ => return Err(refusal(descr, rest.first())),
        };
        Ok((dtype, is_big != cfg!(target_endian = "big") && dtype.bytes() > 1))
    }
}

fn unsupported(what: &str, way_out: &str) -> SampleFault {
    fault(FaultClass::Unsupported, &format!("{what} is not read: {way_out}"))
}

/// Names a type that is none of ours.
fn refusal(descr: &[u8], kind: Option<&u8>) -> SampleFault {
    let descr = String::from_utf8_lossy(descr);
    match kind {
        Some(b'O') => unsupported("an array of Python objects", "it is a pickle, which could run code; save numbers"),
        Some(b'c') => unsupported(&format!("complex ({descr:?})"), "save .view() of its real type, with one axis more"),
        Some(b'f' | b'i' | b'u') => unsupported(&format!("a number as wide as {descr:?}"), "save 64 bits at most"),
        Some(b'U' | b'S' | b'a') => unsupported(&format!("text ({descr:?})"), "save it as .txt or .json"),
        Some(b'M' | b'm') => unsupported(&format!("dates ({descr:?})"), "save .view(\"int64\")"),
        Some(b'V') => unsupported(&format!("raw bytes ({descr:?})"), "save .view() of a number of that size"),
        _ => unsupported(&format!("type {descr:?}"), "save numbers of up to 64 bits"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A file of version 1 with this header and so many bytes of elements.
    fn file(header: &str, elements: &[u8]) -> Vec<u8> {
        let mut bytes = [MAGIC, &[1, 0], &(header.len() as u16).to_le_bytes(), header.as_bytes()].concat();
        bytes.extend_from_slice(elements);
        bytes
    }

    fn check(header: &str, elements: usize, expected: Result<(Dtype, &[u32]), (FaultClass, &str)>) {
        let found = open(&file(header, &vec![0; elements]));
        match (found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!((found.dtype, found.sides.as_slice()), expected, "{header}"),
            (Err(fault), Err((class, words))) => {
                assert!(fault.class == class && fault.message.contains(words), "{header}: {fault}");
            }
            (found, expected) => panic!("{header}: {found:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn headers() {
        let with =
            |descr: &str, shape: &str| format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}  \n");
        check(&with("'<f4'", "(3, 4)"), 48, Ok((Dtype::Float32, &[3, 4])));
        check(&with("'|b1'", "()"), 1, Ok((Dtype::Bool, &[])));
        check(&with("'>i8'", "(2L,)"), 16, Ok((Dtype::Int64, &[2])));
        check("{\"shape\":(0,7),\"descr\":\"<u2\",\"fortran_order\":True}", 0, Ok((Dtype::Uint16, &[0, 7])));
        check(&with("'<f4'", "(3, 4)"), 47, Err((FaultClass::Truncated, "bytes of")));
        check(&with("'<f4'", "(3, 4)"), 49, Err((FaultClass::Corrupt, "1 bytes follow the 48")));
        check(&with("'|O'", "(3,)"), 9, Err((FaultClass::Unsupported, "pickle")));
        check(&with("'<c8'", "(3,)"), 24, Err((FaultClass::Unsupported, "complex")));
        check(&with("'<f16'", "(3,)"), 48, Err((FaultClass::Unsupported, "<f16")));
        check(&with("'<U3'", "(3,)"), 36, Err((FaultClass::Unsupported, "text")));
        check(&with("'<M8[ns]'", "(3,)"), 24, Err((FaultClass::Unsupported, "dates")));
        check(&with("'|V2'", "(3,)"), 6, Err((FaultClass::Unsupported, "raw bytes")));
        check(&with("[('a', '<f4')]", "(3,)"), 12, Err((FaultClass::Unsupported, "structured")));
        check(&with("'<f4'", "(1,1,1,1,1,1,1,1,1)"), 4, Err((FaultClass::Unsupported, "8 dimensions")));
        check(&with("'<f4'", "(99999999999,)"), 4, Err((FaultClass::TooLarge, "99999999999")));
        check(&with("'<f8'", "(4000000000, 4000000000, 2)"), 4, Err((FaultClass::TooLarge, "4000000000")));
        check(&with("'<f4'", "(-1,)"), 4, Err((FaultClass::Corrupt, "no number")));
        check("{'descr': '<f4, ", 4, Err((FaultClass::Corrupt, "a string without end")));
        check("{'descr' '<f4'}", 4, Err((FaultClass::Corrupt, "no ':'")));
        check("{'descr': '<f4', 'shape': (1,)}", 4, Err((FaultClass::Corrupt, "missing")));
        check("{'descr': '<f4', 'descr': '<f4'}", 4, Err((FaultClass::Corrupt, "twice")));
        check(&(with("'<f4'", "(1,)") + "x"), 4, Err((FaultClass::Corrupt, "after the dict")));
        check("{'descr': '\\u003cf4'}", 4, Err((FaultClass::Corrupt, "escape")));
    }

    #[test]
    fn what_is_no_npy() {
        let check = |bytes: &[u8], class, words: &str| {
            let fault = open(bytes).expect_err(words);
            assert!(fault.class == class && fault.message.contains(words), "{fault}");
        };
        check(b"", FaultClass::Empty, "no bytes");
        check(b"PK\x03\x04aaaa", FaultClass::Corrupt, "50, 4b");
        check(b"\x93NUMPY", FaultClass::Truncated, "6 bytes");
        check(b"\x93NUMPY\x01\x00\x10", FaultClass::Truncated, "9 bytes");
        check(b"\x93NUMPY\x04\x00\x10\x00", FaultClass::Unsupported, "version 4.0");
        check(b"\x93NUMPY\x02\x00\xff\xff\xff\xff", FaultClass::Corrupt, "header of");
        let not_a_bool = file("{'descr':'|b1','fortran_order':False,'shape':(1,)}", &[2]);
        let fault = open(&not_a_bool).expect("sound").append_elements(&not_a_bool, &mut Vec::new()).expect_err("2");
        assert!(fault.message.contains("a bool that is 2"), "{fault}");
    }

    proptest! {
        #[test]
        fn fortran_order_and_byte_order_are_undone(sides in prop::collection::vec(0_u32..5, 0..5), big: bool) {
            let count: u32 = sides.iter().product();
            // Element k of the C order holds k.
            let expected: Vec<u8> = (0..count).flat_map(u32::to_ne_bytes).collect();
            let mut elements = vec![0; expected.len()];
            for number in 0..count {
                let (mut rest, mut index) = (number, vec![0; sides.len()]);
                for axis in (0..sides.len()).rev() {
                    index[axis] = rest % sides[axis];
                    rest /= sides[axis];
                }
                let place = (0..sides.len()).rev().fold(0, |place, axis| place * sides[axis] + index[axis]);
                let bytes = if big { number.to_be_bytes() } else { number.to_le_bytes() };
                elements[place as usize * 4..][..4].copy_from_slice(&bytes);
            }
            let sign = if big { '>' } else { '<' };
            let shape: String = sides.iter().map(|side| format!("{side},")).collect();
            let bytes = file(&format!("{{'descr':'{sign}u4','fortran_order':True,'shape':({shape})}}"), &elements);
            let header = open(&bytes).expect("sound");
            prop_assert_eq!(header.sides.as_slice(), &sides[..]);
            let mut found = vec![7];
            header.append_elements(&bytes, &mut found).expect("sound");
            prop_assert_eq!(&found[1..], &expected[..]);
        }

        #[test]
        fn any_header_ends(header: String, elements: Vec<u8>) {
            let _ = open(&file(&header.chars().take(900).collect::<String>(), &elements));
        }

        #[test]
        fn any_dict_ends(header in "[{}'():,LTrueFalsdecshp<>|=fiub0-9 \\[\\]-]{0,60}") {
            let _ = open(&file(&header, &[0; 4]));
        }
    }
}
