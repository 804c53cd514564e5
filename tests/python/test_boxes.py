"""Boxes: where torchvision puts them on the parameters that Feedline drew, dropped by rule, and in batches.

The reference works in float64, so that what is compared is the geometry; Feedline rounds to float32 once.
"""

from __future__ import annotations

import io
import json
import pickle

import datasets
import numpy
import pytest
from PIL import Image

import feedline
from feedline import CenterCrop, Pad, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize

WIDTH, HEIGHT = 120, 90
COUNT = 24
SEED = 5

#: Largest difference from torchvision, in pixels of the output.
BOUND = 1e-4


def png(width: int = WIDTH, height: int = HEIGHT) -> bytes:
    target = io.BytesIO()
    Image.new("RGB", (width, height), (9, 99, 199)).save(target, "PNG")
    return target.getvalue()


def coco(count: int, images: int = COUNT, width: int = WIDTH, height: int = HEIGHT) -> dict:
    """A file of annotations as COCO has them, of up to `count` objects an image; some images have none."""
    random = numpy.random.default_rng(count)
    annotations = []
    for image in range(images):
        for _ in range(0 if image % 7 == 3 else int(random.integers(1, count + 1))):
            left, top = (round(float(random.uniform(0, side - 4)), 2) for side in (width, height))
            right, bottom = (float(random.uniform(start + 2, side)) for start, side in ((left, width), (top, height)))
            box = [left, top, round(right - left, 2), round(bottom - top, 2)]
            annotations.append({
                "id": len(annotations) + 1, "image_id": image, "category_id": int(random.integers(1, 91)), "bbox": box,
                "area": round(box[2] * box[3], 3), "iscrowd": int(random.random() < 0.1),
                "segmentation": [[float(number) for number in random.integers(0, 90, 8)]],
            })  # fmt: skip
    pictures = [{"id": image, "file_name": f"{image:03d}.png", "width": width, "height": height} for image in range(images)]
    categories = [{"id": number, "name": f"class {number}"} for number in range(1, 91)]
    return {"images": pictures, "annotations": annotations, "categories": categories}


def of_image(document: dict, image: int) -> list[dict]:
    """As pycocotools' ``loadAnns(getAnnIds(image))``."""
    return [annotation for annotation in document["annotations"] if annotation["image_id"] == image]


