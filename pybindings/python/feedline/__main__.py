"""``python -m feedline``, and the console script ``feedline``: the command, which the native module carries, and
``feedline parity``, whose references are Python packages."""

from __future__ import annotations

import signal
import sys

from . import _native


def main() -> int:
    """Runs the command with this process's arguments and returns its exit status."""
    if sys.argv[1:2] == ["parity"]:
        from .parity.command import main as parity

        return parity(sys.argv[2:])
    # Python's own handler only sets a flag that nobody would look at while the command runs.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.main(["feedline", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
