//! One branch or leaf page of an LMDB tree: every number in it is checked before it is used. Pure.

use super::meta::PAGE_HEAD_BYTES;

const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const KINDS: u16 = 0x01 | 0x02 | 0x04 | 0x08 | 0x20 | 0x40;
const NODE_HEAD_BYTES: usize = 8;

/// The value lies on pages of its own; the node has their number.
const ON_OWN_PAGES: u16 = 0x01;
/// The value is the record of a database.
const SUB_DATABASE: u16 = 0x02;
/// The value is a set of values.
const DUPLICATES: u16 = 0x04;

/// What a page must be, by its level in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Branch,
    Leaf,
}

/// A page whose head and pointers are sound.
#[derive(Debug, Clone, Copy)]
pub(super) struct Page<'a> {
    bytes: &'a [u8],
    nodes: usize,
    upper: usize,
}

/// A node of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LeafNode<'a> {
    pub(super) key: &'a [u8],
    pub(super) value: Value<'a>,
}

/// Where a leaf's value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value<'a> {
    /// In the page, at `offset` of it.
    Here { offset: usize, bytes: &'a [u8] },
    /// On pages of its own.
    Pages { first: u64, len: u32 },
    /// The record of a database inside the database.
    Database(&'a [u8]),
    /// Several values.
    Duplicates,
}

impl<'a> Page<'a> {
    /// Checks the head of page `number`.
    pub(super) fn new(bytes: &'a [u8], number: u64, kind: Kind) -> Result<Self, String> {
        let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        if bytes.len() < PAGE_HEAD_BYTES {
            return Err("the file ends in it".into());
        }
        let found = u64::from_ne_bytes(bytes[..8].try_into().expect("8 bytes"));
        if found != number {
            return Err(format!("it says that it is page {found}"));
        }
        let (flags, wanted) = (half(10) & KINDS, if kind == Kind::Branch { BRANCH } else { LEAF });
        if flags != wanted {
            let name = if kind == Kind::Branch { "branch" } else { "leaf" };
            return Err(format!("it is no {name} page (flags {flags:#x})"));
        }
        let (lower, upper) = (usize::from(half(12)), usize::from(half(14)));
        if lower < PAGE_HEAD_BYTES || lower > upper || upper > bytes.len() || lower % 2 != 0 {
            return Err(format!("its free space is from byte {lower} to {upper} of {}", bytes.len()));
        }
        Ok(Self { bytes, nodes: (lower - PAGE_HEAD_BYTES) / 2, upper })
    }

    /// How many nodes there are.
    pub(super) fn node_count(&self) -> usize {
        self.nodes
    }

    /// A child of a branch.
    pub(super) fn child(&self, node: usize) -> Result<u64, String> {
        let (_, head) = self.node(node)?;
        let half = |at: usize| u64::from(u16::from_ne_bytes([head[at], head[at + 1]]));
        Ok(half(0) | half(2) << 16 | half(4) << 32)
    }

    /// A node of a leaf.
    pub(super) fn leaf(&self, node: usize) -> Result<LeafNode<'a>, String> {
        let (start, head) = self.node(node)?;
        let half = |at: usize| u16::from_ne_bytes([head[at], head[at + 1]]);
        let len = u32::from(half(0)) | u32::from(half(2)) << 16;
        let (flags, key_bytes) = (half(4), usize::from(half(6)));
        let key_at = start + NODE_HEAD_BYTES;
        let key = self.bytes.get(key_at..key_at + key_bytes);
        let key = key.ok_or_else(|| format!("node {node}: a key of {key_bytes} bytes passes the end of the page"))?;
        let value_at = key_at + key_bytes;
        let here = |len: usize| {
            let value = value_at.checked_add(len).and_then(|end| self.bytes.get(value_at..end));
            value.ok_or_else(|| format!("node {node}: a value of {len} bytes passes the end of the page"))
        };
        let value = match flags {
            0 => {
                let bytes = here(len as usize)?;
                Value::Here { offset: value_at, bytes }
            }
            ON_OWN_PAGES => {
                let first = u64::from_ne_bytes(here(8)?.try_into().expect("8 bytes"));
                Value::Pages { first, len }
            }
            SUB_DATABASE => Value::Database(here(len as usize)?),
            _ if flags & DUPLICATES != 0 && flags & !(DUPLICATES | SUB_DATABASE) == 0 => Value::Duplicates,
            _ => return Err(format!("node {node}: flags {flags:#x} that no version of the format has")),
        };
        Ok(LeafNode { key, value })
    }

    /// Where a node starts, and its head.
    fn node(&self, node: usize) -> Result<(usize, &'a [u8; NODE_HEAD_BYTES]), String> {
        let at = PAGE_HEAD_BYTES + node * 2;
        debug_assert!(node < self.nodes);
        let start = usize::from(u16::from_ne_bytes([self.bytes[at], self.bytes[at + 1]]));
        let head = self.bytes.get(start..).and_then(<[u8]>::first_chunk).filter(|_| start >= self.upper);
        head.map(|head| (start, head)).ok_or_else(|| format!("node {node} is said to be at byte {start}"))
    }
}
