//! Member names to keys and fields, by WebDataset's rule, and the names that are no data. Pure.

use super::findings::Finding;
use crate::spec::KeyRule;

/// A member's name, parted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MemberName {
    /// Folders, and the last component up to its first dot.
    pub(super) key: String,
    /// The rest of the last component, without the dot, in lower case.
    pub(super) field: String,
}

/// Desktop litter, by the whole last component.
const DESKTOP_FILES: [&str; 4] = [".DS_Store", "Thumbs.db", "ehthumbs.db", "desktop.ini"];

/// The folder of companions that macOS adds to archives.
const DESKTOP_FOLDER: &str = "__MACOSX";

/// Parts a member's name. Empty and `.` components do not count: `./a//b.jpg` is `a/b.jpg`.
pub(super) fn split(name: &str, rule: KeyRule) -> Result<MemberName, Finding> {
    let mut components: Vec<&str> = name.split('/').filter(|component| !matches!(*component, "" | ".")).collect();
    if components.contains(&DESKTOP_FOLDER) {
        return Err(Finding::DesktopLitter);
    }
    let last = components.pop().unwrap_or_default();
    if last.starts_with("._") {
        return Err(Finding::AppleDouble);
    }
    if DESKTOP_FILES.iter().any(|litter| litter.eq_ignore_ascii_case(last)) {
        return Err(Finding::DesktopLitter);
    }
    if last.len() > 4 && last.starts_with("__") && last.ends_with("__") {
        return Err(Finding::Meta);
    }
    let parts = match rule {
        KeyRule::FirstDot => last.split_once('.'),
        KeyRule::LastDot => last.rsplit_once('.'),
    };
    match parts {
        Some((stem, field)) if !stem.is_empty() && !field.is_empty() => {
            components.push(stem);
            Ok(MemberName { key: components.join("/"), field: field.to_lowercase() })
        }
        _ => Err(Finding::NoExtension),
    }
}

/// Whether a field's name looks like a part of the base name: it has white space, or starts with a digit.
pub(super) fn is_odd(field: &str) -> bool {
    field.contains(char::is_whitespace) || field.starts_with(|first: char| first.is_ascii_digit())
}

/// A stored name as text. Bytes that are no UTF-8 become `\xNN`, so that different names stay different; the flag
/// says whether there were any.
pub(super) fn decode(name: &[u8]) -> (String, bool) {
    let mut text = String::with_capacity(name.len());
    let mut valid = true;
    for chunk in name.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            valid = false;
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    (text, !valid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_end_at_the_first_dot_of_the_last_component() {
        let check = |name: &str, key: &str, field: &str| {
            let expected = MemberName { key: key.to_owned(), field: field.to_owned() };
            assert_eq!(split(name, KeyRule::FirstDot), Ok(expected), "{name}");
        };
        check("0.jpg", "0", "jpg");
        check("v1.0/22.0/1.1.png", "v1.0/22.0/1", "1.png");
        check("v1.0/22.0/1.cls", "v1.0/22.0/1", "cls");
        check("005 track 2.0 (x).mp3", "005 track 2", "0 (x).mp3");
        check("x.left.png", "x", "left.png");
        check("./0.jpg", "0", "jpg");
        check("./a//b/./0.jpg", "a/b/0", "jpg");
        check("/data/0.jpg", "data/0", "jpg");
        check("../0.jpg", "../0", "jpg");
        check("a.JPG", "a", "jpg");
        check("a.Cls", "a", "cls");
        check("ä.ÄB", "ä", "äb");
        check("0.jpg.", "0", "jpg.");
        check("__a.b__.txt", "__a", "b__.txt");
    }

    #[test]
    fn litter_has_no_key() {
        let check = |name: &str, finding: Finding| assert_eq!(split(name, KeyRule::FirstDot), Err(finding), "{name}");
        check("._0.jpg", Finding::AppleDouble);
        check("a/b/._0.jpg", Finding::AppleDouble);
        check("a/.DS_Store", Finding::DesktopLitter);
        check("a/thumbs.db", Finding::DesktopLitter);
        check("__MACOSX/a/0.jpg", Finding::DesktopLitter);
        check("a/__MACOSX/._0.jpg", Finding::DesktopLitter);
        check("__index__", Finding::Meta);
        check("a/__x.json__", Finding::Meta);
        check("README", Finding::NoExtension);
        check(".hidden", Finding::NoExtension);
        check(".a.jpg", Finding::NoExtension);
        check("a.", Finding::NoExtension);
        check("____", Finding::NoExtension);
        check("", Finding::NoExtension);
        check("..", Finding::NoExtension);
    }

    #[test]
    fn odd_bytes_stay_apart() {
        let check = |name: &[u8], text: &str, escaped: bool| {
            assert_eq!(decode(name), (text.to_owned(), escaped));
        };
        check(b"a.jpg", "a.jpg", false);
        check("größe.jpg".as_bytes(), "größe.jpg", false);
        check(b"gr\xf6\xdfe.jpg", "gr\\xf6\\xdfe.jpg", true);
        check(b"a\xc3", "a\\xc3", true);
    }

    #[test]
    fn odd_fields_are_told() {
        assert!(is_odd("0 (x).mp3") && is_odd("a b") && is_odd("1.png"));
        assert!(!is_odd("jpg") && !is_odd("left.png") && !is_odd("mp3"));
    }
}
