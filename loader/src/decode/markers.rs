//! The segments of a JPEG before its first scan, for what libjpeg does not tell: the kind of coding by name, and the
//! orientation in EXIF data. Every step is checked against the bytes that there are.

/// Start of a frame, but DHT, JPG and DAC, which lie among them.
pub(super) fn is_frame(marker: u8) -> bool {
    matches!(marker, 0xc0..=0xcf) && !matches!(marker, 0xc4 | 0xc8 | 0xcc)
}

/// Walks the segments of `bytes`, each with its marker and what lies in it; ends at the first scan, or where it loses
/// its way, which libjpeg then judges. The last segment may be shorter than it says.
pub(super) fn segments(bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let mut rest = bytes.get(2..).unwrap_or_default();
    std::iter::from_fn(move || {
        loop {
            let start = rest.windows(2).position(|pair| pair[0] == 0xff && !matches!(pair[1], 0 | 0xff))?;
            let marker = rest[start + 1];
            rest = &rest[start + 2..];
            match marker {
                0xda => return None,
                0x01 | 0xd0..=0xd8 => {}
                _ => {
                    let length = usize::from(u16::from_be_bytes(*rest.first_chunk()?)).max(2);
                    let (segment, after) = rest.split_at(length.min(rest.len()));
                    rest = after;
                    return Some((marker, &segment[2..]));
                }
            }
        }
    })
}

/// Name of the coding that `bytes` use, where it is one that is not decoded.
pub(super) fn refused_coding(bytes: &[u8]) -> Option<String> {
    let (marker, segment) = segments(bytes).find(|(marker, _)| is_frame(*marker))?;
    let precision = *segment.first()?;
    let kind = match marker {
        0xc3 => "SOF3 (lossless)",
        0xc5 => "SOF5 (hierarchical)",
        0xc6 => "SOF6 (hierarchical progressive)",
        0xc7 => "SOF7 (hierarchical lossless)",
        0xcb => "SOF11 (lossless, arithmetic)",
        0xcd..=0xcf => "SOF13-15 (hierarchical, arithmetic)",
        _ if precision != 8 => return Some(format!("SOF{} with samples of {precision} bits", marker - 0xc0)),
        _ => return None,
    };
    Some(kind.into())
}

/// The EXIF data of a JPEG, a TIFF structure of its own.
pub(super) fn exif(bytes: &[u8]) -> Option<&[u8]> {
    segments(bytes).find_map(|(marker, segment)| {
        segment.strip_prefix(b"Exif\0").filter(|_| marker == 0xe1).and_then(|exif| exif.get(1..))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(bytes: &[u8], expected: &[(u8, &[u8])]) {
        assert_eq!(segments(bytes).collect::<Vec<_>>(), expected, "{bytes:02x?}");
    }

    #[test]
    fn segments_up_to_the_first_scan() {
        check(b"\xff\xd8\xff\xe0\0\x04ab\xff\xc0\0\x03c\xff\xda\0\x02", &[(0xe0, b"ab"), (0xc0, b"c")]);
        check(b"\xff\xd8\0\0\xff\xff\xfe\0\x02\xff\xd0\xff\xdb\0\x03d", &[(0xfe, b""), (0xdb, b"d")]);
        check(b"\xff\xd8\xff\xe1\0\x09cut", &[(0xe1, b"cut")]);
        check(b"\xff\xd8\xff\xe1\0", &[]);
        check(b"\xff\xd8\xff\xe1\0\0\xff\xda", &[(0xe1, b"")]);
        check(b"\xff", &[]);
    }

    #[test]
    fn exif_is_the_first_segment_that_says_so() {
        let of = |segment: &[u8]| {
            let length = (segment.len() as u16 + 2).to_be_bytes();
            exif(&[b"\xff\xd8\xff\xe1", &length[..], segment].concat()).map(<[u8]>::to_vec)
        };
        assert_eq!(of(b"Exif\0\0II"), Some(b"II".to_vec()));
        assert_eq!(of(b"Exif\0"), None);
        assert_eq!(of(b"http://ns.adobe.com/xap/1.0/\0"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_end_the_walk(bytes: Vec<u8>) {
            let whole = [b"\xff\xd8", &bytes[..]].concat();
            prop_assert!(segments(&whole).map(|(_, segment)| segment.len()).sum::<usize>() <= bytes.len());
            let _ = (refused_coding(&whole), exif(&whole));
        }
    }
}
