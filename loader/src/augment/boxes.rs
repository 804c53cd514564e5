//! Where the boxes of an image go when its steps are carried out: torchvision's geometry, in double precision.
//!
//! A box is cut off at the border of the image after every step, as torchvision's kernels do, and is gone when nothing of
//! it is left: what a crop cut away does not come back. A rotation or projection gives the smallest upright box around
//! the four corners that it moves. Only IEEE operations: the same numbers on every processor.

use super::geometry::Stage;
use super::operation::{Extend, Operation, Warp};
use super::plan::Step;

/// A box on its way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MovingBox {
    /// Left, top, right, bottom; pixel edges are whole numbers.
    pub edges: [f64; 4],
    /// Share of it that no border has cut off so far: the product, over all cuts, of the area after and before it.
    pub visible: f64,
}

impl MovingBox {
    /// A box as it is in an image of (width, height) `size`; `None`: it has no area there.
    pub fn of_image(edges: [f64; 4], size: (u32, u32)) -> Option<Self> {
        let whole = Self { edges, visible: 1.0 }.cut([0.0, 0.0, size.0.into(), size.1.into()])?;
        // What was outside of the image was never to be seen.
        Some(Self { visible: 1.0, ..whole })
    }

    /// Where the box is after `steps`, those of an image of (width, height) `size`; `None`: nothing of it is left.
    pub fn follow(mut self, steps: &[Step], mut size: (u32, u32)) -> Option<Self> {
        for step in steps {
            match step {
                Step::Resample(stage) => {
                    self = self.resample(stage)?;
                    size = stage.output();
                }
                Step::Operation(operation) => {
                    match operation {
                        Operation::Warp(warp) => self = self.warp(warp, size)?,
                        Operation::Extend(extend) => self = self.extend(extend)?,
                        // Colours, and what is painted over the image alone.
                        _ => {}
                    }
                    size = operation.output(size);
                }
                Step::EraseFloats(_) => {}
            }
        }
        Some(self)
    }

    fn area(&self) -> f64 {
        let [left, top, right, bottom] = self.edges;
        (right - left) * (bottom - top)
    }

    /// What lies within `border`.
    fn cut(self, border: [f64; 4]) -> Option<Self> {
        let [left, top, right, bottom] = self.edges;
        let edges = [left.max(border[0]), top.max(border[1]), right.min(border[2]), bottom.min(border[3])];
        let is_left = edges[0] < edges[2] && edges[1] < edges[3];
        let cut = Self { edges, ..self };
        is_left.then(|| Self { visible: self.visible * (cut.area() / self.area()), ..cut })
    }

    fn moved(self, right: f64, down: f64) -> Self {
        let [x1, y1, x2, y2] = self.edges;
        Self { edges: [x1 + right, y1 + down, x2 + right, y2 + down], ..self }
    }

    fn resample(self, stage: &Stage) -> Option<Self> {
        let Stage { source, resized, window, .. } = *stage;
        let visible = stage.visible?;
        let mut made = self.moved(-f64::from(source.left), -f64::from(source.top));
        let scale = [f64::from(resized.0) / f64::from(source.width), f64::from(resized.1) / f64::from(source.height)];
        made.edges = std::array::from_fn(|side| made.edges[side] * scale[side % 2]);
        // Within the region that is resized, and not what was cut off before it was padded.
        let (left, top) = (visible.left as f64, visible.top as f64);
        made = made.cut([left, top, left + f64::from(visible.width), top + f64::from(visible.height)])?;
        made = made.moved(-window.left as f64, -window.top as f64);
        let [left, top, right, bottom] = made.edges;
        if stage.mirrored {
            let width = f64::from(window.width);
            (made.edges[0], made.edges[2]) = (width - right, width - left);
        }
        if stage.upside_down {
            let height = f64::from(window.height);
            (made.edges[1], made.edges[3]) = (height - bottom, height - top);
        }
        Some(made)
    }

    /// A border that mirrors the image shows no box a second time.
    fn extend(self, extend: &Extend) -> Option<Self> {
        let window = extend.window;
        let made = self.moved(-window.left as f64, -window.top as f64);
        made.cut([0.0, 0.0, window.width.into(), window.height.into()])
    }

