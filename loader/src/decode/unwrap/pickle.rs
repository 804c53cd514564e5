//! A reader of pickles that runs nothing: protocols 0 to 5, plain values only.
//!
//! A pickle is a program for a stack machine. This one has the operations that put plain values together; those that
//! look up or call something in Python are refused by the name of what they ask for, and a value built of them is never
//! made. One pattern is recognised as a notation, because Python 3 writes bytes with it below protocol 3:
//! `_codecs.encode(text, "latin1")`.
//!
//! Containers are lists of nodes in memory that is kept from value to value. Nothing recurses: only the elements of the
//! outermost container are looked at.

use super::value::{Coding, Kind, Value};
use crate::error::{FaultClass, SampleFault};

/// Most values of one pickle; more are no sample.
const VALUES_MAX: usize = 1 << 18;

/// Most places of a memo.
const MEMO_MAX: usize = 1 << 18;

/// End of a chain of nodes.
const NONE: u32 = u32::MAX;

/// What lies on the stack.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Item {
    Value(Value),
    /// `_codecs.encode`, waiting for its arguments.
    Encode,
    /// The class of bytes, waiting for no argument: how protocols below 3 write empty bytes.
    BytesClass,
}

/// A value in a container.
#[derive(Debug, Clone, Copy)]
struct Node {
    item: Item,
    next: u32,
}

/// The first and the last node of a container.
#[derive(Debug, Clone, Copy)]
struct Chain {
    first: u32,
    last: u32,
    len: u32,
}

/// Reads pickles; keeps its memory from one to the next.
#[derive(Debug, Default)]
pub struct PickleReader {
    stack: Vec<Item>,
    marks: Vec<usize>,
    memo: Vec<Option<Item>>,
    memo_len: usize,
    nodes: Vec<Node>,
    chains: Vec<Chain>,
}

impl PickleReader {
    /// Finds element `element` of the tuple or list in `bytes`; a value that is no container is its own element 0.
    pub fn element(&mut self, bytes: &[u8], element: usize) -> Result<Value, SampleFault> {
        let (kind, chain) = match self.value(bytes)? {
            Value::Container(kind @ (Kind::Tuple | Kind::List), chain) => (kind, chain),
            Value::Container(..) => {
                return Err(SampleFault::new(FaultClass::WrongWrapper, "a pickle of a dict or a set, not of a tuple"));
            }
            value if element == 0 => return Ok(value),
            _ => return Err(SampleFault::new(FaultClass::MissingField, "a pickle of one value, without a second")),
        };
        let chain = self.chains[chain as usize];
        if element >= chain.len as usize {
            let message = format!("a {kind:?} of {} elements, none is {element}", chain.len).to_lowercase();
            return Err(SampleFault::new(FaultClass::MissingField, message));
        }
        let mut node = self.nodes[chain.first as usize];
        for _ in 0..element {
            node = self.nodes[node.next as usize];
        }
        plain(node.item)
    }

    /// Reads one pickle, to its end.
    pub fn value(&mut self, bytes: &[u8]) -> Result<Value, SampleFault> {
        self.stack.clear();
        self.marks.clear();
        self.memo.clear();
        self.memo_len = 0;
        self.nodes.clear();
        self.chains.clear();
        let mut input = Input { bytes, at: 0 };
        loop {
            let at = input.at;
            let code = input.take(1)?[0];
            if code == b'.' {
                return plain(self.pop(at)?);
            }
            self.step(code, &mut input, at)?;
            if self.stack.len() + self.nodes.len() + self.chains.len() > VALUES_MAX {
                let message = format!("a pickle of more than {VALUES_MAX} values");
                return Err(SampleFault::new(FaultClass::TooLarge, message));
            }
        }
    }