@pytest.fixture(scope="module")
def detection(tmp_path_factory):
    """Shards of pictures with the annotations of each, and the document that they come from."""
    folder, document = tmp_path_factory.mktemp("detection"), coco(6)
    for shard in range(2):
        members = []
        for image in range(shard * COUNT // 2, (shard + 1) * COUNT // 2):
            members += [(f"{image:03d}.png", png()), (f"{image:03d}.json", json.dumps(of_image(document, image)).encode())]
        datasets.write_shard(folder / f"{shard}.tar", members)
    return f"{folder}/{{0..1}}.tar", document


def boxes(**options: object) -> feedline.Boxes:
    return feedline.Boxes("json", **{"of": "image", "format": "xywh", **options})


def load_rows(load, pattern: str, transforms, field: feedline.Boxes | None = None, **options: object) -> list[dict]:
    """The targets of an epoch's rows, in order."""
    view = options.pop("view", 0)
    fields = {"image": feedline.Image("png", *transforms, view=view), "boxes": field or boxes()}
    loader = load(pattern, fields=fields, **{"shuffle": False, "seed": SEED, **options})
    return [target for batch in loader for target in batch["boxes"].targets()]


def write_one(folder, body: bytes, image: bytes | None = None, suffix: str = "json") -> str:
    datasets.write_shard(folder / "a.tar", [("0.png", image or png()), (f"0.{suffix}", body)])
    return str(folder / "a.tar")


def by_torchvision(annotations: list[dict], steps, size=(WIDTH, HEIGHT)):
    """Boxes and labels after `steps`; what a step leaves without an area is gone, as it is for Feedline."""
    torch = pytest.importorskip("torch")
    from feedline.parity import reference

    labels = torch.tensor([annotation["category_id"] for annotation in annotations], dtype=torch.int64)
    return reference.boxes_by_torchvision(stored_boxes(annotations).as_subclass(torch.Tensor), labels, size, steps)


CHAINS = [
    [RandomResizedCrop(64)],
    [RandomResizedCrop((45, 67), scale=(0.05, 0.3)), RandomHorizontalFlip(1.0)],
    [feedline.RandomVerticalFlip(1.0), RandomHorizontalFlip(), CenterCrop(77)],
    [Resize(50), CenterCrop(60)],
    [Resize((33, 200))],
    [Pad((3, 4, 5, 6)), CenterCrop((110, 140))],
    [RandomCrop(100, padding=20), RandomHorizontalFlip()],
    [RandomCrop(70, padding=9, padding_mode="edge")],
    [Resize(200), RandomResizedCrop(64), RandomHorizontalFlip()],
    [feedline.RandomRotation(30, "bilinear"), CenterCrop(80)],
    [feedline.RandomRotation((45, 90), center=(10, 20)), Resize((64, 64))],
    [feedline.RandomAffine(20, (0.2, 0.3), (0.5, 2.0), (-20, 20)), Resize((64, 64))],
    [feedline.RandomPerspective(0.5, 1.0), Resize((64, 64))],
    [RandomResizedCrop(64), feedline.RandomRotation(40), RandomHorizontalFlip(), feedline.RandomPerspective(0.3, 1.0)],
    [RandomResizedCrop(64), feedline.ColorJitter(0.4, 0.4), feedline.RandomErasing(1.0), feedline.RandAugment()],
]


@pytest.mark.parametrize("chain", CHAINS, ids=repr)
def test_boxes_go_where_torchvision_puts_them(load, detection, chain) -> None:
    pytest.importorskip("torchvision")
    from feedline.parity import reference

    pattern, document = detection
    steps = reference.drawn(chain, (WIDTH, HEIGHT), SEED, 0, COUNT)
    found = load_rows(load, pattern, chain)
    assert len(found) == COUNT
    kept = 0
    for image, (target, drawn) in enumerate(zip(found, steps, strict=True)):
        expected, labels = by_torchvision(of_image(document, image), drawn)
        assert target["labels"].tolist() == labels.tolist()
        assert tuple(target["boxes"].shape) == (len(labels), 4)
        difference = (target["boxes"].double() - expected).abs()
        assert not len(labels) or difference.max() <= BOUND, (image, difference.max())
        kept += len(labels)
    assert kept > COUNT


def sanitized(made):
    """By torchvision's rule at the end of its own chain, and the numbers of the boxes that stay."""
    F = pytest.importorskip("torchvision.transforms.v2.functional")
    made, valid = F.sanitize_bounding_boxes(F.clamp_bounding_boxes(made))
    return made, valid.nonzero().flatten().tolist()


def stored_boxes(annotations: list[dict]):
    """As torchvision holds them."""
    torch = pytest.importorskip("torch")
    from torchvision import tv_tensors
    from torchvision.transforms.v2 import functional

    numbers = torch.tensor([annotation["bbox"] for annotation in annotations], dtype=torch.float64).reshape(-1, 4)
    made = tv_tensors.BoundingBoxes(numbers, format="XYWH", canvas_size=(HEIGHT, WIDTH))
    return functional.convert_bounding_box_format(made, new_format="XYXY")


@pytest.mark.parametrize(
    "names",
    [
        [("CenterCrop", 40), ("CenterCrop", 80)],
        [("Resize", 50), ("CenterCrop", 64), ("RandomHorizontalFlip", 1.0)],
        [("Pad", 7), ("CenterCrop", 90), ("RandomVerticalFlip", 1.0), ("Resize", (31, 47))],
        [("RandomVerticalFlip", 1.0), ("Resize", (200, 100)), ("Pad", (1, 2, 3, 4)), ("Resize", 64), ("CenterCrop", 64)],
    ],
    ids=repr,
)
def test_a_chain_copied_from_torchvision(load, detection, names) -> None:
    """The same names and arguments on both sides, for chains without chance."""
    v2 = pytest.importorskip("torchvision.transforms.v2")
    pattern, document = detection
    found = load_rows(load, pattern, [getattr(feedline, name)(argument) for name, argument in names])
    chain = v2.Compose([getattr(v2, name)(argument) for name, argument in names])
    for image, target in enumerate(found):
        listed = of_image(document, image)
        made, kept = sanitized(chain(stored_boxes(listed)))
        assert target["labels"].tolist() == [listed[box]["category_id"] for box in kept]
        assert not kept or (target["boxes"] - made).abs().max() <= BOUND


@pytest.mark.parametrize(
    ("transform", "name", "arguments"),
    [
        (feedline.RandomRotation((25, 25)), "rotate", {"angle": 25}),
        (feedline.RandomRotation((-70, -70), center=(30, 5)), "rotate", {"angle": -70, "center": [30, 5]}),
        (feedline.RandomAffine((30, 30), scale=(0.7, 0.7), shear=(10, 10)), "affine",
         {"angle": 30, "translate": [0, 0], "scale": 0.7, "shear": [10, 0]}),
    ],
)  # fmt: skip
def test_rotations_are_torchvision_s_own(load, detection, transform, name, arguments) -> None:
    """Without our matrices: torchvision gets the arguments that a user would give."""
    F = pytest.importorskip("torchvision.transforms.v2.functional")
    pattern, document = detection
    found = load_rows(load, pattern, [transform, Resize((HEIGHT, WIDTH))])
    for image, target in enumerate(found):
        listed = of_image(document, image)
        made, kept = sanitized(getattr(F, name)(stored_boxes(listed), **arguments))
        assert target["labels"].tolist() == [listed[box]["category_id"] for box in kept]
        assert not kept or (target["boxes"] - made).abs().max() <= BOUND


def test_a_batch_of_boxes(load, detection) -> None:
    torch = pytest.importorskip("torch")
    pattern, document = detection
    field = boxes(extra=("area", "id"), leave_out="iscrowd")
    fields = {"image": feedline.Image("png", Resize((HEIGHT, WIDTH))), "boxes": field}
    row = 0
    for batch in load(pattern, fields=fields, shuffle=False):
        found = batch["boxes"]
        sides, offsets, labels, extra = found
        total = int(offsets[-1])
        assert (sides.dtype, offsets.dtype, labels.dtype, extra.dtype) == (torch.float32, torch.int64, torch.int64, torch.float64)
        assert [tuple(part.shape) for part in found] == [(total, 4), (9,), (total,), (total, 2)]
        targets = found.targets("area", "id")
        assert len(targets) == len(batch["image"]) == 8
        for target in targets:
            expected = [annotation for annotation in of_image(document, row) if not annotation["iscrowd"]]
            assert target["id"].tolist() == [annotation["id"] for annotation in expected]
            assert target["area"].tolist() == [annotation["area"] for annotation in expected]
            assert target["labels"].tolist() == [annotation["category_id"] for annotation in expected]
            row += 1
        with pytest.raises(ValueError, match="1 names for 2 extra numbers"):
            found.targets("area")
        again = pickle.loads(pickle.dumps(batch))["boxes"]
        assert type(again) is feedline.BoxRows and torch.equal(again.boxes, sides)
        moved = batch.to(torch.device("meta"))["boxes"]
        assert type(moved) is feedline.BoxRows and moved.boxes.device.type == "meta"
    assert row == COUNT


def test_a_detection_model_takes_them(load, detection) -> None:
    torch = pytest.importorskip("torch")
    models = pytest.importorskip("torchvision.models.detection")
    pattern, _ = detection
    model = models.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=91).train()
    fields = {"image": feedline.Image("png", RandomResizedCrop(64)), "boxes": boxes()}
    batch = next(iter(load(pattern, fields=fields, batch_size=2, output=feedline.Output("float32"))))
    losses = model(list(batch["image"]), batch["boxes"].targets())
    assert all(torch.isfinite(loss) for loss in losses.values())


