//! A table of labels beside a dataset, joined to its samples by key when the dataset is opened.
//!
//! Comma-separated (`.csv`), tab-separated (`.tsv`) with a line of names first, or JSON lines (`.jsonl`, `.ndjson`, one
//! object a line). A row belongs to the sample whose key stands in its key column; a key may be written as the file's
//! name, with its ending. What finds no partner on either side is counted and named.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use super::identity::FileState;
use super::name;
use super::place::ByteRange;
use crate::error::{Error, Result};
use crate::spec::{KeyRule, LabelTable};

/// Marks a sample without a row.
const NO_ROW: u32 = u32::MAX;

/// Marks a cell that a row does not have.
const NO_CELL: (u32, u32) = (u32::MAX, 0);

/// Follows the last row of a table of separated values; no cell is this.
const END_MARK: &str = "\n\u{1}end of the table\u{1}\n";

/// Largest table, in bytes: it is held in memory.
const TABLE_BYTES_MAX: u64 = 2 << 30;

/// A table, joined.
#[derive(Debug)]
pub(super) struct Labels {
    columns: Vec<String>,
    cells: Vec<u8>,
    /// Row by row, where each column's cell is in `cells`.
    places: Vec<(u32, u32)>,
    /// Per sample, its row.
    rows: Vec<u32>,
    state: FileState,
    /// What found no partner.
    pub(super) notices: Vec<String>,
}

/// A table as it is read: rows with their keys.
struct Rows {
    columns: Vec<String>,
    cells: Vec<u8>,
    places: Vec<(u32, u32)>,
    /// Key of each row, with the line that it stands in.
    keys: Vec<(String, u64)>,
}

impl Labels {
    /// Reads `table` and joins it to the samples with these `keys`, in order.
    pub(super) fn open<'a>(table: &LabelTable, rule: KeyRule, keys: impl Iterator<Item = &'a str>) -> Result<Self> {
        let path = table.path.as_path();
        let metadata = fs::metadata(path).map_err(|source| Error::io("find", path, source))?;
        if metadata.len() > TABLE_BYTES_MAX {
            return Err(Error::config(format!("{}: a table of labels has at most 2 GiB", path.display())));
        }
        let file = File::open(path).map_err(|source| Error::io("open", path, source))?;
        let key = table.key.as_deref();
        let rows = match path.extension().and_then(|ending| ending.to_str()).map(str::to_ascii_lowercase).as_deref() {
            Some("csv") => read_separated(path, file, b',', key)?,
            Some("tsv" | "tab") => read_separated(path, file, b'\t', key)?,
            Some("jsonl" | "ndjson") => read_json_lines(path, file, key)?,
            _ => {
                return Err(Error::config(format!(
                    "{}: a table of labels ends in .csv, .tsv, .jsonl or .ndjson",
                    path.display()
                )));
            }
        };
        rows.join(path, FileState::of(&metadata), rule, keys)
    }

    /// Names of the columns but the key's.
    pub(super) fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Where the cell of `sample` in `column` is, if there is one.
    pub(super) fn cell(&self, sample: u64, column: u32) -> Option<ByteRange> {
        let row = self.rows[usize::try_from(sample).expect("fits, as the rows do")];
        let place = (row != NO_ROW).then(|| self.places[row as usize * self.columns.len() + column as usize])?;
        (place != NO_CELL).then(|| ByteRange { offset: u64::from(place.0), len: place.1 })
    }

    /// The bytes of a cell.
    pub(super) fn bytes(&self, range: ByteRange) -> &[u8] {
        &self.cells[range.offset as usize..][..range.len as usize]
    }

    /// Memory that it takes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let bytes = self.cells.capacity()
            + self.places.capacity() * size_of::<(u32, u32)>()
            + self.rows.capacity() * size_of::<u32>();
        bytes as u64
    }

    /// Whether the file at `path` is still what was read.
    pub(super) fn is_of(&self, path: &Path) -> bool {
        fs::metadata(path).is_ok_and(|metadata| FileState::of(&metadata) == self.state)
    }
}

impl Rows {
    fn new(columns: Vec<String>) -> Self {
        Self { columns, cells: Vec::new(), places: Vec::new(), keys: Vec::new() }
    }