    fn step(&mut self, code: u8, input: &mut Input<'_>, at: usize) -> Result<(), SampleFault> {
        match code {
            // PROTO, FRAME: nothing to do.
            0x80 => input.take(1).map(drop)?,
            0x95 => input.take(8).map(drop)?,
            b'N' => self.push(Value::None),
            0x88 | 0x89 => self.push(Value::Bool(code == 0x88)),
            b'I' | b'L' | b'F' => self.push(input.number_line(code)?),
            b'J' => self.push(Value::Int(i64::from(input.unsigned(4)? as u32 as i32))),
            b'K' => self.push(Value::Int(input.unsigned(1)?.cast_signed())),
            b'M' => self.push(Value::Int(input.unsigned(2)?.cast_signed())),
            0x8a => self.push(input.long(1)?),
            0x8b => self.push(input.long(4)?),
            b'G' => {
                let bits = input.take(8)?.try_into().expect("8 bytes");
                self.push(Value::Float(f64::from_bits(u64::from_be_bytes(bits))));
            }
            b'S' => self.push(input.quoted_line()?),
            b'V' => {
                let (start, len) = input.line()?;
                self.push(Value::Coded { start, len, coding: Coding::RawUnicode });
            }
            // Counted runs: strings, bytes, UTF-8 text, a bytearray.
            b'U' | 0x8c | b'C' => self.push(input.run(1)?),
            b'T' | b'X' | b'B' => self.push(input.run(4)?),
            0x8d | 0x8e | 0x96 => self.push(input.run(8)?),
            b'(' => self.marks.push(self.stack.len()),
            b'0' => self.pop(at).map(drop)?,
            b'1' => self.pop_mark(at).map(|mark| self.stack.truncate(mark))?,
            b'2' => {
                let top = self.pop(at)?;
                self.stack.extend([top, top]);
            }
            b')' => self.collect(Kind::Tuple, self.stack.len()),
            b']' => self.collect(Kind::List, self.stack.len()),
            b'}' => self.collect(Kind::Dict, self.stack.len()),
            0x8f => self.collect(Kind::Set, self.stack.len()),
            b't' | b'l' | b'd' | 0x91 => {
                let mark = self.pop_mark(at)?;
                let kind = match code {
                    b't' => Kind::Tuple,
                    b'l' => Kind::List,
                    b'd' => Kind::Dict,
                    _ => Kind::Set,
                };
                self.collect(kind, mark);
            }
            0x85..=0x87 => {
                let count = usize::from(code - 0x84);
                let start = self.stack.len().checked_sub(count).filter(|&start| start >= self.floor());
                self.collect(Kind::Tuple, start.ok_or_else(|| underflow(at))?);
            }
            b'a' => self.extend(self.stack.len().wrapping_sub(1), at)?,
            b's' => self.extend(self.stack.len().wrapping_sub(2), at)?,
            b'e' | b'u' | 0x90 => {
                let mark = self.pop_mark(at)?;
                self.extend(mark, at)?;
            }
            b'p' | b'g' => {
                let place = input.index_line()?;
                self.memo(code == b'p', place, at)?;
            }
            b'q' | b'h' => {
                let place = input.unsigned(1)?;
                self.memo(code == b'q', place, at)?;
            }
            b'r' | b'j' => {
                let place = input.unsigned(4)?;
                self.memo(code == b'r', place, at)?;
            }
            0x94 => self.memo(true, self.memo_len as u64, at)?,
            b'c' => {
                let (module, name) = (input.line()?, input.line()?);
                self.global(input.text(module), input.text(name))?;
            }
            0x93 => {
                let name = self.pop(at)?;
                let module = self.pop(at)?;
                self.global(input.item_text(module), input.item_text(name))?;
            }
            b'R' => self.reduce(input, at)?,
            _ => return Err(refused_operation(code, at)),
        }
        Ok(())
    }

    fn push(&mut self, value: Value) {
        self.stack.push(Item::Value(value));
    }