    fn warp(self, warp: &Warp, (width, height): (u32, u32)) -> Option<Self> {
        let forward = inverse(&warp.coefficients)?;
        let [left, top, right, bottom] = self.edges;
        let mut hull = [f64::INFINITY, f64::INFINITY, f64::NEG_INFINITY, f64::NEG_INFINITY];
        for [x, y] in [[left, top], [right, top], [right, bottom], [left, bottom]] {
            let [a, b, c, d, e, f, g, h, i] = forward;
            let depth = g * x + h * y + i;
            let place = [(a * x + b * y + c) / depth, (d * x + e * y + f) / depth];
            for axis in 0..2 {
                hull[axis] = hull[axis].min(place[axis]);
                hull[axis + 2] = hull[axis + 2].max(place[axis]);
            }
        }
        let is_finite = hull.iter().all(|edge| edge.is_finite());
        let made = Self { edges: hull, ..self };
        if is_finite { made.cut([0.0, 0.0, width.into(), height.into()]) } else { None }
    }
}

/// The projection back, up to a factor of all nine numbers: the adjugate. `None`: there is none.
fn inverse(&[a, b, c, d, e, f, g, h]: &[f64; 8]) -> Option<[f64; 9]> {
    let adjugate = [
        e - f * h,
        c * h - b,
        b * f - c * e,
        f * g - d,
        a - c * g,
        c * d - a * f,
        d * h - e * g,
        b * g - a * h,
        a * e - b * d,
    ];
    let determinant = a * adjugate[0] + b * adjugate[3] + c * adjugate[6];
    (determinant != 0.0 && determinant.is_finite()).then_some(adjugate)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::geometry::Window;
    use super::super::warp::affine;
    use super::*;
    use crate::decode::Region;
    use crate::spec::{Interpolation, PaddingMode};

    fn check(steps: &[Step], size: (u32, u32), edges: [f64; 4], expected: Option<([f64; 4], f64)>) {
        let found = MovingBox::of_image(edges, size).and_then(|made| made.follow(steps, size));
        match (found, expected) {
            (None, None) => {}
            (Some(found), Some((edges, visible))) => {
                let near = found.edges.iter().zip(edges).all(|(found, expected)| (found - expected).abs() < 1e-9);
                assert!(near && (found.visible - visible).abs() < 1e-9, "{found:?}, expected {edges:?} {visible}");
            }
            (found, expected) => panic!("{found:?}, expected {expected:?}"),
        }
    }

    fn warp(coefficients: [f64; 8]) -> Step {
        Step::Operation(Operation::Warp(Warp { coefficients, interpolation: Interpolation::Nearest, fill: None }))
    }

    fn stage() -> Stage {
        // The left upper 8x6 of 10x10, doubled; of it columns 4 to 12, with a border of 2 above.
        Stage {
            source: Region { left: 0, top: 0, width: 8, height: 6 },
            resized: (16, 12),
            window: Window { left: 4, top: -2, width: 8, height: 14 },
            visible: Some(Window { left: 4, top: 0, width: 8, height: 12 }),
            ..Stage::of_image(10, 10)
        }
    }

    #[test]
    fn crops_scale_move_and_cut() {
        let size = (10, 10);
        check(&[], size, [-3.0, 1.0, 4.0, 20.0], Some(([0.0, 1.0, 4.0, 10.0], 1.0)));
        check(&[], size, [10.0, 0.0, 12.0, 3.0], None);
        check(&[], size, [1.0, 5.0, 4.0, 5.0], None);
        check(&[Step::Resample(stage())], size, [3.0, 1.0, 5.0, 2.0], Some(([2.0, 4.0, 6.0, 6.0], 1.0)));
        check(&[Step::Resample(stage())], size, [1.0, 0.0, 3.0, 1.0], Some(([0.0, 2.0, 2.0, 4.0], 0.5)));
        check(&[Step::Resample(stage())], size, [0.0, 0.0, 2.0, 6.0], None);
        let mirrored = Step::Resample(Stage { mirrored: true, upside_down: true, ..stage() });
        check(&[mirrored], size, [3.0, 1.0, 5.0, 2.0], Some(([2.0, 8.0, 6.0, 10.0], 1.0)));
        check(&[Step::Resample(Stage { visible: None, ..stage() })], size, [3.0, 1.0, 5.0, 2.0], None);
    }

    #[test]
    fn borders_that_mirror_move_alone() {
        let window = Window { left: -3, top: 2, width: 10, height: 4 };
        let extend = Step::Operation(Operation::Extend(Extend { window, mode: PaddingMode::Edge }));
        check(&[extend], (8, 8), [1.0, 0.0, 3.0, 4.0], Some(([4.0, 0.0, 6.0, 2.0], 0.5)));
        check(&[extend], (8, 8), [1.0, 0.0, 3.0, 2.0], None);
    }

    #[test]
    fn corners_go_where_pixels_go() {
        let turn = |angle| warp(affine((10, 10), None, angle, [0.0; 2], 1.0, [0.0; 2]));
        // A quarter clockwise: the upper left corner becomes the upper right one.
        check(&[turn(90.0)], (10, 10), [0.0, 0.0, 2.0, 3.0], Some(([7.0, 0.0, 10.0, 2.0], 1.0)));
        check(&[turn(180.0)], (10, 10), [0.0, 0.0, 2.0, 3.0], Some(([8.0, 7.0, 10.0, 10.0], 1.0)));
        let root = 2.0_f64.sqrt();
        check(
            &[turn(45.0)],
            (10, 10),
            [4.0, 4.0, 6.0, 6.0],
            Some(([5.0 - root, 5.0 - root, 5.0 + root, 5.0 + root], 1.0)),
        );
        let shift = warp(affine((10, 10), None, 0.0, [4.0, 0.0], 1.0, [0.0; 2]));
        check(&[shift], (10, 10), [4.0, 0.0, 8.0, 2.0], Some(([8.0, 0.0, 10.0, 2.0], 0.5)));
        // What has left the image does not come back.
        let back = warp(affine((10, 10), None, 0.0, [-4.0, 0.0], 1.0, [0.0; 2]));
        check(&[shift, back], (10, 10), [4.0, 0.0, 8.0, 2.0], Some(([4.0, 0.0, 6.0, 2.0], 0.5)));
        check(&[warp([0.0; 8])], (10, 10), [4.0, 0.0, 8.0, 2.0], None);
        check(&[warp([f64::NAN; 8])], (10, 10), [4.0, 0.0, 8.0, 2.0], None);
    }

    proptest! {
        #[test]
        fn boxes_stay_within_the_image(
            edges in prop::array::uniform4(-20.0..120.0f64),
            coefficients in prop::array::uniform8(-2.0..2.0f64),
            depth in prop::array::uniform2(-0.02..0.02f64),
        ) {
            let [a, b, c, d, e, f, ..] = coefficients;
            let steps = [warp([a, b, c * 50.0, d, e, f * 50.0, depth[0], depth[1]])];
            if let Some(found) = MovingBox::of_image(edges, (100, 80)).and_then(|made| made.follow(&steps, (100, 80))) {
                let [left, top, right, bottom] = found.edges;
                prop_assert!(0.0 <= left && left < right && right <= 100.0, "{found:?}");
                prop_assert!(0.0 <= top && top < bottom && bottom <= 80.0, "{found:?}");
                prop_assert!(found.visible > 0.0 && found.visible <= 1.0, "{found:?}");
            }
        }

        #[test]
        fn the_way_back_is_the_inverse(
            coefficients in prop::array::uniform6(-2.0..2.0f64),
            depth in prop::array::uniform2(-0.002..0.002f64),
            place in prop::array::uniform2(0.0..100.0f64),
        ) {
            let [a, b, c, d, e, f] = coefficients;
            prop_assume!((a * e - b * d).abs() > 0.1);
            let map = |[a, b, c, d, e, f, g, h, i]: [f64; 9], [x, y]: [f64; 2]| {
                let depth = g * x + h * y + i;
                [(a * x + b * y + c) / depth, (d * x + e * y + f) / depth]
            };
            let [g, h] = depth;
            let back = inverse(&[a, b, c, d, e, f, g, h]).expect("one");
            let found = map(back, map([a, b, c, d, e, f, g, h, 1.0], place));
            prop_assert!(found.iter().zip(place).all(|(found, place)| (found - place).abs() < 1e-4), "{found:?} {place:?}");
        }
    }
}
