//! PAX records: `length keyword=value\n`, as the body of an extended header. Pure.

/// What records change of the members that they apply to. Other keywords are ignored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Overrides {
    /// `path`.
    pub(super) path: Option<Vec<u8>>,
    /// `size`.
    pub(super) size: Option<u64>,
    /// Whether the body is a sparse file in one of GNU's three PAX formats.
    pub(super) sparse: bool,
    /// `GNU.sparse.name`: the name of a sparse file, whose header and `path` hold another.
    pub(super) sparse_name: Option<Vec<u8>>,
}

impl Overrides {
    /// Applies the records of `body`. An empty value takes back what an earlier record said.
    pub(super) fn apply(&mut self, body: &[u8]) -> Result<(), String> {
        let mut rest = body;
        // Some writers pad the body with NULs.
        while rest.iter().any(|&byte| byte != 0) {
            let (record, after) = split_record(rest)?;
            self.apply_record(record)?;
            rest = after;
        }
        Ok(())
    }

    fn apply_record(&mut self, record: &[u8]) -> Result<(), String> {
        let equals = record.iter().position(|&byte| byte == b'=');
        let (keyword, value) = equals
            .map(|equals| (&record[..equals], &record[equals + 1..]))
            .ok_or_else(|| format!("extended record \"{}\" has no '='", shown(record)))?;
        let text = || (!value.is_empty()).then(|| value.to_vec());
        match keyword {
            b"path" => self.path = text(),
            b"size" if value.is_empty() => self.size = None,
            b"size" => {
                let size = std::str::from_utf8(value).ok().and_then(|value| value.parse().ok());
                self.size = Some(size.ok_or_else(|| format!("extended size \"{}\" is no number", shown(value)))?);
            }
            b"GNU.sparse.name" => {
                self.sparse = true;
                self.sparse_name = text();
            }
            _ if keyword.starts_with(b"GNU.sparse.") => self.sparse = true,
            _ => {}
        }
        Ok(())
    }
}

/// Splits the first record off: its `keyword=value`, and what follows it.
fn split_record(bytes: &[u8]) -> Result<(&[u8], &[u8]), String> {
    let malformed = || format!("extended record \"{}\" does not start with its length", shown(bytes));
    let space = bytes.iter().position(|&byte| byte == b' ').ok_or_else(malformed)?;
    let length = std::str::from_utf8(&bytes[..space]).ok().and_then(|digits| digits.parse::<usize>().ok());
    let length = length.ok_or_else(malformed)?;
    // At least the space, a keyword of one letter, '=' and the line's end.
    if length < space + 4 || length > bytes.len() {
        return Err(format!("extended record states {length} bytes, {} are there", bytes.len()));
    }
    let (record, after) = bytes.split_at(length);
    match record[space + 1..].split_last() {
        Some((b'\n', record)) => Ok((record, after)),
        _ => Err(format!("extended record \"{}\" does not end with a line feed", shown(record))),
    }
}

/// The start of `bytes` for a message.
fn shown(bytes: &[u8]) -> impl std::fmt::Display + '_ {
    bytes[..bytes.len().min(60)].escape_ascii()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn apply(body: &[u8]) -> Result<Overrides, String> {
        let mut overrides = Overrides::default();
        overrides.apply(body).map(|()| overrides)
    }

    #[test]
    fn records_override() {
        let check = |body: &str, expected: Overrides| assert_eq!(apply(body.as_bytes()), Ok(expected), "{body:?}");
        check("", Overrides::default());
        check("\0\0", Overrides::default());
        check("30 mtime=1350244992.023960108\n", Overrides::default());
        check("14 path=a.jpg\n", Overrides { path: Some(b"a.jpg".to_vec()), ..Overrides::default() });
        check("14 path=a=\nb\n\n\0\0", Overrides { path: Some(b"a=\nb\n".to_vec()), ..Overrides::default() });
        check("10 size=7\n10 size=8\n", Overrides { size: Some(8), ..Overrides::default() });
        check("10 size=7\n8 size=\n", Overrides::default());
        check("22 GNU.sparse.major=1\n", Overrides { sparse: true, ..Overrides::default() });
    }

    #[test]
    fn damage_is_told() {
        let check = |body: &str, part: &str| {
            let error = apply(body.as_bytes()).expect_err(body);
            assert!(error.contains(part), "{body:?}: {error}");
        };
        check("x", "does not start with its length");
        check("99 path=a\n", "99 bytes");
        check("3 path=a\n", "3 bytes");
        check("9 path=a\n7 a=b\nx", "line feed");
        check("8 path_\n", "no '='");
        check("11 size=x1\n", "no number");
    }

    proptest! {
        #[test]
        fn no_body_panics(body in proptest::collection::vec(any::<u8>(), 0..200), digits in "[0-9]{1,22} [a-z.=]{0,9}\n?") {
            let _ = apply(&body);
            let _ = apply(digits.as_bytes());
        }
    }
}
