"""From DataLoaders to loaders: the same samples, labels and pixels, or a line for each thing that cannot be said."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest

import feedline

torch = pytest.importorskip("torch")
v1 = pytest.importorskip("torchvision.transforms")
v2 = pytest.importorskip("torchvision.transforms.v2")

from torch.utils.data import (  # noqa: E402
    DataLoader, Dataset, DistributedSampler, RandomSampler, Subset, SubsetRandomSampler, WeightedRandomSampler,
)  # fmt: skip
from torchvision.datasets import DatasetFolder, ImageFolder  # noqa: E402

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TAIL = [v1.ToTensor(), v1.Normalize(MEAN, STD)]
VALIDATION = v1.Compose([v1.Resize(40), v1.CenterCrop(32), *TAIL])


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 photos in 3 classes, some in folders below, beside what is no image; with "bee" and "bee-eater" the orders of paths differ."""
    root = tmp_path_factory.mktemp("tree")
    for number in range(24):
        folder = root / ("bee", "bee-eater", "ant")[number % 3] / ("", "deep")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        ending = ("jpg", "JPEG")[number // 12]
        (folder / f"{number}.{ending}").write_bytes(datasets.photo(number, 50 + 7 * number, 210 - 6 * number))
    (root / "loose.jpg").write_bytes(datasets.photo(99, 50, 50))
    (root / "ant" / "notes.txt").write_text("no image")
    (root / "ant" / "odd.gif").write_bytes(b"GIF89a")
    return root


@pytest.fixture
def migrate() -> Iterator[Callable[..., feedline.Loader]]:
    """`from_dataloader`, with loaders closed at the end of the test."""
    made = []

    def make(dataloader: Any, **overrides: Any) -> feedline.Loader:
        made.append(feedline.from_dataloader(dataloader, **{"timeout": 60, **overrides}))
        return made[-1]

    yield make
    for loader in made:
        loader.close()


def check_equal(dataloader: Any, loader: feedline.Loader, levels: float) -> None:
    """Same labels in the same order, same shapes, types and strides, and values within `levels` of 255."""
    count = 0
    for (images, labels), (own_images, own_labels) in zip(dataloader, loader, strict=True):
        assert labels.tolist() == own_labels.tolist() and labels.dtype == own_labels.dtype
        assert images.shape == own_images.shape and images.dtype == own_images.dtype and images.stride() == own_images.stride()
        difference = (images.double() - own_images.double()).abs()
        if images.dtype == torch.uint8:
            difference = difference / 255
        elif float(images.min()) < 0:
            difference = difference * torch.tensor(STD).view(3, 1, 1)
        assert float(difference.max()) * 255 <= levels + 0.01
        count += len(labels)
    assert count == len(loader.dataset) if loader._job.indices is None else len(loader._job.indices)


@pytest.mark.parametrize(
    ("transform", "levels"),
    [
        (VALIDATION, 2),
        (v1.Compose([v1.Resize((24, 40), v1.InterpolationMode.BICUBIC), v1.PILToTensor()]), 2),
        (v2.Compose([v2.Resize(40), v2.CenterCrop(32), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]), 2),
        (v2.Compose([v2.Resize((32, 32)), v2.ToImage(), v2.ToDtype(torch.float16, scale=True)]), 2.2),
        # Of tensors torchvision rounds otherwise than Pillow.
        (v2.Compose([v2.ToImage(), v2.Resize(40), v2.CenterCrop(32), v2.ToDtype(torch.float32, scale=True)]), 3),
    ],
)
def test_an_unshuffled_folder_is_the_same(tree: Path, migrate: Callable[..., feedline.Loader], transform: Any, levels: float) -> None:
    dataset = ImageFolder(tree, transform)
    for options in ({"batch_size": 5}, {"batch_size": 5, "drop_last": True}, {"batch_size": 24}):
        dataloader = DataLoader(dataset, **options)
        loader = migrate(dataloader)
        assert loader.dataset.classes == dataset.classes and len(loader) == len(dataloader)
        check_equal(dataloader, loader, levels)
    chosen = [7, 3, 20, 4, 4, 11]
    check_equal(DataLoader(Subset(dataset, chosen), batch_size=4), migrate(DataLoader(Subset(dataset, chosen), batch_size=4)), levels)
    check_equal(
        DataLoader(Subset(Subset(dataset, chosen), [5, 0]), batch_size=4),
        migrate(DataLoader(Subset(Subset(dataset, chosen), [5, 0]), batch_size=4)), levels,
    )  # fmt: skip


def test_a_file_rule_of_ones_own_is_a_list_of_samples(tree: Path, migrate: Callable[..., feedline.Loader]) -> None:
    dataset = ImageFolder(tree, VALIDATION, is_valid_file=lambda path: path.endswith("JPEG"))
    dataloader = DataLoader(dataset, batch_size=5)
    check_equal(dataloader, migrate(dataloader), 2)
    folder = DatasetFolder(str(tree), ImageFolder(tree).loader, extensions=(".jpg",), transform=VALIDATION)
    check_equal(DataLoader(folder, batch_size=5), migrate(DataLoader(folder, batch_size=5)), 2)


RANDOM_V1 = [
    v1.RandomResizedCrop(32, scale=(0.2, 1.0)), v1.RandomHorizontalFlip(), v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
    v1.RandomGrayscale(0.2), v1.GaussianBlur(3), v1.RandomChoice([v1.RandomSolarize(128), v1.RandomInvert()]), v1.AutoAugment(),
    v1.RandomRotation(10), *TAIL, v1.RandomErasing(0.25),
]  # fmt: skip
RANDOM_V2 = [
    v2.RGB(), v2.ToImage(), v2.RandomResizedCrop(32, scale=(0.2, 1.0)), v2.RandomHorizontalFlip(),
    v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
    v2.RandomGrayscale(0.2), v2.GaussianBlur(3), v2.RandomChoice([v2.RandomSolarize(128), v2.RandomInvert()]), v2.AutoAugment(),
    v2.RandomRotation(10), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD), v2.RandomErasing(0.25), v2.ToPureTensor(),
]  # fmt: skip
RANDOM_OWN = [
    feedline.RandomResizedCrop(32, scale=(0.2, 1.0)), feedline.RandomHorizontalFlip(),
    feedline.RandomApply([feedline.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8), feedline.RandomGrayscale(0.2), feedline.GaussianBlur(3),
    feedline.RandomChoice([feedline.RandomSolarize(128), feedline.RandomInvert()]), feedline.AutoAugment(), feedline.RandomRotation(10),
    feedline.ToDtype(torch.float32, scale=True), feedline.Normalize(MEAN, STD), feedline.RandomErasing(0.25),
]  # fmt: skip


def image_spec(loader: feedline.Loader) -> Any:
    """What the sidecar is told of the images' transforms."""
    return json.loads(json.dumps(loader._job.spec["fields"][0]["kind"]["image"]["transforms"]))


@pytest.mark.parametrize("transforms", [RANDOM_V1, RANDOM_V2])
def test_random_transforms_are_described_alike(tree: Path, migrate: Callable[..., feedline.Loader], transforms: list[Any]) -> None:
    module = v1 if transforms is RANDOM_V1 else v2
    dataloader = DataLoader(ImageFolder(tree, module.Compose(transforms)), batch_size=6, shuffle=True)
    loader = migrate(dataloader)
    own = feedline.Image("jpg", *RANDOM_OWN)
    assert image_spec(loader) == json.loads(json.dumps(own.kind("NCHW")["image"]["transforms"]))
    labels = torch.cat([labels for images, labels in loader]).tolist()
    assert sorted(labels) == [0] * 8 + [1] * 8 + [2] * 8 and labels != sorted(labels)


EVERY = {
    "CenterCrop": (24,), "RandomCrop": (24, 4), "Pad": (2,), "RandomVerticalFlip": (0.3,), "RandomAffine": (10, (0.1, 0.2), (0.8, 1.2), 5),
    "RandomPerspective": (0.4, 0.6), "Grayscale": (3,), "RandomPosterize": (4,), "RandomEqualize": (), "RandomAutocontrast": (0.1,),
    "RandomAdjustSharpness": (2, 0.4), "RandAugment": (2, 7), "TrivialAugmentWide": (), "ColorJitter": ((0.5, 1.5), 0.1),
}  # fmt: skip


@pytest.mark.parametrize("module", [v1, v2])
@pytest.mark.parametrize("name", EVERY)
def test_each_transform_has_its_counterpart(tree: Path, migrate: Callable[..., feedline.Loader], module: Any, name: str) -> None:
    tensor = [v1.ToTensor()] if module is v1 else [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    transforms = [getattr(module, name)(*EVERY[name]), module.Resize((32, 32)), *tensor]
    loader = migrate(DataLoader(ImageFolder(tree, module.Compose(transforms)), batch_size=6))
    own = feedline.Image("jpg", getattr(feedline, name)(*EVERY[name]), feedline.Resize((32, 32)))
    assert image_spec(loader) == json.loads(json.dumps(own.kind("NCHW")["image"]["transforms"]))


def taken(dataloader: Any, **overrides: Any) -> dict[str, Any]:
    """The parts of the job that samplers decide."""
    loader = feedline.from_dataloader(dataloader, **overrides)
    job = loader._job
    found = {
        "order": job.spec["order"], "seed": job.spec["seed"], "tail": job.spec["tail"], "slots": job.spec["slots"],
        "epoch_length": job.spec["epoch_length"], "indices": None if job.indices is None else job.indices.tolist(),
        "weights": None if job.weights is None else job.weights.tolist(), "rank": (loader._rank, loader._world_size),
        "timeout": job.timeout_s, "pinned": job.is_pinned,
    }  # fmt: skip
    usual = {"order": "sequential", "seed": 0, "tail": "short", "slots": 8, "rank": (None, None), "timeout": 600.0, "pinned": False}
    return {name: value for name, value in found.items() if value is not None and value != usual.get(name)}


def test_samplers_and_transport(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / f"{number}.jpg").write_bytes(datasets.photo(number, 40, 40))
    dataset = ImageFolder(tmp_path, VALIDATION)

    def check(expected: dict[str, Any], **options: Any) -> None:
        assert taken(DataLoader(dataset, **{"batch_size": 2, **options})) == expected

    seeded = torch.Generator().manual_seed(7)
    check({})
    check({"order": "global"}, shuffle=True)
    check({"order": "global", "seed": 7, "tail": "drop"}, shuffle=True, drop_last=True, generator=seeded)
    check({"order": "global", "seed": 7}, sampler=RandomSampler(dataset, generator=seeded))
    drawn = {"order": "global", "weights": [1.0] * 6, "epoch_length": 9}
    check(drawn, sampler=RandomSampler(dataset, replacement=True, num_samples=9))
    check({**drawn, "weights": [1.0, 2, 3, 4, 5, 6]}, sampler=WeightedRandomSampler([1, 2, 3, 4, 5, 6], 9))
    check({"order": "global", "indices": [4, 1]}, sampler=SubsetRandomSampler([4, 1]))
    assert taken(DataLoader(Subset(dataset, [-1, 0]), batch_size=2)) == {"indices": [5, 0]}
    ranked = DistributedSampler(dataset, num_replicas=3, rank=1, seed=9)
    check({"order": "global", "seed": 9, "rank": (1, 3)}, sampler=ranked)
    ranked = DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=False, drop_last=True)
    check({"tail": "drop"}, sampler=ranked)
    check({"slots": 14, "timeout": 9.0}, num_workers=1, prefetch_factor=12, timeout=9)
    assert taken(DataLoader(dataset, batch_size=2, shuffle=True), order="block", seed=3, slots=5)["seed"] == 3
    batches = torch.utils.data.BatchSampler(RandomSampler(dataset, generator=seeded), 4, drop_last=True)
    check({"order": "global", "seed": 7, "tail": "drop"}, batch_size=1, batch_sampler=batches)


def test_what_cannot_be_said_is_named_line_by_line(tree: Path) -> None:
    class Own(ImageFolder):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index)

    class Any_(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 3

    def check(dataloader: Any, *expected: str, **overrides: Any) -> None:
        with pytest.raises(feedline.MigrationError) as caught:
            feedline.from_dataloader(dataloader, **overrides)
        lines = str(caught.value).splitlines()[1:]
        assert len(lines) == len(expected) == len(caught.value.problems), lines
        for line, word in zip(lines, expected, strict=True):
            assert word in line and "Instead: " in line, line

    def folder(*transforms: Any, **options: Any) -> Any:
        return ImageFolder(tree, v1.Compose(list(transforms)), **options)

    crop = v1.CenterCrop(32)
    check(DataLoader(folder(crop, v1.Lambda(lambda image: image), lambda image: image.rotate(3), *TAIL)), "[1] Lambda", "[2] lambda at test_migrate.py")
    check(DataLoader(folder(crop)), "a picture of Pillow's")
    check(DataLoader(folder(v1.Resize(32), *TAIL)), "do not fix the output size")
    check(DataLoader(folder(crop, v1.ElasticTransform(), *TAIL)), "ElasticTransform")
    check(DataLoader(folder(v1.Resize(40, max_size=50), crop, *TAIL)), "max_size")
    check(DataLoader(folder(v1.Resize((32, 32), v1.InterpolationMode.LANCZOS), *TAIL)), "lanczos")
    check(DataLoader(folder(crop, v1.Grayscale(), *TAIL)), "num_output_channels=3")
    check(DataLoader(folder(crop, *TAIL, v1.ColorJitter(0.1))), "after the conversion to floats")
    check(DataLoader(folder(crop, v1.ToTensor(), v1.Normalize(MEAN, STD), v1.Normalize(MEAN, STD))), "second Normalize")
    check(DataLoader(folder(crop, *TAIL, target_transform=lambda label: label + 1)), "target_transform=lambda")
    check(DataLoader(folder(crop, *TAIL, loader=lambda path: None)), "loader=lambda")
    check(DataLoader(Own(tree, VALIDATION)), "__getitem__")
    check(DataLoader(Any_()), "only ImageFolder, DatasetFolder")
    valid = ImageFolder(tree, VALIDATION)
    check(DataLoader(valid, collate_fn=lambda rows: rows), "collate_fn=lambda")
    check(DataLoader(valid, batch_size=None), "batch_size=None", "collate_fn=default_convert")
    check(DataLoader(valid, sampler=[1, 2]), "sampler=[1, 2]")
    check(DataLoader(valid, sampler=torch.utils.data.SequentialSampler(range(5))), "SequentialSampler")
    check(DataLoader(Subset(valid, [])), "it has no samples")
    check(DataLoader(valid, batch_sampler=[[1], [2]]), "batch_sampler=[[1], [2]]")
    check(DataLoader(torch.utils.data.ConcatDataset([valid, valid])), "Mix")
    wrong = ImageFolder(tree, VALIDATION)
    wrong.samples = [(path, 2 - target) for path, target in wrong.samples]
    check(DataLoader(wrong), "its class numbers")
    gone = ImageFolder(tree, VALIDATION, is_valid_file=lambda path: True)
    check(DataLoader(gone), "1 of its 26 files")
    with pytest.raises(TypeError, match="DataLoader"):
        feedline.from_dataloader([1, 2, 3])
    # What an argument says in another way is no problem any more.
    assert feedline.from_dataloader(DataLoader(valid, collate_fn=lambda rows: rows), collate_fn=list).collate_fn is list
    fields = {"image": feedline.Image("jpg", feedline.CenterCrop(8))}
    assert feedline.from_dataloader(DataLoader(folder(crop, lambda image: image)), fields=fields)._job.output is None


@pytest.mark.parametrize("transforms", [RANDOM_V1, RANDOM_V2, [v1.Resize((32, 40)), *TAIL], [v1.CenterCrop(32), v1.PILToTensor()]])
def test_the_explanation_is_the_code_of_the_same_loader(tree: Path, capsys: pytest.CaptureFixture[str], transforms: list[Any]) -> None:
    dataset = ImageFolder(tree, v2.Compose(transforms))
    for options in ({}, {"shuffle": True, "drop_last": True, "generator": torch.Generator().manual_seed(3)}):
        dataloader = DataLoader(dataset, batch_size=5, **options)
        code = feedline.from_dataloader(dataloader, explain=True, workers=2)
        assert capsys.readouterr().out == code and all(len(line) < 170 for line in code.splitlines())
        names: dict[str, Any] = {"dataloader": dataloader}
        exec(code, names)
        pasted, made = names["loader"], feedline.from_dataloader(dataloader, workers=2)
        assert pasted._job.spec == made._job.spec and pasted._job.indices == made._job.indices
        assert repr(pasted._job.output) == repr(made._job.output) and pasted._workers == 2
    broken = DataLoader(dataset, collate_fn=lambda rows: rows)
    assert "# NOT EXPRESSED: collate_fn=lambda at test_migrate.py" in feedline.from_dataloader(broken, explain=True)


# webdataset leaves its files open until they are collected.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_a_webdataset_pipeline_is_the_same(tmp_path: Path, migrate: Callable[..., feedline.Loader]) -> None:
    wds = pytest.importorskip("webdataset")
    written = datasets.write(tmp_path, 30, 3)

    def pipeline() -> Any:
        return wds.WebDataset(written.pattern, shardshuffle=False).decode("pil")

    def identity(value: Any) -> Any:
        return value

    plain = pipeline().to_tuple("jpg;png", "cls").map_tuple(VALIDATION, identity)
    check_equal(DataLoader(plain, batch_size=7), migrate(DataLoader(plain, batch_size=7)), 2)
    check_equal(wds.WebLoader(plain, batch_size=8), migrate(wds.WebLoader(plain, batch_size=8)), 2)
    inside = plain.batched(7, partial=False)
    loader = migrate(DataLoader(inside, batch_size=None))
    assert loader.drop_last and loader.batch_size == 7
    check = [(images.shape, labels.tolist()) for images, labels in DataLoader(inside, batch_size=None)]
    assert [(images.shape, labels.tolist()) for images, labels in loader] == check
    again = wds.WebLoader(inside, batch_size=None).unbatched().shuffle(100).batched(5)
    loader = migrate(again)
    assert loader.batch_size == 5 and loader._job.spec["order"] == "global"
    assert sorted(label for _, labels in loader for label in labels.tolist()) == sorted(written.labels)
    renamed = pipeline().rename(image="jpg;png", label="cls").map_dict(image=VALIDATION).to_tuple("image", "label")
    check_equal(DataLoader(renamed, batch_size=7), migrate(DataLoader(renamed, batch_size=7)), 2)
    floats = wds.WebDataset(written.pattern, shardshuffle=10).decode("torchrgb").to_tuple("jpg", "cls").map_tuple(v1.Normalize(MEAN, STD))
    code = feedline.from_dataloader(DataLoader(floats, batch_size=2), explain=True)
    assert f"{tmp_path}/part-{{000000..000002}}.tar" in code and "normalize=" in code and "shuffle=True" in code
    assert code.splitlines()[2].startswith("# NOT EXPRESSED") and "fix the output size" in code.splitlines()[2]


def test_what_a_webdataset_pipeline_cannot_say(tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset")
    written = datasets.write(tmp_path, 4, 1)

    def check(stages: Any, *expected: str, urls: Any = written.pattern, **options: Any) -> None:
        dataset = stages(wds.WebDataset(urls, **{"shardshuffle": False, **options}))
        with pytest.raises(feedline.MigrationError) as caught:
            feedline.from_dataloader(DataLoader(dataset, batch_size=2))
        lines = str(caught.value).splitlines()[1:]
        assert len(lines) == len(expected), lines
        for line, word in zip(lines, expected, strict=True):
            assert word in line and "Instead: " in line, line

    def usual(dataset: Any) -> Any:
        return dataset.decode("pil").to_tuple("jpg", "cls").map_tuple(VALIDATION)

    check(lambda dataset: usual(dataset.select(lambda sample: True)), ".select()")
    check(lambda dataset: usual(dataset.map(lambda sample: sample)), "map() lambda at")
    check(lambda dataset: usual(dataset).map_tuple(None, lambda label: label + 1), "map_tuple()[1] lambda at")
    check(lambda dataset: dataset.decode("rgb8").to_tuple("jpg", "cls"), "decode('rgb8')")
    check(lambda dataset: dataset.to_tuple("jpg", "cls"), "no image decoder")
    check(lambda dataset: dataset.decode("pil"), "dicts of all members")
    check(lambda dataset: dataset.decode("pil").to_tuple("pyd", "cls"), "field 'pyd'")
    check(lambda dataset: dataset.decode(lambda key, data: data).to_tuple("cls"), "decode(lambda at")
    check(usual, "ResampledShards", resampled=True)
    check(usual, "read from local files only", urls="pipe:cat /tmp/none.tar")
    check(lambda dataset: usual(dataset).with_epoch(100), "with_epoch()")
