"""MixUp and CutMix: torchvision's results for the same draws, torchvision's distributions, and the loader's own promises."""

from __future__ import annotations

import itertools
import math
import os

import numpy as np
import pytest

import feedline
from feedline import mixing
from feedline.mixing import Place

torch = pytest.importorskip("torch")
v2 = pytest.importorskip("torchvision.transforms.v2")

DRAWS = int(os.environ.get("FEEDLINE_DRAWS", "5000"))

FIELDS = {
    "image": feedline.Image(["jpg"], feedline.RandomResizedCrop(32)),
    "label": feedline.Int("cls"),
}


def images(dtype: str = "float32", rows: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    pixels = torch.randint(0, 256, (rows, 3, 20, 30), generator=generator, dtype=torch.uint8)
    pixels = pixels.to(memory_format=torch.channels_last)
    return pixels if dtype == "uint8" else (pixels.float() / 255).to(getattr(torch, dtype))


def reference(name: str, share: float, batch: torch.Tensor, labels: torch.Tensor, box=None):
    """torchvision's own result, its parameters put in."""
    transform = getattr(v2, name)(num_classes=10)
    parameters = {"lam": share, "labels": labels, "batch_size": len(labels), "box": box}
    if box is not None:
        left, top, right, bottom = box
        parameters["box"] = (left, top, right, bottom)
        parameters["lam_adjusted"] = 1.0 - (right - left) * (bottom - top) / (batch.shape[2] * batch.shape[3])
    return transform.transform(batch, parameters), transform.transform(labels, parameters)


@pytest.mark.parametrize("rows", [1, 2, 5, 20])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_mixup_is_torchvision_s(share, rows) -> None:
    batch, labels = images(rows=rows), torch.arange(rows) % 10
    expected, expected_labels = reference("MixUp", share, batch, labels)
    torch.testing.assert_close(mixing.blended(batch, share), expected)
    torch.testing.assert_close(mixing.soft_labels(labels, share, 10, "label"), expected_labels)
    own = mixing.blended(batch, share)
    assert own.is_contiguous(memory_format=torch.channels_last)
    numpy_s = mixing.blended(batch.numpy(), share)
    np.testing.assert_allclose(numpy_s, expected.numpy(), atol=1e-6)
    np.testing.assert_allclose(mixing.soft_labels(labels.numpy(), share, 10, "label"), expected_labels.numpy(), atol=1e-6)


def test_bytes_are_rounded_to_the_nearest() -> None:
    batch = images("uint8")
    exact = 0.3 * batch.double() + 0.7 * batch.double().roll(1, 0)
    for own in (mixing.blended(batch, 0.3), torch.from_numpy(mixing.blended(batch.numpy(), 0.3))):
        assert own.dtype == torch.uint8
        assert (own.double() - exact).abs().max() <= 0.5 + 1e-4


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize(("share", "across", "down"), [(0.5, 0.5, 0.5), (0.1, 0.0, 0.99), (0.9, 0.2, 0.1), (1.0, 0.5, 0.5), (0.0, 0.3, 0.3)])
def test_cutmix_is_torchvision_s(share, across, down, rows) -> None:
    batch, labels = images("uint8", rows), torch.arange(rows) % 10
    left, top, right, bottom = box = mixing.cut_box(share, across, down, 30, 20)
    expected, expected_labels = reference("CutMix", share, batch, labels, box)
    kept = 1.0 - (right - left) * (bottom - top) / 600
    torch.testing.assert_close(mixing.pasted(batch, box, False), expected)
    torch.testing.assert_close(mixing.soft_labels(labels, kept, 10, "label"), expected_labels)
    last = mixing.pasted(np.ascontiguousarray(batch.permute(0, 2, 3, 1).numpy()), box, True)
    np.testing.assert_array_equal(last, expected.permute(0, 2, 3, 1).numpy())


def test_the_box_is_torchvision_s(monkeypatch) -> None:
    """For the same share and centre, which torchvision draws as whole numbers."""
    draws, batch = mixing.uniforms(Place(1, 2, 3, 4)), images()
    for _ in range(200):
        share, across, down = next(draws), next(draws), next(draws)
        transform = v2.CutMix(num_classes=10)
        monkeypatch.setattr(transform, "_dist", type("Fixed", (), {"sample": lambda self, shape, share=share: torch.tensor([share])})())
        centres = iter([int(across * 30), int(down * 20)])
        monkeypatch.setattr(torch, "randint", lambda *_args, centres=centres, **_more: torch.tensor([next(centres)]))
        parameters = transform.make_params([batch])
        assert tuple(map(int, parameters["box"])) == mixing.cut_box(float(torch.tensor(share)), across, down, 30, 20)


@pytest.mark.parametrize("alpha", [0.05, 0.2, 1.0, 4.0])
def test_shares_are_beta_distributed(alpha) -> None:
    draws = mixing.uniforms(Place(5, 0, int(alpha * 100), 0))
    own = sorted(mixing.beta(alpha, draws) for _ in range(DRAWS))
    generator = np.random.default_rng(7)
    other = np.sort(generator.beta(alpha, alpha, DRAWS))
    places = np.sort(np.concatenate([own, other]))
    distance = np.abs(np.searchsorted(own, places, "right") - np.searchsorted(other, places, "right")).max() / DRAWS
    # Two samples of one distribution are further apart once in 10^4 times.
    assert distance < math.sqrt(-math.log(1e-4 / 2) / DRAWS)


def test_a_batch_is_mixed_alike_whatever_came_before(load) -> None:
    options = {"fields": FIELDS, "batch_transform": [feedline.MixUp(num_classes=10), feedline.CutMix(num_classes=10)]}
    unmixed = load(fields=FIELDS, zero_copy="copy", workers=1)
    plain = [batch for _ in range(2) for batch in unmixed]
    loader = load(**options)
    mixed = [batch for _ in range(2) for batch in loader]
    assert len(mixed) == len(plain) == 26
    states, images_differ = set(), 0
    for batch, source in itertools.zip_longest(mixed, plain):
        assert batch.sample_keys == source.sample_keys
        assert batch["image"].dtype == torch.uint8 and batch["label"].dtype == torch.float32
        assert batch["label"].shape == (len(source["label"]), 10)
        torch.testing.assert_close(batch["label"].sum(1), torch.ones(len(source["label"])))
        share = float(batch["label"][0, source["label"][0]])
        states.add(round(share, 5))
        images_differ += not torch.equal(batch["image"], source["image"])
    assert images_differ >= 24 and len(states) >= 15

    other = load(**options, workers=2)
    other.load_state_dict({**loader.state_dict(), "epoch": 1, "position": 5 * 8})
    resumed = list(other)
    for batch, again in zip(mixed[13 + 5 :], resumed, strict=True):
        assert torch.equal(batch["image"], again["image"]) and torch.equal(batch["label"], again["label"])


def test_batches_that_are_left_alone_have_soft_labels_too(load) -> None:
    plain = next(iter(load(fields=FIELDS)))
    batch = next(iter(load(fields=FIELDS, batch_transform=feedline.CutMix(num_classes=10, p=0.0))))
    assert torch.equal(batch["image"], plain["image"])
    assert torch.equal(batch["label"], torch.nn.functional.one_hot(plain["label"], 10).float())


def test_after_output_and_in_numpy(load, monkeypatch) -> None:
    output = feedline.Output("float32", normalize=(0.5, 0.25))
    options = {"fields": FIELDS, "output": output, "batch_transform": feedline.MixUp(num_classes=10)}
    batch = next(iter(load(**options)))
    plain = next(iter(load(fields=FIELDS, output=output)))
    share = float(batch["label"][0, plain["label"][0]])
    torch.testing.assert_close(batch["image"], share * plain["image"] + (1 - share) * plain["image"].roll(1, 0), atol=1e-5, rtol=1e-5)
    monkeypatch.setenv("FEEDLINE_TENSORS", "numpy")
    rows = next(iter(load(**options)))
    assert isinstance(rows["image"], np.ndarray)
    np.testing.assert_allclose(rows["image"].transpose(0, 3, 1, 2), batch["image"].numpy(), atol=1e-5)
    np.testing.assert_allclose(rows["label"], batch["label"].numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: feedline.MixUp(), "num_classes= is needed"),
        (lambda: feedline.MixUp(num_classes=10, labels="lable"), "no field 'lable'"),
        (lambda: feedline.MixUp(alpha=0, num_classes=10), "alpha must be"),
        (lambda: feedline.CutMix(num_classes=0), "num_classes"),
        (lambda: [], "must be a MixUp or CutMix"),
        (lambda: feedline.RandomResizedCrop(3), "must be a MixUp or CutMix"),
    ],
)
def test_what_cannot_be_is_refused(load, made, words) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        load(fields=FIELDS, batch_transform=made())


def test_class_numbers_out_of_range_are_named(load) -> None:
    with pytest.raises(ValueError, match=r"labels in 'label' are from \d to \d, but num_classes=2"):
        list(load(fields=FIELDS, batch_transform=feedline.MixUp(num_classes=2)))