def test_numpy_batches(script, detection) -> None:
    code = """
fields = {"image": feedline.Image(["png"], feedline.RandomResizedCrop(32)), "boxes": feedline.Boxes("json", of="image", format="xywh")}
for batch in load(sys.argv[1], fields=fields):
    found = batch["boxes"]
    say([type(part).__module__ for part in found], [list(part.shape) for part in found], len(found.targets()))
"""
    said, _ = script(code, detection[0]).finish()
    for kinds, shapes, count in said:
        assert kinds == ["numpy"] * 4 and count == 8
        assert shapes[0] == [shapes[2][0], 4] and shapes[1] == [9] and shapes[3] == [shapes[2][0], 0]


TRAIN = [RandomResizedCrop(64), RandomHorizontalFlip(), feedline.RandomRotation(20)]


def test_workers_ranks_and_resumption_change_nothing(load, detection) -> None:
    pattern, _ = detection
    fields = {"image": feedline.Image("png", *TRAIN), "boxes": boxes()}

    def rows(loader) -> dict[str, tuple]:
        found = {}
        for batch in loader:
            for key, target in zip(batch.sample_keys, batch["boxes"].targets(), strict=True):
                found[key] = (target["boxes"].tolist(), target["labels"].tolist())
        return found

    expected = rows(load(pattern, fields=fields, workers=1))
    assert len(expected) == COUNT
    assert rows(load(pattern, fields=fields, workers=3, batch_size=5)) == expected
    parts = [rows(load(pattern, fields=fields, rank=rank, world_size=2)) for rank in range(2)]
    assert parts[0] | parts[1] == expected
    first = load(pattern, fields=fields)
    iterator = iter(first)
    next(iterator)
    resumed = load(pattern, fields=fields)
    resumed.load_state_dict(first.state_dict())
    rest = rows(resumed)
    assert len(rest) == COUNT - 8 and rest == {key: expected[key] for key in rest}
    # Another epoch draws other crops.
    later = load(pattern, fields=fields)
    later.set_epoch(1)
    assert rows(later) != expected


