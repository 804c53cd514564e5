//! Writes one shard: ustar members, PAX records where a name is too long, nothing in it that differs from run to run.

use std::path::{Path, PathBuf};

use feedline_loader::Result;
use tar::{EntryType, Header};

use crate::hashed_file::{HashedFile, WrittenFile};

const BLOCK: u64 = 512;
/// Two zero blocks end an archive.
const TRAILER: u64 = 2 * BLOCK;

/// A shard under its temporary name.
#[derive(Debug)]
pub struct ShardWriter {
    file: HashedFile,
    samples: u64,
}

/// A shard that is complete, but not yet on the disk for certain.
#[derive(Debug)]
pub struct WrittenShard {
    /// The file, under its temporary name.
    pub file: WrittenFile,
    /// Samples in it.
    pub samples: u64,
}

impl ShardWriter {
    /// Starts a shard at `path`, replacing what a broken run left there.
    pub fn create(path: PathBuf) -> Result<Self> {
        Ok(Self { file: HashedFile::create(path)?, samples: 0 })
    }

    /// Its size if it ended after another `more` bytes of members.
    pub fn bytes_with(&self, more: u64) -> u64 {
        self.file.bytes() + more + TRAILER
    }

    /// Samples so far.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Appends a sample: its image, then its label in decimal.
    pub fn add_sample(&mut self, key: &str, extension: &str, image: &[u8], label: u32) -> Result<()> {
        self.add_member(&format!("{key}.{extension}"), image)?;
        self.add_member(&format!("{key}.cls"), label.to_string().as_bytes())?;
        self.samples += 1;
        Ok(())
    }

    /// Ends the shard.
    pub fn finish(mut self) -> Result<WrittenShard> {
        self.file.write(&[0; TRAILER as usize])?;
        Ok(WrittenShard { file: self.file.finish()?, samples: self.samples })
    }

    fn add_member(&mut self, name: &str, data: &[u8]) -> Result<()> {
        let mut header = Header::new_ustar();
        if header.set_path(name).is_err() {
            let record = pax_record("path", name);
            let mut extended = Header::new_ustar();
            extended.set_path("pax/path").expect("a short name fits");
            self.write_entry(extended, EntryType::XHeader, &record)?;
            // Readers of PAX take the record's name; this one is for those that cannot.
            header.set_path(format!("long/{}", blake3::hash(name.as_bytes()).to_hex())).expect("a short name fits");
        }
        self.write_entry(header, EntryType::Regular, data)
    }

    fn write_entry(&mut self, mut header: Header, kind: EntryType, data: &[u8]) -> Result<()> {
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(data.len() as u64);
        header.set_cksum();
        self.file.write(header.as_bytes())?;
        self.file.write(data)?;
        let padding = (data.len() as u64).next_multiple_of(BLOCK) - data.len() as u64;
        self.file.write(&[0; BLOCK as usize][..padding as usize])
    }
}

/// Bytes that a sample takes in a shard.
pub fn sample_bytes(key: &str, extension: &str, image_bytes: u64, label: u32) -> u64 {
    let label_bytes = u64::from(label.checked_ilog10().unwrap_or(0) + 1);
    member_bytes(&format!("{key}.{extension}"), image_bytes) + member_bytes(&format!("{key}.cls"), label_bytes)
}

/// Bytes that `count` shards take besides their samples.
pub fn trailer_bytes(count: u64) -> u64 {
    count * TRAILER
}

fn member_bytes(name: &str, data_bytes: u64) -> u64 {
    let fits = Header::new_ustar().set_path(Path::new(name)).is_ok();
    let extended = if fits { 0 } else { BLOCK + (pax_record("path", name).len() as u64).next_multiple_of(BLOCK) };
    extended + BLOCK + data_bytes.next_multiple_of(BLOCK)
}

/// `LENGTH KEY=VALUE\n`, where LENGTH counts the whole record, itself included.
fn pax_record(key: &str, value: &str) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    format!("{length} {key}={value}\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn pax_records_count_themselves() {
        let check = |value: &str| {
            let record = pax_record("path", value);
            let text = String::from_utf8(record.clone()).unwrap();
            let (length, rest) = text.split_once(' ').unwrap();
            assert_eq!(length.parse::<usize>().unwrap(), record.len());
            assert_eq!(rest, format!("path={value}\n"));
        };
        (0..200).for_each(|length| check(&"x".repeat(length)));
        (980..1010).for_each(|length| check(&"x".repeat(length)));
    }

    #[test]
    fn members_of_any_name_come_back_and_the_forecast_holds() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = ShardWriter::create(folder.path().join("s.tar")).unwrap();
        let keys =
            ["a".to_owned(), "k/".repeat(60) + "x", "y".repeat(100), "z".repeat(300), "ключ/".repeat(30) + "снимок"];
        let mut forecast = 0;
        for (label, key) in keys.iter().enumerate() {
            let image = vec![7; label * 511];
            let label = label as u32 * 9;
            forecast += sample_bytes(key, "jpg", image.len() as u64, label);
            writer.add_sample(key, "jpg", &image, label).unwrap();
        }
        assert_eq!(writer.bytes_with(0), forecast + trailer_bytes(1));
        let written = writer.finish().unwrap();
        assert_eq!(written.file.bytes, forecast + trailer_bytes(1));
        assert_eq!(written.samples, keys.len() as u64);
        let data = std::fs::read(&written.file.path).unwrap();
        assert_eq!(data.len() as u64, written.file.bytes);
        assert_eq!(blake3::hash(&data).to_hex().to_string(), written.file.blake3);

        let mut archive = tar::Archive::new(&data[..]);
        let mut found = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let name = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            (name, content)
        });
        for (label, key) in keys.iter().enumerate() {
            assert_eq!(found.next(), Some((format!("{key}.jpg"), vec![7; label * 511])));
            assert_eq!(found.next(), Some((format!("{key}.cls"), (label * 9).to_string().into_bytes())));
        }
        assert_eq!(found.next(), None);
    }
}