    fn add_cell(&mut self, text: &str) -> Result<(), &'static str> {
        let too_long = |_| "the cells have more than 4 GiB";
        let start = u32::try_from(self.cells.len()).map_err(too_long)?;
        self.cells.extend(text.as_bytes());
        let len = u32::try_from(text.len()).map_err(too_long)?;
        self.places.push((start, len));
        Ok(())
    }

    fn join<'a>(
        self,
        path: &Path,
        state: FileState,
        rule: KeyRule,
        keys: impl Iterator<Item = &'a str>,
    ) -> Result<Labels> {
        let mut by_key: HashMap<&str, u32> = HashMap::with_capacity(self.keys.len());
        for (row, (key, line)) in (0..).zip(&self.keys) {
            if let Some(first) = by_key.insert(key, row) {
                let first = self.keys[first as usize].1;
                return Err(Error::config(format!(
                    "{}: line {line}: the key {key:?} stands in line {first} too; keep one of them",
                    path.display()
                )));
            }
        }
        // A key that is written as a file's name; a row that has the bare key goes before.
        let mut by_name: HashMap<String, u32> = HashMap::new();
        for (row, (key, _)) in (0..).zip(&self.keys) {
            if let Ok(parts) = name::split(key, rule) {
                by_name.entry(parts.key).or_insert(row);
            }
        }
        let mut rows = Vec::new();
        let mut is_used = vec![false; self.keys.len()];
        let (mut without, mut first_without) = (0_u64, None);
        for key in keys {
            let row = by_key.get(key).or_else(|| by_name.get(key)).copied();
            match row {
                Some(row) => is_used[row as usize] = true,
                None => {
                    without += 1;
                    first_without.get_or_insert_with(|| key.to_owned());
                }
            }
            rows.push(row.unwrap_or(NO_ROW));
        }
        let mut notices = Vec::new();
        if let Some(first) = first_without {
            if without == rows.len() as u64 {
                let row = self.keys.first().map_or("", |(key, _)| key.as_str());
                return Err(Error::config(format!(
                    "{}: not one of {without} samples has a row; the first sample's key is {first:?}, the first row's {row:?}: \
                     name the column that has the keys",
                    path.display()
                )));
            }
            let total = rows.len();
            notices.push(format!("{}: {without} of {total} samples have no row; the first: {first:?}", path.display()));
        }
        let unused = is_used.iter().filter(|used| !**used).count();
        if let Some(first) = is_used.iter().position(|used| !used) {
            let (key, line) = &self.keys[first];
            let total = self.keys.len();
            notices.push(format!(
                "{}: {unused} of {total} rows have no sample; the first: {key:?} in line {line}",
                path.display()
            ));
        }
        let Self { columns, cells, places, .. } = self;
        Ok(Labels { columns, cells, places, rows, state, notices })
    }
}

fn read_separated(path: &Path, file: File, delimiter: u8, key: Option<&str>) -> Result<Rows> {
    // A row of its own behind the table: a quote that is never closed would take it in, with every row before it.
    let ended = file.chain(END_MARK.as_bytes());
    let mut reader = csv::ReaderBuilder::new().delimiter(delimiter).flexible(true).from_reader(ended);
    let wrong = |line: u64, message: &str| Error::config(format!("{}: line {line}: {message}", path.display()));
    let fail = |error: csv::Error| {
        let line = error.position().map_or(1, csv::Position::line);
        wrong(line, &error.to_string())
    };
    let header: Vec<String> = reader
        .headers()
        .map_err(fail)?
        .iter()
        .map(|name| name.trim_start_matches('\u{feff}').trim().to_owned())
        .collect();
    if header == [END_MARK.trim_ascii()] {
        return Err(wrong(1, "the table is empty"));
    }
    let is_twice = |place: usize| !header[place].is_empty() && header[..place].contains(&header[place]);
    if let Some(place) = (0..header.len()).find(|&place| is_twice(place)) {
        return Err(wrong(1, &format!("the column {:?} stands there twice; rename one", header[place])));
    }
    let key_column = key_column(path, &header, key)?;
    let mut rows = Rows::new(without(&header, key_column));
    let mut record = csv::StringRecord::new();
    let mut line = 1;
    while reader.read_record(&mut record).map_err(fail)? {
        line = record.position().map_or(line, csv::Position::line);
        if record.len() == 1 && record[0] == *END_MARK.trim_ascii() {
            return Ok(rows);
        }
        if record.len() != header.len() {
            let (cells, names) = (record.len(), header.len());
            return Err(wrong(line, &format!("a row of {cells} cells, under {names} names of columns")));
        }
        rows.keys.push((record[key_column].to_owned(), line));
        for (column, text) in record.iter().enumerate() {
            if column != key_column {
                rows.add_cell(text).map_err(|message| wrong(line, message))?;
            }
        }
    }
    Err(wrong(
        line,
        "a quote that begins a cell of this row is never closed, so the cell would reach to the end of the table; double the \
         quotes within cells, and put cells that begin with one in quotes",
    ))
}

