//! Keys to samples, by the rules of a profile.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;

use super::super::findings::{Finding, Findings};
use super::super::name;
use super::super::place::Encoding;
use super::super::table::Table;
use super::keys::{Keys, Record};
use super::order;
use super::profile::{self, numbered};
use super::walk::read_up_to;
use crate::decode::header;
use crate::error::{Error, Result};
use crate::spec::{KeyOrder, Profile};

/// Longest list of images that is read.
const META_FILE_BYTES_MAX: u64 = 1 << 30;

/// Images whose size is compared with that in the list: reading the head of each would be to read the file.
const SIZES_LOOKED_AT: usize = 64;

/// Bytes of an image that are read to find its size.
const HEAD_BYTES: usize = 16 << 10;

/// What the samples are made by.
pub(super) struct Rules<'a> {
    pub(super) path: &'a Path,
    /// Its file.
    pub(super) source: &'a File,
    pub(super) profile: Profile,
    pub(super) key_order: KeyOrder,
    /// The count that the database states, with the key that does.
    pub(super) stated: Option<(&'static str, u64)>,
    /// Keys are integers of the machine, which the database keeps by value.
    pub(super) integer_keys: bool,
}

impl Rules<'_> {
    /// Puts the keys in their order and their samples into `table`. Returns what was done, for people.
    pub(super) fn apply(&self, keys: &mut Keys, table: &mut Table, findings: &mut Findings) -> Result<String> {
        let is_numbered = || keys.records.iter().all(|record| numbered(keys.key(record)).is_some());
        match self.profile {
            Profile::TextRecognition => self.by_number(keys, table, findings),
            // Several sizes of each image, as the tools of StyleGAN2 store them.
            Profile::LengthKeys if !keys.records.is_empty() && is_numbered() => self.by_number(keys, table, findings),
            Profile::SuperResolution => self.by_meta_file(keys, table, findings),
            _ => self.one_by_one(keys, table, findings),
        }
    }

    /// A sample a key.
    fn one_by_one(&self, keys: &mut Keys, table: &mut Table, findings: &mut Findings) -> Result<String> {
        let order = self.sort(keys)?;
        let fields = self.declare(table);
        for record in &keys.records {
            self.push(keys, record, &fields, table, findings)?;
        }
        self.compare_count(keys.records.len() as u64, findings);
        Ok(order.into())
    }

    /// The fields of a sample of one value.
    fn declare(&self, table: &mut Table) -> Vec<u32> {
        match self.profile {
            Profile::Folder => vec![
                table.declare("0", &["image"], Encoding::Element(0)),
                table.declare("1", &["label"], Encoding::Element(1)),
            ],
            Profile::Datum => {
                vec![
                    table.declare("image", &[], Encoding::DatumImage),
                    table.declare("label", &[], Encoding::DatumLabel),
                ]
            }
            _ => vec![table.declare("value", &["image"], Encoding::Value)],
        }
    }

    fn push(
        &self,
        keys: &Keys,
        record: &Record,
        fields: &[u32],
        table: &mut Table,
        findings: &mut Findings,
    ) -> Result<()> {
        let (key, is_odd) = self.text(keys.key(record));
        if is_odd {
            findings.add(Finding::NotUtf8, record.offset, || key.clone());
        }
        let members = fields.iter().map(|&field| (field, record.offset, record.len));
        table.push_sample(self.path, &key, members)
    }

    /// The key as text, and whether it had bytes that are none.
    fn text(&self, key: &[u8]) -> (String, bool) {
        match super::walk::integer_key(key).filter(|_| self.integer_keys) {
            Some(number) => (number.to_string(), false),
            None => name::decode(key),
        }
    }

    /// Sorts keys that no meta file orders.
    fn sort(&self, keys: &mut Keys) -> Result<&'static str> {
        let all_numbers = || keys.records.iter().all(|record| order::is_number(keys.key(record)));
        match self.key_order {
            KeyOrder::MetaFile => Err(Error::config(format!(
                "{}: key_order=\"meta-file\" needs profile=\"super-resolution\", whose meta_info.txt has an order; this is \
                 read as {}",
                self.path.display(),
                self.profile.name()
            ))),
            _ if self.integer_keys => Ok("keys are integers, by value"),
            KeyOrder::Natural => {
                keys.sort_by(order::natural);
                Ok("keys in natural order")
            }
            KeyOrder::Auto if all_numbers() => {
                keys.sort_by(order::natural);
                Ok("keys are numbers, by value")
            }
            KeyOrder::Auto | KeyOrder::Bytes => Ok("keys in the order of their bytes"),
        }
    }

    /// A sample a number: `image-000000001` and `label-000000001`.
    fn by_number(&self, keys: &mut Keys, table: &mut Table, findings: &mut Findings) -> Result<String> {
        let mut parts = Vec::with_capacity(keys.records.len());
        for record in &keys.records {
            match numbered(keys.key(record)) {
                Some((name, number)) => parts.push((number, name, record)),
                None => findings.add(Finding::StrayKey, record.offset, || self.text(keys.key(record)).0),
            }
        }
        parts.sort_by_key(|&(number, name, _)| (number, name));
        let is_text = self.profile == Profile::TextRecognition;
        let first = parts.first().map_or(1, |&(number, ..)| number.min(1));
        let end = self.stated.filter(|_| is_text).map_or(u64::MAX, |(_, count)| first.saturating_add(count));
        let (mut next, mut count) = (first, 0);
        let mut members: Vec<(u32, u64, u32)> = Vec::new();
        for group in parts.chunk_by(|a, b| a.0 == b.0) {
            let (number, _, record) = group[0];
            if number >= end {
                findings.add(Finding::AfterCount, record.offset, || self.text(keys.key(record)).0);
                continue;
            }
            if number > next {
                let gap = number - next;
                findings.add_many(Finding::NumberGap, gap, record.offset, || format!("{next} to {}", number - 1));
            }
            next = number.saturating_add(1);
            if is_text
                && !["image", "label"].iter().all(|part| group.iter().any(|(_, name, _)| *name == part.as_bytes()))
            {
                findings.add(Finding::HalfSample, record.offset, || self.text(keys.key(record)).0);
            }
            members.clear();
            for (_, name, record) in group {
                let field = table.declare(&self.text(name).0.to_lowercase(), &[], Encoding::Value);
                // `image-1` beside `image-000000001`.
                if members.iter().any(|&(other, ..)| other == field) {
                    findings.add(Finding::DuplicateMember, record.offset, || self.text(keys.key(record)).0);
                    continue;
                }
                members.push((field, record.offset, record.len));
            }
            let key = keys.key(record);
            let digits = key.iter().rposition(|&byte| byte == b'-').map_or(0, |dash| dash + 1);
            table.push_sample(self.path, &self.text(&key[digits..]).0, members.iter().copied())?;
            count += 1;
        }
        if is_text && end != u64::MAX && next < end {
            findings.add_many(Finding::NumberGap, end - next, 0, || format!("{next} to {}", end - 1));
        }
        self.compare_count(count, findings);
        Ok(format!("samples are numbered from {first}"))
    }

    /// A sample a line of the meta file.
    fn by_meta_file(&self, keys: &mut Keys, table: &mut Table, findings: &mut Findings) -> Result<String> {
        let Some(path) = profile::meta_file(self.path) else {
            let wanted = self.path.with_file_name("meta_info.txt");
            return Err(Error::io("find", &wanted, std::io::Error::from(ErrorKind::NotFound)));
        };
        let io = |action| move |source| Error::io(action, self.path, source);
        if fs::metadata(&path).map_err(io("look at the meta file of"))?.len() > META_FILE_BYTES_MAX {
            return Err(Error::config(format!("{}: over 1 GiB, which is no list of images", path.display())));
        }
        let list = fs::read(&path).map_err(io("read the meta file of"))?;
        let fields = self.declare(table);
        if !matches!(self.key_order, KeyOrder::Auto | KeyOrder::MetaFile) {
            self.sort(keys)?;
        }
        let by_key: HashMap<&[u8], usize> =
            keys.records.iter().enumerate().map(|(place, record)| (keys.key(record), place)).collect();
        let mut is_listed = vec![false; keys.records.len()];
        let mut listed = Vec::new();
        let lines = list.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&list);
        for line in lines.split(|&byte| byte == b'\n') {
            let Some((name, size)) = image_name(line) else { continue };
            let place = by_key.get(stem(name)).or_else(|| by_key.get(name));
            match place.filter(|&&place| !is_listed[place]) {
                Some(&place) => {
                    is_listed[place] = true;
                    listed.push((place, size));
                }
                None => findings.add(Finding::ListedTwiceOrMissing, 0, || self.text(name).0),
            }
        }
        for (record, _) in keys.records.iter().zip(&is_listed).filter(|(_, is_listed)| !**is_listed) {
            findings.add(Finding::NotListed, record.offset, || self.text(keys.key(record)).0);
        }
        if !matches!(self.key_order, KeyOrder::Auto | KeyOrder::MetaFile) {
            listed.sort_unstable();
        }
        self.compare_sizes(keys, &listed, findings).map_err(io("read"))?;
        for (place, _) in listed {
            self.push(keys, &keys.records[place], &fields, table, findings)?;
        }
        let order = match self.key_order {
            KeyOrder::Natural => "keys in natural order",
            KeyOrder::Bytes => "keys in the order of their bytes",
            KeyOrder::Auto | KeyOrder::MetaFile => "in the order of the meta file",
        };
        Ok(order.into())
    }

    /// Compares the sizes in the list with those of some images, spread over it.
    fn compare_sizes(
        &self,
        keys: &Keys,
        listed: &[(usize, Option<Size>)],
        findings: &mut Findings,
    ) -> std::io::Result<()> {
        let mut head = Vec::new();
        for &(place, size) in listed.iter().step_by(listed.len().div_ceil(SIZES_LOOKED_AT).max(1)) {
            let (Some(stated), record) = (size, &keys.records[place]) else { continue };
            head.resize(HEAD_BYTES.min(record.len as usize), 0);
            let filled = read_up_to(self.source, &mut head, record.offset)?;
            if let Some(found) = header::size(&head[..filled]).filter(|found| *found != stated) {
                findings.add(Finding::ListedSize, record.offset, || {
                    let key = self.text(keys.key(record)).0;
                    format!("{key} is {}x{}, listed as {}x{}", found.0, found.1, stated.0, stated.1)
                });
            }
        }
        Ok(())
    }

    fn compare_count(&self, count: u64, findings: &mut Findings) {
        if let Some((name, stated)) = self.stated.filter(|&(_, stated)| stated != count) {
            findings.add(Finding::StatedCount, 0, || format!("{name} says {stated}, {count} are there"));
        }
    }
}

