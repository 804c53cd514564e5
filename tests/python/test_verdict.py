"""`feedline verdict` and `feedline record`: made-up recordings in the format of real ones, and a driver that is pretended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

COMMAND = [sys.executable, "-m", "feedline"]
NAN = float("nan")

#: Per case: share of 0.1 s steps that was waited for, NVML's utilisation and memory duty cycle, watts, GPM's graphics, SM and memory
#: bandwidth, MiB/s received; class and starved share that follow.
CASES = {
    "fed": (0.0, 97, 58, 580, 97.0, 88.0, 45.0, 52.0, "compute-bound", 0.0),
    "memory": (0.0, 99, 99, 590, 99.0, 97.0, 87.0, 32.0, "memory-bound", 0.0),
    "waiting": (0.5, 50, 29, 340, 48.0, 43.0, 22.0, 26.0, "starved", 0.5),
    "launches": (0.0, 22, 0, 125, 22.0, 0.03, 0.0, 180.0, "launch-bound", 0.0),
    "spinning": (0.0, 100, 0, 124, 99.5, 0.75, 0.0, 1.0, "fake-busy", 0.0),
    "gaps": (0.0, 50, 29, 340, 48.0, 43.0, 22.0, 26.0, "sync-bound", 0.0),
    "idle": (0.99, 0, 0, 124, 0.006, 0.0, 0.0, 1.0, "idle", 0.99),
}


def lines(path: Path, records: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def samples(case: str) -> list[dict[str, Any]]:
    """Ten seconds, of which the first two are idle; every other sample's counters are void, as a hasty reader's are."""
    _, util, memory, watts, graphics, sm, dram, received, _, _ = CASES[case]
    void = {"graphics_util": 0.0, "sm_util": 0.0, "dram_bw_util": NAN, "pcie_rx_mib_s": 0.0, "pcie_tx_mib_s": 0.0}
    found = []
    for at in range(1, 100):
        idle = at < 20
        gpm = {"graphics_util": graphics, "sm_util": sm, "dram_bw_util": dram, "pcie_rx_mib_s": received, "pcie_tx_mib_s": 2.0}
        if idle:
            gpm |= {"graphics_util": 0.006, "sm_util": 0.0, "dram_bw_util": 0.0}
        found.append({
            "t": at / 10, "gpu_util": 0 if idle else util, "mem_util": 0 if idle else memory, "power_mw": 124000 if idle else watts * 1000,
            "sm_mhz": 1980, "clock_reasons": 0, "temp_c": 50, "gpm": gpm if at % 2 else void,
        })
    return found


def steps(case: str) -> list[dict[str, Any]]:
    wait = CASES[case][0]
    return [{"t": 2 + at / 10, "wait_s": wait / 10, "h2d_s": 0, "step_s": 0.1} for at in range(1, 79)]


def verdict(*arguments: str) -> dict[str, Any]:
    done = subprocess.run([*COMMAND, "verdict", *arguments, "--json"], capture_output=True, text=True, timeout=60, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.parametrize("case", CASES)
def test_recordings_have_their_class_and_share(tmp_path: Path, case: str) -> None:
    nvml, step = lines(tmp_path / "nvml", samples(case)), lines(tmp_path / "steps", steps(case))
    (gpu,) = verdict("--nvml", nvml, "--steps", step)["gpus"]
    *_, expected, share = CASES[case]
    for found in [gpu["overall"], *gpu["windows"]]:
        assert found["class"] == expected, found["words"]
        assert found["starved_share"] == pytest.approx(share, abs=0.05)
    assert len(gpu["windows"]) == 2


def test_either_file_may_be_missing(tmp_path: Path) -> None:
    nvml, step = lines(tmp_path / "nvml", samples("waiting")), lines(tmp_path / "steps", steps("waiting"))
    (gpu,) = verdict("--nvml", nvml)["gpus"]
    assert (gpu["overall"]["class"], gpu["overall"]["rests_on"]) == ("underused", "the GPU's side only")
    assert gpu["overall"]["starved_share"] is None
    assert gpu["overall"]["starved_share_max"] == pytest.approx(0.52, abs=0.01)
    (gpu,) = verdict("--steps", step)["gpus"]
    assert (gpu["overall"]["class"], gpu["overall"]["rests_on"]) == ("starved", "the loader's side only")
    assert gpu["overall"]["starved_share"] == pytest.approx(0.5, abs=0.01)
    refused = subprocess.run([*COMMAND, "verdict"], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert "--nvml" in refused.stderr


def test_words_say_class_share_cause_evidence_and_confidence(tmp_path: Path) -> None:
    recorded = [step | {"waiting_s": {"decode": 0.05}, "workers": 10} for step in steps("waiting")]
    nvml, step = lines(tmp_path / "nvml", samples("waiting")), lines(tmp_path / "steps", recorded)
    done = subprocess.run([*COMMAND, "verdict", "--nvml", nvml, "--steps", step], capture_output=True, text=True, timeout=60, check=True)
    for words in [
        "waiting on decode; starved 50.0 %; confidence high", "1.00 of computing: held back, above 0.8",
        "10 more cores or `feedline convert --optimize`", "utilisation 50.0 %, SM activity 43.0 %", "up to 2.00 times as fast",
    ]:
        assert words in done.stdout, done.stdout


def test_several_gpus_and_their_names(tmp_path: Path) -> None:
    both = [{**sample, "uuid": "GPU-aaaa1111"} for sample in samples("fed")]
    both += [{**sample, "uuid": "GPU-bbbb2222"} for sample in samples("spinning")]
    nvml = lines(tmp_path / "nvml", both)
    assert [(gpu["uuid"], gpu["overall"]["class"]) for gpu in verdict("--nvml", nvml)["gpus"]] == [
        ("GPU-aaaa1111", "compute-bound"), ("GPU-bbbb2222", "fake-busy"),
    ]
    (one,) = verdict("--nvml", nvml, "--gpu", "bbbb2222")["gpus"]
    assert one["uuid"] == "GPU-bbbb2222"
    refused = subprocess.run([*COMMAND, "verdict", "--nvml", nvml, "--gpu", "1"], capture_output=True, text=True, timeout=60)
    assert (refused.returncode, "number GPUs differently" in refused.stderr) == (2, True)


def test_damage_is_told(tmp_path: Path) -> None:
    nvml = Path(lines(tmp_path / "nvml", samples("fed")))
    nvml.write_text(nvml.read_text() + '{"t": 10, "gpu_u')
    report = verdict("--nvml", str(nvml))
    assert report["gpus"][0]["overall"]["class"] == "compute-bound"
    assert "1 line skipped, the first is line 100" in report["notices"][0]
    nvml.write_text("time,util\n1,2\n")
    refused = subprocess.run([*COMMAND, "verdict", "--nvml", str(nvml)], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1
    assert "2 of 2 lines are no sample of a GPU" in refused.stderr


@pytest.fixture
def driver(tmp_path: Path) -> dict[str, str]:
    """An environment in which NVML is `nvml_stub.c`."""
    folder = tmp_path / "driver"
    folder.mkdir()
    source = Path(__file__).parents[1] / "tests" / "nvml_stub.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(source)], check=True)
    return {**os.environ, "LD_LIBRARY_PATH": str(folder), "DRIVER": str(folder)}


def record(env: dict[str, str], out: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [*COMMAND, "record", "--out", str(out), "--interval", "50", *arguments]
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)


def test_what_is_recorded_is_judged(tmp_path: Path, driver: dict[str, str]) -> None:
    out = tmp_path / "out"
    process = record(driver, out, "--seconds", "3", "--gpu", "3b:00.0")
    time.sleep(1.5)
    new = Path(driver["DRIVER"], "new")
    new.write_text("lost=1\n")
    new.rename(Path(driver["DRIVER"], "settings"))
    _, words = process.communicate(timeout=60)
    assert process.returncode == 0, words
    assert "gpu-lost" in words
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(found) > 20
    assert all("t" in sample and sample["uuid"].startswith("GPU-8932") for sample in found)
    assert found[10]["power_limit_mw"] == 700000
    assert found[-1]["error"]["kind"] == "gpu-lost"
    (gpu,) = verdict("--nvml", str(out), "--window", "1")["gpus"]
    assert [gpu["windows"][0]["class"], gpu["windows"][-1]["class"]] == ["compute-bound", "gpu-lost"]
    assert gpu["overall"]["class"] == "gpu-lost"


def test_recording_ends_with_the_process_or_an_interrupt(tmp_path: Path, driver: dict[str, str]) -> None:
    watched = subprocess.Popen(["sleep", "1"])
    with record(driver, tmp_path / "watched", "--pid", str(watched.pid)) as process:
        # It is not asked after yet, so its number is still taken.
        assert process.wait(timeout=30) == 0
    watched.wait()
    out = tmp_path / "interrupted"
    with record(driver, out) as process:
        deadline = time.monotonic() + 30
        while not out.exists() or not out.read_text().endswith("\n"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
    assert all(json.loads(line) for line in out.read_text().splitlines())
    with record(driver, tmp_path / "none", "--pid", str(watched.pid)) as refused:
        assert (refused.wait(timeout=30), (tmp_path / "none").exists()) == (2, False)


def test_without_a_driver_recording_says_so_and_the_loaders_side_stands(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = record({**os.environ, "LD_LIBRARY_PATH": "/nowhere"}, out, "--seconds", "1")
    _, words = process.communicate(timeout=60)
    if json.loads(out.read_text().splitlines()[0]).get("error") is None:
        pytest.skip("there is a GPU here")
    assert "no-library" in words or "no-driver" in words
    recorded = [{**step, "t": step["t"] - 2} for step in steps("waiting")]
    (gpu,) = verdict("--nvml", str(out), "--steps", lines(tmp_path / "steps", recorded))["gpus"]
    assert (gpu["overall"]["class"], gpu["overall"]["rests_on"]) == ("starved", "the loader's side only")