def test_views_have_boxes_of_their_own(load, detection) -> None:
    """Two large crops and a small one of each picture, boxes with each."""
    pytest.importorskip("torchvision")
    from feedline.parity import reference

    pattern, document = detection
    views = {"one": ([RandomResizedCrop(64)], 0), "two": ([RandomResizedCrop(64)], 1), "small": ([RandomResizedCrop(24, scale=(0.05, 0.4))], 2)}
    fields: dict[str, feedline.fields.Field] = {}
    for name, (chain, view) in views.items():
        fields[name] = feedline.Image("png", *chain, view=view)
        fields[f"{name} boxes"] = boxes(of=name)
    found: dict[str, list] = {name: [] for name in views}
    for batch in load(pattern, fields=fields, shuffle=False, seed=SEED):
        for name in views:
            found[name] += batch[f"{name} boxes"].targets()
    for name, (chain, view) in views.items():
        steps = reference.drawn(chain, (WIDTH, HEIGHT), SEED, 0, COUNT, view)
        for image in range(COUNT):
            expected, labels = by_torchvision(of_image(document, image), steps[image])
            assert found[name][image]["labels"].tolist() == labels.tolist()
            assert not len(labels) or (found[name][image]["boxes"] - expected).abs().max() <= BOUND
    assert any(len(one["labels"]) != len(two["labels"]) for one, two in zip(found["one"], found["two"], strict=True))


