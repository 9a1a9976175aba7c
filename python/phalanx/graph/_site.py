"""The line of the user's script that called this package."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

_HERE = str(Path(__file__).parent)


def caller() -> tuple[str, int]:
    """File and line of the innermost call outside of this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return ("<unknown>", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
