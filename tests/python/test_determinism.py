"""Same seed, same bytes: whatever the number of workers, the reader, the ranks, or a restart of the sidecar."""

from __future__ import annotations

import hashlib

import pytest

import feedline

torch = pytest.importorskip("torch")


def batches_of(loader, epochs: int = 2) -> list[str]:
    digests = []
    for _ in range(epochs):
        for batch in loader:
            words = repr((batch.epoch, batch.position, batch.sample_keys, batch["label"].tolist()))
            pixels = batch["image"].permute(0, 2, 3, 1).contiguous().numpy().tobytes()
            digests.append(hashlib.sha256(words.encode() + pixels).hexdigest())
    return digests


@pytest.fixture
def expected(load) -> list[str]:
    return batches_of(load())


@pytest.mark.parametrize(
    "options",
    [
        ("--workers", "1"),
        ("--workers", "2"),
        ("--workers", "4"),
        ("--workers", "2", "--reader", "pread"),
        ("--workers", "2", "--reader", "uring"),
    ],
    ids=" ".join,
)
def test_workers_and_readers(load, serve, expected, options) -> None:
    if "uring" in options and "io_uring" not in load()._known()["reader"].split(";")[0]:
        pytest.skip(f"io_uring does not work here: {load()._known()['reader']}")
    loader = load(sidecar=serve(*options).socket)
    assert batches_of(loader) == expected
    assert loader._known()["workers"] == int(options[1])


def test_a_restart_of_the_sidecar(load, serve, expected) -> None:
    first = serve("--workers", "2")
    loader = load(sidecar=first.socket)
    digests = batches_of(loader, epochs=1)
    first.kill()
    second = serve("--workers", "1")
    other = load(sidecar=second.socket)
    other.load_state_dict(loader.state_dict())
    assert digests + batches_of(other, epochs=1) == expected


def test_ranks_cut_one_global_order(load) -> None:
    whole = [batch.sample_keys for batch in load(batch_size=12, drop_last=True)]
    for world_size in (2, 3, 4):
        ranks = [
            list(load(batch_size=12 // world_size, drop_last=True, rank=rank, world_size=world_size))
            for rank in range(world_size)
        ]
        assert [sorted(sum((batch.sample_keys for batch in step), [])) for step in zip(*ranks, strict=True)] == [
            sorted(keys) for keys in whole
        ]


def test_a_sample_s_pixels_do_not_depend_on_its_batch(load) -> None:
    def pixels(**options):
        return {
            key: image
            for batch in load(**options)
            for key, image in zip(batch.sample_keys, batch["image"].clone(), strict=True)
        }

    expected = pixels()
    for options in ({"batch_size": 30}, {"batch_size": 1, "tail": "drop"}, {"shuffle": False}):
        got = pixels(**options)
        assert set(got) == set(expected)
        assert all(torch.equal(got[key], expected[key]) for key in got)


def test_flips_and_crops_are_drawn(load) -> None:
    loader = load(fields={"image": feedline.Image("jpg", feedline.RandomResizedCrop(16))}, shuffle=False)
    first, second = ([batch["image"].clone() for batch in loader] for _ in range(2))
    assert not any(torch.equal(one, two) for one, two in zip(first, second, strict=True))
