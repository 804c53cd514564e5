//! The JSON side of [`super`]: one check of the whole text, then a walk over what it says, without building it.

use super::{BoxTable, Columns, Counts, SIDES, bad, first};
use crate::decode::text;
use crate::error::SampleFault;

/// Reads the boxes of a JSON text.
pub(super) fn read(bytes: &[u8], columns: &Columns, table: &mut BoxTable) -> Result<(), SampleFault> {
    text::check_json(bytes)?;
    let mut walker = Walker { bytes, at: if bytes.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 } };
    if let Some(within) = &columns.within {
        walker.enter(within)?;
    }
    match walker.peek() {
        b'[' => walker.items(|walker, row| {
            table.reach(row, columns)?;
            match walker.peek() {
                b'[' => read_row(walker, row, columns, table),
                b'{' => read_object(walker, row, columns, table),
                _ => Err(bad(format!("box {row} is neither a list of numbers nor an object: {}", walker.shown()))),
            }
        }),
        b'{' => read_columns(&mut walker, columns, table),
        _ => Err(bad(format!("boxes are a list, or an object with a list for each column: {}", walker.shown()))),
    }
}

/// A row of numbers: the box, then the rest.
fn read_row(walker: &mut Walker<'_>, row: usize, columns: &Columns, table: &mut BoxTable) -> Result<(), SampleFault> {
    let numbers = table.row_mut(row);
    let wanted = numbers.len();
    let mut found = 0;
    walker.items(|walker, index| {
        found = index + 1;
        let number = walker.number(index >= SIDES).ok_or_else(|| no_number(walker, row, "its numbers"))?;
        if let Some(place) = numbers.get_mut(index) {
            *place = number;
        }
        Ok(())
    })?;
    if found == wanted {
        return Ok(());
    }
    let rest = if columns.rest.is_empty() { String::new() } else { format!(", then {}", columns.rest.join(", ")) };
    let hint = if found == SIDES { ": rows without a label want labels=None" } else { "" };
    Err(bad(format!("box {row} has {found} numbers, wanted are {wanted}: its sides{rest}{hint}")))
}

/// An object with a member for each column.
fn read_object(
    walker: &mut Walker<'_>,
    row: usize,
    columns: &Columns,
    table: &mut BoxTable,
) -> Result<(), SampleFault> {
    let mut seen = 0_u32;
    walker.members(|walker, name| {
        match columns.place(name) {
            Some(0) => read_sides(walker, row, table)?,
            Some(place) => read_number(walker, row, place, columns, table)?,
            None => walker.skip(),
        }
        seen |= columns.place(name).map_or(0, |place| 1 << place);
        Ok(())
    })?;
    match (0..=columns.rest.len()).find(|place| seen & 1 << place == 0) {
        Some(place) => Err(bad(format!("box {row} has no {:?}", columns.name(place)))),
        None => Ok(()),
    }
}

/// An object with a list for each column.
fn read_columns(walker: &mut Walker<'_>, columns: &Columns, table: &mut BoxTable) -> Result<(), SampleFault> {
    let mut counts = Counts::default();
    walker.members(|walker, name| {
        let Some(place) = columns.place(name) else {
            walker.skip();
            return Ok(());
        };
        if walker.peek() != b'[' {
            return Err(bad(format!("column {:?} is no list: {}", columns.name(place), walker.shown())));
        }
        let mut count = 0;
        walker.items(|walker, row| {
            count = row + 1;
            table.reach(row, columns)?;
            match place {
                0 => read_sides(walker, row, table),
                _ => read_number(walker, row, place, columns, table),
            }
        })?;
        counts.set(place, count);
        Ok(())
    })?;
    table.rows = counts.check(columns)?;
    Ok(())
}

/// The four numbers of a box.
fn read_sides(walker: &mut Walker<'_>, row: usize, table: &mut BoxTable) -> Result<(), SampleFault> {
    if walker.peek() != b'[' {
        return Err(bad(format!("box {row} is no list of numbers: {}", walker.shown())));
    }
    let sides = &mut table.row_mut(row)[..SIDES];
    let mut found = 0;
    walker.items(|walker, index| {
        found = index + 1;
        let number = walker.number(false).ok_or_else(|| no_number(walker, row, "its sides"))?;
        if let Some(place) = sides.get_mut(index) {
            *place = number;
        }
        Ok(())
    })?;
    if found == SIDES { Ok(()) } else { Err(bad(format!("box {row} has {found} numbers, wanted are {SIDES}"))) }
}