/// Width and height.
type Size = (u32, u32);

/// The image's name in a line such as `0001.png (480,640,3) 1`: all before the size, and that, where there is one.
fn image_name(line: &[u8]) -> Option<(&[u8], Option<Size>)> {
    let line = line.trim_ascii();
    let end = line.windows(2).position(|pair| pair == b" (").unwrap_or(line.len());
    let (name, size) = (line[..end].trim_ascii(), line[end..].trim_ascii());
    (!name.is_empty()).then(|| (name, image_size(size)))
}

/// Reads `(height,width,channels)`.
fn image_size(text: &[u8]) -> Option<Size> {
    let mut sides = std::str::from_utf8(text).ok()?.strip_prefix('(')?.split([',', ')']);
    let mut side = || sides.next()?.trim().parse().ok();
    let (height, width) = (side()?, side()?);
    Some((width, height))
}

/// A name without its last extension.
fn stem(name: &[u8]) -> &[u8] {
    let base = name.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    match name.iter().rposition(|&byte| byte == b'.') {
        Some(dot) if dot > base => &name[..dot],
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_meta_file() {
        let check = |line: &str, name: Option<&str>, key: &str| {
            let found = image_name(line.as_bytes());
            assert_eq!(found.map(|(name, _)| name), name.map(str::as_bytes), "{line}");
            assert_eq!(stem(name.unwrap_or_default().as_bytes()), key.as_bytes(), "{line}");
        };
        check("0001_s001.png (480,480,3) 1\r", Some("0001_s001.png"), "0001_s001");
        check("a/b.c/0001 (480,480,3) 1", Some("a/b.c/0001"), "a/b.c/0001");
        check("a b.png", Some("a b.png"), "a b");
        check("", None, "");
        check("  ", None, "");
    }

    #[test]
    fn sizes_in_a_meta_file() {
        let check = |line: &str, size| assert_eq!(image_name(line.as_bytes()).expect("a name").1, size, "{line}");
        check("0001_s001.png (480,640,3) 1\r", Some((640, 480)));
        check("0001.png (480, 640) 1", Some((640, 480)));
        check("0001.png", None);
        check("0001.png (480)", None);
        check("0001.png (a,b,3) 1", None);
    }
}
