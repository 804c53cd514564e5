//! Datasets that are joined: samples of one key become one.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Most datasets of a join: each is at least one read of its own in every row.
pub const JOIN_PARTS_MAX: usize = 4;

/// Stands in a template of keys for the key that the parts share.
const SHARED: &str = "{}";

/// Datasets that are joined.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinSpec {
    /// The parts, in the order of their shards. The samples, and their order, are those of the first.
    pub parts: Vec<JoinPartSpec>,
    /// What becomes of samples whose key another part does not have.
    #[serde(default)]
    pub unpaired: Unpaired,
}

/// One dataset of a join.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinPartSpec {
    /// Its name: its fields are called `name.field`.
    pub name: String,
    /// How many of the job's shards belong to it.
    pub shards: u32,
    /// How its keys are written, with `{}` for what the parts share, as in `{}x4`; by default they are that alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<String>,
}

/// What becomes of samples whose key another part of a join does not have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unpaired {
    /// The dataset is refused.
    #[default]
    Error,
    /// They are left out of every epoch, counted.
    Drop,
}

impl JoinPartSpec {
    /// The shared part of `key`; `None` when the key is not written as the template says.
    pub fn shared<'key>(&self, key: &'key str) -> Option<&'key str> {
        let Some(template) = &self.keys else { return Some(key) };
        let (before, after) = template.split_once(SHARED)?;
        key.strip_prefix(before)?.strip_suffix(after)
    }

    /// What `source`, as a field of the job names it, is called in this part.
    pub fn own_name<'source>(&self, source: &'source str) -> Option<&'source str> {
        source.strip_prefix(&self.name)?.strip_prefix('.').filter(|name| !name.is_empty())
    }
}

impl JoinSpec {
    /// Refuses what cannot be, with the way out; the job names `shards` shards.
    pub fn check(&self, shards: usize) -> Result<()> {
        let refuse = |message: String| Err(Error::config(message));
        if !(2..=JOIN_PARTS_MAX).contains(&self.parts.len()) {
            return refuse(format!("a join has 2 to {JOIN_PARTS_MAX} parts, got {}", self.parts.len()));
        }
        let mut names = HashSet::new();
        for JoinPartSpec { name, keys, .. } in &self.parts {
            let is_plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-');
            if name.is_empty() || !name.bytes().all(is_plain) {
                return refuse(format!(
                    "part {name:?} of the join: a name is of the letters a to z, digits, _ and -, as its fields are called \
                     name.field"
                ));
            }
            if !names.insert(name) {
                return refuse(format!("the join has two parts of the name {name:?}"));
            }
            if let Some(keys) = keys.as_ref().filter(|keys| keys.matches(SHARED).count() != 1) {
                return refuse(format!(
                    "part {name:?} of the join: a template of keys has {SHARED} once, for what the parts share, as in \
                     \"{SHARED}x4\"; got {keys:?}"
                ));
            }
        }
        let named: u64 = self.parts.iter().map(|part| u64::from(part.shards)).sum();
        if named != shards as u64 || self.parts.iter().any(|part| part.shards == 0) {
            return refuse(format!(
                "the parts of the join have {named} shards, at least one each, and the job names {shards}"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str, keys: Option<&str>) -> JoinPartSpec {
        JoinPartSpec { name: name.into(), shards: 1, keys: keys.map(str::to_owned) }
    }

    #[test]
    fn keys_are_cut_by_the_template() {
        let check = |keys: Option<&str>, key: &str, expected: Option<&str>| {
            assert_eq!(part("lq", keys).shared(key), expected, "{keys:?} {key}");
        };
        check(None, "a/b", Some("a/b"));
        check(Some("{}x4"), "0001x4", Some("0001"));
        check(Some("{}x4"), "0001", None);
        check(Some("lq/{}_s"), "lq/1_s", Some("1"));
        check(Some("ab{}ba"), "aba", None);
    }

    #[test]
    fn fields_go_by_the_name_of_their_part() {
        let check = |source: &str, expected: Option<&str>| assert_eq!(part("gt", None).own_name(source), expected);
        check("gt.png", Some("png"));
        check("gt.left.png", Some("left.png"));
        check("gt", None);
        check("gt.", None);
        check("gtx.png", None);
        check("lq.png", None);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let check = |parts: Vec<JoinPartSpec>, shards: usize, words: &str| {
            let error = JoinSpec { parts, unpaired: Unpaired::Error }.check(shards).expect_err(words).to_string();
            assert!(error.contains(words), "{error}");
        };
        check(vec![part("a", None)], 1, "2 to 4 parts");
        check(vec![part("a", None), part("a", None)], 2, "two parts of the name");
        check(vec![part("a", None), part("B", None)], 2, "letters a to z");
        check(vec![part("a", None), part("", None)], 2, "letters a to z");
        check(vec![part("a", None), part("b", Some("x4"))], 2, "has {} once");
        check(vec![part("a", None), part("b", None)], 3, "the job names 3");
        JoinSpec { parts: vec![part("a", None), part("b-2", Some("{}x4"))], unpaired: Unpaired::Drop }
            .check(2)
            .expect("sound");
    }
}
