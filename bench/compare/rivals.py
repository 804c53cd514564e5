"""Rivals that need packages of their own: each gets an environment beside this one, made when it is first asked for.

An environment sees the packages of the one that runs the comparison (torch above all), so that both sides share them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import venv
from functools import cache
from pathlib import Path

#: What a contender's script needs beyond torch; DALI wants these versions of its helpers exactly.
PACKAGES = {
    "contender_dali.py": ["nvidia-dali-cuda120"],
    "contender_turboloader.py": ["turboloader"],
}

FOLDER = Path(sys.prefix) / "rivals"


@cache
def python(script: str) -> str:
    """The interpreter that runs a contender's script."""
    if script not in PACKAGES:
        return sys.executable
    folder = FOLDER / Path(script).stem
    interpreter = folder / "bin" / "python"
    if not (folder / "complete").exists():
        print(f"installing {', '.join(PACKAGES[script])} into {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        # Before the install, so that what is there already is not fetched a second time.
        packages = next((folder / "lib").glob("python*")) / "site-packages"
        (packages / "base.pth").write_text(sysconfig.get_path("purelib") + "\n")
        subprocess.run([interpreter, "-m", "pip", "install", "-q", *PACKAGES[script]], check=True)
        (folder / "complete").touch()
    return str(interpreter)


def versions() -> dict[str, str]:
    """The versions of the rivals that are installed."""
    found = {}
    for script, packages in PACKAGES.items():
        if (FOLDER / Path(script).stem / "complete").exists():
            command = [python(script), "-m", "pip", "list", "--format", "json"]
            listed = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            found |= {entry["name"]: entry["version"] for entry in listed if entry["name"] in packages}
    return found
