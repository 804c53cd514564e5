//! Images of a pair: one has transforms, the other follows it with the same draws, as it is or some times larger.

use super::mask::ImageForm;
use crate::error::{Error, FaultClass, Result, SampleFault};
use crate::spec::{FieldKind, FieldSpec, ImageSpec};

/// The image that another follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Leader {
    /// Its field.
    pub(super) field: usize,
    /// How many times larger the follower is.
    scale: u32,
}

impl Leader {
    /// That of the image `spec`, if it follows one.
    pub(super) fn of(spec: &ImageSpec, fields: &[FieldSpec]) -> Option<Self> {
        let like = spec.like.as_ref()?;
        let field = fields.iter().position(|field| field.name == like.image)?;
        Some(Self { field, scale: like.scale })
    }

    /// Refuses a follower that is not as many times larger than its leader.
    pub(super) fn check(&self, leader: Option<ImageForm>, follower: ImageForm) -> Result<(), SampleFault> {
        let Some(leader) = leader else {
            return Ok(());
        };
        let [small, large] = [leader, follower].map(|form| form.orientation.size(form.size));
        let scale = u64::from(self.scale);
        let fits = |small: u32, large: u32| u64::from(small) * scale == u64::from(large);
        if fits(small.0, large.0) && fits(small.1, large.1) {
            return Ok(());
        }
        let message = format!(
            "the image has {}x{} pixels and the one it follows {}x{}, of which scale={scale} makes {}x{}",
            large.0,
            large.1,
            small.0,
            small.1,
            u64::from(small.0) * scale,
            u64::from(small.1) * scale
        );
        Err(SampleFault::new(FaultClass::Corrupt, message))
    }
}

/// `fields` with the transforms and views of the images that others follow in the followers too.
pub(super) fn resolve(fields: &[FieldSpec]) -> Result<Vec<FieldSpec>> {
    let mut resolved = fields.to_vec();
    for field in &mut resolved {
        let FieldKind::Image(image) = &mut field.kind else { continue };
        let Some(like) = &image.like else { continue };
        let refuse = |words: String| Err(Error::config(format!("image {:?}: {words}", field.name)));
        let leader = fields.iter().find_map(|other| match &other.kind {
            FieldKind::Image(leader) if other.name == like.image => Some(leader),
            _ => None,
        });
        let Some(leader) = leader else {
            return refuse(format!("like={:?} names no image field of this job", like.image));
        };
        if leader.like.is_some() {
            return refuse(format!("like={:?} names an image that follows another: name that one", like.image));
        }
        if !image.transforms.is_empty() || image.view != 0 {
            return refuse(
                "like= takes the transforms and the view of the other image: leave those of this one out".into(),
            );
        }
        if like.scale == 0 {
            return refuse("scale is how many times larger the image is than the one it follows, at least 1".into());
        }
        image.transforms.clone_from(&leader.transforms);
        image.view = leader.view;
    }
    Ok(resolved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::orientation::Orientation;
    use crate::spec::{LikeSpec, Transform};

    fn image(name: &str, like: Option<(&str, u32)>, is_bare: bool) -> FieldSpec {
        let transforms = if is_bare { vec![] } else { vec![Transform::CenterCrop { size: [8, 6] }] };
        let like = like.map(|(image, scale)| LikeSpec { image: image.into(), scale });
        let kind = FieldKind::Image(ImageSpec { transforms, like, ..ImageSpec::default() });
        FieldSpec { name: name.into(), sources: vec!["png".into()], kind, default: None }
    }

    #[test]
    fn followers_take_the_transforms() {
        let fields = resolve(&[image("gt", Some(("lq", 4)), true), image("lq", None, false)]).expect("sound");
        let FieldKind::Image(spec) = &fields[0].kind else { panic!("an image") };
        assert_eq!(spec.transforms, [Transform::CenterCrop { size: [8, 6] }]);
        assert_eq!(Leader::of(spec, &fields), Some(Leader { field: 1, scale: 4 }));
    }

    #[test]
    fn what_cannot_be_followed() {
        let check = |fields: &[FieldSpec], words: &str| {
            let error = resolve(fields).expect_err(words).to_string();
            assert!(error.contains(words), "{error}");
        };
        let lq = || image("lq", None, false);
        check(&[image("gt", Some(("x", 2)), true), lq()], "names no image field");
        check(&[image("gt", Some(("gt", 2)), true)], "that follows another");
        check(&[lq(), image("gt", Some(("lq", 0)), true)], "at least 1");
        check(&[lq(), image("gt", Some(("lq", 2)), false)], "leave those of this one out");
    }

    #[test]
    fn sizes_are_compared() {
        let leader = Leader { field: 0, scale: 3 };
        let form = |size| ImageForm { size, orientation: Orientation::UPRIGHT };
        let check = |small, large, words: Option<&str>| {
            let found = leader.check(Some(form(small)), form(large));
            match (found, words) {
                (Ok(()), None) => {}
                (Err(fault), Some(words)) => assert!(fault.message.contains(words), "{fault}"),
                (found, _) => panic!("{found:?}"),
            }
        };
        check((5, 7), (15, 21), None);
        check((5, 7), (15, 20), Some("15x20 pixels and the one it follows 5x7, of which scale=3 makes 15x21"));
        check((5, 7), (5, 7), Some("makes 15x21"));
        leader.check(None, form((1, 1))).expect("a default has no size");
    }
}
