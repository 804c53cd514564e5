//! The size of a picture by the first of its bytes, without a decoder: for a look at many pictures. JPEG and PNG only.

use super::markers::{is_frame, segments};

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR";

/// (width, height) as stored; `None` where `head` does not tell.
pub fn size(head: &[u8]) -> Option<(u32, u32)> {
    if let Some(sides) = head.strip_prefix(PNG) {
        let (width, rest) = sides.split_first_chunk()?;
        return Some((u32::from_be_bytes(*width), u32::from_be_bytes(*rest.first_chunk()?)));
    }
    head.strip_prefix(b"\xff\xd8")?;
    let (_, frame) = segments(head).find(|(marker, _)| is_frame(*marker))?;
    let side = |at: usize| Some(u32::from(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?)));
    Some((side(3)?, side(1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_heads() {
        let check = |head: &[u8], expected| assert_eq!(size(head), expected, "{head:02x?}");
        check(b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\x01\x02\0\0\0\x07\x08", Some((258, 7)));
        check(b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\x01\x02\0\0", None);
        check(b"\xff\xd8\xff\xfe\0\x03c\xff\xc2\0\x0b\x08\x01\0\0\x05\x01", Some((5, 256)));
        check(b"\xff\xd8\xff\xc0\0\x0b\x08\x01", None);
        check(b"\xff\xd8\xff\xda\0\x02\xff\xc0\0\x0b\x08\x01\0\0\x05\x01", None);
        check(b"GIF89a\x01\0\x01\0", None);
        check(b"", None);
    }
}
