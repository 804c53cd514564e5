"""Which epoch an iteration delivers: the rule, without a sidecar."""

from __future__ import annotations

import pytest

from feedline.epochs import Epochs


def iterate(epochs: Epochs, batches: int, total: int = 5, ends: bool = False) -> tuple[int, int]:
    """Takes `batches` of `total` batches of 10 samples, and leaves; `ends` asks for one more."""
    run = epochs.begin()
    began = (run.epoch, run.start)
    for _ in range(batches):
        end = run.position + 10
        run.take(end, end >= 10 * total, (end, 1))
    run.is_complete |= ends
    run.is_live = False
    return began


@pytest.mark.parametrize(
    ("batches", "ends", "following"),
    [
        (5, True, 1),
        (5, False, 1),  # Every batch was taken, though nobody asked for one more.
        (0, False, 0),
        (1, False, 0),
        (2, False, 1),
        (4, False, 1),
    ],
)
def test_an_epoch_counts_after_more_than_its_first_batch(batches, ends, following) -> None:
    epochs = Epochs()
    assert iterate(epochs, batches, ends=ends) == (0, 0)
    assert epochs.upcoming() == (following, 0)
    assert iterate(epochs, 3) == (following, 0)


def test_an_epoch_of_one_batch_counts() -> None:
    epochs = Epochs()
    iterate(epochs, 1, total=1)
    assert epochs.upcoming() == (1, 0)


def test_two_iterations_at_once_are_of_one_epoch() -> None:
    epochs = Epochs()
    assert [epochs.begin().epoch for _ in range(2)] == [0, 0]


def test_an_iteration_begun_while_another_is_under_way_goes_on() -> None:
    epochs = Epochs()
    run = epochs.begin()
    for end in (10, 20, 30):
        run.take(end, False, (end, 1))
    assert epochs.begin().epoch == 1


def test_set_epoch_overrides() -> None:
    epochs = Epochs()
    iterate(epochs, 5, ends=True)
    epochs.set_epoch(7)
    assert iterate(epochs, 5, ends=True) == (7, 0)
    assert epochs.upcoming() == (8, 0)
    epochs.set_epoch(7)
    assert iterate(epochs, 1) == (7, 0)


def test_a_restored_position_survives_set_epoch_of_its_epoch() -> None:
    epochs = Epochs()
    epochs.restore(3, 20, (0, 0))
    epochs.set_epoch(3)
    assert iterate(epochs, 1) == (3, 20)
    assert epochs.upcoming() == (3, 20)
    assert iterate(epochs, 3) == (3, 20)
    assert epochs.upcoming() == (4, 0)
    epochs.restore(3, 20, (0, 0))
    epochs.set_epoch(4)
    assert epochs.upcoming() == (4, 0)


def test_the_state_is_what_was_consumed() -> None:
    epochs = Epochs()
    assert epochs.state() == (0, 0)
    run = epochs.begin()
    assert epochs.state() == (0, 0)
    run.take(10, False, (10, 1))
    assert epochs.state() == (0, 10)
    run.is_live = False
    assert epochs.state() == (0, 0), "a look at the first batch consumes nothing"
    iterate(epochs, 3)
    assert epochs.state() == (0, 30)
    iterate(epochs, 5, ends=True)
    assert epochs.state() == (2, 0)


def test_the_trace_is_of_what_the_state_accounts_for() -> None:
    epochs = Epochs()
    run = epochs.begin()
    run.take(10, False, (5, 1))
    assert epochs.trace() == (5, 1)
    assert epochs.counted() == (0, 0)
    run.is_live = False
    assert epochs.trace() == (0, 0), "a look at the first batch consumes nothing"
    iterate(epochs, 3)
    assert epochs.trace() == (60, 3)
    epochs.restore(3, 20, (2**64 - 1, 7))
    run.take(20, False, (9, 9))  # Of before the restored state.
    assert epochs.trace() == (2**64 - 1, 7)
    iterate(epochs, 5, ends=True)
    assert epochs.trace() == (30 + 40 + 50 + 60 + 70 - 1, 7 + 5), "lanes wrap"
    epochs.restore(0, 0, None)
    iterate(epochs, 5)
    assert epochs.trace() is None


@pytest.mark.parametrize("batches", [0, 1, 2])
def test_a_batch_before_an_error_counts(batches: int) -> None:
    epochs = Epochs()
    run = epochs.begin()
    for batch in range(batches):
        run.take(2 * (batch + 1), False, (1, 0))
    run.fail()
    run.is_live = False
    assert epochs.state() == (0, 2 * batches)
    assert epochs.trace() == (batches, 0)
