"""Batches on a real GPU: the right bytes, at the right time, and nothing left behind. Skips where there is none."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import datasets
import pytest

import feedline

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that torch can use")

FIELDS = {
    "image": feedline.Image(["jpg"], feedline.RandomResizedCrop(96), feedline.RandomHorizontalFlip()),
    "label": feedline.Int("cls"),
}

#: Clock cycles that a kernel spins for: tens of milliseconds, longer than many batches take.
LONG = 60_000_000


@pytest.fixture
def make(load: Callable[..., feedline.Loader]) -> Callable[..., feedline.Loader]:
    return lambda **options: load(**{"fields": FIELDS, "batch_size": 12, **options})


def checksums(images: Any) -> Any:
    """A number for each row that any other byte changes, as good as certainly."""
    flat = images.permute(0, 2, 3, 1).reshape(len(images), -1).to(torch.float64)
    weights = torch.arange(flat.shape[1], device=flat.device, dtype=torch.float64).remainder(8191) + 1
    return (flat * weights).sum(1)


@pytest.fixture
def expected(make: Callable[..., feedline.Loader]) -> list[tuple[Any, Any]]:
    """Checksums and labels of each batch of the first epoch."""
    return [(checksums(images), labels.clone()) for images, labels in make()]


def check_equal(found: list[tuple[Any, Any]], expected: list[tuple[Any, Any]]) -> None:
    assert len(found) == len(expected)
    for (sums, labels), (expected_sums, expected_labels) in zip(found, expected, strict=True):
        assert torch.equal(sums.cpu(), expected_sums)
        assert torch.equal(labels.cpu(), expected_labels)


def test_batches_arrive_as_they_are_on_the_host(make, expected) -> None:
    found = []
    for batch in make(device="cuda"):
        images, labels = batch
        assert images.is_cuda and images.dtype == torch.uint8 and images.is_contiguous(memory_format=torch.channels_last)
        assert labels.is_cuda and labels.dtype == torch.int64
        assert len(batch.sample_keys) == len(labels)
        found.append((checksums(images), labels))
    check_equal(found, expected)


@pytest.mark.parametrize("slots", [4, 8])
@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_kernels_see_their_own_batch(make, expected, slots: int, ahead: int) -> None:
    found = []
    for images, labels in make(device="cuda", slots=slots, device_prefetch=ahead):
        # The sums are computed long after the batch was let go of, and after later batches were copied.
        torch.cuda._sleep(LONG)
        found.append((checksums(images), labels + 0))
        del images, labels
    check_equal(found, expected)


def test_another_current_stream(make, expected) -> None:
    found = []
    with torch.cuda.stream(torch.cuda.Stream()):
        for images, labels in make(device="cuda"):
            torch.cuda._sleep(LONG)
            found.append((checksums(images), labels))
        torch.cuda.synchronize()
    check_equal(found, expected)


@pytest.mark.parametrize("slots", [4, 8])
def test_a_hand_made_copy_is_waited_for(make, expected, slots: int) -> None:
    torch.cuda.init()
    found = []
    for images, labels in make(pin_memory=True, slots=slots):
        torch.cuda._sleep(LONG)
        # The name is bound anew while the copy is behind a long kernel.
        images = images.to("cuda", non_blocking=True)
        found.append((images, labels))
    check_equal([(checksums(images), labels) for images, labels in found], expected)


def test_a_copy_on_a_side_stream_is_waited_for(make, expected) -> None:
    torch.cuda.init()
    found, side = [], torch.cuda.Stream()
    for batch in make(pin_memory=True, slots=4):
        with torch.cuda.stream(side):
            torch.cuda._sleep(LONG)
            moved = batch.to("cuda", non_blocking=True)
        batch.release_after(side)
        found.append(moved)
        del batch
    torch.cuda.synchronize()
    check_equal([(checksums(images), labels) for images, labels in found], expected)


def test_the_ring_is_page_locked(make) -> None:
    torch.cuda.init()
    loader = make(pin_memory=True)
    images = next(iter(loader))["image"]
    pinned = torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True)
    assert pinned.is_pinned()
    assert images.is_pinned(), "the driver knows the ring's memory as page-locked"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("channels_last", [True, False])
def test_output_is_the_hosts_within_one_rounding(make, dtype: str, channels_last: bool) -> None:
    output = feedline.Output(dtype, channels_last, ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    step = torch.finfo(getattr(torch, dtype)).eps
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    for (there, _), (here, _) in zip(make(device="cuda", output=output), make(output=output), strict=True):
        assert there.dtype == here.dtype == getattr(torch, dtype)
        assert there.is_contiguous(memory_format=memory_format) and here.is_contiguous(memory_format=memory_format)
        difference = (there.cpu().double() - here.double()).abs()
        # Where both terms cancel, what is rounded is their size in float32.
        assert (difference <= here.double().abs() * step + 4 * torch.finfo(torch.float32).eps).all()


def test_next_is_refused_while_a_graph_is_captured(make) -> None:
    for options in ({"device": "cuda"}, {"pin_memory": True}):
        torch.cuda.init()
        iterator = iter(make(**options))
        next(iterator)
        torch.cuda.synchronize()
        numbers, graph = torch.zeros(4, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            numbers += 1
            with pytest.raises(feedline.GraphCaptureError, match="graph"):
                next(iterator)
        graph.replay()
        assert numbers.tolist() == [1] * 4


def test_leaving_early_and_resuming(make, expected) -> None:
    loader = make(device="cuda", device_prefetch=4)
    found = []
    for number, (images, labels) in enumerate(loader):
        found.append((checksums(images), labels))
        if number == 3:
            break
    resumed = make(device="cuda")
    resumed.load_state_dict(loader.state_dict())
    found += [(checksums(images), labels) for images, labels in resumed]
    check_equal(found, expected)
    again = make(device="cuda")
    peeked = again.peek()
    assert torch.equal(checksums(peeked[0]).cpu(), expected[0][0])
    check_equal([(checksums(images), labels) for images, labels in again], expected)
    assert sum(1 for _ in again) == len(expected)


def test_a_bad_sample_raises_in_its_place(load, tmp_path) -> None:
    broken = datasets.write(tmp_path, 40, damage={17: b"no picture"})
    options = {"shuffle": False, "on_error": "raise", "error_budget": 1}
    iterator = iter(load(broken.pattern, fields=FIELDS, batch_size=8, device="cuda", **options))
    rows = []
    for _ in range(5):
        try:
            rows.append(len(next(iterator)[0]))
        except feedline.SampleError as error:
            assert "photo00017" in str(error)
            rows.append(None)
    assert rows == [8, 8, None, 8, 8]


def test_fields_of_every_form(load, dataset) -> None:
    fields = {**FIELDS, "text": feedline.Text("cls"), "raw": feedline.Bytes("cls")}
    for batch in load(fields=fields, batch_size=50, device="cuda", shuffle=False):
        assert batch["image"].is_cuda and isinstance(batch["text"], list)
        assert [int(text) for text in batch["text"]] == batch["label"].tolist()


@pytest.mark.parametrize(
    "ending", ["", "del loader", "loader.close(); del batch", "del batch; loader.close()", "sys.modules.clear()", "os._exit(0)"]
)
@pytest.mark.parametrize("options", ['device="cuda"', "pin_memory=True"])
def test_ends_in_every_order(script, dataset, ending: str, options: str) -> None:
    code = f"""
