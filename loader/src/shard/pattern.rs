//! What users write for shards, to paths: `::`, braces, then shell patterns.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::glob;
use crate::error::{Error, Result};

/// Most paths that braces may give.
const PATHS_MAX: usize = 1 << 20;

/// Missing files listed in a message, as ranges.
const LISTED_MAX: usize = 10;

/// What becomes of shards that are named and not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// All are listed in an error.
    Error,
    /// All are listed in a notice.
    Skip,
}

/// The shards that patterns name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expanded {
    /// Absolute paths, in order.
    pub shards: Vec<PathBuf>,
    /// What is not there, by the rule to skip it.
    pub missing: Option<String>,
}

/// The shards that `patterns` name, in the order written; those of a shell pattern sorted.
///
/// `a.tar::b.tar` is two patterns. `{0..3}`, `{000..003}`, `{0..10..5}`, `{a..c}` and `{train,extra}` give each value in
/// turn; then `*`, `?` and `[…]` are looked up. A file that has a pattern's very name is taken as it is. `@list.txt` is a
/// file of patterns, one a line, relative to its folder; empty lines and lines that start with `#` do not count. A folder
/// is the LMDB database in it, or the tars in it, or else a tree of plain files.
pub fn expand(patterns: &[String], missing: Missing) -> Result<Expanded> {
    let mut shards = Vec::new();
    for pattern in patterns.iter().flat_map(|pattern| pattern.split("::")) {
        match pattern.strip_prefix('@').filter(|_| !Path::new(pattern).exists()) {
            Some(list) => expand_list(Path::new(list), &mut shards)?,
            None => expand_one(pattern, &mut shards)?,
        }
    }
    if shards.is_empty() {
        return Err(Error::config("no shards were named: give paths or patterns, such as train-{000000..000099}.tar"));
    }
    let shards = shards.into_iter().map(inside_folder).collect::<Result<Vec<_>>>()?.concat();
    let absent = absent(&shards)?;
    let Some(words) = in_words(&absent, shards.len()) else { return Ok(Expanded { shards, missing: None }) };
    if missing == Missing::Error || absent.len() == shards.len() {
        return Err(Error::config(format!("{words}; fetch them, or go on without them by missing_shards=\"skip\"")));
    }
    let absent: HashSet<PathBuf> = absent.into_iter().map(Path::to_owned).collect();
    let shards = shards.into_iter().filter(|shard| !absent.contains(shard)).collect();
    Ok(Expanded { shards, missing: Some(format!("{words}, skipped")) })
}

/// Refuses a list in which a path is not there, and lists all that are missing.
pub(super) fn check_files(paths: &[PathBuf]) -> Result<()> {
    in_words(&absent(paths)?, paths.len()).map_or(Ok(()), |words| Err(Error::config(words)))
}

fn in_words(absent: &[&Path], total: usize) -> Option<String> {
    (!absent.is_empty()).then(|| format!("{} of {total} shards are missing: {}", absent.len(), as_ranges(absent)))
}

/// A file of patterns.
fn expand_list(list: &Path, shards: &mut Vec<PathBuf>) -> Result<()> {
    let text = fs::read_to_string(list).map_err(|source| Error::io("read", list, source))?;
    let folder = list.parent().unwrap_or(Path::new(""));
    // Editors of Windows put a byte-order mark before the first line.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if line.contains("://") || line.starts_with("pipe:") {
            return Err(Error::config(format!("{}: {line}: only local files can be read", list.display())));
        }
        let path = folder.join(line);
        let pattern = path.to_str().ok_or_else(|| Error::config(format!("{}: not UTF-8", path.display())))?;
        expand_one(pattern, shards)?;
    }
    Ok(())
}