def test_views_have_masks_and_boxes_of_their_own(load, tmp_path) -> None:
    """A slope in red, its mask, and a box around the whole of it: in each view all three show the same part."""
    members = []
    plane = numpy.broadcast_to(numpy.arange(200, dtype=numpy.uint8), (100, 200))
    picture, mask = io.BytesIO(), io.BytesIO()
    Image.fromarray(numpy.stack([plane, plane * 0, plane], -1)).save(picture, "PNG")
    Image.fromarray(numpy.ascontiguousarray(plane)).save(mask, "PNG")
    for number in range(8):
        members += [(f"{number}.png", picture.getvalue()), (f"{number}.seg.png", mask.getvalue()),
                    (f"{number}.json", b"[[100, 0, 200, 100]]")]  # fmt: skip
    datasets.write_shard(tmp_path / "a.tar", members)
    fields: dict[str, feedline.fields.Field] = {}
    for view in range(2):
        fields[f"mask {view}"] = feedline.Mask("seg.png", like=f"image {view}")
        fields[f"boxes {view}"] = boxes(of=f"image {view}", format="xyxy", labels=None)
        fields[f"image {view}"] = feedline.Image("png", RandomResizedCrop(48, scale=(0.3, 0.6)), RandomHorizontalFlip(), view=view)
    (batch,) = load(str(tmp_path / "a.tar"), fields=fields, shuffle=False)
    for view in range(2):
        red = batch[f"image {view}"][:, 0].numpy().astype(int)
        assert numpy.abs(red - batch[f"mask {view}"].numpy().astype(int)).max() <= 4
        for row, target in zip(red, batch[f"boxes {view}"].targets(), strict=True):
            right_half = numpy.flatnonzero(row[24] >= 100)
            edges = [right_half.min(), right_half.max() + 1] if len(right_half) else []
            assert numpy.abs(target["boxes"][:, [0, 2]].numpy().ravel() - edges).max(initial=0) <= 1
    assert not (batch["mask 0"] == batch["mask 1"]).all()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("chain", [[Resize((60, 60))], [RandomResizedCrop(60, scale=(0.5, 1.0)), RandomHorizontalFlip()]], ids=repr)
