"""Tables of labels beside a dataset."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from test_folder import write_image

import feedline


def test_a_table_gives_labels_by_key(
    tmp_path: Path, load: Callable[..., feedline.Loader], caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(6):
        write_image(tmp_path / "images" / f"{number}.png", number)
    table = tmp_path / "labels.csv"
    table.write_text("file,age,score\n" + "".join(f"{number}.png,{20 + number},{number}.5\n" for number in (5, 4, 3, 2, 1, 0, 9)))
    fields = {"age": feedline.Int("age"), "score": feedline.Float("score")}

    def rows(**options: object) -> dict[str, tuple[int, float]]:
        loader = load(str(tmp_path / "images"), fields=fields, batch_size=4, **{"labels": table, **options})
        return {
            key: (int(age), float(score))
            for batch in loader
            for key, age, score in zip(batch.sample_keys, *batch, strict=True)
        }

    with caplog.at_level(logging.INFO, logger="feedline"):
        assert rows() == {str(number): (20 + number, number + 0.5) for number in range(6)}
    assert "1 of 7 rows have no sample" in caplog.text
    # A table that changes is read again, and a sample without a row is a bad sample.
    table.write_text("age,score,file\n1,2,0\n3,4,1\n")
    with pytest.raises(feedline.SampleError, match="none of: age"):
        rows(labels=(table, "file"), shuffle=False)
    table.write_text("age,score,file\n1,2,0\nold,4,1\n")
    with pytest.raises(feedline.SampleError, match=r'key "1", field "age".*bad-value.*in the table .*csv'):
        rows(labels=(table, "file"), shuffle=False)
    with pytest.raises(FileNotFoundError, match="labels="):
        rows(labels=tmp_path / "none.csv")
    with pytest.raises(ValueError, match="no column 'key'|no column \"key\""):
        rows(labels=(table, "key"))
