//! UTF-8 and JSON: checked where they are read, so that a bad sample is a fault with a place, not an exception in the
//! trainer.

use crate::error::{FaultClass, SampleFault};

/// Most lists and objects inside each other; Python's own reader gives up at about 1 000.
pub const JSON_DEPTH_MAX: usize = 256;

/// Most digits of an integer: Python's own limit, past which its reader raises.
const INTEGER_DIGITS_MAX: usize = 4300;

/// Checks that `bytes` are UTF-8.
pub fn check_text(bytes: &[u8]) -> Result<&str, SampleFault> {
    std::str::from_utf8(bytes).map_err(|error| {
        let place = error.valid_up_to();
        let message = format!("not UTF-8: byte {:#04x} at {place} of {}", bytes[place], bytes.len());
        SampleFault::new(FaultClass::BadValue, message)
    })
}

/// Checks that `bytes` are one JSON value that Python's `json.loads` reads: UTF-8, perhaps with a byte order mark; NaN,
/// Infinity and -Infinity are numbers.
pub fn check_json(bytes: &[u8]) -> Result<(), SampleFault> {
    if bytes.is_empty() {
        return Err(SampleFault::new(FaultClass::Empty, "the JSON has no bytes"));
    }
    let text = check_text(bytes)?;
    let mut scan = Scan { bytes: text.as_bytes(), at: if text.starts_with('\u{feff}') { 3 } else { 0 } };
    scan.document().map_err(|wanted| {
        let found = bytes.get(scan.at).map_or("the end".to_owned(), |&byte| format!("{:?}", char::from(byte)));
        let message = format!("not JSON: {found} at byte {} of {}, where {wanted} belongs", scan.at, bytes.len());
        SampleFault::new(FaultClass::BadValue, message)
    })
}

struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
}

type Wanted = &'static str;

