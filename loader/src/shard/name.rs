//! Member names to keys and fields, by WebDataset's rule, and the names that are no data. Pure.

use super::findings::Finding;

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
pub(super) fn split(name: &str) -> Result<MemberName, Finding> {
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
    match last.split_once('.') {
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
