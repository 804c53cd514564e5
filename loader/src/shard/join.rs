//! Datasets joined by key, when they are opened: which sample of each other part belongs to a sample of the first.
//!
//! Keys are compared both ways. What only some parts have is refused, or left out by rule; in either case it is counted
//! and named.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use crate::error::{Error, Result};
use crate::plan::SampleId;
use crate::spec::{JoinPartSpec, JoinSpec, Unpaired};

/// Marks a sample of the first part that another part has no sample for.
const NO_PARTNER: u64 = u64::MAX;

/// Keys that a message names; the others are counted.
const NAMED_MAX: usize = 3;

/// A join that is made.
#[derive(Debug)]
pub(super) struct Join {
    spec: JoinSpec,
    /// Per part but the first, per sample of the first, the number of the partner.
    partners: Vec<Vec<u64>>,
    /// Samples of the first part that lack a partner, ascending.
    unpaired: Vec<u64>,
    /// What was left out.
    pub(super) notice: Option<String>,
}

/// Keys that one part has and another has not.
#[derive(Default)]
struct Lone {
    count: u64,
    first: Vec<String>,
}

impl Lone {
    fn add(&mut self, key: &str) {
        self.count += 1;
        if self.first.len() < NAMED_MAX {
            self.first.push(key.to_owned());
        }
    }

    /// Appends words such as `gt has 2 of 10 keys that lq lacks: "a", "b"`.
    fn tell(&self, has: &str, of: u64, lacks: &str, words: &mut String) {
        if self.count == 0 {
            return;
        }
        let more = if self.count > self.first.len() as u64 { ", …" } else { "" };
        let named = self.first.iter().map(|key| format!("{key:?}")).collect::<Vec<_>>().join(", ");
        let separator = if words.is_empty() { "" } else { "; " };
        let _ = write!(words, "{separator}{has} has {} of {of} keys that {lacks} lacks: {named}{more}", self.count);
    }
}