fn expand_one(pattern: &str, shards: &mut Vec<PathBuf>) -> Result<()> {
    if pattern.is_empty() {
        return Err(Error::config("a shard pattern is empty"));
    }
    if pattern.starts_with("pipe:") || pattern.contains("://") {
        return Err(Error::config(format!("{pattern}: only local files can be read; fetch the shards first")));
    }
    let absolute = |text: &str| std::path::absolute(text).map_err(|source| Error::io("find", Path::new(text), source));
    let literal = absolute(pattern)?;
    if literal.exists() {
        shards.push(literal);
        return Ok(());
    }
    let texts = expand_braces(pattern, PATHS_MAX).map_err(|reason| Error::config(format!("{pattern}: {reason}")))?;
    for text in texts {
        let path = absolute(&text)?;
        if !glob::is_pattern(&text) || path.exists() {
            shards.push(path);
            continue;
        }
        let found = glob::files(&path).map_err(|source| Error::io("list", &path, source))?;
        if found.is_empty() {
            return Err(Error::config(format!("no file fits the pattern {}", path.display())));
        }
        shards.extend(found);
    }
    Ok(())
}

/// What a folder stands for; anything else stands for itself.
fn inside_folder(path: PathBuf) -> Result<Vec<PathBuf>> {
    const TAR_ENDINGS: [&str; 6] = [".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tzst"];
    if !path.is_dir() {
        return Ok(vec![path]);
    }
    let database = path.join("data.mdb");
    if database.is_file() {
        return Ok(vec![database]);
    }
    let (mut tars, mut databases) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(&path).map_err(|source| Error::io("list", &path, source))? {
        let entry = entry.map_err(|source| Error::io("list", &path, source))?;
        // Hidden folders, such as `.ipynb_checkpoints`, hold copies.
        let Some(name) = entry.file_name().to_str().filter(|name| !name.starts_with('.')).map(str::to_owned) else {
            continue;
        };
        let (inside, database) = (entry.path(), entry.path().join("data.mdb"));
        if database.is_file() {
            databases.push(database);
        } else if TAR_ENDINGS.iter().any(|ending| name.ends_with(ending)) && inside.is_file() {
            tars.push(inside);
        }
    }
    let mut shards = if tars.is_empty() { databases } else { tars };
    shards.sort_unstable();
    Ok(if shards.is_empty() { vec![path] } else { shards })
}

/// Every text that `pattern` stands for, the leftmost brace varying slowest; refused if there are more than `most`.
pub(super) fn expand_braces(pattern: &str, most: usize) -> Result<Vec<String>, String> {
    // Counted first: three ranges are soon more than anyone can wait for.
    if count_texts(pattern)? > most {
        return Err(format!("the braces give more than {most} paths"));
    }
    let mut texts = Vec::new();
    append_texts(pattern, &mut texts)?;
    Ok(texts)
}

/// How many texts `pattern` stands for.
fn count_texts(pattern: &str) -> Result<usize, String> {
    let Some(open) = pattern.find('{') else {
        return if pattern.contains('}') { Err("a closing brace has no opening one".to_owned()) } else { Ok(1) };
    };
    let (_, inner, after) = split_brace(pattern, open)?;
    let mut count = 0_usize;
    for value in values(inner)? {
        // A value may have braces of its own.
        count = count.saturating_add(count_texts(&value)?);
    }
    Ok(count.saturating_mul(count_texts(after)?))
}

fn append_texts(pattern: &str, texts: &mut Vec<String>) -> Result<(), String> {
    let Some(open) = pattern.find('{') else {
        texts.push(pattern.to_owned());
        return Ok(());
    };
    let (before, inner, after) = split_brace(pattern, open)?;
    for value in values(inner)? {
        // Braces of the value's own vary before those after it.
        append_texts(&format!("{before}{value}{after}"), texts)?;
    }
    Ok(())
}

fn split_brace(pattern: &str, open: usize) -> Result<(&str, &str, &str), String> {
    let mut depth = 0;
    for (at, letter) in pattern[open..].char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            let close = open + at;
            if pattern[..open].contains('}') {
                return Err("a closing brace has no opening one".to_owned());
            }
            return Ok((&pattern[..open], &pattern[open + 1..close], &pattern[close + 1..]));
        }
    }
    Err("a brace is not closed".to_owned())
}