impl Scan<'_> {
    /// One value and nothing after it. Open lists and objects are bits on a stack of fixed size: nothing recurses.
    fn document(&mut self) -> Result<(), Wanted> {
        let mut is_object = [false; JSON_DEPTH_MAX];
        let mut depth = 0;
        loop {
            // A value begins here.
            self.space();
            match self.peek() {
                Some(opening @ (b'{' | b'[')) => {
                    self.at += 1;
                    if depth == JSON_DEPTH_MAX {
                        return Err("an end of nesting (256 levels)");
                    }
                    is_object[depth] = opening == b'{';
                    depth += 1;
                    self.space();
                    let closing = if opening == b'{' { b'}' } else { b']' };
                    if self.peek() != Some(closing) {
                        if opening == b'{' {
                            self.name()?;
                        }
                        continue;
                    }
                }
                _ => self.scalar()?,
            }
            // A value ends here, or a list or object that is empty is about to be closed.
            loop {
                self.space();
                if depth == 0 {
                    return if self.at == self.bytes.len() { Ok(()) } else { Err("the end") };
                }
                let object = is_object[depth - 1];
                match self.peek() {
                    Some(b',') => {
                        self.at += 1;
                        self.space();
                        if object {
                            self.name()?;
                        }
                        break;
                    }
                    Some(b'}') if object => {}
                    Some(b']') if !object => {}
                    _ => return Err(if object { "',' or '}'" } else { "',' or ']'" }),
                }
                self.at += 1;
                depth -= 1;
            }
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// A member's name and its colon.
    fn name(&mut self) -> Result<(), Wanted> {
        if self.peek() != Some(b'"') {
            return Err("a name in double quotes");
        }
        self.string()?;
        self.space();
        if self.peek() != Some(b':') {
            return Err("':'");
        }
        self.at += 1;
        Ok(())
    }

    fn scalar(&mut self) -> Result<(), Wanted> {
        const WORDS: [&[u8]; 6] = [b"true", b"false", b"null", b"NaN", b"Infinity", b"-Infinity"];
        if self.peek() == Some(b'"') {
            return self.string();
        }
        let rest = &self.bytes[self.at..];
        match WORDS.iter().find(|word| rest.starts_with(word)) {
            Some(word) => self.at += word.len(),
            None => self.number()?,
        }
        Ok(())
    }

    fn string(&mut self) -> Result<(), Wanted> {
        self.at += 1;
        loop {
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => self.escape()?,
                Some(0..=0x1f) => return Err("an escape (control characters are none)"),
                Some(_) => self.at += 1,
                None => return Err("the end of a string"),
            }
        }
        self.at += 1;
        Ok(())
    }

    fn escape(&mut self) -> Result<(), Wanted> {
        self.at += 1;
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
            Some(b'u') => {
                self.at += 1;
                for _ in 0..4 {
                    if !self.peek().is_some_and(|byte| byte.is_ascii_hexdigit()) {
                        return Err("a hexadecimal digit");
                    }
                    self.at += 1;
                }
            }
            _ => return Err("an escape"),
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), Wanted> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let start = self.at;
        match self.peek() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits()?,
            _ => return Err("a value"),
        }
        let is_integer = !matches!(self.peek(), Some(b'.' | b'e' | b'E'));
        if is_integer && self.at - start > INTEGER_DIGITS_MAX {
            self.at = start;
            return Err("an integer of at most 4300 digits");
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Wanted> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at == start { Err("a digit") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(text: &str, expected: Result<(), &str>) {
        match (check_json(text.as_bytes()), expected) {
            (Ok(()), Ok(())) => {}
            (Err(fault), Err(words)) => assert!(fault.message.contains(words), "{text:?}: {fault}"),
            (found, _) => panic!("{text:?}: {found:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn what_python_reads_and_what_not() {
        for good in [
            "1",
            " [1, 2.5e-3, -0, 1E+9] ",
            "{}",
            "[]",
            "[[], {}]",
            "{\"a\": {\"b\": [null, true, false]}}\n",
            "\"\\u12aF\\n\"",
            "NaN",
            "[-Infinity, Infinity]",
            "\u{feff}{}",
            "\"\\ud800\"",
            "{\"a\":1,\"a\":2}",
            "\"é\u{7f}\"",
        ] {
            check(good, Ok(()));
        }
        check(&"1".repeat(4300), Ok(()));
        check(&format!("{{\"a\": -{}.5}}", "1".repeat(5000)), Ok(()));
        check(
            &format!("[-{}]", "1".repeat(4301)),
            Err("'1' at byte 2 of 4304, where an integer of at most 4300 digits"),
        );
        check("", Err("no bytes"));
        check(" ", Err("the end at byte 1 of 1, where a value"));
        check("{\"a\" 1}", Err("'1' at byte 5 of 7, where ':'"));
        check("{a: 1}", Err("a name in double quotes"));
        check("{\"a\": 1,}", Err("a name in double quotes"));
        check("[1,]", Err("a value"));
        check("[1 2]", Err("',' or ']'"));
        check("{\"a\": 1]", Err("',' or '}'"));
        check("01", Err("the end"));
        check("1.", Err("a digit"));
        check("1e", Err("a digit"));
        check("-", Err("a value"));
        check("'a'", Err("a value"));
        check("\"a", Err("the end of a string"));
        check("\"\\x\"", Err("an escape"));
        check("\"\\u12g4\"", Err("hexadecimal"));
        check("\"\n\"", Err("control"));
        check("{} {}", Err("the end"));
        check(&"[".repeat(257), Err("256 levels"));
        check(&format!("{}{}", "[".repeat(256), "]".repeat(256)), Ok(()));
        assert!(check_json(b"\"\xff\"").unwrap_err().message.contains("byte 0xff at 1 of 3"));
    }

    proptest! {
        #[test]
        fn agrees_with_serde(text in "[\\[\\]{}:,\"\\\\u0-9a-f.eE+\\- tn]{0,14}") {
            let serde = serde_json::from_str::<serde_json::Value>(&text);
            // serde minds numbers out of range and halves of surrogates; Python reads them.
            let lenient = serde.as_ref().is_err_and(|error| {
                let words = error.to_string();
                words.contains("out of range") || words.contains("surrogate") || words.contains("hex escape")
            });
            prop_assume!(!lenient);
            prop_assert_eq!(check_json(text.as_bytes()).is_ok(), serde.is_ok(), "{:?}: {:?}", text, serde);
        }

        #[test]
        fn any_bytes_end(bytes: Vec<u8>) {
            let _ = check_json(&bytes);
        }
    }
}
