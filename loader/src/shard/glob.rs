//! Shell patterns: `*`, `?`, `[a-z]`, `[!a-z]`. Own code, because fields are matched by it as well as paths.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Whether `text` has a character with a meaning in patterns.
pub(super) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// Whether the whole of `text` fits `pattern`. A `[` that is not closed stands for itself.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    let (mut at, mut from) = (0, 0);
    // Where to try again: the last star, and the text after what it has swallowed so far.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if pattern.get(at) == Some(&'*') {
            retry = Some((at + 1, from));
            at += 1;
            continue;
        }
        let step = text.get(from).and_then(|&letter| match_one(&pattern[at..], letter));
        match (step, &mut retry) {
            (Some(width), _) => {
                at += width;
                from += 1;
            }
            (None, _) if from == text.len() && at == pattern.len() => return true,
            (None, Some((after_star, swallowed))) if *swallowed < text.len() => {
                *swallowed += 1;
                (at, from) = (*after_star, *swallowed);
            }
            (None, _) => return false,
        }
    }
}

/// If the head of `pattern` fits `letter`, how many characters of the pattern that head has.
fn match_one(pattern: &[char], letter: char) -> Option<usize> {
    match *pattern.first()? {
        '?' => Some(1),
        '[' => match set_end(pattern) {
            Some(end) => in_set(&pattern[1..end], letter).then_some(end + 1),
            None => (letter == '[').then_some(1),
        },
        other => (other == letter).then_some(1),
    }
}

/// Where the `]` of a set is. One that comes first is a member of the set.
fn set_end(pattern: &[char]) -> Option<usize> {
    let first = if matches!(pattern.get(1), Some('!' | '^')) { 3 } else { 2 };
    pattern.iter().skip(first).position(|&letter| letter == ']').map(|end| end + first)
}

fn in_set(set: &[char], letter: char) -> bool {
    let (negated, mut rest) = match set {
        ['!' | '^', rest @ ..] => (true, rest),
        _ => (false, set),
    };
    let mut found = false;
    while let [first, after @ ..] = rest {
        match after {
            ['-', last, after @ ..] => {
                found |= (*first..=*last).contains(&letter);
                rest = after;
            }
            _ => {
                found |= *first == letter;
                rest = after;
            }
        }
    }
    found != negated
}

/// The files that fit an absolute `pattern`, in the order of their bytes. A wildcard does not stand for a slash, nor
/// for a leading dot.
pub(super) fn files(pattern: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = vec![PathBuf::new()];
    for component in pattern.components() {
        match component.as_os_str().to_str().filter(|component| is_pattern(component)) {
            Some(component) => {
                let mut next = Vec::new();
                for folder in found {
                    next.extend(entries(&folder, component)?);
                }
                found = next;
            }
            None => found.iter_mut().for_each(|path| path.push(component)),
        }
    }
    // Folders are not shards, unless they are databases, and names that end without a wildcard were not looked at yet.
    found.retain(|path| path.is_file() || path.join("data.mdb").is_file());
    found.sort_unstable();
    Ok(found)
}

/// What in `folder` fits `pattern`; the entry of that very name, if there is one.
fn entries(folder: &Path, pattern: &str) -> io::Result<Vec<PathBuf>> {
    let literal = folder.join(pattern);
    if literal.exists() {
        return Ok(vec![literal]);
    }
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", folder.display()))),
    };
    let mut found = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let shown = |name: &str| pattern.starts_with('.') || !name.starts_with('.');
        if name.to_str().is_some_and(|name| shown(name) && matches(pattern, name)) {
            found.push(folder.join(name));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_whole_texts() {
        let check = |pattern: &str, fit: &[&str], unfit: &[&str]| {
            for text in fit {
                assert!(matches(pattern, text), "{pattern} {text}");
            }
            for text in unfit {
                assert!(!matches(pattern, text), "{pattern} {text}");
            }
        };
        check("", &[""], &["a"]);
        check("*", &["", "a", "ab"], &[]);
        check("a*b*c", &["abc", "aXbYc", "abbcc"], &["ab", "abcd", "xabc"]);
        check("*.tar", &["a.tar", ".tar", "a.tar.tar"], &["a.tar.gz", "atar"]);
        check("s-??.tar", &["s-01.tar", "s-äö.tar"], &["s-1.tar", "s-001.tar"]);
        check("[a-c]", &["a", "b", "c"], &["d", "", "ab"]);
        check("[!a-c]", &["d", "-"], &["a", ""]);
        check("[^a]", &["b"], &["a"]);
        check("[]x]", &["]", "x"], &["a"]);
        check("[!]]", &["a"], &["]"]);
        check("[a-]", &["a", "-"], &["b"]);
        check("[abc", &["[abc"], &["a"]);
        check("**a", &["a", "ba"], &["b"]);
        check("*a*a*a*a*b", &["aaaab"], &["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"]);
    }
}