impl Join {
    /// Joins parts by `keys`: for each, the numbers of its samples with their keys; those of the first from 0 on.
    pub(super) fn new<'a, K>(spec: &JoinSpec, keys: Vec<K>) -> Result<Self>
    where
        K: Iterator<Item = (u64, &'a str)> + Clone,
    {
        let mut parts = spec.parts.iter().zip(keys);
        let Some((first, first_keys)) = parts.next() else {
            return Err(Error::config("a join needs parts"));
        };
        let (mut partners, mut unpaired, mut words) = (Vec::new(), Vec::new(), String::new());
        for (part, keys) in parts {
            let found = pair((first, first_keys.clone()), (part, keys), &mut words)?;
            unpaired.extend((0..).zip(&found).filter(|(_, partner)| **partner == NO_PARTNER).map(|(sample, _)| sample));
            partners.push(found);
        }
        unpaired.sort_unstable();
        unpaired.dedup();
        let total = partners.first().map_or(0, Vec::len);
        if words.is_empty() {
            return Ok(Self { spec: spec.clone(), partners, unpaired, notice: None });
        }
        let names = spec.parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>().join(", ");
        let refuse =
            |what: &str, way: &str| Err(Error::config(format!("the join of {names}: {what} ({words}): {way}")));
        if unpaired.len() == total {
            return refuse("no key is in all parts", "give keys= with the template by which a part's keys are written");
        }
        if spec.unpaired == Unpaired::Error {
            return refuse(
                "the parts do not have the same keys",
                "complete them, or use what all parts have by unpaired=\"drop\"",
            );
        }
        let notice = format!(
            "unpaired=\"drop\": {} of {total} samples lack a part of the join of {names} and are left out of every epoch; \
             {words}",
            unpaired.len()
        );
        Ok(Self { spec: spec.clone(), partners, unpaired, notice: Some(notice) })
    }

    /// The parts.
    pub(super) fn parts(&self) -> &[JoinPartSpec] {
        &self.spec.parts
    }

    /// The sample of part number `part`, not the first, that belongs to `sample` of the first.
    pub(super) fn partner(&self, part: usize, sample: SampleId) -> Option<SampleId> {
        let partner = self.partners[part - 1][usize::try_from(sample.0).expect("fits, as the partners do")];
        (partner != NO_PARTNER).then_some(SampleId(partner))
    }

    /// Samples of the first part that lack a partner, ascending.
    pub(super) fn unpaired(&self) -> &[u64] {
        &self.unpaired
    }
}

/// For each sample of `first`, that of `part` with its key. What finds no partner is told in `words`.
fn pair<'a>(
    (first, first_keys): (&JoinPartSpec, impl Iterator<Item = (u64, &'a str)>),
    (part, keys): (&JoinPartSpec, impl Iterator<Item = (u64, &'a str)>),
    words: &mut String,
) -> Result<Vec<u64>> {
    let twice = |part: &JoinPartSpec, key: &str, other: &str| {
        Error::config(format!(
            "part {:?} of the join has the key {key:?} twice (written {other:?}), and keys of a join are unique: remove one \
             of the two samples",
            part.name
        ))
    };
    let (mut by_key, mut strays, mut total) = (HashMap::new(), Lone::default(), 0);
    for (number, key) in keys {
        total += 1;
        match part.shared(key) {
            Some(shared) => {
                if by_key.insert(shared, (number, key)).is_some() {
                    return Err(twice(part, shared, key));
                }
            }
            None => strays.add(key),
        }
    }
    let mut partners = Vec::new();
    let mut lone = Lone::default();
    let mut is_used = HashSet::with_capacity(by_key.len());
    for (_, key) in first_keys {
        let found = first.shared(key).and_then(|shared| by_key.get_key_value(shared));
        let Some((&shared, &(number, _))) = found else {
            lone.add(key);
            partners.push(NO_PARTNER);
            continue;
        };
        if !is_used.insert(number) {
            return Err(twice(first, shared, key));
        }
        partners.push(number);
    }
    lone.tell(&first.name, partners.len() as u64, &part.name, words);
    let mut left: Vec<(u64, &str)> = by_key.into_values().filter(|(number, _)| !is_used.contains(number)).collect();
    left.sort_unstable();
    left.iter().for_each(|(_, key)| strays.add(key));
    strays.tell(&part.name, total, &first.name, words);
    Ok(partners)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn spec(unpaired: Unpaired, templates: &[Option<&str>]) -> JoinSpec {
        let part = |(number, keys): (usize, &Option<&str>)| JoinPartSpec {
            name: ["lq", "gt", "mask"][number].into(),
            shards: 1,
            keys: keys.map(str::to_owned),
        };
        JoinSpec { parts: templates.iter().enumerate().map(part).collect(), unpaired }
    }

    fn joined(spec: &JoinSpec, keys: &[&[&str]]) -> Result<Join> {
        let mut next = 0;
        let mut numbered = Vec::new();
        for part in keys {
            let numbers: Vec<(u64, &str)> = (next..).zip(part.iter().copied()).collect();
            next += part.len() as u64;
            numbered.push(numbers.into_iter());
        }
        Join::new(spec, numbered)
    }

    #[test]
    fn partners_are_found_by_key_whatever_their_order() {
        let join =
            joined(&spec(Unpaired::Error, &[None, None, Some("{}_m")]), &[&["a", "b"], &["b", "a"], &["a_m", "b_m"]])
                .expect("all keys are everywhere");
        let partners = |sample| [1, 2].map(|part| join.partner(part, SampleId(sample)).expect("paired").0);
        assert_eq!((partners(0), partners(1)), ([3, 4], [2, 5]));
        assert!(join.unpaired().is_empty() && join.notice.is_none());
    }

    #[test]
    fn what_is_unpaired_is_refused_or_left_out_and_named() {
        let keys: [&[&str]; 2] = [&["a", "b", "c"], &["c", "d", "a"]];
        let told = "lq has 1 of 3 keys that gt lacks: \"b\"; gt has 1 of 3 keys that lq lacks: \"d\"";
        let error = joined(&spec(Unpaired::Error, &[None, None]), &keys).expect_err("b and d are alone").to_string();
        assert!(error.contains(told) && error.contains("unpaired=\"drop\""), "{error}");
        let join = joined(&spec(Unpaired::Drop, &[None, None]), &keys).expect("by rule");
        assert_eq!(join.unpaired(), [1]);
        assert_eq!(
            [0, 1, 2].map(|sample| join.partner(1, SampleId(sample))),
            [Some(SampleId(5)), None, Some(SampleId(3))]
        );
        assert!(join.notice.expect("told").contains(told));
    }

    #[test]
    fn joins_that_cannot_be() {
        let check = |rule, templates: &[Option<&str>], keys: &[&[&str]], words: &str| {
            let error = joined(&spec(rule, templates), keys).expect_err(words).to_string();
            assert!(error.contains(words), "{error}");
        };
        check(Unpaired::Drop, &[None, None], &[&["a"], &["ax4"]], "give keys=");
        check(Unpaired::Drop, &[None, None], &[&["a"], &["a", "a"]], "part \"gt\" of the join has the key \"a\" twice");
        check(Unpaired::Drop, &[None, None], &[&["a", "a"], &["a"]], "part \"lq\" of the join has the key \"a\" twice");
        let many: Vec<String> = (0..9).map(|number| format!("k{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        check(
            Unpaired::Error,
            &[None, None],
            &[&many, &["k0"]],
            "has 8 of 9 keys that gt lacks: \"k1\", \"k2\", \"k3\", …",
        );
    }

    proptest! {
        #[test]
        fn every_pair_has_one_key(first: std::collections::BTreeSet<u8>, second: std::collections::BTreeSet<u8>) {
            let [one, two] = [&first, &second].map(|keys| keys.iter().map(u8::to_string).collect::<Vec<_>>());
            let keys = [&one, &two].map(|keys| keys.iter().rev().map(String::as_str).collect::<Vec<_>>());
            match joined(&spec(Unpaired::Drop, &[None, None]), &[&keys[0], &keys[1]]) {
                Ok(join) => {
                    for (sample, key) in (0..).zip(&keys[0]) {
                        let partner = join.partner(1, SampleId(sample));
                        let found = partner.map(|partner| keys[1][partner.0 as usize - keys[0].len()]);
                        prop_assert_eq!(found, keys[1].contains(key).then_some(*key));
                        prop_assert_eq!(join.unpaired().contains(&sample), found.is_none());
                    }
                }
                Err(_) => prop_assert!(first.is_disjoint(&second)),
            }
        }
    }
}
