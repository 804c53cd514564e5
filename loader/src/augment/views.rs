//! Views: images of one sample that are made of the same picture, which is decoded once.
//!
//! Two large and six small crops, as self-supervised recipes take, would pass over the same entropy-coded data eight
//! times. So images with the same sources, limits and choices of decoding share: the first that runs decodes the smallest
//! region that holds what each of them reads, and all are made of those pixels, the same as if each had decoded its own.
//! Only `decode="scaled"` shares nothing, because there every crop has a reduction of its own.

use std::sync::Arc;

use super::ImageRecipe;
use super::philox::Draw;
use super::plan::{self, Step};
use crate::decode::orientation::Orientation;
use crate::decode::{Decoder, Region, STRIP_SLACK, Strips};
use crate::error::SampleFault;
use crate::spec::DecodeMode;

/// The recipes of the images that share a picture.
#[derive(Debug)]
pub struct Views {
    /// Which of a sample's pictures.
    picture: usize,
    recipes: Box<[ImageRecipe]>,
}

impl Views {
    /// Makes `recipes`, those of one sample, share picture number `picture`.
    pub fn share(picture: usize, recipes: &mut [&mut ImageRecipe]) {
        let own = recipes.iter().map(|recipe| (**recipe).clone()).collect();
        let views = Arc::new(Self { picture, recipes: own });
        for recipe in recipes {
            recipe.views = Some(views.clone());
        }
    }

    /// Whether images with these recipes can share a picture, if they have the same sources.
    pub fn can_share(one: &ImageRecipe, other: &ImageRecipe) -> bool {
        let (one, other) = (&one.spec, &other.spec);
        one.decode == other.decode
            && one.like == other.like
            && one.max_pixels == other.max_pixels
            && one.decode.mode != DecodeMode::Scaled
    }

    /// The smallest region that holds what each view reads of an image of this size.
    fn region(&self, size: (u32, u32), draw: Draw, steps: &mut Vec<Step>) -> Region {
        let mut region: Option<Region> = None;
        for recipe in &self.recipes {
            // A view that cannot be made says so when its turn comes.
            if plan::plan(&recipe.spec.transforms, recipe.sample(size, draw), steps).is_ok()
                && let Some(Step::Resample(stage)) = steps.first()
            {
                region = Some(region.map_or(stage.source, |region| region.with(stage.source)));
            }
        }
        region.unwrap_or(Region::whole(size.0, size.1))
    }
}

/// The picture that the views of the current sample share; the memory is reused from sample to sample.
pub(super) struct Picture {
    number: Option<usize>,
    pixels: Vec<u8>,
    /// The part of the image that they are.
    region: Region,
    /// (width, height) of the image, turned as the job says.
    pub size: (u32, u32),
    /// (width, height) as stored.
    pub stored_size: (u32, u32),
    pub orientation: Orientation,
    pub warnings: u32,
    pub is_cut_off: bool,
}

impl Default for Picture {
    fn default() -> Self {
        Self {
            number: None,
            pixels: Vec::new(),
            region: Region::whole(0, 0),
            size: (0, 0),
            stored_size: (0, 0),
            orientation: Orientation::UPRIGHT,
            warnings: 0,
            is_cut_off: false,
        }
    }
}

impl Picture {
    /// The next sample has other pictures.
    pub fn forget(&mut self) {
        self.number = None;
    }

    /// Makes this the picture of `views`, which `bytes` are, unless it is.
    pub fn of(
        &mut self,
        views: &Views,
        decoder: &mut Decoder,
        steps: &mut Vec<Step>,
        bytes: &[u8],
        draw: Draw,
    ) -> Result<&Self, SampleFault> {
        if self.number == Some(views.picture) {
            return Ok(self);
        }
        self.number = None;
        let spec = &views.recipes[0].spec;
        let image = decoder.open_with(bytes, spec.max_pixels, &spec.decode)?;
        (self.size, self.stored_size, self.orientation) = (image.size(), image.stored_size(), image.orientation());
        self.region = views.region(self.size, draw, steps);
        self.pixels.clear();
        image.region(self.region)?.append_to(&mut self.pixels, self.region.width)?;
        self.pixels.resize(self.pixels.len() + STRIP_SLACK, 0);
        (self.warnings, self.is_cut_off) = (decoder.warnings(), decoder.is_cut_off());
        self.number = Some(views.picture);
        Ok(self)
    }

