//! Pickles as Python writes them (the bytes are its own), and bytes that are none.

use proptest::prelude::*;

use super::*;

/// `pickle.dumps((b"\xff\xd8ab", 5), protocol)`, protocols 0 to 4.
const PAIRS: [&[u8]; 5] = [
    b"(c_codecs\nencode\np0\n(V\xff\xd8ab\np1\nVlatin1\np2\ntp3\nRp4\nI5\ntp5\n.",
    b"(c_codecs\nencode\nq\x00(X\x06\x00\x00\x00\xc3\xbf\xc3\x98abq\x01X\x06\x00\x00\x00latin1q\x02tq\x03Rq\x04K\x05tq\x05.",
    b"\x80\x02c_codecs\nencode\nq\x00X\x06\x00\x00\x00\xc3\xbf\xc3\x98abq\x01X\x06\x00\x00\x00latin1q\x02\x86q\x03Rq\x04K\x05\x86q\x05.",
    b"\x80\x03C\x04\xff\xd8abq\x00K\x05\x86q\x01.",
    b"\x80\x04\x95\x0c\x00\x00\x00\x00\x00\x00\x00C\x04\xff\xd8ab\x94K\x05\x86\x94.",
];

/// `(b"", -70000, 2**70, 0.5, None, True, [1, [2]], {"a": 1}, "é")` in protocol 4.
const MANY: &[u8] = b"\x80\x04\x95A\x00\x00\x00\x00\x00\x00\x00(C\x00\x94J\x90\xee\xfe\xff\x8a\t\x00\x00\x00\x00\x00\x00\x00\x00@G?\xe0\x00\x00\x00\x00\x00\x00N\x88]\x94(K\x01]\x94K\x02ae}\x94\x8c\x01a\x94K\x01s\x8c\x02\xc3\xa9\x94t\x94.";

fn rendered(bytes: &[u8], element: usize) -> Result<Vec<u8>, SampleFault> {
    let value = PickleReader::default().element(bytes, element)?;
    value.render(bytes, &mut Vec::new()).map(<[u8]>::to_vec)
}

#[test]
fn pairs_of_every_protocol() {
    for pair in PAIRS {
        assert_eq!(rendered(pair, 0).expect("bytes"), b"\xff\xd8ab", "{pair:x?}");
        assert_eq!(rendered(pair, 1).expect("a label"), b"5", "{pair:x?}");
        assert_eq!(rendered(pair, 2).expect_err("two").class, FaultClass::MissingField);
    }
}

#[test]
fn plain_values_of_every_kind() {
    let check = |at: usize, expected: Result<&[u8], FaultClass>| {
        let found = rendered(MANY, at).map_err(|fault| fault.class);
        assert_eq!(found.as_deref(), expected.as_ref().map(|bytes| *bytes), "element {at}");
    };
    check(0, Ok(b""));
    check(1, Ok(b"-70000"));
    check(2, Err(FaultClass::BadValue));
    check(3, Ok(b"0.5"));
    check(4, Err(FaultClass::BadValue));
    check(5, Ok(b"1"));
    check(6, Err(FaultClass::BadValue));
    check(7, Err(FaultClass::BadValue));
    check(8, Ok("é".as_bytes()));
    check(9, Err(FaultClass::MissingField));
    assert_eq!(rendered(b"\x80\x03C\x02abq\x00.", 0).expect("bare bytes"), b"ab");
    assert_eq!(rendered(b"(S'a\\x00b'\np0\nI01\ntp1\n.", 0).expect("Python 2"), b"a\0b");
    assert_eq!(
        rendered(b"\x80\x02\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f.", 0).expect("a long"),
        b"9223372036854775807"
    );
    assert_eq!(rendered(b"\x80\x02\x8a\x00.", 0).expect("a long"), b"0");
    assert_eq!(rendered(b"\x80\x02\x8a\x01\xff.", 0).expect("a long"), b"-1");
}

