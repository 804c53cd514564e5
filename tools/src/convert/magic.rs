//! What a file is, from its first bytes, and the extension that says so.

use std::path::Path;

/// Extensions that make a file a candidate, as torchvision's `ImageFolder` has them; case does not matter.
const CANDIDATES: [&str; 9] = ["jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp"];

/// Whether the name of `path` is an image's.
pub fn is_candidate(path: &Path) -> bool {
    extension_of(path).is_some_and(|extension| CANDIDATES.contains(&extension.as_str()))
}

/// A kind of image, known by its magic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageType {
    /// The extension that its members get.
    pub extension: &'static str,
    /// Other extensions that say the same.
    aliases: &'static [&'static str],
}

impl ImageType {
    /// Whether `path` carries an extension of this kind.
    pub fn agrees_with(self, path: &Path) -> bool {
        extension_of(path)
            .is_some_and(|extension| extension == self.extension || self.aliases.contains(&extension.as_str()))
    }
}

/// The kind of image that `data` starts as; None when it is none that is known.
pub fn sniff(data: &[u8]) -> Option<ImageType> {
    let kind = |extension, aliases| Some(ImageType { extension, aliases });
    let brand = |names: &[&[u8]]| data.get(8..12).is_some_and(|found| names.contains(&found));
    match data {
        [0xff, 0xd8, 0xff, ..] => kind("jpg", &["jpeg", "jpe", "jfif"]),
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => kind("png", &[]),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => kind("gif", &[]),
        [b'B', b'M', ..] if data.len() >= 26 => kind("bmp", &["dib"]),
        [b'I', b'I', 42 | 43, 0, ..] | [b'M', b'M', 0, 42 | 43, ..] => kind("tif", &["tiff"]),
        [b'R', b'I', b'F', b'F', ..] if brand(&[b"WEBP"]) => kind("webp", &[]),
        [b'P', b'1' | b'4', space, ..] if space.is_ascii_whitespace() => kind("pbm", &["pgm", "ppm", "pnm"]),
        [b'P', b'2' | b'5', space, ..] if space.is_ascii_whitespace() => kind("pgm", &["pbm", "ppm", "pnm"]),
        [b'P', b'3' | b'6', space, ..] if space.is_ascii_whitespace() => kind("ppm", &["pbm", "pgm", "pnm"]),
        [_, _, _, _, b'f', b't', b'y', b'p', ..] if brand(&[b"avif", b"avis"]) => kind("avif", &[]),
        [_, _, _, _, b'f', b't', b'y', b'p', ..] if brand(&[b"heic", b"heix", b"hevc", b"mif1", b"msf1"]) => {
            kind("heic", &["heif"])
        }
        [0, 0, 0, 12, b'j', b'P', b' ', b' ', ..] => kind("jp2", &["jpx", "j2k"]),
        [0xff, 0x0a, ..] | [0, 0, 0, 12, b'J', b'X', b'L', b' ', ..] => kind("jxl", &[]),
        _ => None,
    }
}

fn extension_of(path: &Path) -> Option<String> {
    Some(path.extension()?.to_str()?.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn magic_names_the_kind() {
        let check = |data: &[u8], expected: Option<&str>| {
            assert_eq!(sniff(data).map(|kind| kind.extension), expected, "{}", data.escape_ascii());
        };
        check(b"\xff\xd8\xff\xe0rest", Some("jpg"));
        check(b"\x89PNG\r\n\x1a\nrest", Some("png"));
        check(b"RIFF\x10\0\0\0WEBPVP8 ", Some("webp"));
        check(b"RIFF\x10\0\0\0WAVEfmt ", None);
        check(b"P6\n2 2 255\n", Some("ppm"));
        check(b"P5 2 2 255\n", Some("pgm"));
        check(b"P7\n", None);
        check(b"II*\0rest", Some("tif"));
        check(b"MM\0*rest", Some("tif"));
        check(b"\0\0\0\x18ftypheic", Some("heic"));
        check(b"BM", None);
        check(b"<html>", None);
        check(b"", None);
    }

    #[test]
    fn extensions_agree_or_not() {
        let jpeg = sniff(b"\xff\xd8\xff").unwrap();
        assert!(jpeg.agrees_with(Path::new("a.JPEG")));
        assert!(!jpeg.agrees_with(Path::new("a.png")));
        assert!(!jpeg.agrees_with(Path::new("a")));
        assert!(is_candidate(Path::new("a.TIFF")));
        assert!(!is_candidate(Path::new("jpg")));
        assert!(!is_candidate(Path::new("a.txt")));
    }
}