fn key_column(path: &Path, header: &[String], key: Option<&str>) -> Result<usize> {
    match key {
        None => Ok(0),
        Some(key) => header.iter().position(|name| name == key).ok_or_else(|| {
            Error::config(format!("{}: no column {key:?}; the columns are: {}", path.display(), header.join(", ")))
        }),
    }
}

fn without(header: &[String], key_column: usize) -> Vec<String> {
    header.iter().enumerate().filter(|(column, _)| *column != key_column).map(|(_, name)| name.clone()).collect()
}

/// One object a line. The columns are those of the first; later lines may lack some, and have none besides.
fn read_json_lines(path: &Path, file: File, key: Option<&str>) -> Result<Rows> {
    let mut rows: Option<(Rows, String)> = None;
    for (number, line) in (1..).zip(BufReader::new(file).lines()) {
        let wrong = |message: &str| Error::config(format!("{}: line {number}: {message}", path.display()));
        let line = line.map_err(|source| Error::io("read", path, source))?;
        let line = line.strip_prefix('\u{feff}').filter(|_| number == 1).unwrap_or(&line);
        if line.trim().is_empty() {
            continue;
        }
        let object: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(line).map_err(|error| wrong(&error.to_string()))?;
        if rows.is_none() {
            let header: Vec<String> = object.keys().cloned().collect();
            let key_column = key_column(path, &header, key.or(Some("key")))?;
            rows = Some((Rows::new(without(&header, key_column)), header[key_column].clone()));
        }
        let (rows, key) = rows.as_mut().expect("made above");
        let Some(serde_json::Value::String(found)) = object.get(key.as_str()) else {
            return Err(wrong(&format!("{key:?} must be there, and text")));
        };
        rows.keys.push((found.clone(), number));
        if let Some(other) = object.keys().find(|name| *name != key && !rows.columns.contains(name)) {
            return Err(wrong(&format!("{other:?} is no column of the first line")));
        }
        for column in 0..rows.columns.len() {
            match object.get(&rows.columns[column]) {
                None | Some(serde_json::Value::Null) => rows.places.push(NO_CELL),
                Some(serde_json::Value::String(text)) => rows.add_cell(text).map_err(wrong)?,
                Some(value) => rows.add_cell(&value.to_string()).map_err(wrong)?,
            }
        }
    }
    rows.map(|(rows, _)| rows).ok_or_else(|| Error::config(format!("{}: the table is empty", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(name: &str, text: &str, key: Option<&str>, keys: &[&str]) -> Result<Labels> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(name);
        fs::write(&path, text).expect("written");
        let table = LabelTable { path, key: key.map(str::to_owned) };
        Labels::open(&table, KeyRule::FirstDot, keys.iter().copied())
    }

    fn cells(labels: &Labels, samples: u64) -> Vec<Vec<Option<String>>> {
        let text = |range| String::from_utf8(labels.bytes(range).to_vec()).expect("text");
        let columns = u32::try_from(labels.columns().len()).expect("few");
        let row = |sample| (0..columns).map(|column| labels.cell(sample, column).map(text)).collect();
        (0..samples).map(row).collect()
    }

    #[test]
    fn rows_find_their_samples() {
        let check = |name: &str, text: &str, key: Option<&str>, columns: &[&str], expected: &[&[Option<&str>]]| {
            let labels = join(name, text, key, &["a", "d/b", "c"]).expect("joined");
            assert_eq!(labels.columns(), columns, "{name}");
            let expected: Vec<Vec<Option<String>>> =
                expected.iter().map(|row| row.iter().map(|cell| cell.map(str::to_owned)).collect()).collect();
            assert_eq!(cells(&labels, 3), expected, "{name}");
            assert!(labels.notices.is_empty(), "{:?}", labels.notices);
        };
        let rows: &[&[Option<&str>]] = &[&[Some("1")], &[Some("2")], &[Some("3")]];
        check("t.csv", "file,label\nc,3\na,1\nd/b,2\n", None, &["label"], rows);
        check("t.csv", "\u{feff}file,label\r\n./c.jpg,3\r\na.jpg,1\r\nd/b.left.png,2\r\n", None, &["label"], rows);
        check("t.tsv", "label\tfile\n3\tc\n1\ta\n2\td/b\n", Some("file"), &["label"], rows);
        let json =
            "{\"key\": \"c\", \"label\": 3}\n\n{\"key\": \"a\", \"label\": \"1\"}\n{\"label\": 2, \"key\": \"d/b\"}\n";
        check("t.jsonl", json, None, &["label"], rows);
        check("t.jsonl", &format!("\u{feff}{json}"), None, &["label"], rows);
        let some = "{\"key\": \"c\", \"x\": 3}\n{\"key\": \"a\", \"x\": null}\n{\"key\": \"d/b\"}\n";
        check("t.jsonl", some, None, &["x"], &[&[None], &[None], &[Some("3")]]);
        check("t.csv", "file,label\nc,3\na,1\nd/b,2", None, &["label"], rows);
        check("t.csv", "file,label\nc,\"3\"\na,1\nd/b,\"2\"", None, &["label"], rows);
        let one_column: &[&[Option<&str>]] = &[&[], &[], &[]];
        check("t.csv", "file\na\nc\nd/b\n", None, &[], one_column);
        let quoted = "k,text,n\na,\"x, \"\"y\"\"\n z\",1\nd/b,,2\nc,w,3\n";
        let cells: &[&[Option<&str>]] =
            &[&[Some("x, \"y\"\n z"), Some("1")], &[Some(""), Some("2")], &[Some("w"), Some("3")]];
        check("t.csv", quoted, None, &["text", "n"], cells);
    }

    #[test]
    fn what_finds_no_partner_is_named() {
        let labels = join("t.csv", "k,v\na,1\nx,2\ny,3\n", None, &["a", "b", "c"]).expect("joined");
        let [samples, rows] = labels.notices.as_slice() else { panic!("{:?}", labels.notices) };
        assert!(samples.contains("2 of 3 samples have no row; the first: \"b\""), "{samples}");
        assert!(rows.contains("2 of 3 rows have no sample; the first: \"x\" in line 3"), "{rows}");
        assert_eq!((labels.cell(0, 0).is_some(), labels.cell(1, 0)), (true, None));
    }

    #[test]
    fn wrong_tables_are_refused() {
        let check = |name: &str, text: &str, key: Option<&str>, part: &str| {
            let error = join(name, text, key, &["a"]).expect_err(part).to_string();
            assert!(error.contains(part), "{error}");
        };
        check("t.txt", "a,b\n", None, "ends in .csv");
        check("t.csv", "k,v\na,1\na,2\n", None, "line 3: the key \"a\" stands in line 2 too");
        check("t.csv", "k,v\na,1,2\n", None, "line 2: a row of 3 cells, under 2 names");
        check("t.csv", "k,v\nb,1\na\n", None, "line 3: a row of 1 cells, under 2 names");
        check(
            "t.tsv",
            "k\tv\na\t\"5 inches\nb\t7\n",
            None,
            "line 2: a quote that begins a cell of this row is never closed",
        );
        check("t.csv", "k,v\nb,\"7\"\na,\"\"\"7", None, "line 3: a quote");
        check("t.csv", "k,\"v\na,1\n", None, "a quote");
        check("t.csv", "k,v,v\na,1,2\n", None, "the column \"v\" stands there twice");
        check("t.csv", "k,v\na,1\n", Some("file"), "no column \"file\"; the columns are: k, v");
        check("t.csv", "k,v\nz,1\n", None, "not one of 1 samples has a row");
        check("t.jsonl", "", None, "empty");
        check("t.csv", "", None, "the table is empty");
        check("t.csv", "\n\n", None, "the table is empty");
        check("t.jsonl", "{\"key\": \"a\"}\n[1]\n", None, "line 2");
        check("t.jsonl", "{\"key\": \"a\"}\n{\"key\": 1}\n", None, "line 2: \"key\" must be there");
        check("t.jsonl", "{\"key\": \"a\"}\n{\"key\": \"b\", \"w\": 1}\n", None, "\"w\" is no column");
    }
}
