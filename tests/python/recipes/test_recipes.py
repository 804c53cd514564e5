"""Each recipe, run as its users run it, on a small dataset: it learns, and an epoch has every picture once."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import io
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import datasets
import numpy
import pytest
from PIL import Image

pytest.importorskip("torch")
pytest.importorskip("torchvision")

HERE = Path(__file__).parent

#: Pictures of the dataset, in three classes.
COUNT = 48


def encoded(pixels: numpy.ndarray, kind: str) -> bytes:
    """A file of `pixels`."""
    target = io.BytesIO()
    Image.fromarray(pixels).save(target, kind)
    return target.getvalue()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Noisy pictures of three colours with a bright square, whose place the mask has."""
    folder = tmp_path_factory.mktemp("pictures")
    random = numpy.random.default_rng(7)
    for shard in range(2):
        members = []
        for number in range(shard * COUNT // 2, (shard + 1) * COUNT // 2):
            label = number % 3
            pixels = random.integers(0, 60, (72, 96, 3))
            pixels[..., label] += 90
            top, left = random.integers(0, 40), random.integers(0, 60)
            mask = numpy.zeros((72, 96), numpy.uint8)
            mask[top : top + 32, left : left + 36] = 1
            pixels[mask == 1] += 100
            members += [
                (f"{number:03}.jpg", encoded(pixels.astype(numpy.uint8), "JPEG")),
                (f"{number:03}.cls", str(label).encode()),
                (f"{number:03}.seg.png", encoded(mask, "PNG")),
            ]
        datasets.write_shard(folder / f"train-{shard:06}.tar", members)
    (folder / "classes.json").write_text(json.dumps(["red", "green", "blue"]))
    return f"{folder}/train-{{000000..000001}}.tar"


def run(script: str, *arguments: str, data: str, launcher: tuple[str, ...] = ()) -> str:
    """What a recipe prints."""
    command = [sys.executable, *launcher, str(HERE / script), "--data", data, "--batch-size", "8", "--size", "32", *arguments]
    # On the CPU, as everywhere, unless a machine with GPUs is asked for: FEEDLINE_TEST_GPU has what is to be visible.
    visible = os.environ.get("FEEDLINE_TEST_GPU", "")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": visible, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env, cwd="/tmp", check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def check_learns(printed: str, steps: int, share: float = 0.8, guesses: int = 3) -> None:
    """Whether there was a line a step, and the loss is at last at most `share` of what guessing among `guesses` costs."""
    found = re.findall(r"^step (\d+): loss (\S+)", printed, re.MULTILINE)
    assert [int(step) for step, _ in found] == list(range(1, steps + 1)), printed
    losses = [float(loss) for _, loss in found]
    assert numpy.mean(losses[-(steps // 4) :]) <= share * math.log(guesses), printed


def needs(*packages: str) -> pytest.MarkDecorator:
    """Skips, by name, where a package is not installed."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def check_accuracy(printed: str, right: str) -> None:
    """Whether a script says what share of all pictures it gets right; on the CPU, where runs are alike, it is one of `right`."""
    found = re.search(rf"^accuracy (\S+) of {COUNT} images", printed, re.MULTILINE)
    assert found is not None, printed
    assert os.environ.get("FEEDLINE_TEST_GPU") or re.match(right, found[1]), printed


def test_plain_torch(data: str) -> None:
    printed = run("plain_torch.py", "--steps", "36", data=data)
    check_learns(printed, 36)
    assert re.findall(r"^epoch (\d+): (\d+) images", printed, re.MULTILINE) == [(str(epoch), str(COUNT)) for epoch in range(1, 7)]
    check_accuracy(printed, r"0\.[89]|1\.0")


def test_ddp_by_torchrun(data: str) -> None:
    if len(os.environ.get("FEEDLINE_TEST_GPU", "0,1").split(",")) < 2:
        pytest.skip("two ranks need two GPUs: FEEDLINE_TEST_GPU names one")
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0", "--standalone")
    printed = run("ddp_torchrun.py", "--steps", "24", data=data, launcher=launcher)
    check_learns(printed, 24)
    assert re.findall(r"^epoch \d+: (\d+) images on 2 ranks", printed, re.MULTILINE) == [str(COUNT)] * 8


@needs("lightning")
def test_lightning(data: str) -> None:
    printed = run("lightning_trainer.py", "--steps", "24", data=data)
    check_learns(printed, 24)
    assert re.findall(r"^epoch (\d+): 6 batches", printed, re.MULTILINE) == ["0", "1", "2", "3"]


@needs("accelerate")
def test_accelerate(data: str) -> None:
    check_learns(run("hf_accelerate.py", "--steps", "24", data=data), 24)


@needs("transformers", "accelerate")
def test_hugging_face_trainer(data: str) -> None:
    printed = run("hf_trainer.py", "--steps", "24", data=data)
    check_learns(printed, 24)
    assert "epochs 4.00" in printed


@needs("timm")
@pytest.mark.parametrize("options", [[], ["--mixup", "0.2", "--reprob", "0.25"]])
def test_timm(data: str, options: list[str]) -> None:
    from timm.task import ClassificationTask

    if "criterion_kwargs" not in inspect.signature(ClassificationTask).parameters:
        pytest.skip(f"timm {importlib.metadata.version('timm')} lacks what the recipe calls: it was written for 1.0.31")
    # Soft labels have an entropy of their own, which the loss does not get below.
    check_learns(run("timm_train.py", "--steps", "36", *options, data=data), 36, share=0.95)


def test_torchvision_reference(data: str) -> None:
    options = ["--model", "resnet18", "--batch-size", "24", "--lr", "0.02", "--warmup-steps", "8", "--ema-decay", "0.9"]
    printed = run("torchvision_reference.py", "--steps", "96", *options, data=data)
    # Its pictures are mixed and recoloured, so that much of the loss stays.
    check_learns(printed, 96, share=0.9)
    check_accuracy(printed, r"0\.[5-9]|1\.0")


def test_segmentation(data: str) -> None:
    printed = run("segmentation_masks.py", "--steps", "36", "--classes", "2", data=data)
    check_learns(printed, 36, guesses=2)


def test_two_views(data: str) -> None:
    options = ["--batch-size", "16", "--lr", "1e-4"]
    printed = run("two_views_simclr.py", "--steps", "36", *options, data=data)
    epochs = re.findall(r"^epoch \d+: (\d+) pictures, (\d+) of them in two views that differ", printed, re.MULTILINE)
    assert len(epochs) == 12 and all(int(count) == COUNT and int(different) >= COUNT - 1 for count, different in epochs)
    losses = [float(loss) for loss in re.findall(r"^step \d+: loss (\S+)", printed, re.MULTILINE)]
    # Features take longer to learn than classes: it is enough that the loss goes down.
    assert numpy.mean(losses[-12:]) < numpy.mean(losses[:12]), printed


@needs("timm")
@pytest.mark.filterwarnings("ignore")
def test_timm_gets_what_create_loader_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    recipe = importlib.import_module("timm_train")
    from timm.data import create_dataset, create_loader

    for number in range(14):
        path = tmp_path / "val" / ("ant", "bee")[number % 2] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(datasets.photo(number, 60 + 5 * number, 130 - 4 * number))
    theirs = create_loader(
        create_dataset("", root=str(tmp_path / "val")), (3, 32, 32), 4, interpolation="bicubic", crop_pct=0.9, num_workers=0,
        persistent_workers=False, use_prefetcher=False,
    )  # fmt: skip
    ours = recipe.create_feedline_loader(str(tmp_path / "val"), (3, 32, 32), 4, interpolation="bicubic", crop_pct=0.9)
    for (images, labels), (own_images, own_labels) in zip(theirs, ours, strict=True):
        assert labels.tolist() == own_labels.tolist() and images.dtype == own_images.dtype and images.shape == own_images.shape
        # A level of 255 is at most 1 / (255 * 0.224) after normalising.
        assert float((images - own_images).abs().max()) <= 2.01 / (255 * 0.224)
    ours.close()