/// The values of one pair of braces.
fn values(inner: &str) -> Result<Vec<String>, String> {
    let mut parts = vec![String::new()];
    let mut depth = 0;
    for letter in inner.chars() {
        match letter {
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        parts.last_mut().expect("never empty").push(letter);
    }
    if parts.len() > 1 {
        return Ok(parts);
    }
    let bounds: Vec<&str> = inner.split("..").collect();
    match bounds[..] {
        [first, last] => range(first, last, "1"),
        [first, last, step] => range(first, last, step),
        _ => Err(format!("{{{inner}}} is no list {{a,b}} and no range {{0..9}}")),
    }
}

fn range(first: &str, last: &str, step: &str) -> Result<Vec<String>, String> {
    let shown = format!("{{{first}..{last}}}");
    let step: usize =
        step.parse().ok().filter(|&step| step > 0).ok_or_else(|| format!("{shown}: a step is at least 1"))?;
    if let (Some(first), Some(last)) = (letter(first), letter(last)) {
        return Ok(steps(u64::from(first), u64::from(last), step)
            .map(|value| char::from(u8::try_from(value).expect("between two letters")).to_string())
            .collect());
    }
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse::<u64>().ok()).flatten().ok_or_else(|| format!("{shown}: {text:?} is no number"))
    };
    let (from, to) = (number(first)?, number(last)?);
    let padded = |text: &str| text.len() > 1 && text.starts_with('0');
    let width = if padded(first) || padded(last) { first.len() } else { 0 };
    if width > 0 && first.len() != last.len() {
        return Err(format!(
            "{shown}: one bound is padded with zeros, the other has another length; write both with as many digits"
        ));
    }
    if (from.abs_diff(to) / step as u64) >= PATHS_MAX as u64 {
        return Err(format!("{shown} gives more than {PATHS_MAX} paths"));
    }
    Ok(steps(from, to, step).map(|value| format!("{value:0width$}")).collect())
}

fn letter(text: &str) -> Option<u8> {
    match *text.as_bytes() {
        [byte] if byte.is_ascii_alphabetic() => Some(byte),
        _ => None,
    }
}

/// From `first` to `last`, which may be the lesser.
fn steps(first: u64, last: u64, step: usize) -> impl Iterator<Item = u64> {
    let count = first.abs_diff(last) / step as u64 + 1;
    (0..count).map(move |n| if first <= last { first + n * step as u64 } else { first - n * step as u64 })
}

/// The paths that are not there. Refuses what is neither a file nor a folder.
fn absent(paths: &[PathBuf]) -> Result<Vec<&Path>> {
    let mut absent = Vec::new();
    for path in paths {
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_file() || metadata.is_dir() => {}
            Ok(_) => return Err(Error::config(format!("{} is no plain file", path.display()))),
            Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
                absent.push(path.as_path());
            }
            Err(error) => return Err(Error::io("find", path, error)),
        }
    }
    Ok(absent)
}

/// Paths that differ only in their last number, which goes up by one, become one `{first..last}`.
fn as_ranges(paths: &[&Path]) -> String {
    struct Run<'a> {
        parts: Option<(&'a str, &'a str, &'a str)>,
        first: &'a Path,
        last: Option<&'a str>,
    }
    let mut runs: Vec<Run<'_>> = Vec::new();
    for path in paths {
        let parts = path.to_str().and_then(split_number);
        if let (Some(run), Some((before, number, after))) = (runs.last_mut(), parts)
            && let Some((run_before, first, run_after)) = run.parts
            && (run_before, run_after) == (before, after)
            && follows(run.last.unwrap_or(first), number)
        {
            run.last = Some(number);
            continue;
        }
        runs.push(Run { parts, first: path, last: None });
    }
    let show = |run: &Run<'_>| match (run.parts, run.last) {
        (Some((before, first, after)), Some(last)) => format!("{before}{{{first}..{last}}}{after}"),
        _ => run.first.display().to_string(),
    };
    let mut shown: Vec<String> = runs.iter().take(LISTED_MAX).map(show).collect();
    if runs.len() > LISTED_MAX {
        shown.push(format!("and {} more", runs.len() - LISTED_MAX));
    }
    shown.join(", ")
}

