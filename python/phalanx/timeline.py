"""Records what the engine does, as a file for Perfetto or Chrome."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from phalanx import _phalanx


def start_timeline(file_path: str | PathLike[str], mark_cycles: bool = False) -> None:
    """Starts to write a timeline to this file; ranks other than 0 add their number to its name."""
    path, rank = Path(file_path), _phalanx.place()[0]
    if rank != 0:
        path = path.with_name(f"{path.stem}.rank{rank}{path.suffix}")
    _phalanx.start_timeline(path, mark_cycles)


def stop_timeline() -> None:
    """Ends the timeline and completes the file."""
    _phalanx.stop_timeline()


__all__ = ["start_timeline", "stop_timeline"]