def test_orientation_turns_image_mask_and_boxes_together(load, tmp_path, orientation, chain) -> None:
    """A white rectangle on black, and the box and mask of it as stored: all three agree where it is shown."""
    left, top, right, bottom = 16, 24, 56, 48
    picture = numpy.zeros((80, 112, 3), numpy.uint8)
    picture[top:bottom, left:right] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    photo, mask = io.BytesIO(), io.BytesIO()
    Image.fromarray(picture).save(photo, "JPEG", quality=95, subsampling=0, exif=exif)
    Image.fromarray(picture[..., 0] // 255).save(mask, "PNG")
    members = []
    for number in range(6):
        members += [(f"{number}.jpg", photo.getvalue()), (f"{number}.seg.png", mask.getvalue()),
                    (f"{number}.json", json.dumps([[left, top, right, bottom]]).encode())]  # fmt: skip
    datasets.write_shard(tmp_path / "a.tar", members)
    fields = {
        "boxes": boxes(format="xyxy", labels=None),
        "mask": feedline.Mask("seg.png", like="image"),
        "image": feedline.Image("jpg", *chain, orientation="apply"),
    }
    seen = 0
    for batch in load(str(tmp_path / "a.tar"), fields=fields, shuffle=False):
        for image, plane, target in zip(batch["image"], batch["mask"], batch["boxes"].targets(), strict=True):
            for shown in (image[0].numpy() > 127, numpy.asarray(plane) == 1):
                down, across = numpy.nonzero(shown)
                if not len(target["labels"]):
                    assert len(down) <= 60
                    continue
                seen += 1
                found = [across.min(), down.min(), across.max() + 1, down.max() + 1]
                assert numpy.abs(target["boxes"][0].numpy() - found).max() <= 1.0
    assert seen >= 6


def test_labels_beside(load, tmp_path) -> None:
    def npy(array: numpy.ndarray) -> bytes:
        target = io.BytesIO()
        numpy.save(target, array)
        return target.getvalue()

    stored = numpy.array([[0, 0, 10, 10], [50, 50, 50, 60], [90, 5, 110, 15]], numpy.float32)
    names = numpy.array([3, 4, 5], numpy.int64)
    points = numpy.arange(12, dtype=numpy.float32).reshape(3, 2, 2)
    members = [("0.png", png()), ("0.boxes.npy", npy(stored)), ("0.names.npy", npy(names)), ("0.points.npy", npy(points)),
               ("1.png", png())]  # fmt: skip
    datasets.write_shard(tmp_path / "a.tar", members)
    fields = {
        "names": feedline.BoxValues("names.npy", of="boxes", default=()),
        "points": feedline.BoxValues("points.npy", of="boxes", dtype="float32", shape=(2, 2), default=()),
        "boxes": feedline.Boxes("boxes.npy", of="image", labels=None, default=()),
        "image": feedline.Image("png", CenterCrop((90, 90))),
    }
    (batch,) = load(str(tmp_path / "a.tar"), fields=fields, shuffle=False)
    assert batch["boxes"].offsets.tolist() == [0, 1, 1]
    # The first is left of the crop, the second has no width.
    assert batch["boxes"].boxes.tolist() == [[75, 5, 90, 15]]
    assert [row.tolist() for row in batch["names"]] == [[5], []]
    assert batch["points"][0].tolist() == points[2:].tolist() and tuple(batch["points"][1].shape) == (0, 2, 2)
    fields["names"] = feedline.BoxValues("names.npy", of="boxes", dtype="int32", default=())
    with pytest.raises(feedline.SampleError, match="field 'names'|field \"names\""):
        list(load(str(tmp_path / "a.tar"), fields=fields, shuffle=False))


def test_an_archive_of_columns(load, tmp_path) -> None:
    target = io.BytesIO()
    numpy.savez_compressed(target, boxes=numpy.array([[1, 2, 30, 40]], numpy.int32), labels=numpy.array([9]), more=numpy.zeros(3))
    field = feedline.Boxes("npz", of="image", boxes="boxes", labels="labels")
    fields = {"image": feedline.Image("png", Resize((HEIGHT, WIDTH))), "boxes": field}
    (batch,) = load(write_one(tmp_path, target.getvalue(), suffix="npz"), fields=fields, shuffle=False)
    assert batch["boxes"].boxes.tolist() == [[1, 2, 30, 40]] and batch["boxes"].labels.tolist() == [9]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'[{"bbox": [9, 2, -3, 4], "category_id": 1}]', "box 0 of 1.*negative"),
        (b'[{"bbox": [9, 2, NaN, 4], "category_id": 1}]', "not finite"),
        (b'[{"bbox": [500, 2, 3, 4], "category_id": 1}]', "outside the image"),
        (b'[{"bbox": [1, 2, 3], "category_id": 1}]', "3 numbers, wanted are 4"),
        (b'[{"bbox": [1, 2, 3, 4]}]', "no .*category_id"),
        (b'{"bbox": [[1, 2, 3, 4]], "category_id": [1, 2]}', "2 values in"),
        (b"", "no bytes"),
        (b"[", "not JSON"),
    ],
)
def test_bad_boxes_are_located(load, tmp_path, body, words) -> None:
    good = json.dumps(of_image(coco(3), 0)).encode()
    datasets.write_shard(tmp_path / "a.tar", [("good.png", png()), ("good.json", good), ("odd.png", png()), ("odd.json", body)])
    fields = {"image": feedline.Image("png", RandomResizedCrop(32)), "boxes": boxes()}
    with pytest.raises(feedline.SampleError, match=words) as raised:
        list(load(str(tmp_path / "a.tar"), fields=fields, shuffle=False))
    assert "odd" in str(raised.value) and "a.tar" in str(raised.value)
    options = {"on_error": "replace", "error_budget": 1.0}
    (batch,) = load(str(tmp_path / "a.tar"), fields=fields, shuffle=False, **options)
    # A substitute may be the same sample again.
    assert {(fault.key, fault.field, fault.row) for fault in batch.report} == {("odd", "boxes", 1)}
    assert batch.report[0].fault_class == ("bad-value" if body else "empty")
    assert batch.sample_keys == ["good", "good"]


