//! Writes JPEGs, for tests: of random coefficients, with any sampling, restart interval and tables of codes; or others anew,
//! without loss.

use super::frame::{Colour, Frame, NATURAL_ORDER};
use super::mcu_rows::{Blocks, McuRows};
use super::scan::{Needed, Scan};

/// Which codes a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeChoice {
    /// Those of most files.
    Usual,
    /// The shortest for what it holds.
    Fitted,
    /// Of any lengths, for every symbol that there is.
    Odd,
}

/// What a file is like.
#[derive(Debug, Clone)]
pub struct Sketch {
    pub size: (usize, usize),
    /// Blocks of luma in an MCU, across and down.
    pub sampling: (usize, usize),
    pub colour: Colour,
    pub codes: CodeChoice,
    pub restart_interval: usize,
    /// Eighths of coefficients that are not zero.
    pub density: u32,
    /// Most bits of a coefficient.
    pub size_max: u32,
    pub seed: u64,
}

/// Random numbers (splitmix64).
pub struct Numbers(pub u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// What is coded: a symbol of table 0..2 (DC) or 2..4 (AC) and the bits behind it, or a restart marker.
enum Token {
    Symbol { table: usize, symbol: u8, bits: u32 },
    Restart(u8),
}

impl Sketch {
    /// The file.
    pub fn file(&self) -> Vec<u8> {
        let mut numbers = Numbers(self.seed);
        let (width, height) = self.size;
        let components = if self.colour == Colour::Grey { 1 } else { 3 };
        let mut file = vec![0xff, 0xd8];
        if self.colour == Colour::Rgb {
            segment(&mut file, 0xee, b"Adobe\0\x64\0\0\0\0\0");
        }
        for table in 0..2 {
            let steps = (0..64).map(|_| 1 + numbers.below(60) as u8);
            segment(&mut file, 0xdb, &[table].into_iter().chain(steps).collect::<Vec<_>>());
        }
        let [height, width] = [height, width].map(|side| (side as u16).to_be_bytes());
        let mut body = vec![8, height[0], height[1], width[0], width[1], components];
        for component in 0..components {
            let (h, v) = if component == 0 { self.sampling } else { (1, 1) };
            body.extend([component + 1, (h << 4 | v) as u8, component.min(1)]);
        }
        segment(&mut file, 0xc0, &body);
        if self.restart_interval > 0 {
            segment(&mut file, 0xdd, &(self.restart_interval as u16).to_be_bytes());
        }
        let tokens = self.tokens(&mut numbers);
        let codes = self.codes(&tokens, &mut numbers);
        write_codes(&mut file, &codes);
        let mut body = vec![components];
        (0..components).for_each(|component| body.extend([component + 1, component.min(1) * 0x11]));
        body.extend([0, 63, 0]);
        segment(&mut file, 0xda, &body);
        write(&mut file, &tokens, &codes, &mut numbers);
        file.extend([0xff, 0xd9]);
        file
    }

    fn tokens(&self, numbers: &mut Numbers) -> Vec<Token> {
        let (h, v) = if self.colour == Colour::Grey { (1, 1) } else { self.sampling };
        let mcus = self.size.0.div_ceil(8 * h) * self.size.1.div_ceil(8 * v);
        let units: &[usize] = if self.colour == Colour::Grey { &[1] } else { &[h * v, 1, 1] };
        let mut tokens = Vec::new();
        // A DC coefficient stays within what 8 bits a sample need.
        let mut dc = [0i32; 3];
        for mcu in 0..mcus {
            if self.restart_interval > 0 && mcu > 0 && mcu % self.restart_interval == 0 {
                tokens.push(Token::Restart((mcu / self.restart_interval - 1) as u8 % 8));
                dc = [0; 3];
            }
            for (component, &blocks) in units.iter().enumerate() {
                for _ in 0..blocks {
                    let size = numbers.below(u64::from(self.size_max) + 1) as u32;
                    let mut bits = numbers.next() as u32 & ((1 << size) - 1);
                    let mut difference = difference(bits, size);
                    if (dc[component] + difference).abs() > 1023 {
                        bits = !bits & ((1 << size) - 1);
                        difference = -difference;
                    }
                    dc[component] += difference;
                    tokens.push(Token::Symbol { table: component.min(1), symbol: size as u8, bits });
                    self.block(&mut tokens, 2 + component.min(1), numbers);
                }
            }
        }
        tokens
    }

    fn block(&self, tokens: &mut Vec<Token>, table: usize, numbers: &mut Numbers) {
        let mut run = 0;
        let last = numbers.below(65);
        for position in 1..64 {
            if position > last || numbers.below(8) >= u64::from(self.density) {
                run += 1;
                continue;
            }
            while run >= 16 {
                tokens.push(Token::Symbol { table, symbol: 0xf0, bits: 0 });
                run -= 16;
            }
            // Small ones mostly.
            let size = 1 + numbers.below(u64::from(self.size_max)).min(numbers.below(u64::from(self.size_max))) as u32;
            let bits = numbers.next() as u32 & ((1 << size) - 1);
            tokens.push(Token::Symbol { table, symbol: (run << 4) as u8 | size as u8, bits });
            run = 0;
        }
        if run > 0 {
            tokens.push(Token::Symbol { table, symbol: 0, bits: 0 });
        }
    }

    /// Of each table how many codes of each length it has, and the symbols.
    fn codes(&self, tokens: &[Token], numbers: &mut Numbers) -> Vec<([u8; 16], Vec<u8>)> {
        let mut weights = [[0u64; 256]; 4];
        for token in tokens {
            if let Token::Symbol { table, symbol, .. } = token {
                weights[*table][usize::from(*symbol)] += 1;
            }
        }
        if self.codes == CodeChoice::Usual {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/images/420.jpg");
            let frame = Frame::parse(&std::fs::read(path).expect("an example")).expect("an ordinary file");
            let tables = frame.dc_codes[..2].iter().chain(&frame.ac_codes[..2]);
            return tables.map(|codes| codes.as_ref().expect("the usual tables").parts()).collect();
        }
        if self.codes == CodeChoice::Odd {
            for (table, weights) in weights.iter_mut().enumerate() {
                let count = if table < 2 { 12 } else { 256 };
                weights[..count].fill_with(|| 1 << numbers.below(40));
            }
        }
        weights.iter().map(codes_of).collect()
    }
}

/// An ordinary file with a restart marker every `interval` MCUs, and the shortest codes for what it then holds.
pub fn with_restarts(file: &[u8], interval: usize) -> Vec<u8> {
    let frame = Frame::parse(file).expect("an ordinary file");
    let tokens = tokens_of(file, &frame, interval);
    let mut weights = [[0u64; 256]; 4];
    for token in &tokens {
        if let Token::Symbol { table, symbol, .. } = token {
            weights[*table][usize::from(*symbol)] += 1;
        }
    }
    let codes: Vec<_> = weights.iter().map(codes_of).collect();
    let mut written = vec![0xff, 0xd8];
    let mut place = 2;
    loop {
        let end = place + 2 + usize::from(u16::from_be_bytes([file[place + 2], file[place + 3]]));
        match file[place + 1] {
            0xc4 | 0xdd => {}
            0xda => break,
            _ => written.extend_from_slice(&file[place..end]),
        }
        place = end;
    }
    segment(&mut written, 0xdd, &(interval as u16).to_be_bytes());
    write_codes(&mut written, &codes);
    let mut body = file[place + 4..frame.scan_start].to_vec();
    (0..frame.count).for_each(|component| body[2 + 2 * component] = component.min(1) as u8 * 0x11);
    segment(&mut written, 0xda, &body);
    write(&mut written, &tokens, &codes, &mut Numbers(interval as u64));
    written.extend([0xff, 0xd9]);
    written
}

/// What a file says, with restart markers every `interval` MCUs.
fn tokens_of(file: &[u8], frame: &Frame, interval: usize) -> Vec<Token> {
    let (mut scan, mut rows) = (Scan::default(), McuRows::default());
    let (across, down) = (frame.mcus_across, frame.mcus_down);
    let needed = Needed { rows: 0..down, columns: 0..across, rows_read: down };
    scan.start(file, frame, needed, &mut rows).expect("a good file");
    let mut tokens = Vec::new();
    let mut dc = [0; 3];
    let mut mcu = 0;
    while mcu < across * down {
        scan.next_rows(file, &mut rows).expect("a good file");
        for place in 0..rows.count() * across {
            if mcu > 0 && mcu % interval == 0 {
                tokens.push(Token::Restart((mcu / interval - 1) as u8 % 8));
                dc = [0; 3];
            }
            for (component, dc) in dc.iter_mut().enumerate().take(frame.count) {
                let (h, v) = (frame.components[component].h, frame.components[component].v);
                let blocks: Blocks<'_> = rows.blocks(component, place / across);
                for block in 0..h * v {
                    let index = block / h * across * h + place % across * h + block % h;
                    block_tokens(
                        &mut tokens,
                        component.min(1),
                        dc,
                        blocks.range(index..index + 1).iter().next().expect("a block"),
                    );
                }
            }
            mcu += 1;
        }
    }
    tokens
}

fn block_tokens(tokens: &mut Vec<Token>, table: usize, dc: &mut i32, block: &[i16; 64]) {
    let sized = |value: i32| {
        let size = 32 - value.unsigned_abs().leading_zeros();
        (size as u8, (if value < 0 { value - 1 } else { value }) as u32 & ((1 << size) - 1))
    };
    let (symbol, bits) = sized(i32::from(block[0]) - *dc);
    *dc = block[0].into();
    tokens.push(Token::Symbol { table, symbol, bits });
    let mut run = 0;
    for place in &NATURAL_ORDER[1..] {
        let value = block[usize::from(*place)];
        if value == 0 {
            run += 1;
            continue;
        }
        while run >= 16 {
            tokens.push(Token::Symbol { table: 2 + table, symbol: 0xf0, bits: 0 });
            run -= 16;
        }
        let (size, bits) = sized(value.into());
        tokens.push(Token::Symbol { table: 2 + table, symbol: run << 4 | size, bits });
        run = 0;
    }
    if run > 0 {
        tokens.push(Token::Symbol { table: 2 + table, symbol: 0, bits: 0 });
    }
}

fn write_codes(file: &mut Vec<u8>, codes: &[([u8; 16], Vec<u8>)]) {
    for (table, (lengths, symbols)) in codes.iter().enumerate() {
        let kind = ((table as u8 / 2) << 4) | (table as u8 % 2);
        segment(file, 0xc4, &[&[kind], &lengths[..], symbols].concat());
    }
}

/// The value of a difference of `size` bits.
fn difference(bits: u32, size: u32) -> i32 {
    if size == 0 || bits >> (size - 1) == 1 { bits as i32 } else { bits as i32 - (1 << size) + 1 }
}

fn segment(file: &mut Vec<u8>, marker: u8, body: &[u8]) {
    file.extend([0xff, marker]);
    file.extend((body.len() as u16 + 2).to_be_bytes());
    file.extend_from_slice(body);
}

/// Codes for symbols of these weights, at most 16 bits long and none all ones (T.81, annex K.2).
fn codes_of(weights: &[u64; 256]) -> ([u8; 16], Vec<u8>) {
    // Trees as a weight and the symbols in it, each with its depth. Symbol 256 takes the code that is all ones.
    let mut trees: Vec<(u64, Vec<(usize, usize)>)> = weights
        .iter()
        .enumerate()
        .filter(|(_, weight)| **weight > 0)
        .map(|(symbol, &weight)| (weight, vec![(symbol, 0)]))
        .collect();
    if trees.is_empty() {
        return ([0; 16], Vec::new());
    }
    trees.push((0, vec![(256, 0)]));
    while trees.len() > 1 {
        trees.sort_by_key(|tree| std::cmp::Reverse(tree.0));
        let (a, b) = (trees.pop().expect("two trees"), trees.pop().expect("two trees"));
        let symbols = a.1.into_iter().chain(b.1).map(|(symbol, depth)| (symbol, depth + 1)).collect();
        trees.push((a.0 + b.0, symbols));
    }
    let mut symbols = trees.remove(0).1;
    let mut counts = [0usize; 258];
    symbols.iter().for_each(|(_, depth)| counts[*depth] += 1);
    for depth in (17..counts.len()).rev() {
        while counts[depth] > 0 {
            let shorter = (1..depth - 1).rev().find(|&depth| counts[depth] > 0).expect("a shorter code");
            counts[depth] -= 2;
            counts[depth - 1] += 1;
            counts[shorter + 1] += 2;
            counts[shorter] -= 1;
        }
    }
    let longest = (1..=16).rev().find(|&depth| counts[depth] > 0).expect("the code of symbol 256");
    counts[longest] -= 1;
    symbols.retain(|(symbol, _)| *symbol < 256);
    symbols.sort_by_key(|(symbol, depth)| (*depth, *symbol));
    let lengths = std::array::from_fn(|index| counts[index + 1] as u8);
    (lengths, symbols.iter().map(|(symbol, _)| *symbol as u8).collect())
}

/// Codes the tokens; bits that fill the last byte of a segment are random.
fn write(file: &mut Vec<u8>, tokens: &[Token], codes: &[([u8; 16], Vec<u8>)], numbers: &mut Numbers) {
    let mut written = [[(0u32, 0u32); 256]; 4];
    for (written, (lengths, symbols)) in written.iter_mut().zip(codes) {
        let (mut code, mut symbols) = (0, symbols.iter());
        for (length, &count) in (1..).zip(lengths) {
            for &symbol in symbols.by_ref().take(count.into()) {
                written[usize::from(symbol)] = (code, length);
                code += 1;
            }
            code <<= 1;
        }
    }
    let (mut buffer, mut count) = (0u64, 0);
    let mut push = |file: &mut Vec<u8>, bits: u32, length: u32| {
        (buffer, count) = (buffer << length | u64::from(bits), count + length);
        while count >= 8 {
            count -= 8;
            let byte = (buffer >> count) as u8;
            file.push(byte);
            if byte == 0xff {
                file.push(0);
            }
        }
        count
    };
    let mut finish = |push: &mut dyn FnMut(&mut Vec<u8>, u32, u32) -> u32, file: &mut Vec<u8>| {
        let left = (8 - push(file, 0, 0)) % 8;
        push(file, numbers.next() as u32 & ((1 << left) - 1), left);
    };
    for token in tokens {
        match *token {
            Token::Symbol { table, symbol, bits } => {
                let (code, length) = written[table][usize::from(symbol)];
                assert!(length > 0, "a code for {symbol:#x} in table {table}");
                push(file, code, length);
                push(file, bits, u32::from(if table < 2 { symbol } else { symbol & 15 }));
            }
            Token::Restart(number) => {
                finish(&mut push, file);
                file.extend([0xff, 0xd0 + number]);
            }
        }
    }
    finish(&mut push, file);
}