/// Splits a text around its last number.
fn split_number(text: &str) -> Option<(&str, &str, &str)> {
    let end = text.rfind(|letter: char| letter.is_ascii_digit())? + 1;
    let start = text[..end]
        .rfind(|letter: char| !letter.is_ascii_digit())
        .map_or(0, |before| before + text[before..].chars().next().map_or(1, char::len_utf8));
    Some((&text[..start], &text[start..end], &text[end..]))
}

fn follows(before: &str, number: &str) -> bool {
    let value = |text: &str| text.parse::<u64>().ok();
    value(before).and_then(|before| before.checked_add(1)) == value(number) && value(number).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn braces(pattern: &str) -> Result<Vec<String>, String> {
        expand_braces(pattern, PATHS_MAX)
    }

    #[test]
    fn braces_give_each_value() {
        let check = |pattern: &str, expected: &[&str]| {
            assert_eq!(
                braces(pattern).as_deref(),
                Ok(expected.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>().as_slice()),
                "{pattern}"
            );
        };
        check("a.tar", &["a.tar"]);
        check("s-{000000..000002}.tar", &["s-000000.tar", "s-000001.tar", "s-000002.tar"]);
        check("s-{8..10}", &["s-8", "s-9", "s-10"]);
        check("s-{0..10}", &["s-0", "s-1", "s-2", "s-3", "s-4", "s-5", "s-6", "s-7", "s-8", "s-9", "s-10"]);
        check("s-{0..10..5}", &["s-0", "s-5", "s-10"]);
        check("s-{00..10..4}", &["s-00", "s-04", "s-08"]);
        check("{3..1}", &["3", "2", "1"]);
        check("{a..c}", &["a", "b", "c"]);
        check("{a,b}/{0..1}", &["a/0", "a/1", "b/0", "b/1"]);
        check("{a,}x", &["ax", "x"]);
        check("{a{0..1},b}", &["a0", "a1", "b"]);
        check("{a{0..1},b}{x,y}", &["a0x", "a0y", "a1x", "a1y", "bx", "by"]);
        check("{7..7}", &["7"]);
    }

    #[test]
    fn unclear_braces_are_refused() {
        let check = |pattern: &str, part: &str| {
            let error = braces(pattern).expect_err(pattern);
            assert!(error.contains(part), "{pattern}: {error}");
        };
        check("s-{182..01199}", "as many digits");
        check("s-{00..100}", "as many digits");
        check("s-{0..10..0}", "at least 1");
        check("s-{0..x}", "no number");
        check("s-{0..}", "no number");
        check("s-{abc}", "no list");
        check("s-{}", "no list");
        check("s-{0..1..2..3}", "no list");
        check("s-{0..1", "not closed");
        check("s-0..1}", "no opening");
        check("s-}{0,1}", "no opening");
        check("{0..99999999999}", "more than");
        check("{0..9999}{0..9999}", "more than");
    }

    #[test]
    fn missing_numbers_are_listed_as_ranges() {
        let check = |paths: &[&str], expected: &str| {
            let paths: Vec<&Path> = paths.iter().map(Path::new).collect();
            assert_eq!(as_ranges(&paths), expected);
        };
        check(&["/d/s-001.tar"], "/d/s-001.tar");
        check(&["/d/s-001.tar", "/d/s-002.tar", "/d/s-003.tar"], "/d/s-{001..003}.tar");
        check(&["/d/s-1.tar", "/d/s-3.tar", "/d/s-4.tar"], "/d/s-1.tar, /d/s-{3..4}.tar");
        check(&["/d/a-9.tar", "/d/a-10.tar", "/d/b-11.tar"], "/d/a-{9..10}.tar, /d/b-11.tar");
        check(&["/d/x.tar", "/d/y.tar"], "/d/x.tar, /d/y.tar");
        check(&["/d/ä1", "/d/ä2"], "/d/ä{1..2}");
        let many: Vec<String> = (0..24).map(|number| format!("/s{}", number * 2)).collect();
        let many: Vec<&Path> = many.iter().map(Path::new).collect();
        assert!(as_ranges(&many).ends_with("/s18, and 14 more"));
    }

    #[test]
    fn files_are_looked_up() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name).to_str().expect("plain").to_owned();
        for name in ["s-000.tar", "s-001.tar", "s-003.tar", "odd[1].tar", "odd{a}.tar", ".s-9.tar"] {
            fs::write(folder.path().join(name), "x").expect("written");
        }
        fs::create_dir(folder.path().join("s-dir.tar")).expect("made");
        fs::create_dir_all(folder.path().join("mdb/.ipynb_checkpoints")).expect("made");
        fs::write(folder.path().join("mdb/data.mdb"), "x").expect("written");
        fs::create_dir_all(folder.path().join("tree/cat")).expect("made");
        fs::write(folder.path().join("list.txt"), "# train\n s-{000..001}.tar\n\ns-003.tar").expect("written");
        fs::write(folder.path().join("dos.txt"), "\u{feff}s-{000..001}.tar\r\ns-003.tar\r\n").expect("written");
        let check = |patterns: &[String], names: &[&str]| {
            let expected: Vec<PathBuf> = names.iter().map(|name| folder.path().join(name)).collect();
            let found = expand(patterns, Missing::Error).expect("found");
            assert_eq!(found, Expanded { shards: expected, missing: None }, "{patterns:?}");
        };
        check(&[at("s-{000..001}.tar")], &["s-000.tar", "s-001.tar"]);
        check(&[at("s-*.tar")], &["s-000.tar", "s-001.tar", "s-003.tar"]);
        check(&[at("*-00[13].tar")], &["s-001.tar", "s-003.tar"]);
        check(&[at("s-00?.tar")], &["s-000.tar", "s-001.tar", "s-003.tar"]);
        check(&[format!("{}::{}", at("s-003.tar"), at("s-000.tar"))], &["s-003.tar", "s-000.tar"]);
        check(&[at("s-003.tar"), at("{s-001,s-000}.tar")], &["s-003.tar", "s-001.tar", "s-000.tar"]);
        check(&[at("odd[1].tar")], &["odd[1].tar"]);
        check(&[at("odd{a}.tar")], &["odd{a}.tar"]);
        check(&[format!("@{}", at("list.txt"))], &["s-000.tar", "s-001.tar", "s-003.tar"]);
        check(&[format!("@{}", at("dos.txt"))], &["s-000.tar", "s-001.tar", "s-003.tar"]);
        check(&[at("")], &["odd[1].tar", "odd{a}.tar", "s-000.tar", "s-001.tar", "s-003.tar"]);
        check(&[at("mdb")], &["mdb/data.mdb"]);
        check(&[at("m*b")], &["mdb/data.mdb"]);
        check(&[at("tree")], &["tree"]);

        let skipped = expand(&[at("s-{000..005}.tar")], Missing::Skip).expect("three are there");
        assert_eq!(skipped.shards.len(), 3);
        let words = skipped.missing.expect("three are missing");
        assert!(
            words.starts_with("3 of 6 shards are missing: ") && words.ends_with("s-{004..005}.tar, skipped"),
            "{words}"
        );
        let none = expand(&[at("t-{0..5}.tar")], Missing::Skip).expect_err("none is there").to_string();
        assert!(none.contains("6 of 6 shards are missing"), "{none}");

        let refuse = |pattern: &str, part: &str| {
            let error = expand(&[pattern.to_owned()], Missing::Error).expect_err(pattern).to_string();
            assert!(error.contains(part), "{pattern}: {error}");
        };
        refuse(&at("s-{000..005}.tar"), "3 of 6 shards are missing");
        refuse(&at("s-{000..005}.tar"), "s-002.tar, ");
        refuse(&at("s-{000..005}.tar"), "s-{004..005}.tar");
        refuse(&at("t-*.tar"), "no file fits");
        refuse(&at("none/*.tar"), "no file fits");
        refuse(&format!("@{}", at("none.txt")), "cannot read");
        refuse("s3://bucket/a.tar", "only local files");
        refuse("", "empty");
        assert!(expand(&[], Missing::Error).expect_err("none").to_string().contains("no shards were named"));
    }
}