def test_a_picture_without_boxes_needs_a_default(load, tmp_path) -> None:
    body = b'[{"bbox": [0, 0, 120, 90], "category_id": 8}]'
    datasets.write_shard(tmp_path / "a.tar", [("0.png", png()), ("1.png", png()), ("1.json", body)])
    fields = {"image": feedline.Image("png", RandomResizedCrop(32)), "boxes": boxes()}
    with pytest.raises(feedline.SampleError, match="missing-field"):
        list(load(str(tmp_path / "a.tar"), fields=fields, shuffle=False))
    fields["boxes"] = boxes(default=())
    (batch,) = load(str(tmp_path / "a.tar"), fields=fields, shuffle=False)
    assert batch["boxes"].offsets.tolist() == [0, 0, 1] and batch["boxes"].labels.tolist() == [8]
    (batch,) = load(str(tmp_path / "a.tar"), fields=fields, shuffle=False, indices=[0])
    assert batch["boxes"].offsets.tolist() == [0, 0] and tuple(batch["boxes"].boxes.shape) == (0, 4)


def test_many_boxes_spill_and_arrive(load, tmp_path) -> None:
    """One sample has far more boxes than the room of a slot was measured for."""
    members = []
    for number in range(40):
        count = 3000 if number == 17 else 1
        listed = [[0, 0, 1 + box % WIDTH, 1 + box % HEIGHT, box] for box in range(count)]
        members += [(f"{number:02d}.png", png()), (f"{number:02d}.json", json.dumps(listed).encode())]
    datasets.write_shard(tmp_path / "a.tar", members)
    field = boxes(format="xyxy")
    (found,) = [
        target for target in load_rows(load, str(tmp_path / "a.tar"), [Resize((HEIGHT, WIDTH))], field) if len(target["labels"]) > 1
    ]
    assert found["labels"].tolist() == list(range(3000))


@pytest.mark.parametrize("transform", [feedline.MixUp(num_classes=91, labels="label"), feedline.CutMix(num_classes=91, labels="label")], ids=repr)
def test_blending_two_images_is_refused(detection, transform) -> None:
    fields = {"image": feedline.Image("png", RandomResizedCrop(32)), "boxes": boxes(), "label": feedline.Int("cls")}
    with pytest.raises(ValueError, match="blend objects of two images"):
        feedline.Loader(detection[0], fields=fields, batch_transform=transform)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: feedline.Boxes("json", of="image", format="xyhw"), "format must be"),
        (lambda: feedline.Boxes("json", of="image", outside="clip"), "outside must be"),
        (lambda: feedline.Boxes("json", of="image", min_size=-1), "min_size must be"),
        (lambda: feedline.Boxes("json", of="image", labels="bbox"), "different names"),
        (lambda: feedline.Boxes("json", of=""), "of is a name"),
        (lambda: feedline.Boxes("json", of="image", extra="area"), "a sequence of names"),
        (lambda: feedline.Loader(__file__, fields={"boxes": feedline.Boxes("json", of="image")}), "names no image field"),
        (lambda: feedline.Loader(__file__, fields={"own": feedline.BoxValues("npy", of="boxes")}), "names no field of boxes"),
        (lambda: feedline.Loader(__file__, fields={"image": feedline.Image("png", RandomCrop(9, 2, padding_mode="reflect")),
                                                   "boxes": boxes()}), "shows objects a second time"),
        (lambda: feedline.Loader(__file__, fields={"image": feedline.Image("png", CenterCrop(9)), "boxes": boxes(default=(1,))}),
         "default can only be"),
        (lambda: feedline.Loader(__file__, fields={"image": feedline.Image("png", CenterCrop(9)), "boxes": boxes(min_visibility=2)}),
         "a share, 0 to 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(make, words) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        make()