    /// The rows of `region` of the image, which one of the views reads.
    pub fn strips(&self, region: Region) -> Strips<'_> {
        let of = self.region;
        let within = Region { left: region.left - of.left, top: region.top - of.top, ..region };
        assert!(within.is_within(of.width, of.height), "{region:?} is a view's part of {of:?}");
        Strips::of_pixels(&self.pixels, of.width, within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::augment::ImageWorker;
    use crate::augment::golden::decodable;
    use crate::spec::{
        DecodeMode, DecodeSpec, ImageSpec, OrientationRule, PixelLayout, Resampling, Transform, Truncated,
    };

    const FLIP: Transform = Transform::RandomHorizontalFlip { p: 0.5 };

    fn crop(side: u32, scale: [f64; 2]) -> Transform {
        let ratio = [0.75, 4.0 / 3.0];
        Transform::RandomResizedCrop { size: [side, side], scale, ratio, resampling: Resampling::Bilinear }
    }

    fn recipes(decode: DecodeSpec) -> Vec<ImageRecipe> {
        let lists: [&[Transform]; 5] = [
            &[crop(224, [0.14, 1.0]), FLIP],
            &[crop(96, [0.05, 0.14]), FLIP],
            &[crop(96, [0.05, 0.14]), FLIP, Transform::RandomGrayscale { p: 0.5 }],
            &[Transform::CenterCrop { size: [30, 300] }],
            &[Transform::RandomInvert { p: 1.0 }, crop(64, [0.5, 1.0])],
        ];
        let recipe = |(view, list): (usize, &&[Transform])| {
            let layout = if view == 1 { PixelLayout::Nchw } else { PixelLayout::Nhwc };
            let (transforms, view) = (list.to_vec(), view as u16);
            let spec = ImageSpec { transforms, layout, view, like: None, decode, max_pixels: 1 << 26 };
            ImageRecipe::compile(&spec).expect("sound")
        };
        lists.iter().enumerate().map(recipe).collect()
    }

    /// Views of one picture have the pixels that each has alone, from first to last and on any of `counts` at once.
    fn check(decode: DecodeSpec, files: &[(String, Vec<u8>)], counts: &[usize]) {
        let alone = recipes(decode);
        let (mut one, mut other) = (ImageWorker::new().expect("a worker"), ImageWorker::new().expect("a worker"));
        for &count in counts {
            let mut shared = alone[..count].to_vec();
            Views::share(0, &mut shared.iter_mut().collect::<Vec<_>>());
            for (index, (name, bytes)) in files.iter().enumerate() {
                let draw = Draw { seed: 7, epoch: 1, sample: index as u64 };
                one.begin_sample();
                for (alone, shared) in alone.iter().zip(&shared) {
                    let expected = other.run(alone, bytes, draw).expect("a good image");
                    assert!(one.run(shared, bytes, draw).expect("a good image") == expected, "{name}: {decode:?}");
                    assert_eq!((one.size(), one.orientation()), (other.size(), other.orientation()), "{name}");
                    assert_eq!(one.is_cut_off(), other.is_cut_off(), "{name}");
                }
            }
        }
    }

    #[test]
    fn views_of_one_picture_have_the_pixels_of_each_alone() {
        let files = decodable("views_of_one_picture_have_the_pixels_of_each_alone");
        check(DecodeSpec::default(), &files, &[2, 5]);
        check(DecodeSpec { mode: DecodeMode::Fast, ..DecodeSpec::default() }, &files, &[3]);
        let turned = OrientationRule::Apply;
        check(DecodeSpec { orientation: turned, truncated: Truncated::Lenient, ..DecodeSpec::default() }, &files, &[4]);
    }

    #[test]
    fn another_sample_is_another_picture() {
        let files = decodable("another_sample_is_another_picture");
        let mut shared = recipes(DecodeSpec::default());
        Views::share(0, &mut shared.iter_mut().collect::<Vec<_>>());
        let mut worker = ImageWorker::new().expect("a worker");
        let draw = Draw { seed: 0, epoch: 0, sample: 0 };
        worker.begin_sample();
        let first = worker.run(&shared[3], &files[0].1, draw).expect("a good image").to_vec();
        // Within a sample the picture stays.
        assert!(worker.run(&shared[3], b"none", draw).is_ok());
        worker.begin_sample();
        assert!(worker.run(&shared[3], b"none", draw).is_err());
        assert!(worker.run(&shared[3], &files[0].1, draw).expect("a good image") == first);
    }

    #[test]
    fn only_alike_and_exact_decodes_are_shared() {
        let of = |decode| recipes(decode).remove(0);
        let exact = DecodeSpec::default();
        assert!(Views::can_share(&of(exact), &of(exact)));
        let scaled = DecodeSpec { mode: DecodeMode::Scaled, ..exact };
        assert!(!Views::can_share(&of(scaled), &of(scaled)));
        assert!(!Views::can_share(&of(exact), &of(DecodeSpec { background: Some([0; 3]), ..exact })));
    }
}
