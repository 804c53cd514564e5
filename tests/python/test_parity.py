"""The command ``feedline parity``, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys

import datasets
import pytest

pytest.importorskip("torchvision")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "feedline", "parity", *arguments], capture_output=True, text=True, timeout=300)


def test_every_bound_holds_on_generated_photos(tmp_path) -> None:
    for number in range(6):
        (tmp_path / f"{number}.jpg").write_bytes(datasets.photo(number, 200 + 30 * number, 260))
    (tmp_path / "bad.jpg").write_bytes(b"\xff\xd8 no picture")
    done = run(str(tmp_path), "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0 and report["ok"], done.stdout + done.stderr
    assert report["images"] == 7 and "bad.jpg" in report["left_out"][0]
    assert len(report["rows"]) == 23
    assert {row["reference"] for row in report["rows"]} == {"Pillow", "torchvision"}
    words = run(str(tmp_path / "1.jpg"), str(tmp_path / "bad.jpg"))
    assert words.returncode == 0
    assert "boxes, RandomResizedCrop(224), flip" in words.stdout
    assert "1 images" in words.stdout and "RandomRotation(degrees=30" in words.stdout and "left out" in words.stdout


def test_a_bound_that_does_not_hold_is_told(monkeypatch, capsys, tmp_path) -> None:
    from feedline.parity import command, reference

    (tmp_path / "1.jpg").write_bytes(datasets.photo(1, 200, 260))
    invert = reference.by_torchvision
    monkeypatch.setattr(reference, "by_torchvision", lambda name, *rest: 255 - invert(name, *rest) if name == "invert" else invert(name, *rest))
    assert command.main([str(tmp_path / "1.jpg")]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "RandomInvert" in line]
    assert line.endswith("NO")


def test_nothing_to_compare_is_an_error(tmp_path) -> None:
    done = run(str(tmp_path))
    assert done.returncode == 2 and "no JPEG, PNG or WebP file" in done.stderr
