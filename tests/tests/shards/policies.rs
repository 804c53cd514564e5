//! What happens to odd shards is the user's choice, and is counted.

use feedline_loader::shard::{Dataset, Finding, IndexOptions};
use feedline_loader::spec::{Damaged, DatasetRules, Duplicates, KeyRule, Unsorted};

use super::bench::*;

fn open(bench: &Bench, name: &str, rules: DatasetRules) -> Dataset {
    let options = IndexOptions { rules, ..bench.options() };
    Dataset::open(&[bench.at(name)], &options, &|_| {}).expect("the rules allow it")
}

#[test]
fn of_two_members_for_one_field_the_rule_says_which_counts() {
    let bench = Bench::new();
    bench.write(
        "d.tar",
        &[("0.jpg", b"first"), ("0.jpg", b"last!!"), ("0.cls", b"0"), ("1.jpg", b"one"), ("1.cls", b"1")],
    );
    let one = sample("1", &[("cls", b"1"), ("jpg", b"one")]);
    let check = |duplicates, zero: Option<Sample>, finding| {
        let dataset = open(&bench, "d.tar", DatasetRules { duplicates, ..DatasetRules::default() });
        let expected: Vec<Sample> = zero.into_iter().chain([one.clone()]).collect();
        assert_eq!(samples(&dataset), expected, "{duplicates:?}");
        assert_eq!(findings(&dataset, 0), [(finding, 1)], "{duplicates:?}");
        let bytes = |field: &str| {
            let summary = dataset.shard_summary(0, 0);
            summary
                .fields
                .iter()
                .find(|count| count.name == field)
                .map(|count| (count.samples, count.bytes))
                .expect("there")
        };
        let all = expected.iter().map(|(_, fields)| fields["jpg"].len() as u64).sum();
        assert_eq!(bytes("jpg"), (expected.len() as u64, all), "{duplicates:?}");
    };
    check(Duplicates::First, Some(sample("0", &[("cls", b"0"), ("jpg", b"first")])), Finding::DuplicateMember);
    check(Duplicates::Last, Some(sample("0", &[("cls", b"0"), ("jpg", b"last!!")])), Finding::DuplicateMember);
    check(Duplicates::DropSample, None, Finding::DroppedSample);
    assert!(refused(&bench, "d.tar", "duplicates=") > 0);
}

#[test]
fn torn_samples_are_joined_when_asked() {
    let bench = Bench::new();
    bench.write("t.tar", &[("0.jpg", b"a"), ("1.jpg", b"b"), ("0.cls", b"0"), ("1.cls", b"1"), ("2.jpg", b"c")]);
    let dataset = open(&bench, "t.tar", DatasetRules { unsorted: Unsorted::Regroup, ..DatasetRules::default() });
    let expected = [
        sample("0", &[("cls", b"0"), ("jpg", b"a")]),
        sample("1", &[("cls", b"1"), ("jpg", b"b")]),
        sample("2", &[("jpg", b"c")]),
    ];
    assert_eq!(samples(&dataset), expected);
    assert_eq!(findings(&dataset, 0), [(Finding::Regrouped, 2)]);
    assert!(refused(&bench, "t.tar", "unsorted=") > 0);
}

#[test]
fn names_may_be_cut_at_the_last_dot() {
    let bench = Bench::new();
    bench.write("k.tar", &[("v1.0/a.b.jpg", b"a"), ("v1.0/a.b.cls", b"0"), ("v1.0/a.c.jpg", b"c")]);
    let dataset = open(&bench, "k.tar", DatasetRules { key_rule: KeyRule::LastDot, ..DatasetRules::default() });
    let expected = [sample("v1.0/a.b", &[("cls", b"0"), ("jpg", b"a")]), sample("v1.0/a.c", &[("jpg", b"c")])];
    assert_eq!(samples(&dataset), expected);
}

#[test]
fn what_lies_before_damage_is_used_when_asked() {
    let bench = Bench::new();
    let whole =
        archive(&[("0.jpg", &[7; 700]), ("0.cls", b"0"), ("1.jpg", &[8; 2000]), ("1.cls", b"1"), ("2.jpg", b"2")]);
    let zero = sample("0", &[("cls", b"0"), ("jpg", &[7; 700])]);
    let check = |name: &str, bytes: &[u8], expected: &[Sample], found: &[(Finding, u64)]| {
        std::fs::write(bench.at(name), bytes).expect("written");
        for unsorted in [Unsorted::Error, Unsorted::Regroup] {
            let rules = DatasetRules { damaged: Damaged::SkipRest, unsorted, ..DatasetRules::default() };
            let options = IndexOptions { rules, ..bench.options() };
            bench.write("good.tar", &[("9.jpg", b"9")]);
            let dataset =
                Dataset::open(&[bench.at(name), bench.at("good.tar")], &options, &|_| {}).expect("some are good");
            let good = sample("9", &[("jpg", b"9")]);
            if unsorted == Unsorted::Error {
                let all: Vec<Sample> = expected.iter().cloned().chain([good]).collect();
                assert_eq!(samples(&dataset), all, "{name}");
                assert_eq!(findings(&dataset, 0), found, "{name}");
            }
            assert!(
                dataset.notices().iter().any(|notice| notice.contains("damaged shards")),
                "{:?}",
                dataset.notices()
            );
        }
        assert!(bench.open(&[name]).is_err(), "{name}");
    };
    // Header and padded body of both members of sample 0, then the header of 1.jpg and 700 bytes of it.
    let cut = 512 + 1024 + 512 + 512 + 512 + 700;
    check("cut.tar", &whole[..cut], std::slice::from_ref(&zero), &[(Finding::RestSkipped, 1)]);
    // Cut in the header of 1.cls: sample 1 may have lost it.
    let in_header = 512 + 1024 + 512 + 512 + 512 + 2048 + 100;
    check(
        "header.tar",
        &whole[..in_header],
        std::slice::from_ref(&zero),
        &[(Finding::RestSkipped, 1), (Finding::CutSample, 1)],
    );
    let mut flipped = whole.clone();
    flipped[512 + 1024 + 512 + 512 + 5] ^= 0xff;
    check("flipped.tar", &flipped, &[], &[(Finding::NoSamples, 1), (Finding::RestSkipped, 1), (Finding::CutSample, 1)]);
    check("empty.tar", b"", &[], &[(Finding::NoSamples, 1), (Finding::RestSkipped, 1)]);
    check("text.tar", b"no tar at all", &[], &[(Finding::NoSamples, 1), (Finding::RestSkipped, 1)]);
}

#[test]
fn indexes_of_other_rules_are_other_indexes() {
    let bench = Bench::new();
    bench.write("d.tar", &[("0.x.jpg", b"first"), ("0.y.jpg", b"last")]);
    let count = |key_rule| open(&bench, "d.tar", DatasetRules { key_rule, ..DatasetRules::default() }).sample_count();
    assert_eq!((count(KeyRule::FirstDot), count(KeyRule::LastDot), count(KeyRule::FirstDot)), (1, 2, 1));
}
