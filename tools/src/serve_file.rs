//! The file of `feedline serve --config`: the options of the command line, under the same names, in TOML.
//!
//! An unknown key or a value that cannot be is refused with file, line, key and what is allowed. Relative paths are
//! relative to the file, so that it means the same from wherever the service is started.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use feedline_loader::sys::budget::parse_bytes;
use feedline_loader::{Error, Result};
use serde::de::{self, Deserializer, Unexpected, Visitor};
use serde::{Deserialize, Serialize};

use super::serve::Reader;

/// Longest file that is read: options have a few hundred bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Options of `feedline serve`; what is not given is `None` or empty.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct ServeFile {
    pub socket: Option<PathBuf>,
    pub workers: Option<Whole<1, 4096>>,
    pub reader: Option<Reader>,
    pub nice: Option<Whole<0, 19>>,
    pub memory: Option<Size>,
    pub cache: Option<Size>,
    #[serde(deserialize_with = "address")]
    pub metrics: Option<SocketAddr>,
    pub private: Option<bool>,
    pub cache_dir: Option<PathBuf>,
    pub allow_root: Vec<PathBuf>,
    pub allow_uid: Vec<Whole<0, { u32::MAX }>>,
    pub json: Option<bool>,
    pub drain_timeout: Option<Whole<0, 86400>>,
    pub connections: Option<Whole<1, 65536>>,
    pub connections_per_uid: Option<Whole<1, 65536>>,
    pub hello_timeout: Option<Whole<1, 3600>>,
    pub idle_timeout: Option<Whole<1, 86400>>,
}

impl ServeFile {
    /// Reads the file at `path`.
    pub fn read(path: &Path) -> Result<Self> {
        let io = |source| Error::Io { action: "read the options in", path: path.to_owned(), source };
        let size = std::fs::metadata(path).map_err(io)?.len();
        if size > FILE_BYTES_MAX {
            return Err(Error::config(format!("{}: {size} bytes are no file of options", path.display())));
        }
        let text = std::fs::read_to_string(path).map_err(io)?;
        let absolute = std::path::absolute(path).map_err(io)?;
        let folder = absolute.parent().unwrap_or(Path::new("/"));
        Self::parse(&text, path, folder)
    }

    /// The options in `text`, which came from `path`; relative paths are in `folder`.
    fn parse(text: &str, path: &Path, folder: &Path) -> Result<Self> {
        let mut options: Self =
            toml::from_str(text).map_err(|error| Error::config(place(text, path, error.span(), error.message())))?;
        let paths = options.socket.iter_mut().chain(&mut options.cache_dir).chain(&mut options.allow_root);
        for path in paths {
            *path = folder.join(&*path);
        }
        Ok(options)
    }
}

/// `message` with its place: file, line, and the key that the line is about.
fn place(text: &str, path: &Path, span: Option<std::ops::Range<usize>>, message: &str) -> String {
    let Some(span) = span else { return format!("{}: {message}", path.display()) };
    let before = text.get(..span.start.min(text.len())).unwrap_or(text);
    let line = before.matches('\n').count();
    let key = text.lines().take(line + 1).filter_map(key_of).last().unwrap_or_default();
    let key = if key.is_empty() || message.contains(&format!("`{key}`")) { String::new() } else { format!("{key}: ") };
    format!("{}:{}: {key}{message}", path.display(), line + 1)
}

/// The key of a line `key = …`.
fn key_of(line: &str) -> Option<&str> {
    let (key, _) = line.split_once('=')?;
    let key = key.trim();
    let is_bare = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    is_bare.then_some(key)
}

/// A whole number from `MIN` to `MAX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Whole<const MIN: u32, const MAX: u32>(pub u32);

impl<'de, const MIN: u32, const MAX: u32> Deserialize<'de> for Whole<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_i64(WholeVisitor::<MIN, MAX>)
    }
}

/// Bytes, as a number or in words as `8G`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor)
    }
}

struct SizeVisitor;

impl Visitor<'_> for SizeVisitor {
    type Value = Size;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a size in bytes, as 8589934592 or \"8G\"")
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
        u64::try_from(value).map(Size).map_err(|_| E::invalid_value(Unexpected::Signed(value), &self))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Self::Value, E> {
        parse_bytes(value).map(Size).map_err(|_| E::invalid_value(Unexpected::Str(value), &self))
    }
}

struct WholeVisitor<const MIN: u32, const MAX: u32>;