    /// Where the values since the last mark begin.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn pop(&mut self, at: usize) -> Result<Item, SampleFault> {
        if self.stack.len() <= self.floor() {
            return Err(underflow(at));
        }
        self.stack.pop().ok_or_else(|| underflow(at))
    }

    fn pop_mark(&mut self, at: usize) -> Result<usize, SampleFault> {
        self.marks.pop().filter(|&mark| mark <= self.stack.len()).ok_or_else(|| underflow(at))
    }

    /// Puts the values from `start` on into a new container.
    fn collect(&mut self, kind: Kind, start: usize) {
        let number = self.chains.len() as u32;
        self.chains.push(Chain { first: NONE, last: NONE, len: 0 });
        self.append(number, start);
        self.push(Value::Container(kind, number));
    }

    /// Appends the values from `start` on to the container before them.
    fn extend(&mut self, start: usize, at: usize) -> Result<(), SampleFault> {
        if start > self.stack.len() || start <= self.floor() {
            return Err(underflow(at));
        }
        match self.stack[start - 1] {
            Item::Value(Value::Container(Kind::List | Kind::Dict | Kind::Set, number)) => {
                self.append(number, start);
                Ok(())
            }
            _ => Err(corrupt(at, "something is appended to what is no list, dict or set")),
        }
    }

    fn append(&mut self, number: u32, start: usize) {
        for place in start..self.stack.len() {
            let node = self.nodes.len() as u32;
            self.nodes.push(Node { item: self.stack[place], next: NONE });
            let chain = &mut self.chains[number as usize];
            if chain.len == 0 {
                chain.first = node;
            } else {
                self.nodes[chain.last as usize].next = node;
            }
            chain.last = node;
            chain.len += 1;
        }
        self.stack.truncate(start);
    }

    /// Stores the top of the stack in the memo, or pushes what is there.
    fn memo(&mut self, stores: bool, place: u64, at: usize) -> Result<(), SampleFault> {
        let place = usize::try_from(place).ok().filter(|&place| place < MEMO_MAX);
        let place = place.ok_or_else(|| corrupt(at, "a place of the memo that no pickle of a sample needs"))?;
        if !stores {
            let found = self.memo.get(place).copied().flatten();
            self.stack.push(found.ok_or_else(|| corrupt(at, "a place of the memo with nothing in it"))?);
            return Ok(());
        }
        let top = *self.stack.last().filter(|_| self.stack.len() > self.floor()).ok_or_else(|| underflow(at))?;
        if place >= self.memo.len() {
            self.memo.resize(place + 1, None);
        }
        self.memo_len += usize::from(self.memo[place].is_none());
        self.memo[place] = Some(top);
        Ok(())
    }

    /// Looks at a name of Python's, and never it up.
    fn global(&mut self, module: &[u8], name: &[u8]) -> Result<(), SampleFault> {
        let item = match (module, name) {
            (b"_codecs", b"encode") => Item::Encode,
            (b"__builtin__" | b"builtins", b"bytes") => Item::BytesClass,
            _ => return Err(refused_name(module, name)),
        };
        self.stack.push(item);
        Ok(())
    }

    /// The two calls that are a notation for bytes.
    fn reduce(&mut self, input: &Input<'_>, at: usize) -> Result<(), SampleFault> {
        let arguments = self.pop(at)?;
        let callee = self.pop(at)?;
        let Item::Value(Value::Container(Kind::Tuple, chain)) = arguments else {
            return Err(corrupt(at, "a call without a tuple of arguments"));
        };
        let Chain { first, last, len } = self.chains[chain as usize];
        let value = match (callee, len) {
            (Item::BytesClass, 0) => Some(Value::Bytes { start: 0, len: 0 }),
            (Item::Encode, 2) if input.item_text(self.nodes[last as usize].item) == b"latin1" => {
                match self.nodes[first as usize].item {
                    Item::Value(Value::Bytes { start, len }) => {
                        Some(Value::Coded { start, len, coding: Coding::Latin1 })
                    }
                    Item::Value(Value::Coded { start, len, coding: Coding::RawUnicode }) => {
                        Some(Value::Coded { start, len, coding: Coding::RawLatin1 })
                    }
                    _ => None,
                }
            }
            _ => None,
        };
        self.push(value.ok_or_else(|| refused_operation(b'R', at))?);
        Ok(())
    }
}

