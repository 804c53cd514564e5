//! Members of an unsorted shard, brought into an order in which those of a sample follow each other.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::findings::{Finding, Findings};
use super::name;
use super::walk::Member;
use crate::spec::KeyRule;

/// Orders `members` by the first appearance of their key; those of one key keep their order. Names that have no key come
/// last. Counts the samples that were torn.
pub(super) fn by_key(members: Vec<Member>, rule: KeyRule, findings: &mut Findings) -> Vec<Member> {
    struct Sample {
        rank: usize,
        is_torn: bool,
    }
    let mut samples: HashMap<String, Sample> = HashMap::new();
    let mut last = None;
    let mut ranked: Vec<(usize, Member)> = Vec::with_capacity(members.len());
    for member in members {
        let Ok(parts) = name::split(&member.name, rule) else {
            ranked.push((usize::MAX, member));
            continue;
        };
        let next = samples.len();
        let rank = match samples.entry(parts.key) {
            Entry::Vacant(entry) => entry.insert(Sample { rank: next, is_torn: false }).rank,
            Entry::Occupied(mut entry) => {
                let sample = entry.get_mut();
                if last != Some(sample.rank) && !std::mem::replace(&mut sample.is_torn, true) {
                    findings.add(Finding::Regrouped, member.header_offset, || member.name.clone());
                }
                sample.rank
            }
        };
        last = Some(rank);
        ranked.push((rank, member));
    }
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, member)| member).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_a_key_follow_each_other() {
        let check = |names: &[&str], expected: &[&str], torn: u64| {
            let member = |name: &&str| Member {
                name: (*name).to_owned(),
                header_offset: 0,
                body_offset: 512,
                size: 1,
                has_size_record: false,
            };
            let mut findings = Findings::default();
            let ordered = by_key(names.iter().map(member).collect(), KeyRule::FirstDot, &mut findings);
            assert_eq!(ordered.iter().map(|member| member.name.as_str()).collect::<Vec<_>>(), expected);
            let counted: u64 = findings.into_counts().iter().map(|count| count.count).sum();
            assert_eq!(counted, torn, "{names:?}");
        };
        check(&[], &[], 0);
        check(&["0.jpg", "0.cls", "1.jpg"], &["0.jpg", "0.cls", "1.jpg"], 0);
        check(&["0.jpg", "1.jpg", "0.cls", "1.cls"], &["0.jpg", "0.cls", "1.jpg", "1.cls"], 2);
        check(&["b.jpg", "README", "a.jpg", "b.cls", "b.txt"], &["b.jpg", "b.cls", "b.txt", "a.jpg", "README"], 1);
    }
}
