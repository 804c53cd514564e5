//! The format of an image by its first bytes.

use image::ImageFormat;

use crate::error::{FaultClass, SampleFault};

/// Who decodes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// libjpeg-turbo, region by region.
    Jpeg,
    /// The crate `image`, whole.
    Other(ImageFormat),
}

/// Names the format of `bytes`, or says why it is none of ours.
pub fn sniff(bytes: &[u8]) -> Result<Format, SampleFault> {
    let fault = |class, message: String| Err(SampleFault::new(class, message));
    match bytes {
        [] => fault(FaultClass::Empty, "the field has no bytes".into()),
        [0xff, 0xd8, 0xff, ..] => Ok(Format::Jpeg),
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Ok(Format::Other(ImageFormat::Png)),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Ok(Format::Other(ImageFormat::WebP)),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Ok(Format::Other(ImageFormat::Gif)),
        [b'I', b'I', 42, 0, ..] | [b'M', b'M', 0, 42, ..] => Ok(Format::Other(ImageFormat::Tiff)),
        [b'B', b'M', ..] => Ok(Format::Other(ImageFormat::Bmp)),
        [b'P', b'1'..=b'6', b' ' | b'\t' | b'\r' | b'\n' | b'#', ..] => Ok(Format::Other(ImageFormat::Pnm)),
        [_, _, _, _, b'f', b't', b'y', b'p', brand @ ..] => fault(FaultClass::Unsupported, iso_media(brand)),
        [0xff, 0x0a, ..] | [0, 0, 0, 12, b'J', b'X', b'L', b' ', ..] => unsupported("JPEG XL"),
        [0, 0, 0, 12, b'j', b'P', b' ', b' ', ..] | [0xff, 0x4f, 0xff, 0x51, ..] => unsupported("JPEG 2000"),
        [b'I', b'I', 43, 0, ..] | [b'M', b'M', 0, 43, ..] => unsupported("BigTIFF"),
        [b'8', b'B', b'P', b'S', ..] => unsupported("Photoshop document"),
        _ => {
            let first = &bytes[..bytes.len().min(12)];
            let message = format!(
                "no image format starts with these bytes: {first:02x?} ({:?}), {} bytes in all",
                String::from_utf8_lossy(first),
                bytes.len()
            );
            fault(FaultClass::Corrupt, message)
        }
    }
}

fn unsupported(name: &str) -> Result<Format, SampleFault> {
    Err(SampleFault::new(FaultClass::Unsupported, format!("{name} is not decoded: convert it to JPEG or PNG")))
}

/// ISO base media: the brand after `ftyp` tells HEIF from AVIF from video.
fn iso_media(brand: &[u8]) -> String {
    let brand = &brand[..brand.len().min(4)];
    let name = match brand {
        b"avif" | b"avis" => "AVIF",
        b"heic" | b"heix" | b"heim" | b"heis" | b"hevc" | b"hevx" | b"mif1" | b"msf1" => "HEIF",
        _ => "ISO media (HEIF, AVIF, MP4)",
    };
    format!("{name} (brand {:?}) is not decoded: convert it to JPEG or PNG", String::from_utf8_lossy(brand))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], expected: Result<Format, (FaultClass, &str)>) {
        match (sniff(bytes), expected) {
            (Ok(format), Ok(expected)) => assert_eq!(format, expected, "{bytes:?}"),
            (Err(fault), Err((class, words))) => {
                assert_eq!(fault.class, class, "{bytes:?}: {fault}");
                assert!(fault.message.contains(words), "{fault}");
            }
            (found, expected) => panic!("{bytes:?}: {found:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn formats_by_their_first_bytes() {
        check(b"\xff\xd8\xff\xe0", Ok(Format::Jpeg));
        check(b"\x89PNG\r\n\x1a\n", Ok(Format::Other(ImageFormat::Png)));
        check(b"RIFF\x10\0\0\0WEBPVP8L", Ok(Format::Other(ImageFormat::WebP)));
        check(b"GIF89a", Ok(Format::Other(ImageFormat::Gif)));
        check(b"BM", Ok(Format::Other(ImageFormat::Bmp)));
        check(b"II\x2a\0", Ok(Format::Other(ImageFormat::Tiff)));
        check(b"MM\0\x2a", Ok(Format::Other(ImageFormat::Tiff)));
        check(b"P6\n1 1", Ok(Format::Other(ImageFormat::Pnm)));
        check(b"", Err((FaultClass::Empty, "no bytes")));
        check(b"\0\0\0\x18ftypheic\0\0", Err((FaultClass::Unsupported, "HEIF")));
        check(b"\0\0\0\x1cftypavif", Err((FaultClass::Unsupported, "AVIF")));
        check(b"\0\0\0\x1cftyp", Err((FaultClass::Unsupported, "ISO media")));
        check(b"\0\0\0\x0cJXL \r\n", Err((FaultClass::Unsupported, "JPEG XL")));
        check(b"\0\0\0\x0cjP  \r\n", Err((FaultClass::Unsupported, "JPEG 2000")));
        check(b"\x80\x04\x95 pickle", Err((FaultClass::Corrupt, "80, 04, 95")));
        check(b"\xff\xd8", Err((FaultClass::Corrupt, "2 bytes in all")));
    }
}
