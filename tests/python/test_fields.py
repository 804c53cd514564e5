"""Fields and transforms: what the sidecar is told, and what is refused."""

from __future__ import annotations

import pytest

import feedline
from feedline import CenterCrop, Float, Image, Int, RandomHorizontalFlip, RandomResizedCrop, Resize
from feedline.fields import field_specs


@pytest.mark.parametrize(
    ("transform", "spec"),
    [
        (
            RandomResizedCrop(224),
            {"random_resized_crop": {"size": (224, 224), "scale": (0.08, 1.0), "ratio": (3 / 4, 4 / 3)}},
        ),
        (
            RandomResizedCrop((8, 9), scale=(0.5, 0.5), ratio=[1, 2]),
            {"random_resized_crop": {"size": (8, 9), "scale": (0.5, 0.5), "ratio": (1, 2)}},
        ),
        (RandomResizedCrop([7])
         , {"random_resized_crop": {"size": (7, 7), "scale": (0.08, 1.0), "ratio": (3 / 4, 4 / 3)}}),
        (Resize(256), {"resize": {"to": {"short_side": 256}}}),
        (Resize([256]), {"resize": {"to": {"short_side": 256}}}),
        (Resize((10, 20)), {"resize": {"to": {"exact": (10, 20)}}}),
        (CenterCrop(224), {"center_crop": {"size": (224, 224)}}),
        (RandomHorizontalFlip(), {"random_horizontal_flip": {"p": 0.5}}),
        (RandomHorizontalFlip(1), {"random_horizontal_flip": {"p": 1.0}}),
    ],
)  # fmt: skip
def test_transforms_become_specs(transform, spec) -> None:
    assert transform.spec() == spec


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: RandomResizedCrop("224"), TypeError, "int or a sequence"),
        (lambda: RandomResizedCrop((1, 2, 3)), TypeError, "one or two"),
        (lambda: RandomResizedCrop(0), ValueError, "1 to 16384"),
        (lambda: RandomResizedCrop(2.5), TypeError, "int or a sequence"),
        (lambda: RandomResizedCrop(8, scale=0.5), TypeError, "min, max"),
        (lambda: RandomResizedCrop(8, scale=(0.9, 0.1)), ValueError, "min <= max"),
        (lambda: RandomResizedCrop(8, scale=(0.1, 1.5)), ValueError, "at most 1"),
        (lambda: RandomResizedCrop(8, ratio=(0, 1)), ValueError, "0 < min"),
        (lambda: RandomResizedCrop(8, ratio=(1, float("inf"))), TypeError, "finite"),
        (lambda: RandomResizedCrop(8, interpolation="lanczos"), ValueError, "bilinear"),
        (lambda: RandomResizedCrop(8, interpolation="bicubic", antialias=False), ValueError, "antialias"),
        (lambda: Resize(8, max_size=10), ValueError, "CenterCrop"),
        (lambda: RandomHorizontalFlip(1.5), ValueError, "0 to 1"),
        (lambda: RandomHorizontalFlip("often"), TypeError, "numbers"),
        (lambda: Image(["jpg"]), ValueError, "RandomResizedCrop\\(224\\)"),
        (lambda: Image(["jpg"], Resize(8)), ValueError, "fix the output size"),
        (lambda: Image([], CenterCrop(8)), TypeError, "members of a shard"),
        (lambda: Image(CenterCrop(8)), TypeError, "members of a shard"),
        (lambda: Image("jpg", "CenterCrop"), TypeError, "not a transform"),
        (lambda: Image("jpg", CenterCrop(8), max_pixels=0), ValueError, "max_pixels"),
        (lambda: Int(""), TypeError, "members of a shard"),
        (lambda: Float([3]), TypeError, "members of a shard"),
    ],
)
def test_wrong_fields(make, error, words) -> None:
    with pytest.raises(error, match=words):
        make()


def test_torchvision_s_interpolation_is_understood() -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    RandomResizedCrop(8, interpolation=transforms.InterpolationMode.BILINEAR)
    nearest = Resize((8, 8), interpolation=transforms.InterpolationMode.NEAREST)
    assert nearest.spec() == {"resize": {"to": {"exact": (8, 8)}, "resampling": "nearest"}}
    with pytest.raises(ValueError, match="bilinear"):
        Resize((8, 8), interpolation=transforms.InterpolationMode.LANCZOS)


def test_fields_become_specs_in_order() -> None:
    fields = {"b": Int(".CLS"), "a": Image("JPG", Resize((2, 3)), max_pixels=9), "c": Float(["x", "y"])}
    assert field_specs(fields, "NCHW") == [
        {"name": "b", "sources": ["cls"], "kind": "int"},
        {
            "name": "a",
            "sources": ["jpg"],
            "kind": {"image": {"transforms": [Resize((2, 3)).spec()], "layout": "nchw", "max_pixels": 9}},
        },
        {"name": "c", "sources": ["x", "y"], "kind": "float"},
    ]
    kind = Image("jpg", CenterCrop(8), view=3, decode="scaled").kind("NHWC")
    assert (kind["image"]["view"], kind["image"]["decode"]) == (3, {"mode": "scaled"})


def test_fields_are_values() -> None:
    assert Int("cls") == Int(["cls"]) != Float("cls")
    assert Image("jpg", CenterCrop(8)) == Image(["jpg"], CenterCrop(8)) != Image("jpg", CenterCrop(9))
    assert len({Int("cls"), Int("cls"), Int("x")}) == 2
    assert "CenterCrop(size=8)" in repr(Image("jpg", CenterCrop(8)))


def test_the_native_side_reads_every_spec() -> None:
    every = (RandomResizedCrop(9), RandomHorizontalFlip(), Resize((8, 8)), Resize(7), CenterCrop((5, 6)))
    fields = {"image": feedline.Image(["jpg", "png"], *every), "label": Int("cls"), "weight": Float("w")}
    for layout in ("NHWC", "NCHW"):
        feedline.Loader(__file__, fields=fields, layout=layout)