fn read_number(
    walker: &mut Walker<'_>,
    row: usize,
    place: usize,
    columns: &Columns,
    table: &mut BoxTable,
) -> Result<(), SampleFault> {
    let number = walker.number(true).ok_or_else(|| no_number(walker, row, columns.name(place)))?;
    table.row_mut(row)[first(place)] = number;
    Ok(())
}

#[cold]
fn no_number(walker: &mut Walker<'_>, row: usize, what: &str) -> SampleFault {
    bad(format!("box {row}: a number was expected for {what}: {}", walker.shown()))
}

/// A place in a JSON text that is known to be sound.
struct Walker<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Walker<'_> {
    /// The first byte of what comes next, after white space.
    fn peek(&mut self) -> u8 {
        while matches!(self.bytes.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
        self.bytes.get(self.at).copied().unwrap_or_default()
    }

    /// What comes next, and where, for a message.
    fn shown(&mut self) -> String {
        self.peek();
        let end = self.bytes.len().min(self.at + 40);
        format!("found {:?} at byte {}", String::from_utf8_lossy(&self.bytes[self.at..end]), self.at)
    }

    /// Goes through the list that comes next.
    fn items(&mut self, mut each: impl FnMut(&mut Self, usize) -> Result<(), SampleFault>) -> Result<(), SampleFault> {
        self.at += 1;
        let mut index = 0;
        while self.peek() != b']' {
            each(self, index)?;
            index += 1;
            if self.peek() == b',' {
                self.at += 1;
            }
        }
        self.at += 1;
        Ok(())
    }

    /// Goes through the object that comes next, with the name of each member as it is written.
    fn members(
        &mut self,
        mut each: impl FnMut(&mut Self, &[u8]) -> Result<(), SampleFault>,
    ) -> Result<(), SampleFault> {
        self.at += 1;
        while self.peek() != b'}' {
            let start = self.at + 1;
            self.skip();
            let name = &self.bytes[start..self.at - 1];
            // The colon.
            self.peek();
            self.at += 1;
            each(self, name)?;
            if self.peek() == b',' {
                self.at += 1;
            }
        }
        self.at += 1;
        Ok(())
    }

    /// Goes to the value of the member `name` of the object that comes next; of several the last, as Python does.
    fn enter(&mut self, name: &str) -> Result<(), SampleFault> {
        if self.peek() != b'{' {
            return Err(bad(format!("boxes are within {name:?} of an object: {}", self.shown())));
        }
        let mut found = None;
        self.members(|walker, own| {
            if own == name.as_bytes() {
                found = Some(walker.at);
            }
            walker.skip();
            Ok(())
        })?;
        self.at = found.ok_or_else(|| bad(format!("the object has no {name:?}")))?;
        Ok(())
    }

    /// Goes past the value that comes next.
    fn skip(&mut self) {
        let mut depth = 0_u32;
        loop {
            match self.peek() {
                b'"' => self.skip_string(),
                b'[' | b'{' => {
                    depth += 1;
                    self.at += 1;
                }
                b']' | b'}' => {
                    depth -= 1;
                    self.at += 1;
                }
                b',' | b':' => self.at += 1,
                _ => self.skip_scalar(),
            }
            if depth == 0 {
                return;
            }
        }
    }

    fn skip_string(&mut self) {
        self.at += 1;
        while self.bytes[self.at] != b'"' {
            self.at += if self.bytes[self.at] == b'\\' { 2 } else { 1 };
        }
        self.at += 1;
    }

    fn skip_scalar(&mut self) {
        let is_over = |byte: &u8| matches!(byte, b',' | b':' | b']' | b'}' | b' ' | b'\t' | b'\n' | b'\r');
        let rest = &self.bytes[self.at..];
        self.at += rest.iter().position(is_over).unwrap_or(rest.len());
    }

    /// The number that comes next; where `is_flag`, true and false are 1 and 0. Stays where there is none.
    fn number(&mut self, is_flag: bool) -> Option<f64> {
        self.peek();
        let start = self.at;
        if !matches!(self.bytes.get(start), Some(b'"' | b'[' | b'{')) {
            self.skip_scalar();
        }
        let number = match &self.bytes[start..self.at] {
            b"true" if is_flag => Some(1.0),
            b"false" if is_flag => Some(0.0),
            word => std::str::from_utf8(word).ok().and_then(|word| word.parse().ok()),
        };
        if number.is_none() {
            self.at = start;
        }
        number
    }
}
