//! Where the segments between restart markers lie (ITU-T T.81, B.2.1 and E.2.4), so that those which a region does not
//! need are passed over unread.
//!
//! The bytes are looked through once, a vector at a time, for a 0xff that is not followed by zero. That costs a hundredth
//! of decoding them.

use std::ops::Range;

use super::huffman::Anomaly;

/// Bytes of the marker between two segments.
const MARKER: usize = 2;

/// Bytes that are looked at together.
const VECTOR: usize = 32;

/// The segments of a scan, from its first to the last that libjpeg would look at.
#[derive(Debug, Default)]
pub struct Restarts {
    /// Where the first starts.
    start: usize,
    /// Where each ends: at a marker, or with the file.
    ends: Vec<usize>,
}

impl Restarts {
    /// Finds the first `count` segments of `file`, from byte `start` on. An anomaly: something else than the marker
    /// that is due stands between two of them. What comes behind the last is not judged.
    pub fn find(&mut self, file: &[u8], start: usize, count: usize) -> Result<(), Anomaly> {
        self.start = start;
        self.ends.clear();
        let mut place = start;
        for segment in 0..count {
            let end = next_marker(file, place);
            self.ends.push(end);
            place = end + MARKER;
            let due = [0xff, 0xd0 + (segment % 8) as u8];
            if segment + 1 < count && file.get(end..place) != Some(&due) {
                return Err(Anomaly);
            }
        }
        Ok(())
    }

    /// How many were found.
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of one, in the file.
    pub fn bytes(&self, segment: usize) -> Range<usize> {
        let start = match segment.checked_sub(1) {
            Some(before) => self.ends[before] + MARKER,
            None => self.start,
        };
        start..self.ends[segment]
    }
}

/// Where the next marker lies from byte `place` of `file` on, or where the file ends.
fn next_marker(file: &[u8], mut place: usize) -> usize {
    let is_marker = |byte: u8, next: u8| (byte == 0xff) & (next != 0);
    while let Some(bytes) = file.get(place..).and_then(<[u8]>::first_chunk::<{ VECTOR + 1 }>) {
        // Without a branch, so that it is done in vectors.
        if (0..VECTOR).fold(false, |found, index| found | is_marker(bytes[index], bytes[index + 1])) {
            break;
        }
        place += VECTOR;
    }
    while let Some(&byte) = file.get(place) {
        // The last byte of a file is no data if it is 0xff.
        if is_marker(byte, file.get(place + 1).copied().unwrap_or(0xff)) {
            break;
        }
        place += 1;
    }
    place
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(file: &[u8], start: usize, count: usize) -> Result<Vec<Range<usize>>, Anomaly> {
        let mut restarts = Restarts::default();
        restarts.find(file, start, count)?;
        Ok((0..restarts.count()).map(|segment| restarts.bytes(segment)).collect())
    }

    /// Bytes of segments, zero behind every 0xff.
    fn segments() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let pair = prop_oneof![6 => any::<u8>().prop_map(|byte| vec![byte.min(0xfe)]), 1 => Just(vec![0xff, 0])];
        let segment = prop::collection::vec(pair, 0..90).prop_map(|pairs| pairs.concat());
        prop::collection::vec(segment, 1..20)
    }

    proptest! {
        #[test]
        fn segments_lie_where_they_were_put(segments in segments(), before in 0usize..9, end in 0u8..4, wrong in 1u8..8) {
            let mut file = vec![0xff; before];
            let mut places = Vec::new();
            for (number, segment) in segments.iter().enumerate() {
                places.push(file.len()..file.len() + segment.len());
                file.extend_from_slice(segment);
                file.extend([0xff, 0xd0 + number as u8 % 8]);
            }
            // The last ends at any marker, at padding, or where the file does.
            let last = places[places.len() - 1].end;
            file.truncate(last);
            file.extend_from_slice([&[0xff, 0xd9, 1][..], &[0xff, 0xff, 0], &[0xff], &[]][usize::from(end)]);
            for count in 1..=segments.len() {
                prop_assert_eq!(&found(&file, before, count), &Ok(places[..count].to_vec()));
            }
            prop_assert_eq!(found(&file, before, segments.len() + 1), Err(Anomaly));
            for place in &places[..places.len() - 1] {
                let mut other = file.clone();
                other[place.end + 1] = 0xd0 + (other[place.end + 1] - 0xd0 + wrong) % 8;
                prop_assert_eq!(found(&other, before, segments.len()), Err(Anomaly));
                other[place.end + 1] = 0xff;
                prop_assert_eq!(found(&other, before, segments.len()), Err(Anomaly));
            }
        }
    }
}
