//! Keys: a file's path below the dataset's folder, written so that every reader of shards gives it back whole.
//!
//! A reader cuts a member's name at the first dot of its last component, some at the first dot of the whole path. So a
//! key is the relative path without the extension, percent-encoded where a byte could be misread: `%`, dots, control
//! characters, bytes that are no UTF-8, and the first underscore of a component that starts with two (readers skip
//! `__name__`). Everything else stays, spaces and letters of any script included; undoing the percent-encoding gives
//! the path back. Files of one folder that differ in nothing but the extension keep it in their keys (`a%2Ejpg`,
//! `a%2Epng`), so keys are unique over the set.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Whether a file's key keeps the extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyForm {
    /// The path less its extension.
    Stem,
    /// The whole path: another file has the same stem.
    Whole,
}

/// The key of the file at `relative`.
pub fn key_of(relative: &Path, form: KeyForm) -> String {
    let folder = relative.parent().unwrap_or(Path::new(""));
    let name = relative.file_name().unwrap_or_default();
    let mut key = String::with_capacity(relative.as_os_str().len() + 8);
    for component in folder {
        escape(component, &mut key);
        key.push('/');
    }
    escape(named(name, form), &mut key);
    key
}

/// Chooses the form of the key of each of `names`, the files of one folder.
pub fn choose_forms(names: &[&OsStr]) -> Vec<KeyForm> {
    let mut forms = vec![KeyForm::Stem; names.len()];
    // A whole name can equal another file's stem (`a.jpg` and `a.jpg.png`); whole names never equal each other, so
    // each round turns at least one stem into a whole name or is the last.
    loop {
        let mut holders: HashMap<&[u8], u32> = HashMap::with_capacity(names.len());
        for (&name, &form) in names.iter().zip(&forms) {
            *holders.entry(named(name, form).as_bytes()).or_default() += 1;
        }
        let mut changed = false;
        for (&name, form) in names.iter().zip(&mut forms) {
            if *form == KeyForm::Stem && holders[named(name, KeyForm::Stem).as_bytes()] > 1 {
                *form = KeyForm::Whole;
                changed = true;
            }
        }
        if !changed {
            return forms;
        }
    }
}

fn named(name: &OsStr, form: KeyForm) -> &OsStr {
    match form {
        KeyForm::Stem => Path::new(name).file_stem().unwrap_or(name),
        KeyForm::Whole => name,
    }
}

fn escape(component: &OsStr, key: &mut String) {
    let starts_reserved = component.as_bytes().starts_with(b"__");
    for chunk in component.as_bytes().utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '%' | '.' => percent(character as u8, key),
                _ if character.is_control() => {
                    let mut bytes = [0; 4];
                    character.encode_utf8(&mut bytes).bytes().for_each(|byte| percent(byte, key));
                }
                _ => key.push(character),
            }
        }
        chunk.invalid().iter().for_each(|&byte| percent(byte, key));
    }
    if starts_reserved {
        let at = key.rfind('/').map_or(0, |slash| slash + 1);
        key.replace_range(at..=at, "%5F");
    }
}

fn percent(byte: u8, key: &mut String) {
    write!(key, "%{byte:02X}").expect("a String takes everything");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;
    use std::path::PathBuf;

    #[test]
    fn keys_keep_the_path() {
        let check = |path: &[u8], key: &str| {
            assert_eq!(key_of(Path::new(OsStr::from_bytes(path)), KeyForm::Stem), key, "{}", path.escape_ascii());
        };
        check(b"cat/0001.jpg", "cat/0001");
        check(b"cat/track 2.0 (x).jpg", "cat/track 2%2E0 (x)");
        check(b"v1.2/a/b.JPEG", "v1%2E2/a/b");
        check("кот/снимок.png".as_bytes(), "кот/снимок");
        check(b"cat/100%.jpg", "cat/100%25");
        check(b"cat/a\nb\xff.jpg", "cat/a%0Ab%FF");
        check(b"__x__/__y__.jpg", "%5F_x__/%5F_y__");
        check(b"cat/a_b.jpg", "cat/a_b");
    }

    #[test]
    fn equal_stems_keep_their_extensions() {
        use KeyForm::{Stem, Whole};
        let check = |names: &[&str], forms: &[KeyForm]| {
            let names: Vec<&OsStr> = names.iter().map(OsStr::new).collect();
            assert_eq!(choose_forms(&names), forms, "{names:?}");
        };
        check(&[], &[]);
        check(&["a.jpg", "b.jpg"], &[Stem, Stem]);
        check(&["a.jpg", "a.png", "b.jpg"], &[Whole, Whole, Stem]);
        check(&["a.jpg", "a.jpg.png", "a.png"], &[Whole, Whole, Whole]);
        check(&["a.JPG", "A.JPG"], &[Stem, Stem]);
    }

    proptest! {
        #[test]
        fn keys_are_unique(names in prop::collection::hash_set("[ab.%_é ]{0,3}\\.(jpg|png)", 1..30)) {
            let names: Vec<PathBuf> = names.into_iter().map(PathBuf::from).collect();
            let forms = choose_forms(&names.iter().map(|name| name.as_os_str()).collect::<Vec<_>>());
            let keys: HashSet<String> = names
                .iter()
                .zip(forms)
                .map(|(name, form)| key_of(&Path::new("class").join(name), form))
                .collect();
            prop_assert_eq!(keys.len(), names.len());
            prop_assert!(keys.iter().all(|key| !key.contains('.')));
        }
    }
}
