//! Which convention a database follows: found from its keys and a few of its values, or named by the user.

use std::io;
use std::path::{Path, PathBuf};

use super::super::window::ReadAt;
use super::keys::Keys;
use super::walk::read_up_to;
use crate::decode::unwrap::Wrapper;
use crate::error::{Error, Result};
use crate::spec::Profile;

/// Values that are looked at.
const LOOKS: usize = 8;

/// Bytes of a value that are looked at.
const LOOK_BYTES: usize = 512;

/// List of images beside the data file.
const META_FILE: &str = "meta_info.txt";

/// A found profile, and why.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) profile: Profile,
    pub(super) reason: String,
}

/// The list of images beside the database at `path`, if there is one.
pub(super) fn meta_file(path: &Path) -> Option<PathBuf> {
    Some(path.with_file_name(META_FILE)).filter(|path| path.is_file())
}

impl Profile {
    /// Its name, as users write it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Plain => "plain",
            Self::TextRecognition => "text-recognition",
            Self::SuperResolution => "super-resolution",
            Self::Datum => "datum",
            Self::Lsun => "lsun",
            Self::Folder => "folder",
            Self::LengthKeys => "length-keys",
            Self::OpenCatalyst => "open-catalyst",
        }
    }
}

/// Finds the profile of the database at `path`, unless `asked` names it. Open Catalyst's is refused in either case.
pub(super) fn find<S: ReadAt + ?Sized>(path: &Path, source: &S, keys: &Keys, asked: Profile) -> Result<Found> {
    let heads = look(source, keys).map_err(|error| Error::io("read", path, error))?;
    let found = match asked {
        Profile::Auto => detect(path, keys, &heads),
        named => Found { profile: named, reason: "as asked for".into() },
    };
    if found.profile == Profile::OpenCatalyst {
        return Err(Error::config(format!(
            "{}: a database of Open Catalyst ({}): its values are pickled or packed graphs of atoms, and pickles are never \
             run here; read it with fairchem's own loader, or write its arrays as .npy members of tar shards",
            path.display(),
            found.reason
        )));
    }
    Ok(found)
}

/// The first bytes of some values, spread over the keys.
fn look<S: ReadAt + ?Sized>(source: &S, keys: &Keys) -> io::Result<Vec<Vec<u8>>> {
    let count = keys.records.len();
    let places = (0..LOOKS.min(count)).map(|place| place * count / LOOKS.min(count));
    let head = |place: usize| {
        let record = &keys.records[place];
        let mut head = vec![0; LOOK_BYTES.min(record.len as usize)];
        let filled = read_up_to(source, &mut head, record.offset)?;
        head.truncate(filled);
        Ok(head)
    };
    places.map(head).collect()
}

fn detect(path: &Path, keys: &Keys, heads: &[Vec<u8>]) -> Found {
    let found = |profile, reason: String| Found { profile, reason };
    let has_key = |name: &[u8]| keys.records.iter().any(|record| keys.key(record) == name);
    let of_graphs = |head: &&Vec<u8>| head.windows(15).any(|window| window == b"torch_geometric");
    if heads.iter().any(|head| of_graphs(&head)) {
        return found(Profile::OpenCatalyst, "values are pickles of torch_geometric".into());
    }
    if has_key(b"nextid") && has_key(b"metadata") {
        return found(Profile::OpenCatalyst, "it has the keys nextid and metadata, as ASE writes them".into());
    }
    if keys.reserved("num-samples").is_some() && keys.records.iter().any(|record| numbered(keys.key(record)).is_some())
    {
        return found(Profile::TextRecognition, "it has num-samples and keys such as image-000000001".into());
    }
    if let Some(meta_file) = meta_file(path) {
        return found(Profile::SuperResolution, format!("{} lists its images", meta_file.display()));
    }
    let looked = heads.len();
    let count = |wanted: &[Wrapper]| heads.iter().filter(|head| wanted.contains(&Wrapper::of(head))).count();
    let seen = |wrapped: usize, what: &str| format!("{wrapped} of {looked} values looked at are {what}");
    let tuples = count(&[Wrapper::Pickle, Wrapper::Msgpack, Wrapper::Arrow]);
    let (datums, images) = (count(&[Wrapper::Datum]), count(&[Wrapper::Image]));
    if tuples * 2 > looked {
        return found(Profile::Folder, seen(tuples, "serialised tuples"));
    }
    if datums * 2 > looked {
        return found(Profile::Datum, seen(datums, "Caffe Datums"));
    }
    if keys.reserved("length").is_some() || keys.reserved("__len__").is_some() {
        return found(Profile::LengthKeys, format!("it states its length; {}", seen(images, "images")));
    }
    let is_hash = |key: &[u8]| key.len() == 40 && key.iter().all(u8::is_ascii_hexdigit);
    if looked > 0 && images * 2 > looked && keys.records.iter().all(|record| is_hash(keys.key(record))) {
        return found(Profile::Lsun, format!("keys are hashes; {}", seen(images, "images")));
    }
    found(Profile::Plain, seen(images, "images"))
}

