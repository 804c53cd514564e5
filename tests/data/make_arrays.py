"""Writes the archives of `arrays/`: two arrays by NumPy, once compressed, once stored.

    python tests/data/make_arrays.py
"""

from __future__ import annotations

from pathlib import Path

import numpy

FOLDER = Path(__file__).parent / "arrays"

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    arrays = {"x": numpy.arange(40, dtype="int32"), "y": numpy.zeros(3)}
    numpy.savez_compressed(FOLDER / "compressed.npz", **arrays)
    numpy.savez(FOLDER / "stored.npz", **arrays)