/// The bytes of a pickle, and how far they are read.
struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Input<'a> {
    fn take(&mut self, len: u64) -> Result<&'a [u8], SampleFault> {
        let end = usize::try_from(len).ok().and_then(|len| self.at.checked_add(len));
        let Some((end, taken)) = end.and_then(|end| Some((end, self.bytes.get(self.at..end)?))) else {
            let message = format!("pickle: {len} bytes wanted at byte {}, the value has {}", self.at, self.bytes.len());
            return Err(SampleFault::new(FaultClass::Truncated, message));
        };
        self.at = end;
        Ok(taken)
    }

    /// A little-endian number.
    fn unsigned(&mut self, width: u64) -> Result<u64, SampleFault> {
        Ok(self.take(width)?.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    /// A length, then as many bytes.
    fn run(&mut self, width: u64) -> Result<Value, SampleFault> {
        let len = self.unsigned(width)?;
        let start = self.at;
        let len = self.take(len)?.len();
        Ok(Value::Bytes { start, len })
    }

    /// A counted little-endian integer in two's complement.
    fn long(&mut self, width: u64) -> Result<Value, SampleFault> {
        let len = self.unsigned(width)?;
        let digits = self.take(len)?;
        let sign = if digits.last().is_some_and(|&last| last & 0x80 != 0) { 0xff } else { 0 };
        let (low, high) = digits.split_at(digits.len().min(8));
        let mut word = [sign; 8];
        word[..low.len()].copy_from_slice(low);
        let value = i64::from_le_bytes(word);
        let fits = high.iter().all(|&byte| byte == sign) && (high.is_empty() || (value < 0) == (sign == 0xff));
        Ok(if fits { Value::Int(value) } else { Value::BigInt })
    }

    /// The rest of the line, without its end.
    fn line(&mut self) -> Result<(usize, usize), SampleFault> {
        let start = self.at;
        match self.bytes[start..].iter().position(|&byte| byte == b'\n') {
            Some(len) => {
                self.at = start + len + 1;
                Ok((start, len))
            }
            None => Err(SampleFault::new(FaultClass::Truncated, format!("pickle: no end of the line at byte {start}"))),
        }
    }

    /// A string literal of Python 2.
    fn quoted_line(&mut self) -> Result<Value, SampleFault> {
        let (start, len) = self.line()?;
        match &self.bytes[start..start + len] {
            [b'\'', .., b'\''] | [b'"', .., b'"'] => {
                Ok(Value::Coded { start: start + 1, len: len - 2, coding: Coding::Escaped })
            }
            _ => Err(corrupt(start, "a string without quotes")),
        }
    }

    fn number_line(&mut self, code: u8) -> Result<Value, SampleFault> {
        let (start, len) = self.line()?;
        let text = std::str::from_utf8(&self.bytes[start..start + len]).unwrap_or_default().trim();
        let value = match (code, text) {
            (b'I', "00") => Some(Value::Bool(false)),
            (b'I', "01") => Some(Value::Bool(true)),
            (b'F', text) => text.parse().ok().map(Value::Float),
            (_, text) => {
                let digits = text.strip_suffix('L').unwrap_or(text);
                let unsigned = digits.strip_prefix('-').unwrap_or(digits);
                let is_number = !unsigned.is_empty() && unsigned.bytes().all(|byte| byte.is_ascii_digit());
                is_number.then(|| digits.parse().map_or(Value::BigInt, Value::Int))
            }
        };
        value.ok_or_else(|| corrupt(start, "a number that is none"))
    }

    fn index_line(&mut self) -> Result<u64, SampleFault> {
        let (start, len) = self.line()?;
        let text = std::str::from_utf8(&self.bytes[start..start + len]).ok();
        text.and_then(|text| text.trim().parse().ok())
            .ok_or_else(|| corrupt(start, "a place of the memo that is no number"))
    }

    fn text(&self, (start, len): (usize, usize)) -> &'a [u8] {
        &self.bytes[start..start + len]
    }

    /// The bytes of an item that is a text as it lies there.
    fn item_text(&self, item: Item) -> &'a [u8] {
        match item {
            Item::Value(Value::Bytes { start, len }) => &self.bytes[start..start + len],
            Item::Value(Value::Coded { start, len, coding: Coding::RawUnicode }) => &self.bytes[start..start + len],
            _ => &[],
        }
    }
}

fn plain(item: Item) -> Result<Value, SampleFault> {
    match item {
        Item::Value(value) => Ok(value),
        Item::Encode => Err(refused_name(b"_codecs", b"encode")),
        Item::BytesClass => Err(refused_name(b"builtins", b"bytes")),
    }
}

#[cold]
fn underflow(at: usize) -> SampleFault {
    corrupt(at, "an operation without its values")
}

#[cold]
fn corrupt(at: usize, message: &str) -> SampleFault {
    SampleFault::new(FaultClass::Corrupt, format!("pickle: byte {at}: {message}"))
}

#[cold]
fn refused_name(module: &[u8], name: &[u8]) -> SampleFault {
    let shown = |text: &[u8]| String::from_utf8_lossy(&text[..text.len().min(80)]).into_owned();
    let message = format!(
        "a pickle that asks Python for {}.{}: pickles are never run here; write the values again as plain bytes, text and \
         numbers",
        shown(module),
        shown(name)
    );
    SampleFault::new(FaultClass::WrongWrapper, message)
}

#[cold]
fn refused_operation(code: u8, at: usize) -> SampleFault {
    let name = match code {
        b'R' => "REDUCE, a call",
        b'b' => "BUILD, the state of an object",
        b'i' | b'o' | 0x81 | 0x92 => "a new object",
        b'P' | b'Q' => "a persistent id",
        0x82..=0x84 => "an extension code",
        0x97 | 0x98 => "a buffer outside the pickle",
        _ => return corrupt(at, &format!("{code:#04x} is no operation")),
    };
    let message = format!(
        "a pickle with {name} (byte {at}): pickles are never run here; write the values again as plain bytes, text and numbers"
    );
    SampleFault::new(FaultClass::WrongWrapper, message)
}

#[cfg(test)]
#[path = "pickle_tests.rs"]
mod tests;