/// Parts a key such as `image-000000001` or `256-00012` into what it is and the number that it belongs to.
pub(super) fn numbered(key: &[u8]) -> Option<(&[u8], u64)> {
    let dash = key.iter().rposition(|&byte| byte == b'-')?;
    let digits = &key[dash + 1..];
    let is_number = dash > 0 && !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
    is_number.then_some((&key[..dash], number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbered_keys() {
        let check = |key: &str, expected: Option<(&str, u64)>| {
            let expected = expected.map(|(name, number)| (name.as_bytes(), number));
            assert_eq!(numbered(key.as_bytes()), expected, "{key}");
        };
        check("image-000000001", Some(("image", 1)));
        check("a-b-2", Some(("a-b", 2)));
        check("-2", None);
        check("image-", None);
        check("image-x", None);
        check("image-99999999999999999999999", None);
        check("17", None);
    }

    #[test]
    fn profiles_are_found_by_keys_and_values() {
        let check = |pairs: &[(&str, &[u8])], expected: Profile| {
            let (mut keys, mut file) = (Keys::default(), Vec::new());
            for (key, value) in pairs {
                keys.add(key.as_bytes(), file.len() as u64, u32::try_from(value.len()).expect("short"));
                file.extend_from_slice(value);
            }
            let heads = look(&file[..], &keys).expect("read");
            assert_eq!(detect(Path::new("/none/data.mdb"), &keys, &heads).profile, expected, "{pairs:?}");
        };
        let (jpeg, pickle) = (&b"\xff\xd8\xff\xe0...."[..], &b"\x80\x04K\x05."[..]);
        check(&[("a", jpeg), ("b", jpeg)], Profile::Plain);
        check(&[("a", b"x")], Profile::Plain);
        check(&[], Profile::Plain);
        check(&[("image-000000001", jpeg), ("label-000000001", b"a"), ("num-samples", b"1")], Profile::TextRecognition);
        check(&[("0", pickle), ("1", pickle), ("__len__", pickle)], Profile::Folder);
        check(&[("0", b"\x92\xc4\x01a\x05"), ("1", jpeg), ("2", b"\x92\xc4\x01a\x05")], Profile::Folder);
        check(&[("0", &[0x08, 3, 0x10, 2, 0x18, 4, 0x22, 0x18])], Profile::Datum);
        check(&[("0", jpeg), ("length", b"1")], Profile::LengthKeys);
        check(&[("0123456789abcdef0123456789abcdef01234567", jpeg)], Profile::Lsun);
        check(&[("0", b"\x80\x04\x8c\x19torch_geometric.data.data\x94.")], Profile::OpenCatalyst);
        check(&[("1", b"x"), ("metadata", b"x"), ("nextid", b"2")], Profile::OpenCatalyst);
    }
}
