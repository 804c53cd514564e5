//! One tar header: 512 bytes to its fields. Pure; what headers mean to each other is told in [`super::walk`].
//!
//! The layouts are those of POSIX.1-1988 (ustar), of GNU tar, and of the v7 tar before them, which has no magic.

use std::fmt;

/// Headers and bodies start at multiples of this many bytes.
pub(super) const BLOCK_BYTES: u64 = 512;

/// One block.
pub(super) type Block = [u8; BLOCK_BYTES as usize];

/// What a header announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A plain file.
    File,
    /// A directory.
    Directory,
    /// Another name of an earlier member.
    HardLink,
    /// A symbolic link.
    SymbolicLink,
    /// A character or block device.
    Device,
    /// A named pipe.
    Fifo,
    /// A file with holes, in GNU's format of a map in the header.
    Sparse,
    /// The next member's name (GNU).
    LongName,
    /// The next member's link target (GNU).
    LongLink,
    /// Records for the next member (PAX).
    PaxLocal,
    /// Records for all members from here on (PAX).
    PaxGlobal,
    /// A volume label (GNU); no member.
    Label,
    /// Any other type flag.
    Other(u8),
}

impl Kind {
    /// Whether `size` bytes follow the header. Links, devices and directories have none, whatever their size field says.
    pub(super) fn has_body(self) -> bool {
        !matches!(self, Self::Directory | Self::HardLink | Self::SymbolicLink | Self::Device | Self::Fifo | Self::Label)
    }
}

/// A header's fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    /// What it announces.
    pub(super) kind: Kind,
    /// The size field.
    pub(super) size: u64,
    /// Name, with the ustar prefix in front.
    pub(super) name: Vec<u8>,
    /// Whether blocks that continue the map of a sparse file follow.
    pub(super) sparse_continues: bool,
}

/// Why 512 bytes are no header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HeaderFault {
    /// The sum of the bytes is not the one that the header states.
    Checksum {
        /// The sum that the header states, if it can be read.
        stated: Option<u64>,
        /// The sum of its bytes.
        found: u64,
    },
    /// The size field is no number.
    Size {
        /// The field.
        field: [u8; 12],
    },
}

impl fmt::Display for HeaderFault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Checksum { stated: Some(stated), found } => {
                write!(formatter, "the header states checksum {stated}, its bytes give {found}")
            }
            Self::Checksum { stated: None, .. } => formatter.write_str("the header's checksum is no number"),
            Self::Size { field } => {
                write!(formatter, "the header's size is no number: \"{}\"", field.escape_ascii())
            }
        }
    }
}

/// Reads a header, after its checksum was found right.
pub(super) fn parse(block: &Block) -> Result<Header, HeaderFault> {
    check_sum(block)?;
    let size_field: [u8; 12] = block[124..136].try_into().expect("12 bytes");
    let size = number(&size_field).ok_or(HeaderFault::Size { field: size_field })?;
    let name = name(block);
    let kind = match block[156] {
        // Before ustar, a directory was a file whose name ends with a slash.
        b'0' | 0 if name.ends_with(b"/") => Kind::Directory,
        b'0' | 0 | b'7' => Kind::File,
        b'1' => Kind::HardLink,
        b'2' => Kind::SymbolicLink,
        b'3' | b'4' => Kind::Device,
        b'5' => Kind::Directory,
        b'6' => Kind::Fifo,
        b'S' => Kind::Sparse,
        b'L' => Kind::LongName,
        b'K' => Kind::LongLink,
        b'x' | b'X' => Kind::PaxLocal,
        b'g' => Kind::PaxGlobal,
        b'V' => Kind::Label,
        other => Kind::Other(other),
    };
    Ok(Header { kind, size, name, sparse_continues: kind == Kind::Sparse && block[482] != 0 })
}

/// Whether a block that continues a sparse map is followed by another.
pub(super) fn sparse_continues(block: &Block) -> bool {
    block[504] != 0
}

/// Sums the bytes with the checksum field taken as spaces. Old tars summed signed bytes, so that sum is right too.
fn check_sum(block: &Block) -> Result<(), HeaderFault> {
    let stated = number(&block[148..156]);
    let counted = || block[..148].iter().chain(&[b' '; 8]).chain(&block[156..]);
    let unsigned: u64 = counted().map(|&byte| u64::from(byte)).sum();
    let signed: i64 = counted().map(|&byte| i64::from(byte.cast_signed())).sum();
    let fits = stated.is_some_and(|stated| stated == unsigned || i64::try_from(stated) == Ok(signed));
    if fits { Ok(()) } else { Err(HeaderFault::Checksum { stated, found: unsigned }) }
}

fn name(block: &Block) -> Vec<u8> {
    let name = until_nul(&block[..100]);
    // POSIX's magic ends with NUL; GNU's has a space there and keeps other things in the prefix field. The version
    // bytes after it are odd in some archives and say nothing.
    let prefix = if &block[257..263] == b"ustar\0" { until_nul(&block[345..500]) } else { &[] };
    if prefix.is_empty() { name.to_vec() } else { [prefix, b"/", name].concat() }
}

/// The bytes before the first NUL.
pub(super) fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// A numeric field: octal digits between spaces and NULs, or big-endian binary marked by the highest bit (GNU).
fn number(field: &[u8]) -> Option<u64> {
    if field.first()? & 0x80 != 0 {
        // 0xff starts a negative number, which no field that is read here can hold.
        let mut bytes = field.iter().copied();
        let first = u64::from(bytes.next()? & 0x7f);
        return bytes.try_fold(first, |sum, byte| sum.checked_mul(256).map(|sum| sum | u64::from(byte)));
    }
    let digits = until_nul(field).trim_ascii();
    digits.iter().try_fold(0_u64, |sum, &byte| match byte {
        b'0'..=b'7' => sum.checked_mul(8)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    })
}