#[test]
fn nothing_is_run() {
    let check = |bytes: &[u8], class: FaultClass, words: &str| {
        let fault = rendered(bytes, 0).expect_err(words);
        assert_eq!(fault.class, class, "{fault}");
        assert!(fault.message.contains(words), "{fault}");
    };
    let wrong = FaultClass::WrongWrapper;
    check(b"\x80\x02cposix\nsystem\nq\x00X\x0c\x00\x00\x00touch /tmp/xq\x01\x85q\x02Rq\x03.", wrong, "posix.system");
    check(
        b"\x80\x04\x8c\x16numpy._core.multiarray\x94\x8c\x06scalar\x94\x93\x94.",
        wrong,
        "numpy._core.multiarray.scalar",
    );
    check(b"\x80\x02c_codecs\nencode\nX\x02\x00\x00\x00abX\x05\x00\x00\x00utf-8\x86R.", wrong, "REDUCE");
    check(b"\x80\x02c_codecs\nencode\n.", wrong, "_codecs.encode");
    check(b"\x80\x02}b.", wrong, "BUILD");
    check(b"\x80\x02})\x81.", wrong, "a new object");
    check(b"\x80\x05\x97.", wrong, "outside");
    check(b"\x80\x02}.", wrong, "a dict or a set");
    check(b"\x80\x02K\x05a.", FaultClass::Corrupt, "without its values");
    check(b"\x80\x02K\x05K\x06a.", FaultClass::Corrupt, "no list");
    check(b"\x80\x02h\x07.", FaultClass::Corrupt, "nothing in it");
    check(b"\x80\x02K\x05r\xff\xff\xff\xff.", FaultClass::Corrupt, "no pickle of a sample");
    check(b"\x80\x02\xfe.", FaultClass::Corrupt, "0xfe is no operation");
    check(b"\x80\x02C\xffabc.", FaultClass::Truncated, "255 bytes wanted");
    check(b"\x80\x02K\x05", FaultClass::Truncated, "1 bytes wanted");
    check(b".", FaultClass::Corrupt, "without its values");
    check(&[&[0x80, 2][..], &vec![b'N'; VALUES_MAX + 1], b"."].concat(), FaultClass::TooLarge, "values");
}

/// A list that holds itself: `a = []; a.append(a)`.
#[test]
fn a_cycle_ends() {
    assert_eq!(rendered(b"\x80\x02]q\x00h\x00a.", 0).expect_err("a list").class, FaultClass::BadValue);
}

fn operations() -> impl Strategy<Value = Vec<u8>> {
    let operation = prop_oneof![
        Just(&b"N"[..]),
        Just(&b"("[..]),
        Just(&b"0"[..]),
        Just(&b"1"[..]),
        Just(&b"2"[..]),
        Just(&b"]"[..]),
        Just(&b"}"[..]),
        Just(&b")"[..]),
        Just(&b"t"[..]),
        Just(&b"l"[..]),
        Just(&b"\x85"[..]),
        Just(&b"\x87"[..]),
        Just(&b"a"[..]),
        Just(&b"s"[..]),
        Just(&b"e"[..]),
        Just(&b"q\x01"[..]),
        Just(&b"h\x01"[..]),
        Just(&b"\x94"[..]),
        Just(&b"C\x03abc"[..]),
        Just(&b"X\x06\x00\x00\x00latin1"[..]),
        Just(&b"c_codecs\nencode\n"[..]),
        Just(&b"R"[..]),
        Just(&b"Vx\\u00ff\n"[..]),
        Just(&b"S'\\x00'\n"[..]),
        Just(&b"."[..]),
    ];
    prop::collection::vec(operation, 0..60).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), element in 0_usize..4) {
        let _ = rendered(&bytes, element);
    }

    #[test]
    fn no_operations_panic(bytes in operations(), element in 0_usize..4) {
        let _ = rendered(&bytes, element);
        let _ = rendered(&[&bytes[..], b"."].concat(), element);
    }

    /// A pickle with one byte changed.
    #[test]
    fn no_damage_panics(pair in 0_usize..5, at in 0_usize..100, byte in any::<u8>(), element in 0_usize..3) {
        let mut bytes = PAIRS[pair].to_vec();
        let len = bytes.len();
        bytes[at % len] = byte;
        let _ = rendered(&bytes, element);
    }
}
