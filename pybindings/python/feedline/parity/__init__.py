"""``feedline parity``: Feedline's transforms beside Pillow's and torchvision's, on the same parameters, on one's own images.

`reference` holds what others make of drawn parameters, and the bounds; the project's own tests use it too. `command` runs
it on files and prints the table.
"""

from __future__ import annotations
