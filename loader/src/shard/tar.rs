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

/// The header in `block` with another size and the checksum that goes with it. Everything else stays.
pub(super) fn resized(block: &Block, size: u64) -> Block {
    let digits = format!("{size:011o}\0");
    assert!(digits.len() == 12, "{size} bytes are more than a size field holds");
    let mut block = *block;
    block[124..136].copy_from_slice(digits.as_bytes());
    block[148..156].fill(b' ');
    let sum: u64 = block.iter().map(|&byte| u64::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
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

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A ustar header with a right checksum.
    pub(in super::super) fn header(name: &str, flag: u8, size: u64) -> Block {
        let mut block = [0; 512];
        block[..name.len()].copy_from_slice(name.as_bytes());
        block[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
        block[156] = flag;
        block[257..265].copy_from_slice(b"ustar\x0000");
        sealed(block)
    }

    /// `block` with its checksum put right.
    pub(in super::super) fn sealed(mut block: Block) -> Block {
        block[148..156].fill(b' ');
        let sum: u64 = block.iter().map(|&byte| u64::from(byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        block
    }

    fn changed(change: impl FnOnce(&mut Block)) -> Result<Header, HeaderFault> {
        let mut block = header("a.jpg", b'0', 5);
        change(&mut block);
        parse(&sealed(block))
    }

    #[test]
    fn flags_give_kinds() {
        let check = |name: &str, flag: u8, kind: Kind| {
            assert_eq!(parse(&header(name, flag, 0)).expect("sound").kind, kind);
        };
        check("a", b'0', Kind::File);
        check("a", 0, Kind::File);
        check("a", b'7', Kind::File);
        check("a/", 0, Kind::Directory);
        check("a/", b'5', Kind::Directory);
        check("a", b'1', Kind::HardLink);
        check("a", b'2', Kind::SymbolicLink);
        check("a", b'4', Kind::Device);
        check("a", b'6', Kind::Fifo);
        check("a", b'S', Kind::Sparse);
        check("a", b'x', Kind::PaxLocal);
        check("a", b'g', Kind::PaxGlobal);
        check("a", b'L', Kind::LongName);
        check("a", b'M', Kind::Other(b'M'));
    }

    #[test]
    fn names_have_a_prefix_in_ustar_only() {
        let name = |change: fn(&mut Block)| changed(change).expect("sound").name;
        assert_eq!(name(|block| block[345..348].copy_from_slice(b"a/b")), b"a/b/a.jpg");
        assert_eq!(name(|block| block[..100].fill(b'n')), [b'n'; 100]);
        // The version bytes say nothing.
        assert_eq!(name(|block| block[263..265].fill(b'?')), b"a.jpg");
        // GNU keeps times in the prefix field.
        let gnu = |block: &mut Block| {
            block[257..265].copy_from_slice(b"ustar  \0");
            block[345..348].copy_from_slice(b"123");
        };
        assert_eq!(name(gnu), b"a.jpg");
        // v7 has no magic.
        assert_eq!(name(|block| block[257..265].fill(0)), b"a.jpg");
    }

    #[test]
    fn numbers_are_octal_or_binary() {
        let check = |field: &[u8], expected: Option<u64>| assert_eq!(number(field), expected, "{field:?}");
        check(b"00000000017\0", Some(15));
        check(b"        17 \0", Some(15));
        check(b"777777777777", Some(0o777_777_777_777));
        check(b"\0\0\0\0\0\0\0\0\0\0\0\0", Some(0));
        check(b"0000000008 \0", None);
        check(b"-0000000001\0", None);
        check(b"\x80\0\0\0\0\0\0\x02\0\0\0\x01", Some((2 << 32) + 1));
        check(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", None);
        check(b"\x81\0\0\0\0\0\0\0\0\0\0\0", None);
    }

    #[test]
    fn either_checksum_is_right() {
        let mut block = header("gr\u{f6}\u{df}e.jpg", b'0', 5);
        assert!(parse(&block).is_ok());
        let signed: i32 = block[..148].iter().chain(&block[156..]).map(|&byte| i32::from(byte.cast_signed())).sum();
        block[148..156].copy_from_slice(format!("{:06o}\0 ", signed + 8 * 32).as_bytes());
        assert!(parse(&block).is_ok());
        block[0] ^= 1;
        assert!(matches!(parse(&block), Err(HeaderFault::Checksum { stated: Some(_), .. })));
        block[148..156].fill(b'x');
        assert!(matches!(parse(&block), Err(HeaderFault::Checksum { stated: None, .. })));
        assert!(matches!(changed(|block| block[124] = b'x'), Err(HeaderFault::Size { .. })));
    }

    #[test]
    fn a_resized_header_is_the_same_but_for_its_size() {
        let mut block = header("a/b.jpg", b'0', 0o1234567);
        block[100..108].copy_from_slice(b"0000640\0");
        block = sealed(block);
        let smaller = resized(&block, 99);
        assert_eq!(parse(&smaller).expect("sound"), Header { size: 99, ..parse(&block).expect("sound") });
        assert_eq!(resized(&smaller, 0o1234567), block);
        let kept = |block: &Block| [&block[..124], &block[136..148], &block[156..]].concat();
        assert_eq!(kept(&smaller), kept(&block));
    }

    proptest! {
        #[test]
        fn no_block_panics(bytes in proptest::collection::vec(any::<u8>(), 512)) {
            let mut block: Block = bytes.try_into().expect("512 bytes");
            let _ = parse(&block);
            // Most damage would stop at the checksum.
            block = sealed(block);
            if let Err(fault) = parse(&block) {
                prop_assert!(!fault.to_string().is_empty());
            }
        }
    }
}
