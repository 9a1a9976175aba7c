"""Where in the user's script something is asked for."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

_HERE = str(Path(__file__).parent)


def caller() -> tuple[str, int]:
    """File and line of the innermost call that does not lie in this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return ("<unknown>", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