impl<const MIN: u32, const MAX: u32> Visitor<'_> for WholeVisitor<MIN, MAX> {
    type Value = Whole<MIN, MAX>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "a whole number from {MIN} to {MAX}")
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
        let found = u32::try_from(value).ok().filter(|number| (MIN..=MAX).contains(number));
        found.map(Whole).ok_or_else(|| E::invalid_value(Unexpected::Signed(value), &self))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
        self.visit_i64(i64::try_from(value).unwrap_or(i64::MAX))
    }
}

fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    struct AddressVisitor;
    impl Visitor<'_> for AddressVisitor {
        type Value = SocketAddr;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(formatter, "an address with a port, as \"127.0.0.1:9184\"")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<SocketAddr, E> {
            text.parse().map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
        }
    }
    deserializer.deserialize_str(AddressVisitor).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ServeFile> {
        ServeFile::parse(text, Path::new("conf/feedline.toml"), Path::new("/etc/conf"))
    }

    #[test]
    fn paths_are_relative_to_the_file() {
        let options = parse(
            "socket = \"run/s.sock\"\ncache-dir = \"/var/cache\"\nallow-root = [\n  \"../data\",\n  \"/mnt\",\n]\nworkers = 3\n",
        );
        let expected = ServeFile {
            socket: Some("/etc/conf/run/s.sock".into()),
            cache_dir: Some("/var/cache".into()),
            allow_root: vec!["/etc/conf/../data".into(), "/mnt".into()],
            workers: Some(Whole(3)),
            ..ServeFile::default()
        };
        assert_eq!(options.expect("it parses"), expected);
        assert_eq!(parse("").expect("empty"), ServeFile::default());
    }

    #[test]
    fn errors_have_file_line_key_and_what_is_allowed() {
        let check = |text: &str, line: u32, words: &[&str]| {
            let error = parse(text).expect_err(text);
            assert_eq!(error.kind(), feedline_loader::error::ErrorKind::Config);
            let message = error.to_string();
            assert!(message.starts_with(&format!("conf/feedline.toml:{line}: ")), "{message}");
            for word in words {
                assert!(message.contains(word), "{word:?} is not in {message}");
            }
        };
        check("# a comment\nsockt = \"x\"\n", 2, &["`sockt`", "`socket`", "`drain-timeout`"]);
        check("workers = 0\n", 1, &["workers: ", "`0`", "a whole number from 1 to 4096"]);
        check("\n\nworkers = \"all\"\n", 3, &["workers: ", "\"all\"", "a whole number from 1 to 4096"]);
        check("workers = 2.5\n", 1, &["workers: ", "a whole number"]);
        check("reader = \"fast\"\n", 1, &["reader: ", "`fast`", "`uring-direct`", "`pread`"]);
        check("metrics = \"9184\"\n", 1, &["metrics: ", "127.0.0.1:9184"]);
        check("allow-uid = [\n  0,\n  -1,\n]\n", 3, &["allow-uid: ", "`-1`", "from 0 to"]);
        check("allow-root = \"/data\"\n", 1, &["allow-root: ", "sequence"]);
        check("memory = \"much\"\n", 1, &["memory: ", "\"8G\""]);
        check("private = 1\n", 1, &["private: ", "boolean"]);
        check("connections = 1\nconnections = 2\n", 2, &["duplicate key"]);
        check("[serve]\nworkers = 2\n", 1, &["`serve`", "`workers`"]);
        check("json = true\nworkers = \n", 2, &["workers"]);
    }

    #[test]
    fn the_shipped_example_parses_and_names_every_option() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/feedline.toml");
        ServeFile::read(&path).expect("it parses as it is shipped");
        // With every comment taken as an option, it must parse too, and then leave nothing out.
        let text = std::fs::read_to_string(&path).expect("there");
        let all: String = text
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(option) if key_of(option).is_some() && !option.starts_with(' ') => format!("{option}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        let options = ServeFile::parse(&all, &path, Path::new("/")).expect("its commented options are right");
        let ServeFile {
            socket,
            workers,
            reader,
            nice,
            memory,
            cache,
            metrics,
            private,
            cache_dir,
            allow_root,
            allow_uid,
            json,
            drain_timeout,
            connections,
            connections_per_uid,
            hello_timeout,
            idle_timeout,
        } = options;
        assert!(socket.is_some() && workers.is_some() && reader.is_some() && metrics.is_some() && private.is_some());
        assert!(cache_dir.is_some() && !allow_root.is_empty() && !allow_uid.is_empty() && json.is_some());
        assert!(drain_timeout.is_some() && connections.is_some() && connections_per_uid.is_some());
        assert!(nice.is_some() && memory == Some(Size(64 << 30)) && cache == Some(Size(0)));
        assert!(hello_timeout.is_some() && idle_timeout.is_some());
    }
}
