//! How reports look: words for people, JSON for programs, sizes and counts for both.

use std::fmt::Display;
use std::io::{self, Write};

use feedline_loader::{Error, Result};
use serde::Serialize;

/// Prints a report on standard output, in words or as one line of JSON. A reader that went away is no failure.
pub fn print_report<R: Serialize + Display>(report: &R, json: bool) -> Result<()> {
    let text = if json {
        serde_json::to_string(report).expect("reports have string keys and finite numbers")
    } else {
        report.to_string()
    };
    let mut stdout = io::stdout().lock();
    match writeln!(stdout, "{}", text.trim_end()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Error::system("write the report", error)),
        _ => Ok(()),
    }
}

/// A size in words: `1.50 MiB`.
pub struct Bytes(pub u64);

impl Display for Bytes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        let text = match unit {
            0 => format!("{} B", self.0),
            _ => format!("{value:.1} {}", UNITS[unit]),
        };
        formatter.pad(&text)
    }
}

/// A count with its noun: `1 shard`, `2 shards`.
pub fn counted(count: u64, noun: &str) -> String {
    let plural = match noun.strip_suffix("ss") {
        Some(_) => "es",
        None => "s",
    };
    format!("{count} {noun}{}", if count == 1 { "" } else { plural })
}

/// Reads a size such as `256M`, `1.5GiB` or `4096`; K, M, G and T are powers of 1024.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        other => return Err(format!("unknown unit {other:?}: use K, M, G or T (powers of 1024)")),
    };
    let number: f64 = number.parse().map_err(|_| format!("{number:?} is no number: write a size as 256M"))?;
    let bytes = number * (1_u64 << shift) as f64;
    if (1.0..9e18).contains(&bytes) { Ok(bytes as u64) } else { Err("a size is at least 1 byte".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        let check = |text: &str, expected: Option<u64>| assert_eq!(parse_bytes(text).ok(), expected, "{text}");
        check("4096", Some(4096));
        check("256M", Some(256 << 20));
        check("256MiB", Some(256 << 20));
        check("1.5g", Some(3 << 29));
        check("0", None);
        check("", None);
        check("12 parsecs", None);
        check("-1", None);
        check("999999999T", None);
    }

    #[test]
    fn sizes_and_counts_are_words() {
        assert_eq!(Bytes(1023).to_string(), "1023 B");
        assert_eq!(Bytes(1536).to_string(), "1.5 KiB");
        assert_eq!(counted(1, "class"), "1 class");
        assert_eq!(counted(2, "class"), "2 classes");
        assert_eq!(counted(0, "shard"), "0 shards");
    }
}
