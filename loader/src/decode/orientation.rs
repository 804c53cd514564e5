//! How a picture is turned before it is looked at, as cameras note it in EXIF data (tag 0x0112).
//!
//! The turned picture is the stored one with its axes exchanged, or not, and then mirrored, or not, along each axis.

use image::metadata::Orientation as Exif;

use super::Region;

/// How a stored picture is turned.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Orientation {
    /// Rows become columns.
    pub swapped: bool,
    /// Then mirrored left to right.
    pub flipped_across: bool,
    /// Then mirrored top to bottom.
    pub flipped_down: bool,
}

impl Orientation {
    /// As stored.
    pub const UPRIGHT: Self = Self { swapped: false, flipped_across: false, flipped_down: false };

    /// What `exif`, the EXIF data of an image, say; upright where they say nothing that makes sense.
    pub(super) fn of_exif(exif: &[u8]) -> Self {
        Exif::from_exif_chunk(exif).map_or(Self::UPRIGHT, Self::of)
    }

    pub(super) fn of(exif: Exif) -> Self {
        let (swapped, flipped_across, flipped_down) = match exif {
            Exif::NoTransforms => (false, false, false),
            Exif::FlipHorizontal => (false, true, false),
            Exif::Rotate180 => (false, true, true),
            Exif::FlipVertical => (false, false, true),
            Exif::Rotate90FlipH => (true, false, false),
            Exif::Rotate90 => (true, true, false),
            Exif::Rotate270FlipH => (true, true, true),
            Exif::Rotate270 => (true, false, true),
        };
        Self { swapped, flipped_across, flipped_down }
    }

    /// (width, height) of the turned picture, or of the stored one where the turned one is given.
    pub fn size(self, (width, height): (u32, u32)) -> (u32, u32) {
        if self.swapped { (height, width) } else { (width, height) }
    }

    /// The part of the stored picture that becomes `region` of the turned one, whose (width, height) is given.
    pub(super) fn stored(self, region: Region, (width, height): (u32, u32)) -> Region {
        let mut stored = region;
        if self.flipped_across {
            stored.left = width - region.left - region.width;
        }
        if self.flipped_down {
            stored.top = height - region.top - region.height;
        }
        if self.swapped {
            let Region { left, top, width, height } = stored;
            stored = Region { left: top, top: left, width: height, height: width };
        }
        stored
    }

    /// Where the box (left, top, right, bottom) of the stored picture, whose (width, height) is given, ends up.
    pub fn turn_box(self, [left, top, right, bottom]: [f64; 4], size: (u32, u32)) -> [f64; 4] {
        let (width, height) = self.size(size);
        let [mut left, mut top, mut right, mut bottom] =
            if self.swapped { [top, left, bottom, right] } else { [left, top, right, bottom] };
        if self.flipped_across {
            (left, right) = (f64::from(width) - right, f64::from(width) - left);
        }
        if self.flipped_down {
            (top, bottom) = (f64::from(height) - bottom, f64::from(height) - top);
        }
        [left, top, right, bottom]
    }

    /// Appends to `turned` the picture whose pixels are `stored`, of (width, height) as stored.
    pub fn turn<T: Copy>(self, stored: &[T], size: (u32, u32), turned: &mut Vec<T>) {
        let (width, height) = self.size(size);
        let (width, height) = (width as usize, height as usize);
        turned.reserve(width * height);
        let (step_across, step_down) = if self.swapped { (height, 1) } else { (1, width) };
        for y in 0..height {
            let y = if self.flipped_down { height - 1 - y } else { y };
            let row = (0..width).map(|x| if self.flipped_across { width - 1 - x } else { x });
            turned.extend(row.map(|x| stored[x * step_across + y * step_down]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pixels 0 to 5 of a picture of 3x2, as the standard tells where the first row and the first column end up.
    fn check(number: u8, size: (u32, u32), expected: [u8; 6]) {
        let orientation = Orientation::of(Exif::from_exif(number).expect("1 to 8"));
        assert_eq!(orientation.size((3, 2)), size, "{number}");
        let mut turned = Vec::new();
        orientation.turn(&[0, 1, 2, 3, 4, 5], (3, 2), &mut turned);
        assert_eq!(turned, expected, "{number}");
        for (place, &pixel) in turned.iter().enumerate() {
            let place = place as u32;
            let region = Region { left: place % size.0, top: place / size.0, width: 1, height: 1 };
            let stored = orientation.stored(region, size);
            assert_eq!(stored.top * 3 + stored.left, u32::from(pixel), "{number}: {region:?}");
            let edges = |Region { left, top, .. }: Region| [left, top, left + 1, top + 1].map(f64::from);
            assert_eq!(orientation.turn_box(edges(stored), (3, 2)), edges(region), "{number}");
        }
    }

    #[test]
    fn the_eight_orientations() {
        check(1, (3, 2), [0, 1, 2, 3, 4, 5]);
        check(2, (3, 2), [2, 1, 0, 5, 4, 3]);
        check(3, (3, 2), [5, 4, 3, 2, 1, 0]);
        check(4, (3, 2), [3, 4, 5, 0, 1, 2]);
        check(5, (2, 3), [0, 3, 1, 4, 2, 5]);
        check(6, (2, 3), [3, 0, 4, 1, 5, 2]);
        check(7, (2, 3), [5, 2, 4, 1, 3, 0]);
        check(8, (2, 3), [2, 5, 1, 4, 0, 3]);
    }

    #[test]
    fn garbage_is_upright() {
        for bytes in [&b""[..], b"II", b"II\x2a\0\xff\xff\xff\xff", b"MM\0\x2a\0\0\0\x08\xff\xff", b"garbage"] {
            assert_eq!(Orientation::of_exif(bytes), Orientation::UPRIGHT, "{bytes:?}");
        }
    }
}
