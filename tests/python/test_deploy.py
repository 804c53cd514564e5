"""What is shipped in tools/deploy: it parses, names options that there are, and says the truth about memory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from service import COMMAND, status
from test_memory_group import MemoryGroup

import feedline

DEPLOY = Path(__file__).parent.parent.parent / "tools" / "deploy"


def options() -> set[str]:
    """The long options of ``feedline serve`` and ``feedline status``."""
    helps = [
        subprocess.run([*COMMAND, name, "--help"], capture_output=True, text=True, check=True).stdout
        for name in ("serve", "status")
    ]
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", "".join(helps)))


def test_units_are_sound(tmp_path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    # What is executed must be there, and need not be ours for this.
    for name in ("feedline.service", "feedline.socket"):
        text = (DEPLOY / name).read_text()
        (tmp_path / name).write_text(text.replace("/usr/local/bin/feedline", "/bin/true"))
    command = ["systemd-analyze", "verify", *map(str, sorted(tmp_path.iterdir()))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # Everything else that it says is of other units of this machine.
    assert str(tmp_path) not in done.stderr


def test_manifests_parse_and_share_only_a_socket_folder() -> None:
    yaml = pytest.importorskip("yaml")
    daemon = yaml.safe_load((DEPLOY / "kubernetes/daemonset.yaml").read_text())
    pod = yaml.safe_load((DEPLOY / "kubernetes/pod-sidecar.yaml").read_text())
    assert (daemon["kind"], pod["kind"]) == ("DaemonSet", "Pod")
    template = daemon["spec"]["template"]
    assert daemon["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    for spec in (template["spec"], pod["spec"]):
        assert not spec.keys() & {"hostIPC", "hostPID", "hostNetwork", "shareProcessNamespace"}
        volumes = {volume["name"] for volume in spec["volumes"]}
        containers = [*spec.get("initContainers", []), *spec["containers"]]
        for container in containers:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            assert "memory" in container["resources"]["limits"]
        # Readable by both and written by none, beside the socket.
        writable = [mount["name"] for container in containers for mount in container["volumeMounts"] if not mount.get("readOnly")]
        assert set(writable) <= {"socket", "cache"}
        sidecar = containers[0]
        words = [*sidecar["command"], *sidecar["args"]]
        assert words[:2] == ["feedline", "serve"]
        (socket,) = [word.partition("=")[2] for word in words if word.startswith("--socket=")]
        assert any(socket.startswith(mount["mountPath"]) for mount in sidecar["volumeMounts"])
        known = options()
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known
        drain = next((int(word.partition("=")[2]) for word in words if word.startswith("--drain-timeout=")), 30)
        assert spec["terminationGracePeriodSeconds"] > drain
    trainer = pod["spec"]["containers"][0]
    assert {"name": "FEEDLINE_SOCKET", "value": "/run/feedline/feedline.sock"} in trainer["env"]


def test_scripts_and_units_name_options_that_there_are() -> None:
    known = options()
    for name in ("slurm.sbatch", "feedline.service", "README.md"):
        text = (DEPLOY / name).read_text().replace("\\\n", " ")
        for line in re.findall(r"feedline (?:serve|status)[^\n&]*", text):
            assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", line)) <= known, line
    script = str(DEPLOY / "slurm.sbatch")
    subprocess.run(["bash", "-n", script], check=True)
    if shutil.which("shellcheck") is not None:
        subprocess.run(["shellcheck", script], check=True)


def test_the_guide_names_what_is_there_and_is_short() -> None:
    text = (DEPLOY / "README.md").read_text()
    assert len(text.splitlines()) <= 80
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert (DEPLOY / link).is_file(), link


@pytest.fixture
def group():
    with MemoryGroup() as made:
        yield made


#: 8 slots of 8 rows of 3 x 512 x 512 bytes are 48 MiB.
RING = {"image": feedline.Image(["jpg"], feedline.Resize((512, 512))), "label": feedline.Int("cls")}


def test_rings_count_against_the_sidecar(group, serve, load) -> None:
    server = serve("--workers", "1")
    group.add(server.process.pid)
    before = group.used()
    loader = load(sidecar=server.socket, fields=RING)
    loader.peek()
    ring_bytes = status(server.socket)["memory"]["ring_bytes"]
    assert ring_bytes >= 48 << 20
    assert group.used() - before >= ring_bytes
    # The test's process lets go first, so that the group is empty when it is taken down.
    loader.close()
    server.kill()


def test_rings_do_not_count_against_the_trainer(group, serve, script, dataset) -> None:
    server = serve("--workers", "1")
    code = """
FIELDS["image"] = feedline.Image(["jpg"], feedline.Resize((512, 512)))
sys.stdin.readline()
held, total = [], 0
for batch in load(sys.argv[1], sidecar=sys.argv[2]):
    total += int(batch["image"][:, ::64, ::64].sum())
    held = [*held[-4:], batch]
say(total)
sys.stdin.readline()
"""
    trainer = script(code, dataset.pattern, server.socket, stdin=True)
    group.add(trainer.process.pid)
    before = group.used()

    def go() -> None:
        assert trainer.process.stdin is not None
        trainer.process.stdin.write(b"\n")
        trainer.process.stdin.flush()

    go()
    assert trainer.hear()[0] > 0, "it has read pages of every slot"
    assert group.used() - before < 24 << 20, "half of the ring that it maps"
    go()
    trainer.finish()
    assert os.path.exists(server.socket)