import torch
torch.cuda.init()
loader = load(sys.argv[1], {options})
iterator = iter(loader)
next(iterator)
torch.cuda._sleep({LONG})
batch = next(iterator).to("cuda", non_blocking=True)
{ending}
"""
    assert script(code, dataset.pattern, env={"FEEDLINE_TENSORS": "torch"}).finish()[1] == ""


def test_a_forked_child_is_refused_by_name(script, dataset) -> None:
    code = """
import torch
torch.cuda.init()
iterator = iter(load(sys.argv[1], device="cuda"))
next(iterator)
child = os.fork()
if not child:
    try: next(iterator)
    except feedline.ForkedError: os._exit(3)
    os._exit(4)
say("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), sum(1 for _ in iterator))
"""
    assert script(code, dataset.pattern, env={"FEEDLINE_TENSORS": "torch"}).finish()[0] == [["child", 3, 12]]


def test_memory_does_not_grow(make) -> None:
    loader = make(device="cuda")
    peaks = []
    for _ in range(4):
        for images, _ in loader:
            checksums(images)
        torch.cuda.synchronize()
        gc.collect()
        peaks.append(torch.cuda.max_memory_reserved())
    assert peaks[3] == peaks[1]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two GPUs")
@pytest.mark.parametrize("visible", ["0,1", "1,0", "uuids"])
def test_no_context_on_another_gpu(script, dataset, visible: str) -> None:
    code = """
import torch
torch.cuda.set_device(1)
places = {images.device.index for images, _ in load(sys.argv[1], device="cuda")}
say(sorted(places), torch._C._cuda_hasPrimaryContext(0), torch._C._cuda_hasPrimaryContext(1))
"""
    if visible == "uuids":
        visible = ",".join(f"GPU-{torch.cuda.get_device_properties(number).uuid}" for number in (1, 0))
    env = {"FEEDLINE_TENSORS": "torch", "CUDA_VISIBLE_DEVICES": visible}
    assert script(code, dataset.pattern, env=env).finish()[0] == [[[1], False, True]]
